"""Train on synthetic, test on real.

The same PPO is trained on paths of a neural market, of filtered historical simulation, of the stationary bootstrap, and
on the replayed training days, and every policy plays the same real test episodes. In addition, fixed policies are
scored in each of these markets and on the real test days: a good simulator ranks them as the real days do.

Models are fitted to the training days, their paths continue from training days, and the test follows the validation
days. A policy's score "at home" is that on paths with other starts and draws than the training paths; for replay it is
the score on the training days.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import RESULTS, markdown, result_of, spelled, write_result
from vecenv.benchmarks.studies.fixed_policies import fixed_policies
from vecenv.benchmarks.studies.transfer import (
    Arena,
    Played,
    complete_symbols,
    difference_over_seeds,
    generated,
    rank_agreement,
    real_test,
    replay,
)
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.metrics import Interval
from vecenv.learn.ppo import PPOConfig, train
from vecenv.market.sources import read_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation
from vecenv.worldmodel.baselines.resampled import StationaryBootstrap
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.sampling.judged import judged_model
from vecenv.worldmodel.validation.judge import Trial, choose_trial

RULES = StockTradingConfig(action="weights", episode_length=60)
"""Target weights are independent of price levels."""
MOST_SYMBOLS, PATHS, STARTS, DAYS = 30, 256, 8, 250
"""Paths of a simulator, and as many others at home; training days that they start on; days with 60 of warm-up."""
NUM_ENVS, EPISODES, SEEDS, FRAMES = 256, 256, 5, 1_000_000

RIVALS: dict[str, Callable[..., MarketModel] | None] = {
    "FHS": FilteredHistoricalSimulation.fit,
    "bootstrap": StationaryBootstrap.fit,
    "replay": None,
}
"""Fit functions of the other simulators; None for replay of the training days."""

METRICS = {
    "cumulative_return": ("return %", 100.0),
    "sharpe": ("Sharpe", 1.0),
    "max_drawdown": ("max. drawdown %", 100.0),
}


@dataclass(frozen=True)
class TrainOnSyntheticConfig:
    """Compare simulators as markets to train on."""

    history: Path
    """File of bars: training days, validation days and test days."""
    model: str = "judged"
    """Weights by name, judged, or a checkpoint of ``vecenv worldmodel train``."""
    market: str | None = None
    """Name of one of the model's markets, by default the only one."""
    test_end: str | None = None
    """Last date of the test, by default the file's."""
    output: Path | None = RESULTS
    """Folder for JSON and Markdown; none are written without it."""


def main(config: TrainOnSyntheticConfig) -> dict[str, Any]:
    """Train PPO on each simulator, test all on real days, write JSON and Markdown, and return the JSON."""
    neural, train_end, validation_end = judged_model(config.model, config.market, 1.0, None, None)
    assert neural is not None
    bars = complete_symbols(read_bars(config.history, None, end=config.test_end), MOST_SYMBOLS)
    trial = choose_trial(bars, train_end, validation_end, keep_gaps=False)[0]
    real = Arena(real_test(trial, RULES), RULES, EPISODES)
    on_real = {name: real.play(policy) for name, policy in fixed_policies().items()}
    fits: dict[str, Callable[..., MarketModel] | None] = {neural.name: lambda _: neural, **RIVALS}
    simulators, tested, policies = {}, {}, {name: {"real": _means(each)} for name, each in on_real.items()}
    for name, fit in fits.items():
        training, at_home = _markets(trial, None if fit is None else fit(trial.train))
        home = Arena(at_home, RULES, EPISODES)
        fixed = {policy: home.play(agent) for policy, agent in fixed_policies().items()}
        agents = [_trained(training, seed) for seed in range(SEEDS)]
        own, tested[name] = ([arena.play(agent) for agent in agents] for arena in (home, real))
        simulators[name] = {
            **{f"real {metric}": _over_seeds(tested[name], None, metric) for metric in METRICS},
            "home": _over_seeds(own, None, "cumulative_return"),
            "optimism": _over_seeds(own, tested[name], "cumulative_return", paired=False),
            "tau": rank_agreement(_returns(fixed), home.blocks, _returns(on_real), real.blocks)._asdict(),
        }
        for policy, played in fixed.items():
            policies[policy][name] = _means(played)
        print(f"{name}: {simulators[name]}", flush=True)
    judged, *others = simulators
    differences = {
        other: {metric: _over_seeds(tested[judged], tested[other], metric) for metric in METRICS} for other in others
    }
    dates = trial.bars.dates
    result = result_of(
        config,
        symbols=list(trial.bars.symbols),
        train=[str(dates[0]), str(dates[trial.train_stop - 1])],
        test=[str(dates[trial.first]), str(dates[-1])],
        simulators=simulators,
        differences=differences,
        policies=policies,
    )
    stem = f"train-on-synthetic-{machine.file_stem(config.history.stem)}"
    write_result(config.output, stem, result, to_markdown(result))
    return result


