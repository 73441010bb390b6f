"""Market tape: price and feature tensors over (path, day, symbol), indexed by each step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.indicators import FINRL_INDICATORS, INDICATORS, compute_indicators
from vecenv.market.ticks import choose_tick, lowest_price, price_bits, refuse_overflow, whole_ticks
from vecenv.market.turbulence import turbulence
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

    def __post_init__(self) -> None:
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

        Raises:
            MarketDataError: a feature or series is unknown or never has a value, a price does not fit the tick, or a
                number does not fit into float32.
        """
        listed = bars.listed
        _refuse_partial_bars(bars, listed)
        first = _first_true(listed)
        ohlcv = _carry(bars.ohlcv.double(), listed)
        for column, name in enumerate(OHLCV):
            refuse_overflow(bars, name, ohlcv[..., column])
        values, ready = _features(bars, ohlcv, first, tuple(features))
        starts = _first_true(ready)
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
            context=_context(bars, ohlcv, listed, tuple(context)),
            context_names=tuple(context),
            first_day=first_day,
            tick_size=tick,
            source=bars.source,
            price_bits=price_bits(float(prices.where(known, 0.0).max()) * headroom),
            currency=bars.currency,
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

    def price_ticks(self, column: int = CLOSE) -> Tensor:
        """Prices as whole numbers of ticks, of 24 significant bits. Shape: (P, T, K), float32."""
        return (self.ohlcv[..., column].double() / self.tick_size).round().float()

    def to(self, device: torch.device | str) -> MarketTape:
        """Return the same tape on another device."""
        tensors = ("ohlcv", "tradable", "features", "context")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})

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
        tensors = ("ohlcv", "tradable", "features", "context")
        parts = {name: getattr(self, name)[:, start:stop].contiguous() for name in tensors}
        return replace(self, dates=self.dates[start:stop], first_day=max(0, self.first_day - start), **parts)

    def between(self, start: str | None = None, end: str | None = None) -> MarketTape:
        """Return the days from date ``start`` to date ``end``, both inclusive and both optional.

        Raises:
            MarketDataError: no day of the market after its warm-up lies in the span.
        """
        low = 0 if start is None else int(np.searchsorted(self.dates, np.datetime64(start, "D"), "left"))
        high = len(self.dates) if end is None else int(np.searchsorted(self.dates, np.datetime64(end, "D"), "right"))
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
        """Return the tape of paths ``start`` to ``stop`` (exclusive)."""
        tensors = ("ohlcv", "tradable", "features", "context")
        before = 0 if self.path_span is None else self.path_span[0]
        span = (before + start, before + min(stop, self.num_paths))
        return replace(self, path_span=span, **{name: getattr(self, name)[start:stop] for name in tensors})

    def select(self, symbols: Sequence[str]) -> MarketTape:
        """Return the tape of some symbols, in the order given.

        Raises:
            MarketDataError: a symbol is not in the tape.
        """
        unknown = [symbol for symbol in symbols if symbol not in self.symbols]
        if unknown:
            raise MarketDataError(f"{self.source}: unknown symbols {unknown}; it has {', '.join(self.symbols)}")
        index = torch.tensor([self.symbols.index(symbol) for symbol in symbols], device=self.device)
        tensors = ("ohlcv", "tradable", "features")
        parts = {name: getattr(self, name).index_select(2, index) for name in tensors}
        return replace(self, symbols=tuple(symbols), **parts)

    def symbols_as_paths(self) -> MarketTape:
        """Return a tape of one symbol with one path per symbol and path of this tape.

        Path p of the result is symbol p % K of path p // K.
        """

        def moved(tensor: Tensor) -> Tensor:
            """(P, T, K, ...) to (P K, T, 1, ...)."""
            return tensor.movedim(2, 1).flatten(0, 1).unsqueeze(2).contiguous()

        return replace(
            self,
            symbols=("*",),
            ohlcv=moved(self.ohlcv),
            tradable=moved(self.tradable),
            features=moved(self.features),
            context=self.context.repeat_interleave(self.num_symbols, 0),
        )

    def metadata(self) -> dict[str, Any]:
        """Return a JSON-able description of the market for results."""
        return {
            "source": self.source,
            "fingerprint": self.fingerprint(),
            "symbols": list(self.symbols),
            "paths": self.num_paths,
            "first_day": str(self.dates[self.first_day]),
            "last_day": str(self.dates[-1]),
            "tick_size": self.tick_size,
            "currency": self.currency,
        }

    def fingerprint(self) -> str:
        """SHA-256 hash, 16 hex digits, of all that an agent observes or trades, to identify a market in results."""
        digest = hashlib.sha256()
        names = (self.symbols, self.feature_names, self.context_names, self.first_day, self.tick_size)
        digest.update(repr(names).encode())
        digest.update(np.ascontiguousarray(self.dates.astype("datetime64[D]").astype(np.int64)).tobytes())
        for tensor in (self.ohlcv, self.tradable, self.features, self.context):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def training_paths(num_paths: int, test_fraction: float) -> int:
    """Return the number of training paths of `MarketTape.split_paths`, for two or more paths."""
    return min(max(1, round(num_paths * (1.0 - test_fraction))), num_paths - 1)


def _refuse_partial_bars(bars: Bars, listed: Tensor) -> None:
    """Raise if a bar has a close but another number is missing or infinite, or a price is not positive."""
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


def _first_true(flags: Tensor) -> Tensor:
    """Return the first day on which a flag holds, T where it never does. Shape: (P, T, K) -> (P, K)."""
    days = flags.shape[1]
    return torch.where(flags.any(1), flags.to(torch.int8).argmax(1), days)


def _forward_filled(values: Tensor, present: Tensor) -> Tensor:
    """Forward-fill along the days. Shape of both: (P, T, K)."""
    day = torch.arange(values.shape[1], device=values.device)[:, None]
    last = torch.where(present, day, -1).cummax(1).values
    return torch.where(last >= 0, values.gather(1, last.clamp(min=0)), float("nan"))


def _carry(ohlcv: Tensor, listed: Tensor) -> Tensor:
    """Fill days without a bar: flat at the last close with volume 0; 0 before the listing."""
    close = _forward_filled(ohlcv[..., CLOSE], listed).nan_to_num(0.0)
    flat = torch.stack([close, close, close, close, torch.zeros_like(close)], dim=-1)
    return torch.where(listed[..., None], ohlcv, flat)


def _features(bars: Bars, ohlcv: Tensor, first: Tensor, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return the features, zero in each symbol's warm-up, and the mask after it. Shapes: (P, T, K, I), (P, T, K)."""
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


def _context(bars: Bars, ohlcv: Tensor, listed: Tensor, names: tuple[str, ...]) -> Tensor:
    """Return the series of the whole market. Shape: (P, T, M), float32."""
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
