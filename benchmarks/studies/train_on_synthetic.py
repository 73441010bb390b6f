"""Train on synthetic, test on real.

The same PPO is trained on paths of a neural market, of filtered historical simulation, of the stationary bootstrap, and
on the replayed training days, and every policy plays the same real test episodes. In addition, fixed policies are
scored in each of these markets and on the real test days: a good simulator ranks them as the real days do.

Models are fitted to the training days, their paths continue from training days, and the test follows the validation
days. A policy's score "at home" is that on paths with other starts and draws than the training paths; for replay it is
the score on the training days.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import StudyConfig, markdown, spelled
from vecenv.benchmarks.studies.fixed_policies import fixed_policies
from vecenv.finance.accounts import play_account
from vecenv.finance.metrics import Summary, episode_metrics, independent_groups, summarise
from vecenv.learn import train
from vecenv.learn.evaluation import Agent, PolicyAgent
from vecenv.learn.intervals import DRAWS, Interval, student_quantile
from vecenv.learn.ppo import PPOConfig
from vecenv.market.bars import Bars
from vecenv.market.sources import read_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.experiment.splits import comparison_environment
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.task import STOCK_TRADING
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation
from vecenv.worldmodel.baselines.resampled import StationaryBootstrap
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.validation.trial import SEED_STRIDE, Trial, choose_trial, judged_model

RULES = StockTradingConfig(
    action="weights",
    episode_length=60,
    reward_scale=1e-4,
    cash_scale=1e-6,
    price_scale=1e-2,
    holdings_scale=1e-3,
    feature_scale=1e-2,
)
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
class TrainOnSyntheticConfig(StudyConfig):
    """Compare simulators as markets to train on."""

    history: Path
    """File of bars: training days, validation days and test days."""
    model: str = "judged"
    """Weights by name, judged, or a checkpoint of ``vecenv worldmodel train``."""
    market: str | None = None
    """Name of one of the model's markets, by default the only one."""
    test_end: str | None = None
    """Last date of the test, by default the file's."""


def main(config: TrainOnSyntheticConfig) -> dict[str, Any]:
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
    return config.written(
        f"train-on-synthetic-{machine.file_stem(config.history.stem)}",
        to_markdown,
        symbols=list(trial.bars.symbols),
        train=[str(dates[0]), str(dates[trial.train_stop - 1])],
        test=[str(dates[trial.first]), str(dates[-1])],
        simulators=simulators,
        differences=differences,
        policies=policies,
    )


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
    return torch.stack([episodes.returns for episodes in played.values()])


def _means(played: Played) -> dict[str, float]:
    return {metric: played.summary.mean[metric] for metric in METRICS}


def to_markdown(result: Mapping[str, Any]) -> str:
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


WARM_UP = 60
"""Warm-up days before episodes in every market, for indicators and fixed policies."""

SHORTEST_HISTORY = 250
"""Minimum history of a path in days, about a year."""


def complete_symbols(bars: Bars, most: int) -> Bars:
    chosen = bars.listed[0].all(0).nonzero().squeeze(-1)[:most]
    symbols = tuple(bars.symbols[index] for index in chosen.tolist())
    return Bars(symbols, bars.dates, bars.ohlcv[:, :, chosen], source=bars.source)


def real_test(trial: Trial, config: StockTradingConfig) -> MarketTape:
    tape = MarketTape.from_bars(trial.bars, config.features, config.context)
    return _warmed_up(tape.days(trial.first - WARM_UP, tape.num_days))


def replay(trial: Trial, config: StockTradingConfig) -> MarketTape:
    return _warmed_up(MarketTape.from_bars(trial.train, config.features, config.context))


