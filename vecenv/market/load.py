"""One door to every market: a file, a table, a tape, or a generator's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from vecenv.market.bars import Bars
from vecenv.market.indicators import FINRL_INDICATORS
from vecenv.market.planted import planted_bars, random_walk_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape

if TYPE_CHECKING:
    import pandas as pd

Market: TypeAlias = "str | Path | pd.DataFrame | MarketTape"

GENERATORS: dict[str, Callable[..., Bars]] = {
    "synthetic": synthetic_bars,
    "planted": planted_bars,
    "random_walk": random_walk_bars,
}
"""Markets that need no data, by name."""


def load_market(
    market: Market = "synthetic",
    *,
    symbols: Sequence[str] | None = None,
    start: str | None = None,
    end: str | None = None,
    features: Sequence[str] = FINRL_INDICATORS,
    context: Sequence[str] = (),
    context_market: str | Path | None = None,
    num_paths: int = 8,
    num_days: int = 1500,
    seed: int = 0,
    tick_size: float | None = None,
    device: torch.device | str = "cpu",
) -> MarketTape:
    """Make a tape of any market.

    Args:
        market: a file or folder, a long table as FinRL's, a tape, which is only moved, or a name in `GENERATORS`.
        symbols: symbols to read, all by default; for a generator their names.
        start: first date to read.
        end: last date to read.
        features: columns of the data or indicators shown to the agent.
        context: series of the whole market, such as ``turbulence`` and ``vix``.
        context_market: file whose only symbol's closes become the series that ``context`` names and the market
            itself lacks, aligned by date.
        num_paths: paths of a generator.
        num_days: days of a generator.
        seed: of a generator.
        tick_size: currency units per tick, chosen from the prices by default.
        device: where the tensors live.

    Raises:
        MarketDataError: the data have a fault, or lack what was asked for.
        ValueError: a generator was given what it does not take.
    """
    if isinstance(market, MarketTape):
        return market.to(device)
    if isinstance(market, str) and market in GENERATORS:
        fixed: dict[str, object] = {"start": start, "end": end, "context_market": context_market}
        unused = [name for name, value in fixed.items() if value is not None]
        if unused:
            raise ValueError(f"the generator {market!r} takes no {', '.join(unused)}")
        named = {"symbols": list(symbols)} if symbols else {}
        bars = GENERATORS[market](num_paths=num_paths, num_days=num_days, seed=seed, device=device, **named)
    else:
        # The readers bring pandas, which a generator and a tape do without.
        from vecenv.market.sources import read_bars, with_context

        bars = read_bars(market, symbols, start, end)
        if context_market is not None:
            bars = with_context(bars, context_market, context)
    return MarketTape.from_bars(bars, features, context, tick_size).to(device)
