"""What do rewards teach? PPO and GRPO on the race, paid in each of its ways, judged by the finish.

The table has the means over seeds of what each trained policy does by its most probable moves, the least and the most
of them, and beside them the best policy of each reward, which no learner can surpass. The picture has the ways of the
first seed of PPO; without a seed those of the best policies.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import vecenv
from vecenv.benchmarks.result_files import StudyConfig, markdown
from vecenv.learn.evaluation import Agent, PolicyAgent
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.learn.grpo import GRPOConfig
from vecenv.learn.ppo import PPOConfig
from vecenv.learn.report import seen_in_play
from vecenv.system.figures import GREY, TRAINED, empty_figure, save
from vecenv.system.settings import Count, CountFromZero
from vecenv.tasks.games.race.agents import Planner
from vecenv.tasks.games.race.scenario import TRACK

PAID = ("strict", "partial", "potential", "gate")
LEARNERS = ("ppo", "grpo")
ROWS = 256
TEST_SEED = 1_000


@dataclass(frozen=True)
class RaceRewardsConfig(StudyConfig):
    """Train PPO and GRPO on the race by each of its rewards, and see where they drive."""

    num_seeds: CountFromZero = 3
    """Number of runs of each learner on each reward; with 0 the best policies alone are shown."""
    total_frames: Count = 150_000
    """Steps of a run."""


def main(config: RaceRewardsConfig) -> dict[str, Any]:
    torch.set_num_threads(1)
    runs = [{"learner": "best", "reward": paid, "seed": 0, **_driven(paid, Planner())} for paid in PAID]
    for seed in range(config.num_seeds):
        for paid in PAID:
            for learner in LEARNERS:
                began = time.process_time()
                found = _driven(paid, _trained(config, learner, paid, seed))
                taken = time.process_time() - began
                runs.append({"learner": learner, "reward": paid, "seed": seed, **found, "processor_seconds": taken})
                print({name: value for name, value in runs[-1].items() if name != "way"}, flush=True)
    if config.output is not None:
        config.output.mkdir(parents=True, exist_ok=True)
        shown = "ppo" if config.num_seeds else "best"
        ways = {run["reward"]: run["way"] for run in runs if (run["learner"], run["seed"]) == (shown, 0)}
        save(_picture(ways), config.output / "race-rewards.png")
    return config.written("race-rewards", _page, runs=runs)


def _trained(config: RaceRewardsConfig, learner: str, paid: str, seed: int) -> Agent:
    env = vecenv.make("race", ROWS, seed=seed, compile=False, paid=paid)
    common: dict[str, Any] = {"total_frames": config.total_frames, "hidden": (64,), "learning_rate": 3e-3, "seed": seed}
    if learner == "ppo":
        ppo = PPOConfig(num_steps=30, minibatches=4, gamma=0.99, entropy_coef=0.01, **common)
        return PolicyAgent(vecenv.train(env, ppo).policy())
    whole = EpisodeReward(grade=0.0, steps=1.0)
    return PolicyAgent(vecenv.train(env, GRPOConfig(reward=whole, minibatches=4, **common), group_size=32).policy())


def _driven(paid: str, agent: Agent) -> dict[str, Any]:
    """Return the means of the outcomes of an agent's episodes, and its way from the first corner."""
    env = vecenv.make("race", ROWS, compile=False, paid=paid)
    (cells,) = seen_in_play(env, agent, TEST_SEED, lambda _: (env.state.cell,))
    info = env.engine.bound().info(env.rows)
    told = {name: float(info[name].double().mean()) for name in ("success", "moves", "invalid", "paid")}
    row = int((cells[0] == 0).argmax())
    return {**told, "way": cells[: int(info["moves"][row]) + 1, row].tolist()}


def _page(result: Mapping[str, Any]) -> str:
    rows = []
    for paid in PAID:
        for learner in (*LEARNERS, "best"):
            if not (runs := [run for run in result["runs"] if (run["reward"], run["learner"]) == (paid, learner)]):
                continue
            values = [[run[name] for run in runs] for name in ("success", "moves", "paid")]
            name = "best by this reward" if learner == "best" else learner.upper()
            rows.append([f"`{paid}`", name, *map(_spread, values, (".0%", ".0f", ".2f"))])
    table = markdown(["paid", "learner", "finishes", "moves", "paid an episode"], rows)
    return f"# Race: PPO and GRPO by four rewards\n\n{table}\n"


def _spread(values: Sequence[float], form: str) -> str:
    mean, least, most = (format(value, form) for value in (sum(values) / len(values), min(values), max(values)))
    return mean if least == most else f"{mean} ({least} … {most})"


def _picture(ways: Mapping[str, Sequence[int]]) -> Any:  # noqa: ANN401
    width = len(TRACK[0])
    figure, panels = empty_figure(len(ways), 1, 1.9 * len(ways))
    for axes, (paid, way) in zip(panels, ways.items(), strict=True):
        for place, kind in enumerate("".join(TRACK)):
            axes.text(place % width, place // width, {"O": "oil", "F": "finish"}.get(kind, ""), ha="center")
        # Beside each other, so that a way driven twice is seen.
        drift = torch.linspace(-0.25, 0.25, len(way)).tolist()
        across = [cell % width + by for cell, by in zip(way, drift, strict=True)]
        down = [cell // width + by for cell, by in zip(way, drift, strict=True)]
        axes.plot(across, down, color=TRAINED[0], linewidth=1.2, marker=".", markersize=4)
        axes.set(xlim=(-0.5, width - 0.5), ylim=(len(TRACK) - 0.5, -0.5), title=f"paid: {paid}, {len(way) - 1} moves")
        axes.set_xticks([x + 0.5 for x in range(width)], []), axes.set_yticks([y + 0.5 for y in range(len(TRACK))], [])
        axes.grid(color=GREY, linewidth=0.4)
    return figure
