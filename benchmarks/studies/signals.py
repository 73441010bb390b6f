"""Are scores of news worth anything to an agent that trades?

Several seeds of PPO and CVaR-PPO are trained with and without a score, shown or in a rule of some strength, and with
the same scores in random order: sentiment moves actions, risk weighs rewards or trajectories. All, the means of their
actions, equal weights, moved by sentiment too, parts of what has a good score, and buy and hold then trade the whole
test as one account each. Settings of the learners are those of the preset ``signals_data``; none was chosen on the days
of the test. ``--scores-of`` takes scores from prices where no document has them, or as controls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vecenv.benchmarks.result_files import StudyConfig
from vecenv.benchmarks.studies.signal_figures import study_page, told
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.finance.accounts import play_account
from vecenv.learn.cppo import CPPO, CPPOConfig
from vecenv.learn.evaluation import Agent, PolicyAgent
from vecenv.learn.members import MembersPolicy, ensemble_of, row_seeds
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import run
from vecenv.market.bars import CLOSE
from vecenv.market.panels import HIGHEST, LOWEST, NEUTRAL, SCORES, Panels
from vecenv.market.tape import MarketTape
from vecenv.system.settings import NotNegative
from vecenv.tasks.experiment.markets import ByDates
from vecenv.tasks.experiment.settings import TrainSettings, default_settings
from vecenv.tasks.experiment.splits import TapeSplits
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.task import SIGNALS
from vecenv.tasks.stock_trading.config import StockTradingConfig

Score = Literal["sentiment", "risk"]
Span = Literal["past", "ahead"]

WINDOW = 21
"""Days of a month."""

RiskForm = Literal["reward", "published", "trajectory"]


class Batch(NamedTuple):
    """Members that are trained as one batch: the same learner and observations, with several strengths of the rule."""

    score: Score
    algorithm: Literal["ppo", "cppo"]
    observed: bool
    shuffled: bool
    strengths: tuple[float, ...]
    form: RiskForm = "reward"

    def variants(self) -> Iterator[str]:
        for strength in self.strengths:
            parts = [f"{self.score} shown"] * self.observed + [f"rule {100 * strength:g}%"] * (strength > 0)
            parts += [self.form] * (strength > 0 and self.form == "published")
            told = ", ".join(parts) or "no scores"
            yield f"{self.algorithm.upper()}, {told}{', shuffled' if self.shuffled else ''}"


STRENGTHS = (0.001, 0.01, 0.05, 0.1)

ALL_STRENGTHS = (0.0, *STRENGTHS)


def _batches(score: Score, algorithm: Literal["ppo", "cppo"], form: RiskForm = "reward") -> tuple[Batch, ...]:
    """Return a learner without the score, with it in the rule, and shown; each with its shuffled control."""
    return tuple(
        # Without a score nothing is shuffled at a strength of zero.
        Batch(score, algorithm, observed, shuffled, STRENGTHS if shuffled > observed else ALL_STRENGTHS, form)
        for observed in (False, True)
        for shuffled in (False, True)
    )


BATCHES: Mapping[Score, tuple[Batch, ...]] = {
    "sentiment": (*_batches("sentiment", "ppo"), *_batches("sentiment", "cppo")),
    "risk": (
        *_batches("risk", "ppo"),
        Batch("risk", "ppo", observed=False, shuffled=False, strengths=STRENGTHS, form="published"),
        *_batches("risk", "cppo", "trajectory"),
    ),
}
"""All that is trained, by score. The risk of PPO is in its rewards, that of CVaR-PPO in its trajectories."""


PRESET = "signals_data"
START, TRAIN_END, END = date(2013, 1, 2), date(2018, 12, 31), date(2022, 12, 31)
"""First and last day of the training, and last of the test, which begins after the training."""
SEEDS, NUM_ENVS, FRAMES = 10, 64, 100_000
"""Of each variant: seeds, and of each seed sub-environments and steps."""
TAIL = CPPOConfig(reward_unit=100.0, beta=10.0, cvar_clip_of="advantage", cvar_clip_ratio=0.5)
"""What CVaR-PPO has beside the settings of PPO: returns count in percent of the account."""

BLIND = ("equal_weight", "buy_and_hold")
"""Agents that learn nothing and see no score, in every table by these names without the underscores."""

FOLLOWERS: Mapping[Score, str] = {"sentiment": "follow_sentiment", "risk": "avoid_risk"}
"""Agents that hold equal parts of what has a good score, by score."""


@dataclass(frozen=True)
class SignalsStudyConfig(StudyConfig):
    """Train and compare with and without scores of news."""

    market: Path
    """File of bars with columns of scores."""
    scores: tuple[str, ...] = ()
    """Files of scores, if the market has none."""
    score: Score = "sentiment"
    """The score that is studied."""
    scores_of: Literal["documents", "past", "ahead"] = "documents"
    """What the score is made of: documents, or prices: fifths of the symbols of a day. Sentiment goes by the mean
    return of the month before or, in hindsight, by the return of the day ahead; risk by the volatility of the month
    before or ahead."""
    benchmark_kl: NotNegative = 0.0
    """Weight of the divergence from the benchmark's portfolio; 0 lets policies go."""


