"""Are scores of news worth anything to an agent that trades? ``python -m vecenv.benchmarks.learning.signals``.

Several seeds of PPO and CVaR-PPO are trained with and without sentiment, shown or moving their actions by a rule of
some strength, and with the same scores in random order. All, the means of their actions, equal weights moved by the
rule, buy and hold and equal weights then trade the whole test as one account each. Settings of the learners are those
of the preset ``signals_data``; none was chosen on the days of the test.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.learning.signals.report import show_study
from vecenv.benchmarks.learning.signals.tails import Figures, figures_of, over_days, over_seeds
from vecenv.benchmarks.learning.signals.variants import BATCHES, STRENGTHS, Batch
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
from vecenv.market.tape import MarketTape
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.task import SIGNALS

PRESET = "signals_data"

EQUAL_WEIGHT, HELD, FOLLOWED = "equal_weight", "buy_and_hold", "follow_sentiment"
"""Agents that learn nothing, in every table by these names without the underscores."""


@dataclass(frozen=True)
class StudyConfig:
    """Train and compare with and without scores of news."""

    market: Path
    """File of bars with a column of sentiment."""
    scores: tuple[str, ...] = ()
    """Files of scores, if the market has none."""
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
    risk_strength: float = 0.0
    """Strength of the risk in the trajectories of CVaR-PPO, where there are scores of risk."""
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
    tape = settings.tape(settings.env)
    training, test = settings.training(tape), settings.test(tape)
    returns: dict[str, list[Tensor]] = {}
    for name in (EQUAL_WEIGHT, HELD, FOLLOWED):
        returns[name.replace("_", " ")] = [_traded(test, settings.env, (0.0,), SIGNALS.agents[name]())[:, 0]]
    for shuffled in (False, True):
        rules = replace(settings.env, shuffled=shuffled)
        moved = _traded(test, rules, STRENGTHS, SIGNALS.agents["equal_weight_moved"]())
        for place, strength in enumerate(STRENGTHS):
            name = f"equal weight, rule {100 * strength:g}%{', shuffled' if shuffled else ''}"
            returns[name] = [moved[:, place]]
    seconds = {}
    for batch in BATCHES:
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
            "scored": _coverage(test),
            "training": [str(training.dates[training.first_day]), str(training.dates[-1])],
            "test": [str(test.dates[test.first_day]), str(test.dates[-1])],
        },
        "seconds": seconds,
        "variants": {name: _told(own, returns) for name, own in returns.items()},
    }
    show_study(result)
    write_result(config.output, "signals-study", result)
    return result


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
        embargo=0,
        device="cpu",
        env=replace(settings.env, risk_strength=config.risk_strength, risk_form="trajectory"),
    )


def _trained_and_traded(
    config: StudyConfig, settings: TrainSettings, training: MarketTape, test: MarketTape, batch: Batch
) -> dict[str, list[Tensor]]:
    """Train the seeds of all strengths of a batch, and return what they and their means earn, by variant."""
    count, seeds = config.seeds, list(range(config.seeds)) * len(batch.strengths)
    rules = replace(settings.env, observed=("sentiment",) if batch.observed else (), shuffled=batch.shuffled)
    strengths = torch.tensor(batch.strengths).repeat_interleave(count * config.num_envs)
    env = VecEnv(
        SIGNALS.build(training, rules),
        len(strengths),
        compiled=config.compile,
        params={"sentiment_strength": strengths},
        **row_seeds(seeds, config.num_envs),
    )
    weight = settings.ppo.benchmark_kl if config.benchmark_kl is None else config.benchmark_kl
    ppo = replace(settings.ppo, total_frames=config.total_frames, by_reference=False, benchmark_kl=weight)
    learner = EnsemblePPO(env, ppo, seeds) if batch.algorithm == "ppo" else EnsembleCPPO(env, _tail(config, ppo), seeds)
    run(learner)
    members = MembersPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
    each = [strength for strength in batch.strengths for _ in range(count)]
    alone = _traded(test, rules, each, PolicyAgent(members)).split(count, dim=1)
    together = _traded(test, rules, batch.strengths, MeanOfMembers(members, count))
    found = {}
    for place, name in enumerate(batch.variants()):
        found[name] = list(alone[place].unbind(1))
        found[f"{name}: mean of all"] = [together[:, place]]
    return found


def _tail(config: StudyConfig, ppo: PPOConfig) -> CPPOConfig:
    """Return the settings of CVaR-PPO that has those of PPO in common."""
    common = {item.name: getattr(ppo, item.name) for item in fields(PPOConfig)}
    return replace(config.tail, **common, weigh_risk=config.risk_strength > 0)


def _traded(tape: MarketTape, rules: SignalsConfig, strengths: Sequence[float], agent: Agent) -> Tensor:
    """Return the daily returns over the whole test of one account for each strength. Shape: (T, strengths), float64."""
    days = tape.num_days - tape.first_day - 1
    whole = replace(rules, random_start=False, episode_length=days, min_episode_length=0)
    varied = {"sentiment_strength": torch.tensor(strengths)}
    env = VecEnv(SIGNALS.build(tape, whole), len(strengths), compiled=False, params=varied)
    return play(env, agent, 0).curves.returns


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


def _coverage(tape: MarketTape) -> float:
    """Return the share of symbols and days of the test with a sentiment."""
    assert tape.panels is not None
    known = tape.panels.known[:, tape.first_day :, :, 0]
    return float(known[tape.tradable[:, tape.first_day :]].double().mean())
