"""Series of a tape from bars: prices carried over days without a bar, features, and series of the whole market."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.indicators import INDICATORS, compute_indicators
from vecenv.market.ticks import refuse_overflow
from vecenv.market.turbulence import turbulence
from vecenv.market.validation import OHLCV, MarketDataError


def refuse_partial_bars(bars: Bars, listed: Tensor) -> None:
    """Raise MarketDataError for a bar whose close is there, but other numbers missing, infinite or not positive."""
    sound = bars.ohlcv.isfinite()
    sound[..., :VOLUME] &= bars.ohlcv[..., :VOLUME] > 0
    broken = (listed[..., None] & ~sound).nonzero()
    if len(broken):
        path, day, symbol, column = broken[0].tolist()
        kind = "finite" if column == VOLUME else "finite positive"
        raise MarketDataError(
            f"{bars.source}: {bars.symbols[symbol]} on {bars.dates[day]} has no {kind} {OHLCV[column]} (path {path}; "
            f"{len(broken)} such numbers)"
        )


def first_day_of(flags: Tensor) -> Tensor:
    """Return the first day on which a flag holds, T where it never does. Shape: (P, T, K) -> (P, K)."""
    days = flags.shape[1]
    return torch.where(flags.any(1), flags.to(torch.int8).argmax(1), days)


def carried(ohlcv: Tensor, listed: Tensor) -> Tensor:
    """Fill days without a bar: flat at the last close with volume 0; 0 before the listing. Shape: (P, T, K, 5)."""
    close = _forward_filled(ohlcv[..., CLOSE], listed).nan_to_num(0.0)
    flat = torch.stack([close, close, close, close, torch.zeros_like(close)], dim=-1)
    return torch.where(listed[..., None], ohlcv, flat)


def feature_series(bars: Bars, ohlcv: Tensor, first: Tensor, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return the features, zero in each symbol's warm-up, and the mask after it.

    Returns:
        Features and mask. Shapes: (P, T, K, I), float64, and (P, T, K), bool.

    Raises:
        MarketDataError: a feature is unknown, or a number does not fit into float32.
    """
    unknown = [name for name in names if name not in bars.columns and name not in INDICATORS]
    if unknown:
        raise MarketDataError(
            f"{bars.source}: unknown features {unknown}; its columns are {sorted(bars.columns)}, "
            f"the indicators {sorted(INDICATORS)}"
        )
    computed = [name for name in names if name not in bars.columns]
    indicators = compute_indicators(ohlcv, first, computed) if computed else ohlcv[..., :0]
    series = []
    for name in names:
        if name in bars.columns:
            column = bars.columns[name].double()
            series.append(_forward_filled(column, torch.isfinite(column)))
        else:
            series.append(indicators[..., computed.index(name)])
        refuse_overflow(bars, name, series[-1])
    values = torch.stack(series, dim=-1) if series else ohlcv[..., :0]
    day = torch.arange(ohlcv.shape[1], device=ohlcv.device)[:, None]
    ready = values.isfinite().all(-1) & (day >= first[:, None]) & (day >= bars.warm_up)
    return values.where(ready[..., None], 0.0), ready


def context_series(bars: Bars, ohlcv: Tensor, listed: Tensor, names: tuple[str, ...]) -> Tensor:
    """Return the named series of the bars, or ``turbulence``. Shape: (P, T, M), float32.

    Raises:
        MarketDataError: a series is unknown, or a number does not fit into float32.
    """
    series = []
    for name in names:
        if name in bars.context:
            values = bars.context[name].double()
            values = _forward_filled(values[..., None], torch.isfinite(values)[..., None])[..., 0]
            series.append(values.nan_to_num(0.0))
        elif name == "turbulence":
            series.append(turbulence(ohlcv[..., CLOSE], listed))
        else:
            raise MarketDataError(
                f"{bars.source}: unknown market series {name!r}; it has {sorted(bars.context)}, "
                "and turbulence can be computed"
            )
        refuse_overflow(bars, name, series[-1])
    if not series:
        return ohlcv.new_zeros((*ohlcv.shape[:2], 0), dtype=torch.float32)
    return torch.stack(series, dim=-1).float()


def _forward_filled(values: Tensor, present: Tensor) -> Tensor:
    day = torch.arange(values.shape[1], device=values.device)[:, None]
    last = torch.where(present, day, -1).cummax(1).values
    return torch.where(last >= 0, values.gather(1, last.clamp(min=0)), float("nan"))
