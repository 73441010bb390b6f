"""Daily bars aligned by date: the common output of market sources and input of tapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OPEN, HIGH, LOW, CLOSE, VOLUME = range(5)

EXCHANGE_DAYS = 252
"""Days of a year of an exchange, by convention."""

_PERIODS = {7: 52, 14: 26, **dict.fromkeys((28, 29, 30, 31), 12), **dict.fromkeys((90, 91, 92), 4), 365: 1, 366: 1}


def periods_per_year(dates: np.ndarray) -> float:
    """Return the bars of a year by a market's own calendar: 252 on exchange days, 365 on all days, 52 weeks, 12 months.

    The convention is that of the usual spacing, the median; days are all days if the market has at least half as many
    bars on every day of the week as on the most frequent one. Other spacings count as they are, two bars or fewer as
    exchange days. ``dates`` are increasing ``datetime64``. Shape: (T,).
    """
    days = dates.astype("datetime64[D]").astype(np.int64)
    if len(days) < 3:
        return EXCHANGE_DAYS
    usual = float(np.median(np.diff(days)))
    if usual == 1:
        week = np.bincount(days % 7, minlength=7)
        return 365 if 2 * week.min() >= week.max() else EXCHANGE_DAYS
    return _PERIODS.get(round(usual), max(1, round(365.25 * (len(days) - 1) / int(days[-1] - days[0]))))


@dataclass(frozen=True, eq=False)
class Bars:
    """Daily bars of several symbols, aligned by date, before indicators and forward filling.

    Attributes:
        symbols: names of the K symbols.
        dates: numpy ``datetime64[D]``, strictly increasing. Shape: (T,).
        ohlcv: float64 open, high, low, close, volume; NaN where the symbol has no bar on that
            date. Shape: (P, T, K, 5), P paths that share dates and symbols.
        columns: further numeric columns per symbol and day (fundamentals, factors, scores,
            precomputed indicators); NaN where missing. Shape of each: (P, T, K).
        context: numeric series of the whole market (``vix``, ``turbulence``). Shape of each: (P, T).
        source: origin of the bars, for messages.
        warm_up: number of leading days without tradable symbols, used for the indicators of later days.
        currency: currency code of all prices, such as USD; None if unknown.
        best_weights: of the best rule that the generator knows, long only and without costs: shares of the wealth to
            hold from a close to the next, from what is known at the first. None if unknown. Shape: (P, T, K).
        texts: of documents, at whose positions the column ``text`` points.
        law: parameters of the generator's law, for agents that know it; None for data.
        generated: whether a generator made the bars, so that the dates are of no calendar.
        adjusted: whether prices were scaled to a column of adjusted closes.
    """

    symbols: tuple[str, ...]
    dates: np.ndarray
    ohlcv: Tensor
    columns: dict[str, Tensor] = field(default_factory=dict)
    context: dict[str, Tensor] = field(default_factory=dict)
    source: str = "bars"
    warm_up: int = 0
    currency: str | None = None
    best_weights: Tensor | None = None
    texts: tuple[str, ...] = ()
    law: object | None = None
    generated: bool = False
    adjusted: bool = False

    @property
    def listed(self) -> Tensor:
        """Whether a symbol has a bar on a day. Shape: (P, T, K), bool."""
        return ~self.ohlcv[..., CLOSE].isnan()

    def to(self, device: torch.device | str) -> Bars:
        return self._changed(lambda tensor: tensor.to(device))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Bars:
        columns, context = (
            {name: change(values) for name, values in table.items()} for table in (self.columns, self.context)
        )
        best = None if self.best_weights is None else change(self.best_weights)
        return replace(self, ohlcv=change(self.ohlcv), columns=columns, context=context, best_weights=best)

    def days(self, first: int, stop: int) -> Bars:
        """Return the bars of some days, at least one, as views; ``stop`` is exclusive."""
        cut = slice(first, stop)
        dates, source = self.dates[cut], f"{self.source} to {self.dates[cut][-1]}"
        parts = self._changed(lambda tensor: tensor[:, cut])
        return replace(parts, dates=dates, source=source, warm_up=max(0, self.warm_up - first))

    def absent(self, day: int) -> list[str]:
        """Return the symbols without a bar on a day, given by position, of the first path."""
        return [name for name, here in zip(self.symbols, self.listed[0, day].tolist(), strict=True) if not here]
