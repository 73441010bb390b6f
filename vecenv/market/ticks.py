"""Rounding of prices to whole ticks: choice of the tick size, and bounds of the rounding error.

A price is a whole number of ticks held in float32. Below 2²⁴ ticks that is exact; above, float32 keeps the 24 leading
bits, which moves a price by less than a ten-millionth. One tick therefore serves a stock at 0.50 and one at 500,000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.validation import MarketDataError

USUAL_TICK = 1e-4
"""Default currency units per tick; the warm-up's prices may require a finer or allow a coarser one."""

COARSEST_ROUNDING = 2e-4
"""Largest ratio of half a tick to the lowest warm-up price; above it a finer tick is chosen."""

FINEST_ROUNDING = 1e-6
"""Ratio of half a tick to the lowest warm-up price below which a coarser tick, for larger accounts, is chosen."""

MAX_ROUNDING = 5e-4
"""Largest relative rounding error of a price; returns are then off by at most about 0.1%."""

NARROW_BITS = 24
"""Bits of a trade price where all prices are below 2²³ ticks: slippage and commission at most double a price."""

WIDEST_BITS = 37
"""Bits of the highest trade price allowed."""

NAMED = 6
"""Number of symbols listed in a message."""


def choose_tick(lowest_price: float) -> float:
    """Return the tick size, a power of ten, from the lowest price of the warm-up.

    It is 1e-4, unless half of it is more than 0.02% of the price (then finer), or half of a ten times larger tick is at
    most 0.0001% of it (then coarser).
    """
    tick = USUAL_TICK
    while tick > 2 * COARSEST_ROUNDING * lowest_price:
        tick /= 10
    while tick * 10 <= 2 * FINEST_ROUNDING * lowest_price:
        tick *= 10
    return float(f"{tick:.0e}")


def tick_between(least: float, prices: Tensor) -> float | None:
    """Return the finest power of ten above ``least`` with which no price above 0 moves by more than `MAX_ROUNDING`.

    If there is none, a tick of one digit; None if there is none either.
    """
    prices = prices[prices > 0].double()
    most = 2 * MAX_ROUNDING * float(prices.min()) * (1 - MAX_ROUNDING)
    digit = 10.0 ** math.floor(math.log10(most))
    for tick in (10.0 ** (math.floor(math.log10(least)) + 1), math.floor(most / digit) * digit):
        tick = float(f"{tick:.0e}")
        moved = ((prices / tick).round().clamp(min=1.0) * tick / prices - 1).abs().max()
        if tick > least and float(moved) <= MAX_ROUNDING:
            return tick
    return None


def fewer_ticks(amount: float, bound: int, tick: float, symbols: Sequence[str], ohlcv: Tensor) -> str:
    """Return what to set where an amount of money must be fewer than ``bound`` ticks; prices 0 for none, (P, T, K, 5).

    It is a tick with which the prices can be read too, else less money, or the symbols that need a finer tick.
    """
    least, prices = amount / bound, ohlcv[..., :VOLUME]
    found = tick_between(least, prices)
    if found is not None:
        return f"use a tick_size of {found:g}"
    cheap = [name for place, name in enumerate(symbols) if tick_between(least, prices[:, :, place]) is None]
    told = ", ".join(cheap[:NAMED]) + (f" and {len(cheap) - NAMED} more" if len(cheap) > NAMED else "")
    digit = 10.0 ** math.floor(math.log10(bound * tick))
    most = math.floor(bound * tick / digit * (1 - MAX_ROUNDING)) * digit
    return f"no tick_size as coarse fits the prices of {told}: use initial_cash of {most:g} or less, or leave these out"


