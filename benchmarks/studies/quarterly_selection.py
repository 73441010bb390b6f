"""Quarterly selection among agents.

The ensemble strategy of `vecenv.learn.quarters` on one history: every quarter all candidates are trained anew on the
days so far, and the one with the best Sharpe ratio of the validation trades; what the others would have earned is told
too. Accounts start a quarter in cash, and sell everything while turbulence is above the training window's threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

import vecenv
from vecenv.benchmarks.result_files import RESULTS, result_of, write_result
from vecenv.core.env import VecEnv
from vecenv.learn.a2c import A2C, A2CConfig
from vecenv.learn.agents import Agent, PolicyAgent
from vecenv.learn.combination import best_of
from vecenv.learn.ddpg import DDPG, DDPGConfig
from vecenv.learn.ensemble import MeanPolicy
from vecenv.learn.evaluation import play
from vecenv.learn.learner_config import NetworkConfig
from vecenv.learn.metrics import EpisodeCurves, episode_metrics
from vecenv.learn.network_learner import NetworkLearner, Trained
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.quarters import Quarter, QuarterConfig, Span, quarters, turbulence_threshold
from vecenv.learn.runs import run
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.comparison import held_out_environment
from vecenv.tasks.stock_trading.agents import BuyAndHold
from vecenv.tasks.stock_trading.config import StockTradingConfig

Candidates: TypeAlias = Mapping[str, Callable[[VecEnv], NetworkLearner[Any]]]
"""Makes an untrained learner for an environment, by name: of any algorithm with an actor network."""

SELECTED, MEAN, HELD = "selected", "mean", "buy_and_hold"
"""Names of the selection, of the mean of all candidates' actions, and of the reference, beside those of candidates."""


