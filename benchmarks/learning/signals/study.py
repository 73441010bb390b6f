"""Are scores of news worth anything to an agent that trades? ``python -m vecenv.benchmarks.learning.signals``.

Several seeds of PPO and CVaR-PPO are trained with and without a score, shown or in a rule of some strength, and with
the same scores in random order: sentiment moves actions, risk weighs rewards or trajectories. All, the means of their
actions, equal weights, moved by sentiment too, parts of what has a good score, and buy and hold then trade the whole
test as one account each. Settings of the learners are those of the preset ``signals_data``; none was chosen on the days
of the test. ``--scores-of`` takes scores from prices where no document has them, or as controls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.learning.signals.price_scores import with_scores_of_prices
from vecenv.benchmarks.learning.signals.report import show_study, study_page
from vecenv.benchmarks.learning.signals.tails import Figures, figures_of, over_days, over_seeds
from vecenv.benchmarks.learning.signals.variants import BATCHES, STRENGTHS, Algorithm, Batch, Score
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.learn.agents import Agent, PolicyAgent
from vecenv.learn.cppo import CPPOConfig, EnsembleCPPO
from vecenv.learn.evaluation import play
from vecenv.learn.metrics import Interval
from vecenv.learn.ppo_ensemble import EnsemblePPO, MembersPolicy, row_seeds
from vecenv.learn.ppo_objective import PPOConfig
from vecenv.learn.runs import run
from vecenv.market.panels import SCORES
from vecenv.market.tape import MarketTape
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.task import SIGNALS
from vecenv.tasks.stock_trading.config import StockTradingConfig

PRESET = "signals_data"

BLIND = (EQUAL_WEIGHT, HELD) = ("equal_weight", "buy_and_hold")
"""Agents that learn nothing and see no score, in every table by these names without the underscores."""

FOLLOWERS: Mapping[Score, str] = {"sentiment": "follow_sentiment", "risk": "avoid_risk"}
"""Agents that hold equal parts of what has a good score, by score."""


@dataclass(frozen=True)
class StudyConfig:
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
    algorithms: tuple[Algorithm, ...] = ("ppo", "cppo")
    """Learners."""
    start: date = date(2013, 1, 2)
    """First day of the training."""
    train_end: date = date(2018, 12, 31)
    """Last day of the training."""
    end: date = date(2022, 12, 31)
    """Last day of the test, which begins after the training."""
    seeds: int = 10
    """Seeds of each variant."""
    num_envs: int = 64
    """Sub-environments of each seed."""
    total_frames: int = 100_000
    """Steps of each seed."""
    benchmark_kl: float | None = None
    """Weight of the divergence from the benchmark's portfolio, by default that of the preset; 0 lets policies go."""
    threads: int = 1
    """CPU threads."""
    compile: bool = True
    """Compile steps and updates."""
    tail: CPPOConfig = field(
        default_factory=lambda: CPPOConfig(reward_unit=100.0, beta=10.0, cvar_clip_of="advantage", cvar_clip_ratio=0.5)
    )
    """What CVaR-PPO has beside the settings of PPO: returns count in percent of the account."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


class MeanOfMembers:
    """The mean of the actions of members that were trained under the same rules, each within its bounds.

    Args:
        members: of all rules, those of one beside each other.
        count: of members under one.
    """

    def __init__(self, members: MembersPolicy, count: int) -> None:
        self.members, self.count = members, count

    @torch.no_grad()
    def act(self, env: VecEnv) -> Tensor:
        """Return actions for rows of which each is of one of the rules. Shape: (rules, *action)."""
        spec, count = env.scenario.action_spec, self.count
        observed = env.observations().repeat_interleave(count, 0)
        key = EpisodeKey(*(word.repeat_interleave(count, 0) for word in env.episode_keys))
        elapsed = env.rows.elapsed.repeat_interleave(count, 0)
        (action, *_) = self.members.act(self.members.parameters, observed, key, elapsed)
        return action.clamp(spec.space.low, spec.space.high).unflatten(0, (-1, count)).mean(1)


def main(config: StudyConfig) -> dict[str, Any]:
    """Train all variants, trade the test with each seed, print and write the comparison, and return it.

    Raises:
        ValueError: the market is invalid, lacks scores, or has no day in a span.
    """
    torch.set_num_threads(config.threads)
    settings = _settings(config)
    # Stock trading needs no scores in the market's file.
    needed = settings.env if config.scores_of == "documents" else StockTradingConfig(features=settings.env.features)
    tape = settings.tape(needed)
    training, test = settings.training(tape), settings.test(tape)
    if config.scores_of != "documents":
        training, test = (with_scores_of_prices(part, config.score, config.scores_of) for part in (training, test))
    _check_scores(training, config)
    returns = _untrained(test, settings.env, config.score)
    seconds = {}
    for batch in (each for each in BATCHES[config.score] if each.algorithm in config.algorithms):
        started = time.perf_counter()
        returns |= _trained_and_traded(config, settings, training, test, batch)
        seconds["; ".join(batch.variants())] = time.perf_counter() - started
        print(f"{time.perf_counter() - started:.0f} s for {'; '.join(batch.variants())}", flush=True)
    result = {
        "device": machine.device_name(torch.device("cpu")),
        "torch": torch.__version__,
        "config": plain(config),
        "market": {
            "source": Path(tape.source).name,
            "symbols": tape.num_symbols,
            "scored": _coverage(test, config.score),
            "training": [str(training.dates[training.first_day]), str(training.dates[-1])],
            "test": [str(test.dates[test.first_day]), str(test.dates[-1])],
        },
        "seconds": seconds,
        "variants": {name: _told(own, returns) for name, own in returns.items()},
    }
    show_study(result)
    stem = f"signals-study-{config.score}-{config.scores_of}"
    write_result(config.output, stem, result)
    if config.output is not None:
        (config.output / f"{stem}.md").write_text(study_page(result))
    return result


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


def _settings(config: StudyConfig) -> TrainSettings:
    """Return the preset on the market and the spans."""
    path = preset_path("train", PRESET)
    settings = with_values(TrainSettings(task="signals", env=SignalsConfig()), read_values(path), str(path))
    return replace(
        settings,
        market=str(config.market),
        scores=config.scores,
        start=config.start,
        end=config.end,
        train_end=config.train_end,
        # All days up to the split train: nothing is chosen by a validation.
        validation_fraction=0.0,
        embargo=0,
        device="cpu",
        env=replace(settings.env, observed=()),
    )


def _trained_and_traded(
    config: StudyConfig, settings: TrainSettings, training: MarketTape, test: MarketTape, batch: Batch
) -> dict[str, list[Tensor]]:
    """Train the seeds of all strengths of a batch, and return what they and their means earn, by variant."""
    count, seeds = config.seeds, list(range(config.seeds)) * len(batch.strengths)
    observed = (batch.score,) if batch.observed else ()
    rules = replace(settings.env, observed=observed, shuffled=batch.shuffled, risk_form=batch.form)
    env = VecEnv(
        SIGNALS.build(training, rules),
        len(seeds) * config.num_envs,
        compiled=config.compile,
        params=_varied(batch.score, batch.strengths, count * config.num_envs),
        **row_seeds(seeds, config.num_envs),
    )
    weight = settings.ppo.benchmark_kl if config.benchmark_kl is None else config.benchmark_kl
    ppo = replace(settings.ppo, total_frames=config.total_frames, by_reference=False, benchmark_kl=weight)
    if batch.algorithm == "ppo":
        learner = EnsemblePPO(env, ppo, seeds)
    else:
        learner = EnsembleCPPO(env, _tail(config, ppo, batch.form == "trajectory"), seeds)
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


def _tail(config: StudyConfig, ppo: PPOConfig, weigh_risk: bool) -> CPPOConfig:
    """Return the settings of CVaR-PPO that has those of PPO in common."""
    common = {item.name: getattr(ppo, item.name) for item in fields(PPOConfig)}
    return replace(config.tail, **common, weigh_risk=weigh_risk)


def _traded(tape: MarketTape, rules: SignalsConfig, varied: Mapping[str, Tensor], agent: Agent) -> Tensor:
    """Return the daily returns over the whole test of one account for each value of a parameter.

    Args:
        tape: of the test.
        rules: of the accounts.
        varied: the parameter by name; without one there is one account.
        agent: trades all.

    Returns:
        Shape: (T, values), float64.
    """
    days = tape.num_days - tape.first_day - 1
    whole = replace(rules, random_start=False, episode_length=days, min_episode_length=0)
    accounts = max((len(values) for values in varied.values()), default=1)
    env = VecEnv(SIGNALS.build(tape, whole), accounts, compiled=False, params=varied)
    return play(env, agent, 0).curves.returns


def _varied(score: Score, strengths: Sequence[float], times: int = 1) -> dict[str, Tensor]:
    """Return strengths of a score's rule, each so many times, as a parameter that differs among sub-environments."""
    return {f"{score}_strength": torch.tensor(strengths).repeat_interleave(times)}