def generated(
    trial: Trial, model: MarketModel, config: StockTradingConfig, paths: int, starts: int, num_days: int, seed: int
) -> MarketTape:
    """Draw paths of a model: as many after each of some distinct random training days with a year of history."""
    usable = trial.train.listed[0].all(-1).nonzero().squeeze(-1)
    usable = usable[usable >= SHORTEST_HISTORY - 1]
    drawn = torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed))[:starts]
    days = sorted(usable[drawn].tolist())
    seeds = [seed * SEED_STRIDE + day for day in days]
    parts = list(model.generate_after(trial.train, days, paths // starts, num_days, seeds))
    # Paths of different starts share a nominal calendar.
    dates = np.busday_offset(trial.train.dates[-1], np.arange(1, num_days + 1), roll="backward")
    bars = Bars(trial.bars.symbols, dates, torch.cat(parts), source=f"{model.name}, seed {seed}")
    return _warmed_up(MarketTape.from_bars(bars, config.features, config.context))


def _warmed_up(tape: MarketTape) -> MarketTape:
    return replace(tape, first_day=max(tape.first_day, WARM_UP))


class Played(NamedTuple):
    """Episodes of an agent: means of the metrics, and the return of each, net of costs. Shape: (N,)."""

    summary: Summary
    returns: Tensor


class Arena:
    """Evaluation episodes of a market, the same for every agent."""

    def __init__(self, tape: MarketTape, config: StockTradingConfig, episodes: int) -> None:
        self.env, _ = comparison_environment(STOCK_TRADING, tape, config, episodes)
        self.env.reset_groups(episodes, 1, 0)
        state = self.env.state
        self._groups = independent_groups(state.path, state.start_day, int((state.end_day - state.start_day).max()))
        self.blocks = self._groups[0].cpu()

    def play(self, agent: Agent) -> Played:
        curves = play_account(self.env, agent, 0).curves
        return Played(summarise(curves, self._groups), episode_metrics(curves)["cumulative_return"].cpu())


def difference_over_seeds(
    first: Sequence[Summary], second: Sequence[Summary] | None, metric: str, paired: bool = True
) -> Interval:
    """Return the mean of a metric, or of a difference, over training seeds with a 95% interval.

    Training and market days are random. The variance is the sum of that of the mean over seeds, and of the
    delete-a-group jackknife over days of the mean of all seeds (as `vecenv.finance.metrics.Summary`). Both contain the
    variance of the seed-day interaction, so the interval is conservative (Cameron, Gelbach and Miller, "Robust
    inference with multiway clustering", Journal of Business and Economic Statistics 29(2), 2011, subtract it once).
    The margin is of Student's t with the degrees of freedom of Satterthwaite, Biometrics Bulletin 2(6), 1946.

    ``paired``: both have the same days, else days of independent markets. NaN bounds with fewer than three groups.
    """
    seeds, without = _values(first, metric)
    markets = [without]
    if second is not None:
        other_seeds, other_without = _values(second, metric)
        seeds = seeds - other_seeds
        markets = [without - other_without] if paired else [without, other_without]
    mean = float(seeds.mean())
    if any(len(groups) < 3 for groups in markets):
        return Interval(mean, math.nan, math.nan)
    parts = [(_jackknife_variance(groups), len(groups) - 1) for groups in markets]
    if len(seeds) > 1:
        parts.append((float(seeds.var()) / len(seeds), len(seeds) - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0.0:
        return Interval(mean, mean, mean)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    margin = student_quantile(freedom) * math.sqrt(variance)
    return Interval(mean, mean - margin, mean + margin)


def rank_agreement(simulated: Tensor, simulated_groups: Tensor, real: Tensor, real_groups: Tensor) -> Interval:
    """Return Kendall's τ-b of policies' mean scores in two markets, with a 95% percentile interval.

    The bootstrap draws whole groups of episodes in both markets, the same ones for all policies. Resampling noise adds
    to the noise of the scores, so the interval may lie below the value.
    Scores are those of each of A policies in each episode (A, N), and episodes of a group share market days.
    """
    value = float(kendall_tau(simulated.mean(1), real.mean(1)))
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (_drawn_means(*side, generator) for side in ((simulated, simulated_groups), (real, real_groups)))
    quantiles = kendall_tau(ours, theirs).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return Interval(value, *quantiles.tolist())


def kendall_tau(first: Tensor, second: Tensor) -> Tensor:
    """Return Kendall's τ-b (Kendall, "The treatment of ties in ranking problems", Biometrika 33(3), 1945).

    Shapes: (..., A) -> (...), float64. NaN where all numbers of one are equal.
    """
    signs = [(scores.unsqueeze(-1) - scores.unsqueeze(-2)).sign().double() for scores in (first, second)]
    untied = [sign.abs().sum((-2, -1)) for sign in signs]
    return (signs[0] * signs[1]).sum((-2, -1)) / (untied[0] * untied[1]).sqrt()


def _values(summaries: Sequence[Summary], metric: str) -> tuple[Tensor, Tensor]:
    """Return means by seed (S,), and leave-one-group-out means of all seeds (G,)."""
    seeds = torch.tensor([summary.mean[metric] for summary in summaries], dtype=torch.float64)
    return seeds, torch.stack([summary.without[metric] for summary in summaries]).mean(0)


def _jackknife_variance(without: Tensor) -> float:
    count = len(without)
    return (count - 1) / count * float((without - without.mean()).square().sum())


def _drawn_means(scores: Tensor, groups: Tensor, generator: torch.Generator) -> Tensor:
    """Return the means of policies over drawn groups. Shape: (DRAWS, A)."""
    numbered = groups.unique(return_inverse=True)[1]
    count = int(numbered.max()) + 1
    sums = torch.zeros(count, len(scores), dtype=torch.float64).index_add(0, numbered, scores.double().mT)
    sizes = torch.bincount(numbered, minlength=count).double()
    drawn = torch.randint(count, (DRAWS, count), generator=generator)
    return sums[drawn].sum(1) / sizes[drawn].sum(1, keepdim=True)
