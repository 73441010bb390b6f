"""Series of a tape from bars: prices carried over days without a bar, features, and series of the whole market."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.indicators import compute_indicators, indicator_named, indicator_names
from vecenv.market.ticks import refuse_overflow
from vecenv.market.validation import OHLCV, MarketDataError, MarketDataWarning

MAX_WINDOW_ELEMENTS = 2**22
"""Bound of the returns expanded into windows at once: 32 MiB."""


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


def feature_series(
    bars: Bars, ohlcv: Tensor, first: Tensor, names: tuple[str, ...], year: float
) -> tuple[Tensor, Tensor]:
    """Return the features, zero in each symbol's warm-up, and the mask after it; ``year`` is in bars.

    Returns:
        Features and mask. Shapes: (P, T, K, I), float64, and (P, T, K), bool.

    Raises:
        MarketDataError: a feature is unknown, or a number does not fit into float32.
    """
    unknown = [name for name in names if name not in bars.columns and indicator_named(name) is None]
    if unknown:
        raise MarketDataError(
            f"{bars.source}: unknown features {unknown}; its columns are {sorted(bars.columns)}, "
            f"the indicators {indicator_names()}"
        )
    computed = [name for name in names if name not in bars.columns]
    indicators = compute_indicators(ohlcv, first, computed, year) if computed else ohlcv[..., :0]
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
            unknown = values.isnan()
        elif name == "turbulence":
            values = turbulence(ohlcv[..., CLOSE], listed)
            unknown = values.cummax(1).values == 0
        else:
            raise MarketDataError(
                f"{bars.source}: unknown market series {name!r}; it has {sorted(bars.context)}, "
                "and turbulence can be computed"
            )
        if days := int(unknown.sum(1).max()):
            what = f"{name} is unknown on the first {days:,} days, and shown as 0"
            warnings.warn(f"{bars.source}: {what}", MarketDataWarning, stacklevel=2)
        series.append(values.nan_to_num(0.0))
        refuse_overflow(bars, name, series[-1])
    if not series:
        return ohlcv.new_zeros((*ohlcv.shape[:2], 0), dtype=torch.float32)
    return torch.stack(series, dim=-1).float()


def _forward_filled(values: Tensor, present: Tensor) -> Tensor:
    day = torch.arange(values.shape[1], device=values.device)[:, None]
    last = torch.where(present, day, -1).cummax(1).values
    return torch.where(last >= 0, values.gather(1, last.clamp(min=0)), float("nan"))


def turbulence(close: Tensor, listed: Tensor, lookback: int = 252) -> Tensor:
    """Squared Mahalanobis distance of each day's returns from the trailing year (Kritzman and Li, 2010).

    ``d = (r - μ)ᵀ Σ⁺ (r - μ)``: r the day's simple returns, μ and Σ the mean and the sample
    covariance of the ``lookback`` returns before it, Σ⁺ the pseudo-inverse, as in FinRL's
    ``FeatureEngineer.calculate_turbulence``. A symbol takes part on a day only if it has a bar on
    that day and on each of the ``lookback + 1`` days before. The mean is about the number of symbols
    under a stationary distribution, and grows as that number approaches ``lookback``.

    FinRL sets its first two positive values to zero, and takes the first of them from one return
    less. Here values start once the window is full, so that on complete data day ``lookback + 1``
    has a value where FinRL has 0, and all others agree.

    Args:
        close: closing prices; read only where listed. Shape: (P, T, K).
        listed: whether the symbol has a bar on the day, bool. Shape: (P, T, K).
        lookback: trailing days of returns, at least 2.

    Returns:
        float64, 0 where no symbol has a full window. Shape: (P, T).

    Raises:
        ValueError: ``lookback`` is below 2 or the shapes differ.
    """
    if lookback < 2:
        raise ValueError(f"a covariance needs a lookback of at least 2 days, got {lookback}")
    if close.shape != listed.shape:
        raise ValueError(f"close {tuple(close.shape)} and listed {tuple(listed.shape)} must have one shape")
    paths, days, symbols = close.shape
    distances = torch.zeros(paths, days, dtype=torch.float64, device=close.device)
    first_day = lookback + 1
    if days <= first_day:
        return distances

    close = close.double()
    has_return = listed[:, 1:] & listed[:, :-1]
    returns = torch.where(has_return, close[:, 1:] / close[:, :-1] - 1.0, 0.0)
    window = lookback + 1
    chunk = max(1, MAX_WINDOW_ELEMENTS // (paths * symbols * window))
    return_windows = returns.unfold(1, window, 1).split(chunk, dim=1)
    full_windows = has_return.unfold(1, window, 1).split(chunk, dim=1)
    distances[:, first_day:] = torch.cat(
        [_mahalanobis(values, full.all(-1)) for values, full in zip(return_windows, full_windows, strict=True)], dim=1
    )
    return distances


def _mahalanobis(returns: Tensor, takes_part: Tensor) -> Tensor:
    """Squared distance of each window's last return from those before it. Shape: (P, D)."""
    # A symbol of zeros adds zero eigenvalues only, which the pseudo-inverse drops.
    returns = returns * takes_part.unsqueeze(-1)
    history, today = returns[..., :-1], returns[..., -1]
    mean = history.mean(-1, keepdim=True)
    centred = history - mean
    covariance = centred @ centred.mT / (history.shape[-1] - 1)
    variances, directions = torch.linalg.eigh(covariance)
    deviation = (today.unsqueeze(-2) - mean.mT) @ directions
    negligible = variances[..., -1:] * variances.shape[-1] * torch.finfo(variances.dtype).eps
    kept = variances > negligible
    return torch.where(kept, deviation.squeeze(-2).square() / variances, 0.0).sum(-1)