def _told(own: list[Tensor], returns: Mapping[str, list[Tensor]]) -> dict[str, Any]:
    """Return the figures of a variant: means over its seeds with intervals, and the excess with that over days too."""
    equal, held = (returns[name.replace("_", " ")][0] for name in (EQUAL_WEIGHT, HELD))
    by_seed = [figures_of(one, equal, held) for one in own]
    columns = zip(Figures._fields, zip(*by_seed, strict=True), strict=True)
    told: dict[str, Any] = {name: _without_nan(over_seeds(list(values))) for name, values in columns}
    mean = torch.stack([one.log1p() for one in own]).mean(0)
    told["excess_over_days"] = _without_nan(over_days(mean - held.log1p()))
    told["by_seed"] = [one._asdict() for one in by_seed]
    return told


def _without_nan(interval: Interval) -> dict[str, float | None]:
    """Return an interval by name, with None for NaN, which JSON lacks."""
    return {name: None if math.isnan(value) else value for name, value in interval._asdict().items()}


def _coverage(tape: MarketTape, score: Score) -> float:
    """Return the share of symbols and days of a market with a score."""
    assert tape.panels is not None
    known = tape.panels.known[:, tape.first_day :, :, SCORES.index(score)]
    return float(known[tape.tradable[:, tape.first_day :]].double().mean())


def _check_scores(training: MarketTape, config: StudyConfig) -> None:
    """Check that the market has the score that is studied.

    Raises:
        ValueError: no day of the training has one.
    """
    if _coverage(training, config.score) == 0:
        told = f"no day of the training has a score of {config.score}; --scores-of past takes it from prices"
        raise ValueError(f"{training.source}: {told}")