def whole_ticks(bars: Bars, ohlcv: Tensor, listed: Tensor, tick: float) -> Tensor:
    """Round prices to whole ticks of at most 24 significant bits, at least one. Shapes: (P, T, K, 5) -> (P, T, K, 4).

    Raises:
        MarketDataError: a price is 2³⁶ ticks or more, or moves by more than `MAX_ROUNDING`.
    """
    prices, here = ohlcv[..., :VOLUME], listed[..., None]
    bound = 2.0 ** (WIDEST_BITS - 1)
    if len(where := (here & (prices >= bound * tick)).nonzero()):
        told = _worst(bars, prices, where, prices)
        raise MarketDataError(
            f"{bars.source}: prices must be below 2^36 ticks of {tick:g}: {told}; {_other_tick(bars, prices, here)}"
        )
    ticks = (prices / tick).round().clamp(min=1.0).float().double()
    moved = (ticks * tick).sub_(prices).abs_().div_(prices)
    if len(where := (here & (moved > MAX_ROUNDING)).nonzero()):
        raise MarketDataError(
            f"{bars.source}: a tick of {tick:g} moves prices by more than {MAX_ROUNDING:.2%}: "
            f"{_worst(bars, moved, where, prices)}; {_other_tick(bars, prices, here)}"
        )
    return ticks


def _other_tick(bars: Bars, prices: Tensor, here: Tensor) -> str:
    """Return the tick that fits all prices, or which symbols have none in common."""
    lows, highs = prices.where(here, torch.inf).amin((0, 1, 3)), prices.where(here, 0.0).amax((0, 1, 3))
    low, high, bound = int(lows.argmin()), int(highs.argmax()), 2.0 ** (WIDEST_BITS - 1)
    usual = choose_tick(float(lows[low]))
    tick: float | None = usual
    if usual * bound <= float(highs[high]):
        tick = tick_between(float(highs[high]) / bound, prices[here.expand_as(prices)])
    if tick is not None:
        return f"use tick_size={tick:g}"
    return (
        f"no tick_size fits {bars.symbols[low]} ({float(lows[low]):g}) and {bars.symbols[high]} "
        f"({float(highs[high]):g}): they cannot stand in one market, leave one of them out"
    )


def price_bits(highest_ticks: float) -> int:
    """Return the bits of a trade price where no price is above ``highest_ticks``, at least `NARROW_BITS`."""
    return max(NARROW_BITS, math.frexp(highest_ticks)[1] + 1)


def refuse_overflow(bars: Bars, name: str, values: Tensor) -> None:
    """Raise MarketDataError if a finite number does not fit into float32, naming series, symbol and date."""
    where = (values.isfinite() & ~values.float().isfinite()).nonzero()
    if len(where):
        path, day, *symbol = where[0].tolist()
        of = f" of {bars.symbols[symbol[0]]}" if symbol else ""
        raise MarketDataError(
            f"{bars.source}: {name}{of} on {bars.dates[day]} is {float(values[tuple(where[0])]):g}, more than float32 "
            f"holds (path {path}; {len(where)} such numbers)"
        )


def _worst(bars: Bars, severity: Tensor, where: Tensor, prices: Tensor) -> str:
    parts = []
    symbols = where[:, 2].unique().tolist()
    worst = {k: where[where[:, 2] == k][severity[tuple(where[where[:, 2] == k].T)].argmax()] for k in symbols}
    ranked = sorted(symbols, key=lambda k: -float(severity[tuple(worst[k])]))
    for k in ranked[:NAMED]:
        place = worst[k].tolist()
        price = float(prices[tuple(place)])
        by = "" if severity is prices else f" by {float(severity[tuple(place)]):.2%}"
        parts.append(f"{bars.symbols[k]}{by} ({price:g} on {bars.dates[place[1]]})")
    more = f" and {len(symbols) - NAMED} more" if len(symbols) > NAMED else ""
    return ", ".join(parts) + more


def lowest_price(ohlcv: Tensor, listed: Tensor, last_day: int) -> float:
    """Return the lowest close up to a day, the first that an agent sees. Shapes: (P, T, K, 5), (P, T, K)."""
    closes = ohlcv[:, : last_day + 1, :, CLOSE].where(listed[:, : last_day + 1], torch.inf)
    return float(closes.min())
