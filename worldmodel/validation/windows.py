"""Windows of real and generated days after the same origins, NaN-aware moments, and intervals over origins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vecenv.learn.intervals import DRAWS, Interval
from vecenv.market.bars import CLOSE, VOLUME

BLOCK = 3
"""Block length of a bootstrap in origins: neighbouring windows overlap, and volatility persists beyond them."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Days after O origins on M paths: a model's draws, or the real ones with M = 1.

    Attributes:
        returns: log-returns from close to close; NaN where missing, at the same places on all paths of an origin.
            Shape: (O, M, H, N).
        scale: standard deviation of each stock's returns over the test span, by which pooled returns are divided.
            Shape: (N,).
        bars: open, high, low, close, volume; NaN where missing. Shape: (O, M, H, N, 5).
        context: real bars up to the origin. Shape: (O, C, N, 5).

    Raises:
        ValueError: shapes disagree, or a scale is not positive.
    """

    returns: Tensor
    scale: Tensor
    bars: Tensor | None = None
    context: Tensor | None = None

    def __post_init__(self) -> None:
        if self.returns.ndim != 4:
            raise ValueError(f"returns need the shape (O, M, H, N), got {tuple(self.returns.shape)}")
        origins, _, _, stocks = self.returns.shape
        if self.scale.shape != (stocks,):
            raise ValueError(f"scale needs one number for each of {stocks} stocks, got {tuple(self.scale.shape)}")
        if not bool((self.scale > 0).all()):
            raise ValueError(
                f"scale must be positive, but is not for stocks {(~(self.scale > 0)).nonzero()[:, 0].tolist()}"
            )
        if self.bars is not None and self.bars.shape != (*self.returns.shape, 5):
            raise ValueError(f"bars of returns {tuple(self.returns.shape)} have the shape {tuple(self.bars.shape)}")
        if self.context is not None and (len(self.context) != origins or self.context.shape[2:] != (stocks, 5)):
            raise ValueError(f"context needs the shape ({origins}, C, {stocks}, 5), got {tuple(self.context.shape)}")

    @property
    def horizon(self) -> int:
        """Days after each origin, H."""
        return self.returns.shape[2]

    @property
    def standardised(self) -> Tensor:
        """Returns over each stock's scale. Shape: (O, M, H, N)."""
        return self.returns / self.scale.to(self.returns.dtype)

    @property
    def market(self) -> Tensor:
        """Mean return of the stocks of a day: the equal-weight market. Shape: (O, M, H)."""
        return self.returns.nanmean(-1)

    def select(self, origins: Tensor) -> Windows:
        bars, context = (None if part is None else part[origins] for part in (self.bars, self.context))
        return Windows(self.returns[origins], self.scale, bars, context)

    def days(self, first: int, last: int) -> Windows:
        """Return the returns of days `first` to `last`, from 1, without bars; raise ValueError if there are fewer."""
        if not 1 <= first <= last <= self.horizon:
            raise ValueError(f"days {first} to {last} are not within the windows' 1 to {self.horizon}")
        return Windows(self.returns[:, :, first - 1 : last], self.scale)

    def sums(self, days: int) -> Tensor:
        """Return disjoint sums of standardised returns, NaN where a day is missing. Shape: (O, M, H // days, N)."""
        blocks = self.horizon // self.days(1, days).horizon
        return self.standardised[:, :, : blocks * days].unflatten(2, (blocks, days)).sum(3)

    def bars_and_context(self, context_days: int = 1) -> tuple[Tensor, Tensor]:
        """Return the bars and the last days of their context; raise ValueError if there are none or too few."""
        have = 0 if self.context is None else self.context.shape[1]
        if self.bars is None or self.context is None or have < context_days:
            raise ValueError(
                f"needs bars and {context_days} days of context, got {have} and bars={self.bars is not None}"
            )
        return self.bars, self.context[:, -context_days:]


def align_windows(context: Tensor, real_bars: Tensor, synthetic_bars: Tensor, scale: Tensor) -> tuple[Windows, Windows]:
    """Make the real and the generated windows, with the real gaps in both.

    A day is missing if the real bar is, and a return is missing if one of its two days is: a real return over a gap
    spans several days and has no counterpart. A stock without a bar on the origin is left out of that origin. Generated
    values at real gaps do not matter. Shapes: context (O, C, N, 5), real bars (O, H, N, 5), generated ones (O, M, H, N,
    5), and scale, as of `return_scale`, (N,).

    Raises:
        ValueError: shapes disagree, or a generated bar with a real counterpart is not finite and positive.
    """
    expected = (len(real_bars), synthetic_bars.shape[1], *real_bars.shape[1:])
    if synthetic_bars.shape != expected:
        raise ValueError(
            f"synthetic_bars of real bars {tuple(real_bars.shape)} have shape {tuple(synthetic_bars.shape)}"
        )
    present = _complete(real_bars) & _complete(context[:, -1:])
    for origin, (bars, real) in enumerate(zip(synthetic_bars, present, strict=True)):
        bad = real & ~_complete(bars)
        if bool(bad.any()):
            path, day, stock = bad.nonzero()[0].tolist()
            values = bars[path, day, stock].tolist()
            raise ValueError(f"synthetic bar of origin {origin}, path {path}, day {day}, stock {stock} is {values}")
    return _windows(context, real_bars[:, None], present, scale), _windows(context, synthetic_bars, present, scale)


