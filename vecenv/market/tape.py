"""Market tape: price and feature tensors over (path, day, symbol), indexed by each step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bar_series import carried, context_series, feature_series, first_day_of, refuse_partial_bars
from vecenv.market.bars import CLOSE, VOLUME, Bars, periods_per_year
from vecenv.market.dates import day_of
from vecenv.market.feature_names import FINRL_INDICATORS
from vecenv.market.panels import SCORES, Panels
from vecenv.market.ticks import choose_tick, lowest_price, price_bits, refuse_overflow, whole_ticks
from vecenv.market.validation import OHLCV, MarketDataError


@dataclass(frozen=True, eq=False)
class MarketTape:
    """A market of P paths, T days and K symbols with I features per symbol and M series of the whole market.

    Replayed history is one path; generators fill many. All tensors are on one device.

    Attributes:
        symbols: names of the K symbols.
        dates: numpy ``datetime64[D]``. Shape: (T,).
        ohlcv: open, high, low, close, volume. A day without a bar has the last close as a flat bar
            of volume 0; before the listing everything is 0. Shape: (P, T, K, 5), float32.
        tradable: whether the symbol has a bar on the day and its warm-up is over. Shape: (P, T, K).
        features: numbers shown to the agent; 0 until the symbol's warm-up is over. Shape: (P, T, K, I), float32.
        feature_names: names of the I features.
        context: series of the whole market, such as turbulence and VIX. Shape: (P, T, M), float32.
        context_names: names of the M series.
        first_day: days before this one are warm-up and never shown to an agent.
        tick_size: currency units per tick; prices are whole numbers of ticks.
        source: origin of the market, for messages.
        path_span: first and end (exclusive) of the source's paths on this tape; None for all.
        price_bits: bits of a trade price, slippage and commission included, on this tape and its replacements; 0
            derives them from this tape's prices.
        currency: currency code of all prices, such as USD; None if unknown.
        best_weights: as of `Bars`, of all symbols together; None if unknown. Shape: (P, T, K), float32.
        panels: scores and texts of documents, of tasks that read them; else None.
        law, generated, adjusted: as of `Bars`.
        left_out: columns and series of the bars that are neither features nor context, scores or texts of the tape.
        periods_per_year: bars of a year, by which rates and ratios of a year are scaled; 0 takes those of the dates.
    """

    symbols: tuple[str, ...]
    dates: np.ndarray
    ohlcv: Tensor
    tradable: Tensor
    features: Tensor
    feature_names: tuple[str, ...]
    context: Tensor
    context_names: tuple[str, ...]
    first_day: int
    tick_size: float
    source: str = "tape"
    path_span: tuple[int, int] | None = None
    price_bits: int = 0
    currency: str | None = None
    best_weights: Tensor | None = None
    panels: Panels | None = None
    law: object | None = None
    generated: bool = False
    left_out: tuple[str, ...] = ()
    periods_per_year: float = 0
    adjusted: bool = False

    def __post_init__(self) -> None:
        if not self.periods_per_year:
            object.__setattr__(self, "periods_per_year", periods_per_year(self.dates))
        if not self.price_bits:
            highest = float(self.ohlcv[..., :VOLUME].max()) / self.tick_size
            object.__setattr__(self, "price_bits", price_bits(highest))

    @classmethod
    def from_bars(
        cls,
        bars: Bars,
        features: Sequence[str] = FINRL_INDICATORS,
        context: Sequence[str] = (),
        tick_size: float | None = None,
        headroom: float = 1.0,
        panels: Panels | None = None,
        year: float | None = None,
    ) -> MarketTape:
        """Forward-fill prices, round them to ticks, compute features and find each symbol's warm-up.

        Args:
            bars: aligned bars.
            features: names of columns of ``bars`` or of indicators; a column takes precedence over an
                indicator of the same name.
            context: context series: names in ``bars.context``, or ``turbulence``, which is computed if the
                bars lack it.
            tick_size: currency units per tick; by default a power of ten chosen from the prices up to the first day
                that an agent sees, see `choose_tick`.
            headroom: factor by which prices of later tapes with the same ticks may be higher.
            panels: of the same paths, days and symbols.
            year: bars of a year, by default those of the bars' own calendar, see `periods_per_year`.

        Raises:
            MarketDataError: a feature or series is unknown or never has a value, a price does not fit the tick, or a
                number does not fit into float32.
        """
        listed = bars.listed
        refuse_partial_bars(bars, listed)
        first = first_day_of(listed)
        ohlcv = carried(bars.ohlcv.double(), listed)
        for column, name in enumerate(OHLCV):
            refuse_overflow(bars, name, ohlcv[..., column])
        year = year or periods_per_year(bars.dates)
        values, ready = feature_series(bars, ohlcv, first, tuple(features), year)
        starts = first_day_of(ready)
        if int(starts.min()) >= len(bars.dates):
            raise MarketDataError(
                f"{bars.source}: no symbol has {', '.join(features)} on any of its {len(bars.dates)} days; "
                "the warm-up needs a longer history"
            )
        first_day = int(starts.min())
        tick = tick_size or choose_tick(lowest_price(ohlcv, listed, first_day))
        prices = whole_ticks(bars, ohlcv, listed, tick)
        known = (torch.arange(len(bars.dates), device=first.device)[:, None] >= first[:, None]).unsqueeze(-1)
        rounded = torch.cat([prices * tick, ohlcv[..., VOLUME:]], dim=-1).where(known, 0.0)
        return cls(
            symbols=tuple(bars.symbols),
            dates=bars.dates,
            ohlcv=rounded.float(),
            tradable=listed & ready,
            features=values.float(),
            feature_names=tuple(features),
            context=context_series(bars, ohlcv, listed, tuple(context)),
            context_names=tuple(context),
            first_day=first_day,
            tick_size=tick,
            source=bars.source,
            price_bits=price_bits(float(prices.where(known, 0.0).max()) * headroom),
            currency=bars.currency,
            best_weights=None if bars.best_weights is None else bars.best_weights.float(),
            panels=panels,
            law=bars.law,
            generated=bars.generated,
            adjusted=bars.adjusted,
            left_out=tuple(
                name
                for name in (*bars.columns, *bars.context)
                if name not in (*features, *context) and not (panels is not None and name in (*SCORES, "text"))
            ),
            periods_per_year=year,
        )

    @property
    def num_paths(self) -> int:
        """Number of paths, P."""
        return self.ohlcv.shape[0]

    @property
    def num_days(self) -> int:
        """Number of days, T."""
        return self.ohlcv.shape[1]

    @property
    def num_symbols(self) -> int:
        """Number of symbols, K."""
        return self.ohlcv.shape[2]

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.ohlcv.device

    @property
    def gaps(self) -> Tensor:
        """Where a symbol that could trade on an earlier day cannot. Shape: (P, T, K), bool."""
        return self.tradable.cummax(1).values & ~self.tradable

    def price_ticks(self, column: int = CLOSE) -> Tensor:
        """Prices as whole numbers of ticks, of 24 significant bits. Shape: (P, T, K), float32."""
        return (self.ohlcv[..., column].double() / self.tick_size).round().float()

    def to(self, device: torch.device | str) -> MarketTape:
        return self._changed(lambda tensor: tensor.to(device))

    def _changed(self, change: Callable[[Tensor], Tensor], **others: Any) -> MarketTape:  # noqa: ANN401
        names = ("ohlcv", "tradable", "features", "context", "best_weights")
        tensors = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {name: None if tensor is None else change(tensor) for name, tensor in tensors.items()}
        panels = None if self.panels is None else self.panels.changed(change)
        return replace(self, panels=panels, **changed, **others)

    def days(self, start: int, stop: int) -> MarketTape:
        """Return the tape of days ``start`` to ``stop`` (exclusive), with features computed on the full history.

        Raises:
            MarketDataError: the span is empty or ends before the warm-up does.
        """
        stop = min(stop, self.num_days)
        if not 0 <= start < stop or stop <= self.first_day:
            raise MarketDataError(
                f"{self.source}: days {start} to {stop} hold no day after the warm-up of {self.first_day} days "
                f"in a market of {self.num_days}"
            )
        dates, first_day = self.dates[start:stop], max(0, self.first_day - start)
        return self._changed(lambda tensor: tensor[:, start:stop].contiguous(), dates=dates, first_day=first_day)

    def between(self, start: str | None = None, end: str | None = None) -> MarketTape:
        """Return the days from date ``start`` to date ``end``, both inclusive and both optional.

        Raises:
            MarketDataError: no day of the market after its warm-up lies in the span.
        """
        low = 0 if start is None else int(np.searchsorted(self.dates, day_of(start, "start"), "left"))
        high = len(self.dates) if end is None else int(np.searchsorted(self.dates, day_of(end, "end"), "right"))
        if low >= high:
            raise MarketDataError(
                f"{self.source}: no day between {start} and {end}; "
                f"its days run from {self.dates[0]} to {self.dates[-1]}"
            )
        return self.days(low, high)

    def split(self, test_fraction: float = 0.2, embargo: int = 20) -> tuple[MarketTape, MarketTape]:
        """Split by date into a training and a test market with ``embargo`` unused days between.

        The fraction counts the days after the warm-up; the last ones are the test.

        Raises:
            MarketDataError: one of the parts would be empty.
        """
        usable = self.num_days - self.first_day
        boundary = self.num_days - round(usable * test_fraction)
        return self.days(0, boundary - embargo), self.days(boundary, self.num_days)

    def split_paths(self, test_fraction: float = 0.2) -> tuple[MarketTape, MarketTape]:
        """Split by path into a training and a test market; the last paths are the test, at least one.

        Raises:
            MarketDataError: there is one path.
        """
        if self.num_paths < 2:
            raise MarketDataError(f"{self.source}: one path cannot be split; split it by days")
        boundary = training_paths(self.num_paths, test_fraction)
        return self.paths(0, boundary), self.paths(boundary, self.num_paths)

    def paths(self, start: int, stop: int) -> MarketTape:
        """Return the tape of paths ``start`` to ``stop`` (exclusive); MarketDataError if there are none."""
        if not 0 <= start < min(stop, self.num_paths):
            raise MarketDataError(f"{self.source}: there are no paths {start} to {stop}; it has {self.num_paths}")
        before = 0 if self.path_span is None else self.path_span[0]
        span = (before + start, before + min(stop, self.num_paths))
        return self._changed(lambda tensor: tensor[start:stop], path_span=span)

    def select(self, symbols: Sequence[str]) -> MarketTape:
        """Return the tape of some symbols, in the order given; MarketDataError if a symbol is not in the tape."""
        unknown = [symbol for symbol in symbols if symbol not in self.symbols]
        if unknown:
            raise MarketDataError(f"{self.source}: unknown symbols {unknown}; it has {', '.join(self.symbols)}")
        index = torch.tensor([self.symbols.index(symbol) for symbol in symbols], device=self.device)
        # The best rule of some symbols is another one than that of all, for all but the same symbols.
        best = None if self.best_weights is None or set(symbols) != set(self.symbols) else self.best_weights[..., index]
        return self.by_symbol(lambda tensor: tensor.index_select(2, index), symbols=tuple(symbols), best_weights=best)

    def symbols_as_paths(self) -> MarketTape:
        """Return a tape of one symbol with one path per symbol and path of this tape.

        Path p of the result is symbol p % K of path p // K.
        """

        def moved(tensor: Tensor) -> Tensor:
            return tensor.movedim(2, 1).flatten(0, 1).unsqueeze(2).contiguous()

        return self.by_symbol(moved, symbols=("*",), context=self.context.repeat_interleave(self.num_symbols, 0))

    def by_symbol(self, change: Callable[[Tensor], Tensor], **others: Any) -> MarketTape:  # noqa: ANN401
        """Return the tape with changed tensors of symbols, (P, T, K, ...) each; the best rule of others is unknown."""
        parts = {name: change(getattr(self, name)) for name in ("ohlcv", "tradable", "features")}
        panels = None if self.panels is None else self.panels.changed(change)
        return replace(self, **{"best_weights": None, "panels": panels, **parts, **others})

    def metadata(self) -> dict[str, Any]:
        """Return what identifies the market in results, JSON-able."""
        return {
            "source": self.source,
            "fingerprint": self.fingerprint(),
            "symbols": list(self.symbols),
            "paths": self.num_paths,
            "first_day": str(self.dates[self.first_day]),
            "last_day": str(self.dates[-1]),
            "tick_size": self.tick_size,
            "currency": self.currency,
            "periods_per_year": self.periods_per_year,
        }

    def fingerprint(self) -> str:
        """SHA-256 hash, 16 hex digits, of all that an agent observes or trades, to identify a market in results.

        It is made anew after writes that PyTorch counts, not after those through NumPy.
        """
        tensors = [self.ohlcv, self.tradable, self.features, self.context]
        every = tensors + ([] if self.panels is None else self.panels.tensors())
        # Tensors of inference mode do not count their changes.
        written = tuple(None if tensor.is_inference() else tensor._version for tensor in every)
        if None in written or written not in self._fingerprints:
            digest = hashlib.sha256()
            names = (self.symbols, self.feature_names, self.context_names, self.first_day, self.tick_size)
            digest.update(repr(names).encode())
            digest.update(np.ascontiguousarray(self.dates.astype("datetime64[D]").astype(np.int64)).tobytes())
            for tensor in tensors:
                # Without a copy, and of one dimension, as hashes want them.
                digest.update(tensor.cpu().contiguous().flatten().numpy().data)
            if self.panels is not None:
                digest.update(self.panels.digest())
            self._fingerprints[written] = digest.hexdigest()[:16]
        return self._fingerprints[written]

    @cached_property
    def _fingerprints(self) -> dict[tuple[int | None, ...], str]:
        return {}


def training_paths(num_paths: int, test_fraction: float) -> int:
    """Return the number of training paths of `MarketTape.split_paths`, for two or more paths."""
    return min(max(1, round(num_paths * (1.0 - test_fraction))), num_paths - 1)
