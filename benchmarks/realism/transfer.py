"""Transfer evaluation: policy scores in the training simulator and on real days."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

import vecenv
from vecenv.benchmarks.realism.fixed_policies import fixed_policies
from vecenv.benchmarks.realism.simulated_markets import generated, replay
from vecenv.benchmarks.realism.train_on_synthetic_config import TrainOnSyntheticConfig
from vecenv.learn.agents import Agent, PolicyAgent
from vecenv.learn.evaluation import play
from vecenv.learn.metrics import Summary, episode_metrics, independent_groups, summarise
from vecenv.learn.ppo import CHECKPOINT, train
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.comparison import held_out_environment
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.validation.judge import Trial

TASK = "stock_trading"


class Played(NamedTuple):
    """Episodes of an agent.

    Attributes:
        summary: means of the metrics.
        returns: cumulative return of each episode, net of costs. Shape: (N,).
    """

    summary: Summary
    returns: Tensor


class Arena:
    """Evaluation episodes of a market, the same for every agent.

    Args:
        tape: the market.
        config: of the task.
        episodes: N.
        seed: of the episodes.
    """

    def __init__(self, tape: MarketTape, config: StockTradingConfig, episodes: int, seed: int) -> None:
        self.env, self.note = held_out_environment(TASK, tape, config, episodes)
        self.seed = seed
        self.env.reset_groups(episodes, 1, seed)
        state = self.env.state
        self._groups = independent_groups(state.path, state.start_day, int((state.end_day - state.start_day).max()))

    @property
    def blocks(self) -> Tensor:
        """Group of the first day of each episode. Shape: (N,)."""
        return self._groups[0].cpu()

    def play(self, agent: Agent) -> Played:
        """Run an agent to the end of all episodes."""
        curves = play(self.env, agent, self.seed).curves
        return Played(summarise(curves, self._groups), episode_metrics(curves)["cumulative_return"].cpu())


class Simulator(NamedTuple):
    """A training market.

    Attributes:
        training: market of the learner.
        home: market for the scores at home; the same for replay.
    """

    training: MarketTape
    home: MarketTape


class Transfer(NamedTuple):
    """Results of one simulator.

    Attributes:
        fixed: fixed policies at home, by name.
        home: trained policies at home, one per seed.
        real: trained policies on the real test days.
        blocks: group of each episode at home. Shape: (N,).
        runs: digest of the actor and seconds of training, one per seed.
    """

    fixed: dict[str, Played]
    home: list[Played]
    real: list[Played]
    blocks: Tensor
    runs: list[dict[str, Any]]


def simulator_of(config: TrainOnSyntheticConfig, trial: Trial, model: MarketModel | None) -> Simulator:
    """Draw the paths of a model, or replay the training days without one."""
    if model is None:
        days = replay(trial, config.env).to(config.device)
        return Simulator(days, days)
    size = (config.paths, config.starts, config.days)
    training, home = (
        generated(trial, model, config.env, *size, seed).to(config.device) for seed in (config.seed, config.seed + 1)
    )
    return Simulator(training, home)


def transfer(
    config: TrainOnSyntheticConfig,
    name: str,
    simulator: Simulator,
    real: Arena,
    show: Callable[[float], object] = lambda trained: None,
) -> Transfer:
    """Score fixed policies on a simulator, train PPO on it, and evaluate the policies at home and on real days.

    Args:
        config: settings.
        name: of the simulator, for the folders of its runs.
        simulator: the markets.
        real: the test.
        show: called with the number of completed training runs, and the progress of the next.
    """
    home = Arena(simulator.home, config.env, config.episodes, config.seed)
    fixed = {policy: home.play(agent) for policy, agent in fixed_policies().items()}
    result = Transfer(fixed, [], [], home.blocks, [])
    for number in range(config.seeds):

        def on_update(metrics: dict[str, float], done: int = number) -> None:
            show(done + min(1.0, metrics["frames"] / config.ppo.total_frames))

        agent, run = _trained(config, name, simulator.training, config.seed + number, on_update)
        result.home.append(home.play(agent))
        result.real.append(real.play(agent))
        result.runs.append(run)
    return result


def _trained(
    config: TrainOnSyntheticConfig,
    name: str,
    tape: MarketTape,
    seed: int,
    on_update: Callable[[dict[str, float]], None],
) -> tuple[PolicyAgent, dict[str, Any]]:
    """Train PPO on a market; return the greedy policy, and metadata of the run."""
    env = vecenv.make(
        TASK, config.num_envs, market=tape, seed=seed, device=tape.device, compile=config.compile, config=config.env
    )
    folder = None if config.runs is None else config.runs / name / f"seed-{seed}"
    resume = folder is not None and (folder / CHECKPOINT).exists()
    began = time.perf_counter()
    trained = train(env, replace(config.ppo, seed=config.ppo.seed + seed), folder, resume, on_update)
    seconds = time.perf_counter() - began
    digest = hashlib.sha256(b"".join(part.detach().cpu().numpy().tobytes() for part in trained.learner.actor))
    run = {"seed": seed, "actor_sha256": digest.hexdigest(), "training_seconds": seconds}
    return PolicyAgent(trained.policy()), run
