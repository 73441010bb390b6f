"""What do rewards teach? PPO and GRPO on the race, paid in each of its ways, judged by the finish.

The table has the means over seeds of what each trained policy does by its most probable moves; the picture, the ways
of the first seed of PPO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import vecenv
from vecenv.benchmarks.result_files import StudyConfig
from vecenv.learn.evaluation import PolicyAgent
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.learn.grpo import GRPOConfig
from vecenv.learn.ppo import PPOConfig
from vecenv.system.settings import Count
from vecenv.tasks.games.race.scenario import TRACK

PAID = ("strict", "partial", "potential", "gate")
ROWS = 256


@dataclass(frozen=True)
class RaceRewardsConfig(StudyConfig):
    """Train PPO and GRPO on the race by each of its rewards, and see where they drive."""

    num_seeds: Count = 3
    """Number of runs of each learner on each reward."""
    total_frames: Count = 500_000
    """Steps of a run."""


def main(config: RaceRewardsConfig) -> dict[str, Any]:
    torch.set_num_threads(1)
    runs: list[dict[str, Any]] = []
    for seed in range(config.num_seeds):
        for paid in PAID:
            for learner in ("ppo", "grpo"):
                runs.append({"learner": learner, "paid": paid, "seed": seed, **_run(config, learner, paid, seed)})
                print({name: value for name, value in runs[-1].items() if name != "way"}, flush=True)
    if config.output is not None:
        config.output.mkdir(parents=True, exist_ok=True)
        _picture({paid: _first(runs, paid)["way"] for paid in PAID}).savefig(
            config.output / "race-rewards.png", dpi=110
        )
    return config.written("race-rewards", _page, runs=runs)


def _first(runs: Sequence[Mapping[str, Any]], paid: str) -> Mapping[str, Any]:
    return next(run for run in runs if run["paid"] == paid and run["learner"] == "ppo")


def _run(config: RaceRewardsConfig, learner: str, paid: str, seed: int) -> dict[str, Any]:
    env = vecenv.make("race", ROWS, seed=seed, compile=False, paid=paid)
    common: dict[str, Any] = {
        "total_frames": config.total_frames,
        "hidden": (64,),
        "learning_rate": 3e-3,
    }
    if learner == "ppo":
        trained = vecenv.train(env, PPOConfig(num_steps=30, minibatches=4, gamma=0.99, entropy_coef=0.01, **common))
    else:
        whole = EpisodeReward(grade=0.0, steps=1.0)
        trained = vecenv.train(env, GRPOConfig(reward=whole, minibatches=4, **common), group_size=32)
    test = vecenv.make("race", ROWS, seed=1, compile=False, paid=paid)
    agent, cells = PolicyAgent(trained.policy()), [test.state.cell.clone()]
    while not bool(test.rows.done.all()):
        test.advance(agent.act(test))
        cells.append(test.state.cell.clone())
    info = test.engine.bound().info(test.rows)
    told = {name: float(info[name].double().mean()) for name in ("success", "moves", "invalid")}
    told["earned"] = float(info["paid"].double().mean())
    # From the first corner.
    row = int((cells[0] == 0).nonzero()[0])
    way = torch.stack(cells)[: int(info["moves"][row]) + 1, row].tolist()
    return {**told, "way": way}


def _page(result: Mapping[str, Any]) -> str:
    lines = ["| paid | learner | finishes | moves | paid an episode |", "|---|---|---:|---:|---:|"]
    for paid in PAID:
        for learner in ("ppo", "grpo"):
            runs = [run for run in result["runs"] if run["paid"] == paid and run["learner"] == learner]
            finish, moves, earned = (
                sum(run[name] for run in runs) / len(runs) for name in ("success", "moves", "paid")
            )
            lines.append(f"| `{paid}` | {learner.upper()} | {finish:.0%} | {moves:.0f} | {earned:.2f} |")
    return "\n".join(lines) + "\n"


def _picture(ways: Mapping[str, Sequence[int]]) -> Any:  # noqa: ANN401
    from matplotlib.figure import Figure

    width = len(TRACK[0])
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (paid, way) in zip(figure.subplots(2, 2).flat, ways.items(), strict=True):
        for place, kind in enumerate("".join(TRACK)):
            axes.text(place % width, place // width, {"O": "oil", "F": "finish"}.get(kind, ""), ha="center")
        # Beside each other, so that a way driven twice is seen.
        drift = torch.linspace(-0.25, 0.25, len(way)).tolist()
        across = [cell % width + by for cell, by in zip(way, drift, strict=True)]
        down = [cell // width + by for cell, by in zip(way, drift, strict=True)]
        axes.plot(across, down, color="#D55E00", linewidth=1.2, marker=".", markersize=4)
        axes.set(xlim=(-0.5, width - 0.5), ylim=(len(TRACK) - 0.5, -0.5), title=f"paid: {paid}, {len(way) - 1} moves")
        axes.set_xticks([x + 0.5 for x in range(width)], []), axes.set_yticks([y + 0.5 for y in range(len(TRACK))], [])
        axes.grid(color="#8a8f98", linewidth=0.4)
    return figure
