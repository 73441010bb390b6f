"""Quarterly selection among agents.

The ensemble strategy of `vecenv.finance.quarters` on one history: every quarter all candidates are trained anew on the
days so far, and the one with the best Sharpe ratio of the validation trades; what the others would have earned is told
too. Accounts start a quarter in cash, and sell everything while turbulence is above the training window's threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.benchmarks.result_files import StudyConfig
from vecenv.core.env import VecEnv
from vecenv.finance.metrics import EpisodeCurves, episode_metrics
from vecenv.finance.quarters import Quarter, QuarterConfig, Span, quarters, turbulence_threshold
from vecenv.finance.trading import play_account
from vecenv.learn import Trained
from vecenv.learn.a2c import A2C, A2CConfig
from vecenv.learn.ensemble import MeanPolicy, best_of
from vecenv.learn.evaluation import Agent, PolicyAgent
from vecenv.learn.learner import Learner
from vecenv.learn.networks import NetworkConfig
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import run
from vecenv.learn.td3 import TD3, DDPGConfig
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.system.settings import Count
from vecenv.tasks.experiment.splits import comparison_environment
from vecenv.tasks.stock_trading.agents import BuyAndHold
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.task import STOCK_TRADING

SELECTED, MEAN, HELD = "selected", "mean", "buy_and_hold"
"""Names of the selection, of the mean of all candidates' actions, and of the reference, beside those of candidates."""


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