def _markets(trial: Trial, model: MarketModel | None) -> tuple[MarketTape, MarketTape]:
    """Return the market of the training and that at home: paths of a model, or twice the training days."""
    if model is None:
        days = replay(trial, RULES)
        return days, days
    training, home = (generated(trial, model, RULES, PATHS, STARTS, DAYS, seed) for seed in (0, 1))
    return training, home


def _trained(tape: MarketTape, seed: int) -> PolicyAgent:
    """Train PPO on a market; return the greedy policy. Equal seeds have equal weights and episodes on all markets."""
    env = vecenv.make("stock_trading", NUM_ENVS, market=tape, seed=seed, compile=True, config=RULES)
    return PolicyAgent(train(env, replace(PPOConfig(), total_frames=FRAMES, seed=seed)).policy())


def _over_seeds(
    first: Sequence[Played], second: Sequence[Played] | None, metric: str, paired: bool = True
) -> dict[str, float]:
    sides = [None if side is None else [played.summary for played in side] for side in (first, second)]
    assert sides[0] is not None
    found: Interval = difference_over_seeds(sides[0], sides[1], metric, paired)
    return found._asdict()


def _returns(played: Mapping[str, Played]) -> torch.Tensor:
    """Return the returns of all policies. Shape: (A, N)."""
    return torch.stack([episodes.returns for episodes in played.values()])


def _means(played: Played) -> dict[str, float]:
    return {metric: played.summary.mean[metric] for metric in METRICS}


def to_markdown(result: Mapping[str, Any]) -> str:
    """Return the comparison as Markdown."""
    simulators, metrics = result["simulators"], METRICS.items()
    names = [name for name, _ in METRICS.values()]
    scores = [
        [name, *(spelled(found[f"real {metric}"], scale) for metric, (_, scale) in metrics),
         spelled(found["home"], 100.0), spelled(found["optimism"], 100.0), spelled(found["tau"])]
        for name, found in simulators.items()
    ]  # fmt: skip
    differences = [
        [other, *(spelled(found[metric], scale) for metric, (_, scale) in metrics)]
        for other, found in result["differences"].items()
    ]
    ranked = sorted(result["policies"].items(), key=lambda item: -item[1]["real"]["cumulative_return"])
    policies = [
        [name, *(spelled(found[market]["cumulative_return"], 100.0) for market in ("real", *simulators))]
        for name, found in ranked
    ]
    training, test = (" to ".join(result[span]) for span in ("train", "test"))
    return f"""# Train on synthetic, test on real: {result["config"]["history"]}

{len(result["symbols"])} symbols; simulators of the days {training}, test days {test}.

PPO: {FRAMES:,} steps, {SEEDS} seeds. {PATHS} paths of {DAYS} days after {STARTS} training days.
{EPISODES} episodes of {RULES.episode_length} days, commission {RULES.commission}, slippage {RULES.slippage}.

Means over episodes and seeds, costs included. Brackets: 95% interval, with the variance of seeds and of market
days. At home: on paths of the training simulator that were not trained on; of replay, on the training days. Optimism:
return at home less return on real days. τ: Kendall's rank correlation of the fixed policies' mean returns at home and
on real days.

## PPO trained on each simulator

{markdown(["trained on", *(f"real {name}" for name in names), "return at home %", "optimism %", "τ"], scores)}

## On real days: {next(iter(simulators))} less the others

{markdown(["less", *names], differences)}

## Mean return of fixed policies, %

{markdown(["policy", "real", *simulators], policies)}
"""