@dataclass(frozen=True)
class QuarterlySelectionConfig:
    """Train, validate and trade quarter by quarter."""

    market: str = "synthetic"
    """Path of a market, or a generator's name, of which one path is drawn."""
    symbols: int = 10
    """Symbols of a generated market."""
    num_days: int = 1250
    """Days of a generated market."""
    tick_size: float = 0.01
    """Tick of the prices: given, because it would else be chosen from all days, later ones too."""
    market_seed: int = 0
    """Seed of a generated market."""
    learners: tuple[str, ...] = ("ppo", "a2c", "ddpg")
    """Candidates, of `CANDIDATES`."""
    num_envs: int = 256
    """Sub-environments of a training."""
    total_frames: int = 200_000
    """Steps of a training."""
    seed: int = 0
    """Seed of episodes and learners."""
    compile: bool = True
    """Compile steps and updates."""
    threads: int = 1
    """CPU threads."""
    quarter: QuarterConfig = field(default_factory=QuarterConfig)
    """Windows."""
    env: StockTradingConfig = field(
        default_factory=lambda: StockTradingConfig(
            action="tilt", reward="excess_log_return", reward_scale=1.0, episode_length=60, min_episode_length=10
        )
    )
    """Rules of the training; validation and trading have the gate too."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


LEARNING = PPOConfig(num_steps=16, policy="symbol", hidden=(32,), epochs=1, initial_std=1.0, learning_rate=3e-3)
CANDIDATES: dict[str, tuple[Callable[[VecEnv, Any], NetworkLearner[Any]], NetworkConfig]] = {
    "ppo": (PPO, replace(LEARNING, gamma=0.0, gae_lambda=0.0)),
    "ppo_far_sighted": (PPO, LEARNING),
    "ppo_flat": (PPO, replace(LEARNING, policy="flat", gamma=0.0, gae_lambda=0.0)),
    "a2c": (A2C, A2CConfig(policy="symbol", hidden=(32,), initial_std=1.0, gamma=0.0, gae_lambda=0.0)),
    "ddpg": (DDPG, DDPGConfig(hidden=(32,), gamma=0.0, buffer_size=65_536)),
}
"""Learner and settings of each candidate by name; a further algorithm is a further entry."""


def main(config: QuarterlySelectionConfig) -> dict[str, Any]:
    """Trade all quarters, print and write what every agent earned, and return it.

    Raises:
        ValueError: a learner is unknown, or the market is invalid or too short.
    """
    unknown = sorted({*config.learners} - {*CANDIDATES})
    if unknown or not config.learners:
        raise ValueError(f"unknown learners {', '.join(unknown) or 'none'}; there are {', '.join(CANDIDATES)}")
    torch.set_num_threads(config.threads)
    options = MarketOptions(
        symbols=config.symbols if config.market == "synthetic" else None,
        features=config.env.features,
        context=("turbulence",),
        num_paths=1,
        num_days=config.num_days,
        seed=config.market_seed,
        tick_size=config.tick_size,
    )
    tape = load_market(config.market, options)
    traded = [
        show(trade_quarter(tape, quarter, config, chosen_candidates(config)))
        for quarter in quarters(tape.first_day, tape.num_days, config.quarter)
    ]
    result = result_of(
        config,
        market={"source": Path(tape.source).name, "days": tape.num_days, "symbols": tape.num_symbols},
        agents={name: figures(torch.cat([each.returns[name] for each in traded])) for name in traded[0].returns},
        quarters=[each.to_json() for each in traded],
    )
    for name, told in result["agents"].items():
        print(
            f"{name:>16}: {100 * told['cumulative_return']:+.1f}%, Sharpe ratio {told['sharpe']:.2f}, "
            f"maximum drawdown {100 * told['max_drawdown']:.1f}%"
        )
    write_result(config.output, "quarterly-selection", result)
    return result


def chosen_candidates(config: QuarterlySelectionConfig) -> Candidates:
    """Return the candidates that the settings name."""

    def maker(name: str) -> Callable[[VecEnv], NetworkLearner[Any]]:
        learner, settings = CANDIDATES[name]
        return lambda env: learner(env, replace(settings, total_frames=config.total_frames, seed=config.seed))

    return {name: maker(name) for name in config.learners}


@dataclass(frozen=True)
class TradedQuarter:
    """What one quarter was traded on, and earned.

    Attributes:
        windows: of the quarter.
        dates: first and last day of each window.
        threshold: of the turbulence.
        sharpes: of the validation, by candidate.
        chosen: candidate that traded.
        gated: share of the trading days above the threshold.
        returns: daily, of every candidate, `SELECTED`, `MEAN` and `HELD`. Shape of each: (trading days,), float64.
    """

    windows: Quarter
    dates: dict[str, tuple[str, str]]
    threshold: float
    sharpes: dict[str, float]
    chosen: str
    gated: float
    returns: dict[str, Tensor]

    def to_json(self) -> dict[str, Any]:
        """Return the quarter without its daily returns."""
        told = {name: value for name, value in vars(self).items() if name not in ("windows", "returns")}
        returns = {name: float((1.0 + daily).prod() - 1.0) for name, daily in self.returns.items()}
        return told | {"windows": asdict(self.windows), "returns": returns}


def trade_quarter(
    tape: MarketTape, quarter: Quarter, config: QuarterlySelectionConfig, candidates: Candidates
) -> TradedQuarter:
    """Train all candidates on the training window, select by the validation, and trade.

    Args:
        tape: the whole market, with its turbulence; nothing after the quarter is read.
        quarter: windows.
        config: settings.
        candidates: to train.
    """
    training = tape.days(*quarter.training)
    series = tape.context[0, :, tape.context_names.index("turbulence")]
    threshold = turbulence_threshold(series[tape.first_day : quarter.training.stop], config.quarter)
    gated = replace(config.env, gate="turbulence", gate_threshold=threshold)
    policies = {name: trained_policy(training, config, make) for name, make in candidates.items()}
    validated = {
        name: played(tape, quarter.validation, gated, PolicyAgent(policy)) for name, policy in policies.items()
    }
    sharpes = {name: figures(returns)["sharpe"] for name, returns in validated.items()}
    chosen = list(sharpes)[best_of(list(sharpes.values()))]
    agents: dict[str, Agent] = {name: PolicyAgent(policy) for name, policy in policies.items()}
    returns = {name: played(tape, quarter.trading, gated, agent) for name, agent in agents.items()}
    env = held_out(tape, quarter.trading, gated)
    mean = PolicyAgent(MeanPolicy(list(policies.values()), env.scenario.action_spec))
    returns |= {SELECTED: returns[chosen], MEAN: played(tape, quarter.trading, gated, mean)}
    returns[HELD] = played(tape, quarter.trading, config.env, BuyAndHold())
    days = series[quarter.trading.start : quarter.trading.stop - 1]
    spans = {name: getattr(quarter, name) for name in ("training", "validation", "trading")}
    dates = {name: (str(tape.dates[span.start]), str(tape.dates[span.stop - 1])) for name, span in spans.items()}
    above = float((days > threshold).double().mean())
    return TradedQuarter(quarter, dates, threshold, sharpes, chosen, above, returns)


def trained_policy(
    training: MarketTape, config: QuarterlySelectionConfig, make: Callable[[VecEnv], NetworkLearner[Any]]
) -> Any:  # noqa: ANN401
    """Return the most probable actions of a candidate after its training, as a policy."""
    env = vecenv.make(
        "stock_trading", config.num_envs, market=training, seed=config.seed, compile=config.compile, config=config.env
    )
    learner = make(env)
    return Trained(learner, run(learner)).policy()


def held_out(tape: MarketTape, span: Span, rules: StockTradingConfig) -> VecEnv:
    """Return the environment of one episode over all days of a window."""
    whole = replace(rules, episode_length=span.stop - span.start - 1, min_episode_length=0)
    return held_out_environment("stock_trading", tape.days(*span), whole, 1)[0]


def played(tape: MarketTape, span: Span, rules: StockTradingConfig, agent: Agent) -> Tensor:
    """Return the daily returns of an agent over a window. Shape: (days - 1,), float64."""
    return play(held_out(tape, span, rules), agent, 0).curves.returns[:, 0]


def figures(returns: Tensor) -> dict[str, float]:
    """Return the metrics of `vecenv.learn.metrics.episode_metrics` that daily returns alone determine."""
    metrics = episode_metrics(EpisodeCurves.of_returns(returns))
    return {name: float(metrics[name]) for name in ("cumulative_return", "sharpe", "max_drawdown", "cvar")}


def show(traded: TradedQuarter) -> TradedQuarter:
    """Print the choice of a quarter, and return it."""
    told = ", ".join(f"{name} {sharpe:.2f}" for name, sharpe in traded.sharpes.items())
    earned = 100 * float((1.0 + traded.returns[SELECTED]).prod() - 1.0)
    print(f"{traded.dates['trading'][0]}: {traded.chosen} of {told}; earned {earned:+.1f}%, gated {traded.gated:.0%}")
    return traded
