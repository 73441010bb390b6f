"""Quarterly selection among agents.

The ensemble strategy of Yang, Liu, Zhong and Walid, "Deep reinforcement learning for automated stock trading: an
ensemble strategy", ICAIF 2020, section 4.1, on one history: every quarter all candidates are trained anew on the days
so far, and the one with the best Sharpe ratio of the validation trades; what the others would have earned is told too.
Accounts start a quarter in cash, and sell everything while turbulence is above the training window's threshold. Here an
embargo of some days lies between the windows: no return is in two of them, and what is serially dependent fades.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

import vecenv
from vecenv.benchmarks.result_files import StudyConfig
from vecenv.core.env import VecEnv
from vecenv.finance.accounts import play_account
from vecenv.finance.metrics import EpisodeCurves, episode_metrics
from vecenv.learn import Trained
from vecenv.learn.a2c import A2C, A2CConfig
from vecenv.learn.ensemble import MeanPolicy, best_of
from vecenv.learn.evaluation import Agent, PolicyAgent
from vecenv.learn.learner import Learner
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import run
from vecenv.learn.settings.run import NetworkConfig
from vecenv.learn.td3 import TD3, DDPGConfig
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.system.settings import Count, CountFromZero, PositiveShare, Settings, Within
from vecenv.tasks.experiment.splits import comparison_environment
from vecenv.tasks.stock_trading.agents import BuyAndHold
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.task import STOCK_TRADING

SELECTED, MEAN, HELD = "selected", "mean", "buy_and_hold"
"""Names of the selection, of the mean of all candidates' actions, and of the reference, beside those of candidates."""


class Span(NamedTuple):
    """Days of a market, from ``start`` to ``stop`` (exclusive). An account has a return on each but the first."""

    start: int
    stop: int


@dataclass(frozen=True)
class Quarter:
    """Windows of one quarter, one after the other; training starts with the market.

    The first day of trading is the last of the quarter before, whose close both accounts share.
    """

    training: Span
    validation: Span
    trading: Span


@dataclass(frozen=True)
class QuarterConfig(Settings):
    """Lengths of the windows, in trading days."""

    min_training: Annotated[int, Within(2)] = 504
    """Days after the warm-up that the first training has at least."""
    validation: Annotated[int, Within(2)] = 63
    """Daily returns of a validation: three months."""
    trading: Annotated[int, Within(2)] = 63
    """Daily returns of a quarter of trading; the windows move by as many days."""
    embargo: CountFromZero = 5
    """Days between training and validation, and between validation and trading, which none of them sees."""
    turbulence_quantile: PositiveShare = 0.99
    """Quantile of the turbulence in the training window above which everything is sold."""


@dataclass(frozen=True)
class QuarterlySelectionConfig(StudyConfig):
    """Train, validate and trade quarter by quarter."""

    market: str = "synthetic"
    """Path of a market, or a generator's name, of which one path of ten symbols is drawn."""
    num_days: Count = 1250
    """Days of a generated market."""
    learners: tuple[str, ...] = ("ppo", "a2c", "ddpg")
    """Candidates, of `CANDIDATES`."""
    num_envs: Count = 256
    """Sub-environments of a training."""
    total_frames: Count = 200_000
    """Steps of a training."""
    compile: bool = True
    """Compile steps and updates."""
    quarter: QuarterConfig = field(default_factory=QuarterConfig)
    """Windows."""


RULES = StockTradingConfig(
    action="tilt",
    reward="excess_log_return",
    reward_scale=1.0,
    episode_length=60,
    min_episode_length=10,
    cash_scale=1e-6,
    price_scale=1e-2,
    holdings_scale=1e-3,
    feature_scale=1e-2,
)
"""Of the training; validation and trading have the gate too."""

LEARNING = PPOConfig(num_steps=16, policy="symbol", hidden=(32,), epochs=1, initial_std=1.0, learning_rate=3e-3)
CANDIDATES: dict[str, tuple[Callable[[VecEnv, Any], Learner[Any]], NetworkConfig]] = {
    "ppo": (PPO, replace(LEARNING, gamma=0.0, gae_lambda=0.0)),
    "ppo_far_sighted": (PPO, LEARNING),
    "ppo_flat": (PPO, replace(LEARNING, policy="flat", gamma=0.0, gae_lambda=0.0)),
    "a2c": (A2C, A2CConfig(policy="symbol", hidden=(32,), initial_std=1.0, gamma=0.0, gae_lambda=0.0)),
    "ddpg": (TD3, DDPGConfig(hidden=(32,), gamma=0.0, buffer_size=65_536)),
}
"""Learner and settings of each candidate by name; a further algorithm is a further entry."""


def main(config: QuarterlySelectionConfig) -> dict[str, Any]:
    options = MarketOptions(
        symbols=10 if config.market == "synthetic" else None,
        features=RULES.features,
        context=("turbulence",),
        num_paths=1,
        num_days=config.num_days,
        # Given, because it would else be chosen from all days, later ones too.
        tick_size=0.01,
    )
    tape = load_market(config.market, options)
    traded = [
        trade_quarter(tape, quarter, config) for quarter in quarters(tape.first_day, tape.num_days, config.quarter)
    ]
    year = tape.periods_per_year
    earned = {name: figures(torch.cat([returns[name] for _, returns in traded]), year) for name in traded[0][1]}
    for name, told in earned.items():
        print(name, {key: round(value, 3) for key, value in told.items()})
    found: dict[str, Any] = {
        "market": Path(tape.source).name,
        "agents": earned,
        "quarters": [told for told, _ in traded],
    }
    return config.written("quarterly-selection", **found)