def return_scale(close: Tensor) -> Tensor:
    """Return the standard deviation of each stock's daily log-returns, except over gaps. Shape: (T, N) -> (N,)."""
    return stock_moments((close[1:] / close[:-1]).log())[1]


def present_values(values: Tensor) -> Tensor:
    """Return the non-NaN values as one dimension, on the CPU."""
    array = values.cpu().numpy()
    return torch.from_numpy(array[~np.isnan(array)])


def deviation(values: Tensor) -> float:
    """Return the standard deviation of all non-NaN values."""
    mean = values.nanmean(dtype=torch.float64).to(values.dtype)
    return float((values - mean).square().nanmean(dtype=torch.float64).sqrt())


def stock_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return each stock's mean and deviation over all windows, paths and days, never per window. Shape: (N,)."""
    pooled = values.flatten(0, -2)
    mean = pooled.nanmean(0, dtype=torch.float64)
    return mean, (pooled - mean.to(values.dtype)).square().nanmean(0, dtype=torch.float64).sqrt()


def standardise(values: Tensor) -> Tensor:
    """Return values less their stock's mean, over its standard deviation, both of `stock_moments`. Shape: (..., N)."""
    mean, spread = stock_moments(values)
    return (values - mean.to(values.dtype)) / spread.to(values.dtype)


def block_bootstrap(
    metric: Callable[[Tensor], float], num_origins: int, block: int = BLOCK, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Return a metric with the 95% percentile interval of a circular block bootstrap over origins.

    The blocks wrap around the end, so that every origin is drawn equally often (Politis and Romano, "A circular
    block-resampling procedure for stationary data", 1992). The metric is given positions of origins, which may repeat,
    int64 on the CPU. With fewer than three blocks bounds are NaN.

    Raises:
        ValueError: a count is below one.
    """
    if min(num_origins, block, draws) < 1:
        raise ValueError(f"num_origins, block and draws must be at least 1, got {num_origins}, {block} and {draws}")
    value = metric(torch.arange(num_origins))
    if num_origins < 3 * block:
        return Interval(value, math.nan, math.nan)
    drawn = drawn_origins(num_origins, block, draws, seed)
    again = torch.tensor([metric(origins) for origins in drawn], dtype=torch.float64)
    low, high = again.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(value, low, high)


def drawn_origins(num_origins: int, block: int = BLOCK, draws: int = DRAWS, seed: int = 0) -> Tensor:
    """Return the origins of each bootstrap draw, in circular blocks. Shape: (draws, O), int64."""
    starts = torch.randint(
        num_origins, (draws, math.ceil(num_origins / block), 1), generator=torch.Generator().manual_seed(seed)
    )
    return ((starts + torch.arange(block)) % num_origins).flatten(1)[:, :num_origins]


def ratio_interval(total: Tensor, count: Tensor, block: int = BLOCK) -> Interval:
    """Return the sum of totals over the sum of counts, with the bootstrap's interval over days. Shapes: (D,), (D,)."""
    return block_bootstrap(lambda days: float(total[days].sum() / count[days].sum()), len(total), block)


def _complete(bars: Tensor) -> Tensor:
    """Return whether bars have finite and positive prices and a volume. Shape: (..., 5) -> (...), bool."""
    return bars.isfinite().all(-1) & (bars[..., :VOLUME] > 0).all(-1)


def _windows(context: Tensor, bars: Tensor, present: Tensor, scale: Tensor) -> Windows:
    """Make windows from bars with gaps. Shapes: (O, C, N, 5), (O, M, H, N, 5), (O, H, N)."""
    if not bool(present.all()):
        bars = bars.masked_fill(~present[:, None, :, :, None], float("nan"))
    close = bars[..., CLOSE]
    first = context[:, None, -1:, :, CLOSE].to(bars.dtype).expand(-1, bars.shape[1], -1, -1)
    # The logarithm of a ratio near one is more precise than a difference of logarithms in float32.
    returns = (close / torch.cat([first, close[:, :, :-1]], dim=2)).log()
    return Windows(returns, scale, bars, context)
