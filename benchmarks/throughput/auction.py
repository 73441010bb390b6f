"""Call auctions per second: all agents of all markets act, and each market is cleared at one price."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.device import device_named
from vecenv.kernels.auction.clearing import Cleared, Orders, clear
from vecenv.kernels.order_book.messages import BUY, SELL

MIDDLE = 1_000
"""Reference price in ticks."""


@dataclass(frozen=True)
class AuctionConfig:
    """Settings of the auction benchmark."""

    num_auctions: tuple[int, ...] = (1, 64, 1024)
    """Auctions at once, N."""
    agents: int = 1_000
    """Orders of an auction."""
    levels: int = 256
    """Prices of the window."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    repeats: int = 15
    """Timed calls."""
    threads: int = 1
    """CPU threads."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


@dataclass(frozen=True)
class AuctionFigure:
    """One measured throughput: orders per second of all auctions, and the median of a call."""

    num_auctions: int
    orders_per_second: float
    microseconds: float


def main(config: AuctionConfig) -> dict[str, Any]:
    """Measure, print and write the figures.

    Raises:
        ValueError: ``repeats`` is below 1, or the device is not available.
    """
    if config.repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {config.repeats}")
    device = device_named(config.device)
    torch.set_num_threads(config.threads)
    figures = [measured(config, count, device) for count in config.num_auctions]
    for figure in figures:
        print(
            f"{figure.num_auctions:>6} auctions of {config.agents:,}: "
            f"{figure.orders_per_second / 1e6:7.2f} M orders/s, {figure.microseconds:,.0f} us a call"
        )
    result: dict[str, Any] = {
        "benchmark": "auction",
        "device": machine.device_name(device),
        "torch": torch.__version__,
        "config": plain(config),
        "figures": [asdict(figure) for figure in figures],
    }
    write_result(config.output, f"auction-{machine.file_stem(result['device'])}", result)
    return result


def measured(config: AuctionConfig, count: int, device: torch.device) -> AuctionFigure:
    """Time a number of auctions at once, compiled."""
    generator = torch.Generator().manual_seed(count)
    shape = (count, config.agents)
    side = torch.randint(0, 2, shape, generator=generator)
    away = torch.randint(-config.levels // 4, config.levels // 8, shape, generator=generator)
    price = torch.where(side == BUY, MIDDLE + away, MIDDLE - away)
    orders = Orders(*(part.to(device) for part in (side, price, torch.randint(1, 200, shape, generator=generator))))
    reference = torch.full((count,), MIDDLE, device=device)
    low = reference - config.levels // 2

    def all_cleared(orders: Orders, reference: torch.Tensor, low: torch.Tensor) -> Cleared:
        return torch.vmap(lambda *one: clear(Orders(*one[:3]), one[3], one[4], config.levels))(*orders, reference, low)

    compiled = torch.compile(all_cleared)
    found = compiled(orders, reference, low)
    assert bool((torch.where(orders.side == SELL, found.filled, 0).sum(-1) == found.volume).all())
    seconds = machine.seconds_of(lambda: compiled(orders, reference, low), device, config.repeats)
    call = statistics.median(seconds)
    return AuctionFigure(count, count * config.agents / call, 1e6 * call)


if __name__ == "__main__":
    main(tyro.cli(AuctionConfig))