def quarters(first_day: int, num_days: int, config: QuarterConfig) -> list[Quarter]:
    """Return the windows of all whole quarters of a market from its first day after the warm-up; ValueError of none."""
    found: list[Quarter] = []
    before = config.embargo + config.validation + 1 + config.embargo
    start = first_day + config.min_training + before
    while start + config.trading < num_days:
        validated = start - config.embargo
        validation = Span(validated - config.validation - 1, validated)
        training = Span(0, validation.start - config.embargo)
        found.append(Quarter(training, validation, Span(start, start + config.trading + 1)))
        start += config.trading
    if not found:
        needed = first_day + config.min_training + before + config.trading + 1
        raise ValueError(f"a quarter of trading needs {needed} days, {first_day} of them warm-up; there are {num_days}")
    return found


def turbulence_threshold(turbulence: Tensor, config: QuarterConfig) -> float:
    """Return the threshold of liquidation: a quantile of the index in a training window; ValueError without values.

    The index is 0 on days on which it has no full window. Shape: (T,).
    """
    known = turbulence[turbulence > 0].double()
    if not len(known):
        raise ValueError("the turbulence index has no value in the training window: it needs a year of returns before")
    return float(torch.quantile(known, config.turbulence_quantile))


def trade_quarter(
    tape: MarketTape, quarter: Quarter, config: QuarterlySelectionConfig
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train all candidates, select by the validation, and trade; nothing after the quarter is read.

    Return what it was traded on, and the daily returns of every candidate, `SELECTED`, `MEAN` and `HELD`.
    """
    training = tape.days(*quarter.training)
    series = tape.context[0, :, tape.context_names.index("turbulence")]
    threshold = turbulence_threshold(series[tape.first_day : quarter.training.stop], config.quarter)
    gated = replace(RULES, gate="turbulence", gate_threshold=threshold)
    policies = {name: trained_policy(training, config, name) for name in config.learners}
    agents: dict[str, Agent] = {name: PolicyAgent(policy) for name, policy in policies.items()}
    validated = {name: played(tape, quarter.validation, gated, agent) for name, agent in agents.items()}
    sharpes = {name: figures(returns, tape.periods_per_year)["sharpe"] for name, returns in validated.items()}
    chosen = list(sharpes)[best_of(list(sharpes.values()))]
    returns = {name: played(tape, quarter.trading, gated, agent) for name, agent in agents.items()}
    spec = traded_quarter(tape, quarter.trading, gated).scenario.action_spec
    mean = PolicyAgent(MeanPolicy(list(policies.values()), spec))
    returns |= {SELECTED: returns[chosen], MEAN: played(tape, quarter.trading, gated, mean)}
    returns[HELD] = played(tape, quarter.trading, RULES, BuyAndHold())
    days = series[quarter.trading.start : quarter.trading.stop - 1]
    told: dict[str, Any] = {
        "begins": str(tape.dates[quarter.trading.start]),
        "windows": asdict(quarter),
        "threshold": threshold,
        "gated": float((days > threshold).double().mean()),
        "sharpes": sharpes,
        "chosen": chosen,
        "earned": {name: float((1.0 + daily).prod() - 1.0) for name, daily in returns.items()},
    }
    print(f"{told['begins']}: {chosen} of {sharpes}; earned {100 * told['earned'][SELECTED]:+.1f}%", flush=True)
    return told, returns


def trained_policy(training: MarketTape, config: QuarterlySelectionConfig, name: str) -> Any:  # noqa: ANN401
    """Return the most probable actions of a candidate after its training, as a policy."""
    env = vecenv.make("stock_trading", config.num_envs, market=training, compile=config.compile, config=RULES)
    learner, settings = CANDIDATES[name]
    made = learner(env, replace(settings, total_frames=config.total_frames))
    return Trained(made, run(made)).policy()


def traded_quarter(tape: MarketTape, span: Span, rules: StockTradingConfig) -> VecEnv:
    whole = replace(rules, episode_length=span.stop - span.start - 1, min_episode_length=0)
    return comparison_environment(STOCK_TRADING, tape.days(*span), whole, 1)[0]


def played(tape: MarketTape, span: Span, rules: StockTradingConfig, agent: Agent) -> Tensor:
    return play_account(traded_quarter(tape, span, rules), agent, 0).curves.returns[:, 0]


def figures(returns: Tensor, year: float) -> dict[str, float]:
    """Return the metrics of `vecenv.finance.metrics.episode_metrics` that daily returns alone determine."""
    metrics = episode_metrics(EpisodeCurves.of_returns(returns, year))
    return {name: float(metrics[name]) for name in ("cumulative_return", "sharpe", "max_drawdown", "cvar")}