class MeanOfMembers:
    """The mean of the actions of `count` members of each rule, which stand beside each other, within their bounds."""

    def __init__(self, members: MembersPolicy, count: int) -> None:
        self.members, self.count = members, count

    @torch.no_grad()
    def act(self, env: VecEnv) -> Tensor:
        spec, count = env.scenario.action_spec, self.count
        observed = env.observations().repeat_interleave(count, 0)
        key = EpisodeKey(*(word.repeat_interleave(count, 0) for word in env.episode_keys))
        elapsed = env.rows.elapsed.repeat_interleave(count, 0)
        (action, *_) = self.members.act(self.members.parameters, observed, key, elapsed)
        return action.clamp(spec.space.low, spec.space.high).unflatten(0, (-1, count)).mean(1)


def main(config: SignalsStudyConfig) -> dict[str, Any]:
    settings = _settings(config)
    # Stock trading needs no scores in the market's file.
    needed = settings.env if config.scores_of == "documents" else StockTradingConfig(features=settings.env.features)
    splits = TapeSplits(SIGNALS, settings.source, settings.source.tape(needed, torch.device("cpu")))
    tape, training, test = splits.tape, splits.part("train"), splits.part("test")
    if config.scores_of != "documents":
        training, test = (with_scores_of_prices(part, config.score, config.scores_of) for part in (training, test))
    returns = _untrained(test, settings.env, config.score)
    for batch in BATCHES[config.score]:
        started = time.perf_counter()
        returns |= _trained_and_traded(config, settings, training, test, batch)
        print(f"{time.perf_counter() - started:.0f} s for {'; '.join(batch.variants())}", flush=True)
    equal, held = (returns[name.replace("_", " ")][0] for name in BLIND)
    return config.written(
        f"signals-study-{config.score}-{config.scores_of}",
        study_page,
        market={
            "source": Path(tape.source).name,
            "symbols": tape.num_symbols,
            "scored": _coverage(test, config.score),
            "training": [str(training.dates[training.first_day]), str(training.dates[-1])],
            "test": [str(test.dates[test.first_day]), str(test.dates[-1])],
        },
        learning=f"{SEEDS} seeds each, {FRAMES:,} steps of {NUM_ENVS} sub-environments",
        variants={name: told(own, equal, held, tape.periods_per_year) for name, own in returns.items()},
    )


def _untrained(test: MarketTape, rules: SignalsConfig, score: Score) -> dict[str, list[Tensor]]:
    """Return what agents earn that learn nothing, by variant; only sentiment has a rule that moves actions."""
    returns = {name.replace("_", " "): [_traded(test, rules, {}, SIGNALS.agents[name]())[:, 0]] for name in BLIND}
    follower = FOLLOWERS[score]
    for shuffled in (False, True):
        own_rules, end = replace(rules, shuffled=shuffled), ", shuffled" if shuffled else ""
        followed = _traded(test, own_rules, {}, SIGNALS.agents[follower]())
        returns[follower.replace("_", " ") + end] = [followed[:, 0]]
        if score == "sentiment":
            moved = _traded(test, own_rules, _varied(score, STRENGTHS), SIGNALS.agents["equal_weight_moved"]())
            names = (f"equal weight, rule {100 * strength:g}%{end}" for strength in STRENGTHS)
            returns |= {name: [own] for name, own in zip(names, moved.unbind(1), strict=True)}
    return returns


def _settings(config: SignalsStudyConfig) -> TrainSettings:
    # All days up to the split train: nothing is chosen by a validation.
    chosen = {"preset": PRESET, "market": str(config.market), "validation_fraction": 0.0}
    settings = default_settings(chosen)
    days = ByDates(train_end=TRAIN_END, embargo=0)
    source = replace(settings.source, scores=config.scores, start=START, end=END, split=days)
    return replace(settings, source=source, env=replace(settings.env, observed=()))


