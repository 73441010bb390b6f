"""Daily bars aligned by date: the common output of market sources and input of tapes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

OPEN, HIGH, LOW, CLOSE, VOLUME = range(5)


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
    """

    symbols: tuple[str, ...]
    dates: np.ndarray
    ohlcv: Tensor
    columns: dict[str, Tensor] = field(default_factory=dict)
    context: dict[str, Tensor] = field(default_factory=dict)
    source: str = "bars"
    warm_up: int = 0
    currency: str | None = None

    @property
    def listed(self) -> Tensor:
        """Whether a symbol has a bar on a day. Shape: (P, T, K), bool."""
        return ~torch.isnan(self.ohlcv[..., CLOSE])

    def to(self, device: torch.device | str) -> Bars:
        """Return the same bars on another device."""
        columns, context = (
            {name: values.to(device) for name, values in table.items()} for table in (self.columns, self.context)
        )
        return replace(self, ohlcv=self.ohlcv.to(device), columns=columns, context=context)

    def days(self, first: int, stop: int) -> Bars:
        """Return the bars of some days, at least one, as views; ``stop`` is exclusive."""
        cut = slice(first, stop)
        columns, context = (
            {name: values[:, cut] for name, values in table.items()} for table in (self.columns, self.context)
        )
        dates, source = self.dates[cut], f"{self.source} to {self.dates[cut][-1]}"
        warm_up, ohlcv = max(0, self.warm_up - first), self.ohlcv[:, cut]
        return replace(self, dates=dates, ohlcv=ohlcv, columns=columns, context=context, source=source, warm_up=warm_up)

    def absent(self, day: int) -> list[str]:
        """Return the symbols without a bar on a day, given by position, of the first path."""
        return [name for name, here in zip(self.symbols, self.listed[0, day].tolist(), strict=True) if not here]
