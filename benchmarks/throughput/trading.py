"""Steps of trading: call auctions, an ensemble in one batch beside one learner, and scores beside stock trading.

The time ratio of an ensemble says what the members cost together; one after the other they cost as many times one as
there are. With scores every step is live, and observations, actions, rewards and flags are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.workloads import fill_given_actions, task_market, workload_config
from vecenv.core.collector import FusedCollector
from vecenv.kernels.auction.clearing import Cleared, Orders, clear
from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.learn.members import ensemble_of, row_seeds
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.panels import HIGHEST, LOWEST, NEUTRAL, SCORES, Panels
from vecenv.market.tape import MarketTape

MIDDLE = 1_000
"""Reference price in ticks."""


def points_of_auction(config: CaseConfig) -> Sequence[Point]:
    counts = config.sized((2,), (1, 64, 1024), (64, 1024, 16_384))
    return [Point(f"{count} auctions", partial(_auctions, config, count)) for count in counts]


def _auctions(config: CaseConfig, count: int) -> Sequence[Workload]:
    agents, levels = config.sized((20, 16), (1_000, 256))
    generator, device = torch.Generator().manual_seed(count), config.on()
    shape = (count, agents)
    side = torch.randint(0, 2, shape, generator=generator)
    away = torch.randint(-levels // 4, levels // 8, shape, generator=generator)
    price = torch.where(side == BUY, MIDDLE + away, MIDDLE - away)
    orders = Orders(*(part.to(device) for part in (side, price, torch.randint(1, 200, shape, generator=generator))))
    reference = torch.full((count,), MIDDLE, device=device)
    low = reference - levels // 2

    def all_cleared(orders: Orders, reference: torch.Tensor, low: torch.Tensor) -> Cleared:
        return torch.vmap(lambda *one: clear(Orders(*one[:3]), one[3], one[4], levels))(*orders, reference, low)

    found = all_cleared(orders, reference, low)
    assert bool((torch.where(orders.side == SELL, found.filled, 0).sum(-1) == found.volume).all())
    call = torch.compile(all_cleared) if config.compile else all_cleared
    return [Workload(f"{agents:,} orders each", lambda: call(orders, reference, low), count * agents, "orders")]


WORKLOADS: dict[str, tuple[str, dict[str, Any], PPOConfig]] = {
    "symbols": (
        "stock_trading",
        {"action": "tilt", "episode_length": 125, "min_episode_length": 10},
        PPOConfig(num_steps=16, policy="symbol", hidden=(32,), epochs=1, gamma=0.0, gae_lambda=0.0),
    ),
    "flat": ("stock_trading", {"action": "tilt"}, PPOConfig(num_steps=16, by_reference=False)),
    "order books": ("crypto_lob", {"synthetic_hours": 2.0}, PPOConfig(num_steps=16, by_reference=False)),
}
"""Task, rules and learner: one scorer of all symbols as ``vecenv train`` sets it, a flat policy of two 64 x 64 networks
on the same observations, and the same networks on the few numbers of an order book."""


def points_of_ensemble(config: CaseConfig) -> Sequence[Point]:
    names, threads = config.sized((("order books",), (1,)), (tuple(WORKLOADS), (1, 2)), (tuple(WORKLOADS), (1,)))
    return [
        Point(f"{name}, {count} thread{'s' * (count > 1)}", partial(_beside, config, name, count))
        for name in names
        for count in threads
    ]


def _beside(config: CaseConfig, name: str, threads: int) -> Sequence[Workload]:
    torch.set_num_threads(threads)
    task, rules, learning = WORKLOADS[name]
    members, rows = config.sized((2, 8), (8, 256))
    made: dict[str, Any] = {"device": config.on(), "compile": config.compile, **rules}
    one = PPO(vecenv.make(task, rows, **made), learning)
    together = vecenv.make(task, members * rows, **made, **row_seeds(range(members), rows))
    all_of_them = ensemble_of(PPO)(together, learning, range(members))
    steps, who = rows * learning.num_steps, f"{members} members"
    return [
        Workload("one, rollout", one.collect, steps),
        Workload(f"{who}, rollout", all_of_them.collect, members * steps, beside="one, rollout"),
        Workload("one, update", one.update, steps),
        Workload(f"{who}, update", all_of_them.update, members * steps, beside="one, update"),
    ]


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


def points_of_scores(config: CaseConfig) -> Sequence[Point]:
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