def _trained_and_traded(
    config: SignalsStudyConfig, settings: TrainSettings, training: MarketTape, test: MarketTape, batch: Batch
) -> dict[str, list[Tensor]]:
    """Train the seeds of all strengths of a batch, and return what they and their means earn, by variant."""
    count, seeds = SEEDS, list(range(SEEDS)) * len(batch.strengths)
    observed = (batch.score,) if batch.observed else ()
    rules = replace(settings.env, observed=observed, shuffled=batch.shuffled, risk_form=batch.form)
    env = VecEnv(
        SIGNALS.build(training, rules),
        len(seeds) * NUM_ENVS,
        compiled=True,
        params=_varied(batch.score, batch.strengths, count * NUM_ENVS),
        **row_seeds(seeds, NUM_ENVS),
    )
    ppo = replace(settings.learner, total_frames=FRAMES, by_reference=False, benchmark_kl=config.benchmark_kl)
    if batch.algorithm == "ppo":
        learner = ensemble_of(PPO)(env, ppo, seeds)
    else:
        common = {item.name: getattr(ppo, item.name) for item in fields(PPOConfig)}
        learner = ensemble_of(CPPO)(env, replace(TAIL, **common, weigh_risk=batch.form == "trajectory"), seeds)
    run(learner)
    members = MembersPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
    varied = _varied(batch.score, batch.strengths, count)
    alone = _traded(test, rules, varied, PolicyAgent(members)).split(count, dim=1)
    together = _traded(test, rules, _varied(batch.score, batch.strengths), MeanOfMembers(members, count))
    found = {}
    for place, name in enumerate(batch.variants()):
        found[name] = list(alone[place].unbind(1))
        found[f"{name}: mean of all"] = [together[:, place]]
    return found


def _traded(tape: MarketTape, rules: SignalsConfig, varied: Mapping[str, Tensor], agent: Agent) -> Tensor:
    """Return the daily returns over the whole test of one account for each value of a parameter. Shape: (T, values)."""
    days = tape.num_days - tape.first_day - 1
    whole = replace(rules, random_start=False, episode_length=days, min_episode_length=0)
    accounts = max((len(values) for values in varied.values()), default=1)
    env = VecEnv(SIGNALS.build(tape, whole), accounts, compiled=False, params=varied)
    return play_account(env, agent, 0).curves.returns


def _varied(score: Score, strengths: Sequence[float], times: int = 1) -> dict[str, Tensor]:
    """Return strengths of a score's rule, each so many times, as a parameter that differs among sub-environments."""
    return {f"{score}_strength": torch.tensor(strengths).repeat_interleave(times)}


def _coverage(tape: MarketTape, score: Score) -> float:
    assert tape.panels is not None
    known = tape.panels.known[:, tape.first_day :, :, SCORES.index(score)]
    return float(known[tape.tradable[:, tape.first_day :]].double().mean())


def with_scores_of_prices(tape: MarketTape, score: Score, span: Span) -> MarketTape:
    """Return a market with one score, the fifths of its symbols on each day, and no other.

    Sentiment goes by the mean log-return of the month before or, ahead, by the next day's. Risk goes by the volatility
    of the month before or of the month ahead. What is ahead is hindsight: nobody knows it.
    """
    close, tradable = tape.ohlcv[..., CLOSE].double(), tape.tradable
    change = (close[:, 1:] / close[:, :-1]).log().where(tradable[:, 1:] & tradable[:, :-1], torch.nan)
    returns = torch.cat([torch.full_like(close[:, :1], torch.nan), change], 1)
    if score == "sentiment":
        values = _mean_of_month(returns) if span == "past" else _earlier(returns, 1)
    else:
        volatility = _mean_of_month(returns.square()).sqrt()
        values = volatility if span == "past" else _earlier(volatility, WINDOW)
    place = SCORES.index(score)
    scores = torch.full((*values.shape, len(SCORES)), NEUTRAL, device=values.device)
    known = torch.zeros(scores.shape, dtype=torch.bool, device=values.device)
    scores[..., place], known[..., place] = fifths(values), values.isfinite()
    return replace(tape, panels=Panels(scores, known))


def _mean_of_month(values: Tensor) -> Tensor:
    """Return means of the month up to each day, NaN without a whole one. Shapes: (P, T, K)."""
    head = torch.full_like(values[:, : WINDOW - 1], torch.nan)
    return torch.cat([head, values.unfold(1, WINDOW, 1).mean(-1)], 1)


def _earlier(values: Tensor, days: int) -> Tensor:
    """Return values as they will be some days later, NaN at the end."""
    return torch.cat([values[:, days:], torch.full_like(values[:, :days], torch.nan)], 1)


def fifths(values: Tensor) -> Tensor:
    """Return the fifth of each day's symbols that a value is in, from 1 for the smallest to 5; neutral for NaN."""
    known = values.isfinite()
    rank = values.where(known, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)
    count = known.sum(-1, keepdim=True).clamp(min=1)
    fifth = LOWEST + torch.floor((HIGHEST - LOWEST + 1) * (rank + 0.5) / count)
    return fifth.where(known, NEUTRAL).float()
