"""Call auctions: all agents of all markets act, and each market is cleared at one price."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.kernels.auction.clearing import Cleared, Orders, clear
from vecenv.kernels.order_book.messages import BUY, SELL

MIDDLE = 1_000
"""Reference price in ticks."""


def points(config: CaseConfig) -> Sequence[Point]:
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
