"""Trading on scores beside stock trading on the same market.

Every step is live, and observations, actions, rewards and flags are kept, as in `vecenv.benchmarks.throughput.curve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.workloads import fill_given_actions, task_market, workload_config
from vecenv.core.collector import FusedCollector
from vecenv.market.panels import HIGHEST, LOWEST, NEUTRAL, SCORES, Panels
from vecenv.market.tape import MarketTape

STRENGTH, COVERAGE = 0.1, 0.6
"""Of each rule that is on; and the share of days and symbols with scores."""

EPISODE_LENGTH = 250
"""Longest episode; lengths are drawn from half of it up, so that rows end at different times."""


class Variant(NamedTuple):
    """Task, rules of `SignalsConfig`, further columns of features, and what it is compared with."""

    task: str
    rules: dict[str, Any]
    columns: int
    beside: str | None


TRADING, WIDE = "stock_trading", "stock_trading, as many columns"
SENTIMENT, RISK = {"sentiment_strength": STRENGTH}, {"risk_strength": STRENGTH}
VARIANTS = {
    TRADING: Variant(TRADING, {}, 0, None),
    "no rule": Variant("signals", {}, 0, TRADING),
    "sentiment": Variant("signals", SENTIMENT, 0, TRADING),
    "risk": Variant("signals", RISK, 0, TRADING),
    "both rules": Variant("signals", SENTIMENT | RISK, 0, TRADING),
    WIDE: Variant(TRADING, {}, 2 * len(SCORES), None),
    # Observed scores are compared with as many other columns.
    "both rules, scores observed": Variant("signals", SENTIMENT | RISK | {"observed": SCORES}, 0, WIDE),
}


def points(config: CaseConfig) -> Sequence[Point]:
    return [Point("trading on scores", lambda: _variants(config))]


def _variants(config: CaseConfig) -> Sequence[Workload]:
    num_envs, num_steps, num_days = config.sized((4, 2, 300), (2048, 64, 3000), (65_536, 64, 3000))
    device = config.on()
    tape = task_market(workload_config(TRADING, given=True), "synthetic", num_days, None, None, device)
    tape = replace(tape, panels=random_panels(tape))
    workloads = []
    for name, variant in VARIANTS.items():
        market = _with_columns(tape, variant.columns)
        env = vecenv.make(
            variant.task,
            num_envs,
            market=market,
            device=device,
            compile=config.compile,
            features=market.feature_names,
            episode_length=EPISODE_LENGTH,
            min_episode_length=EPISODE_LENGTH // 2,
            **variant.rules,
        )
        collector = FusedCollector(env, "given", num_steps)
        fill_given_actions(collector)
        told = {"numbers_observed": sum(env.block_widths)}
        workloads.append(Workload(name, collector.rollout, num_envs * num_steps, beside=variant.beside, told=told))
    return workloads


def random_panels(tape: MarketTape) -> Panels:
    generator = torch.Generator().manual_seed(0)
    shape = (tape.num_paths, tape.num_days, tape.num_symbols, len(SCORES))
    known = torch.rand(shape, generator=generator) < COVERAGE
    scores = LOWEST + (HIGHEST - LOWEST) * torch.rand(shape, generator=generator)
    return Panels(torch.where(known, scores, NEUTRAL), known).changed(lambda tensor: tensor.to(tape.ohlcv.device))


def _with_columns(tape: MarketTape, count: int) -> MarketTape:
    generator = torch.Generator().manual_seed(1)
    columns = torch.rand((*tape.features.shape[:-1], count), generator=generator).to(tape.features.device)
    names = (*tape.feature_names, *(f"column_{place}" for place in range(count)))
    return replace(tape, features=torch.cat([tape.features, columns], -1), feature_names=names)
