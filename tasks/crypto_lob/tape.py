"""The tape: one coin's books at regular times, as tensors of whole ticks and lots; its parts; starts of episodes."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.system.files import file_state
from vecenv.tasks.crypto_lob.clock import LONGEST_HOLE, clocked, cuts, long_holes, moment
from vecenv.tasks.crypto_lob.config import SYNTHETIC, BookOptions, BookSource, CryptoLobConfig
from vecenv.tasks.crypto_lob.factors import factor_table
from vecenv.tasks.crypto_lob.forecast_file import forecasts_of_rows
from vecenv.tasks.crypto_lob.snapshot_files import messages_of, read_snapshots
from vecenv.tasks.crypto_lob.snapshots import Snapshots
from vecenv.tasks.crypto_lob.synthetic import synthetic_snapshots

LARGEST = 2**30
"""Ticks of a price and lots of a side are below this, so that doubled mids fit into 32 bits."""

LOTS_OF_UNIT = 10_000
"""Least lots of a unit, by the default size of a lot."""

_SINGLE = 2.0**-23
"""Relative rounding error of sizes in single precision, as files have them, and of their division."""

_ON_TICK = 1e-3
"""Ticks that a price may be away from a whole number of them, from rounding."""


@dataclass(frozen=True, eq=False)
class BookTape:
    """Order books at T times, with L levels a side. Side 0 is the asks, which buyers hit, side 1 the bids.

    ``time`` is milliseconds since 1970, ``open`` whether the row is no hole. ``price`` in ticks, 0 where there is no
    level, and ``size`` in lots, 0 in holes, have shape (T, 2, L), int32; ``taken`` are lots taken from each side since
    the row before, (T, 2), int32; ``doubled_mid`` is the sum of best bid and ask in ticks, int32. ``factors`` have
    shape (T, F), float32. ``tick_size`` is currency per tick, ``lot_size`` coins per lot, ``unit`` the lots of a unit,
    ``step_gap`` seconds between rows where no long hole is left out. ``faults`` counts faulty rows of the file by kind.
    """

    source: str
    symbol: str
    time: Tensor
    open: Tensor
    price: Tensor
    size: Tensor
    taken: Tensor
    doubled_mid: Tensor
    factors: Tensor
    factor_names: tuple[str, ...]
    tick_size: float
    lot_size: float
    unit: int
    step_gap: float
    faults: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return len(self.time)

    @property
    def levels(self) -> int:
        return self.price.shape[-1]

    @property
    def money_size(self) -> float:
        """Currency of one unit of money, half a tick times a lot."""
        return self.tick_size * self.lot_size / 2

    def metadata(self) -> dict[str, Any]:
        first, last, holes = self.moment(0), self.moment(-1), int((~self.open).sum())
        share = f"{holes / self.num_rows:.1%} of them without a fresh book" if holes else "all with a fresh book"
        rows = f"{self.num_rows:,} rows of {self.step_gap:g} s, {share}"
        if self.faults:
            rows += "; faulty rows of the file: " + ", ".join(f"{n:,} {kind}" for kind, n in self.faults.items())
        source = Path(self.source).name
        name = source if self.symbol in ("", source.upper()) else f"{source}, {self.symbol}"
        return {
            "description": f"{name}: {first} to {last}, {rows}; a unit is {self.unit * self.lot_size:g} coins",
            "source": source,
            "symbol": self.symbol,
            "fingerprint": self.fingerprint(),
            "rows": self.num_rows,
            "holes": holes,
            "faulty_rows": dict(self.faults),
            "first": first,
            "last": last,
            "levels": self.levels,
            "tick_size": self.tick_size,
            "lot_size": self.lot_size,
            "unit_coins": self.unit * self.lot_size,
        }

    def moment(self, row: int) -> str:
        """Return the time of a row, UTC, to the second."""
        return moment(int(self.time[row]))

    def fingerprint(self) -> str:
        """SHA-256 hash, 16 hex digits, of all that is traded and shown."""
        digest = hashlib.sha256()
        digest.update(repr((self.factor_names, self.tick_size, self.lot_size, self.unit, self.step_gap)).encode())
        for tensor in (self.time, self.open, self.price, self.size, self.taken, self.factors):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def snapshots_of(source: BookSource) -> Snapshots:
    """Read or generate the snapshots of one coin; raises MarketDataError if the file is missing or invalid."""
    if source.book == SYNTHETIC:
        return synthetic_snapshots(
            source.synthetic_hours,
            source.step_gap,
            source.levels,
            source.synthetic_strength,
            source.synthetic_seed,
        )
    return read_snapshots(source.book, source.symbol, source.tick_size, source.levels, source.faulty_rows)


def tape_of_options(options: BookOptions) -> BookTape:
    """Read or generate the books of some options, and make their tape; the last four are kept while files last.

    Raises MarketDataError if the file is missing or invalid, its prices or sizes do not fit, or the forecasts are of
    other books.
    """
    book = Path(options.book)
    # Books that are not LOBSTER's have no file of messages beside them.
    files = dict.fromkeys((str(book), str(messages_of(book)), options.forecasts))
    return _kept_tape(options, *map(file_state, files))


@lru_cache(maxsize=4)
def _kept_tape(options: BookOptions, *_states: str) -> BookTape:
    return tape_of_snapshots(snapshots_of(options.source), options)


def tape_of_snapshots(snapshots: Snapshots, options: BookOptions) -> BookTape:
    """Put snapshots on the clock, and round them to ticks and lots; raises MarketDataError as `tape_of_options`."""
    books = clocked(snapshots, options.step_gap, options.max_age)
    tick = options.tick_size or _tick_of(snapshots)
    price = np.stack([books.ask_price, books.bid_price], 1)
    ticks = _whole_ticks(snapshots, price, tick)
    first_mid = (books.ask_price[0, 0] + books.bid_price[0, 0]) / 2
    coins = options.unit or _rounded_down(options.initial_cash / first_mid)
    lot = options.lot_size or 10.0 ** math.floor(math.log10(coins / LOTS_OF_UNIT))
    unit = round(coins / lot)
    if unit < 1:
        raise MarketDataError(f"{snapshots.source}: a unit of {coins:g} coins is less than a lot_size of {lot:g}")
    size = _whole_lots(np.stack([books.ask_size, books.bid_size], 1), lot)
    taken = _whole_lots(np.stack([books.bought, books.sold], 1), lot)
    # What is more than an order can ever be makes no difference, but to queues that would never end.
    size, taken = (np.minimum(part, LARGEST // (2 * snapshots.levels)) for part in (size, taken))
    doubled_mid = ticks[:, 0, 0] + ticks[:, 1, 0]
    factors, names = factor_table(books, options.factors, options.step_gap), options.factors
    if options.forecasts:
        columns, added = forecasts_of_rows(Path(options.forecasts), books)
        factors, names = np.concatenate([factors, columns], 1), (*names, *added)
    return BookTape(
        source=snapshots.source,
        symbol=snapshots.symbol,
        time=torch.from_numpy(books.time),
        open=torch.from_numpy(books.open),
        price=torch.from_numpy(ticks.astype(np.int32)),
        size=torch.from_numpy(size.astype(np.int32)),
        taken=torch.from_numpy(taken.astype(np.int32)),
        doubled_mid=torch.from_numpy(doubled_mid.astype(np.int32)),
        factors=torch.from_numpy(factors),
        factor_names=names,
        tick_size=tick,
        lot_size=lot,
        unit=unit,
        step_gap=options.step_gap,
        faults=snapshots.faults,
    )


def depth_table(tape: BookTape, largest: int) -> Tensor:
    """Return the table by which orders walk the book without a loop over prices: lots up to each level, and weights.

    The value of q lots is the sum over levels of price times what the level fills. With c the lots up to and with a
    level that is the sum of w min(q, c), where w is the price less that of the next level, or the price itself at the
    last one. Levels that no order reaches in any row are left out: the table has M of the L levels. Shape: (2 T, M, 2),
    int32, of side 0 (asks) and 1 (bids) of each row.
    """
    there = tape.price > 0
    # Levels that do not exist repeat the last one that does.
    last = torch.where(there, torch.arange(tape.levels), -1).amax(-1, keepdim=True)
    deepest = tape.price.gather(-1, last)
    price = torch.where(there, tape.price, deepest)
    lots = tape.size.to(torch.int64).cumsum(-1)
    reached = 1 + torch.where(lots[..., -1] < largest, last[..., 0], (lots < largest).sum(-1))
    # In a hole nothing is filled, so that the deepest price may stand at any level.
    hole = lots[..., -1] == 0
    levels = int(torch.where(hole, 1, reached).max())
    price = price[..., :levels].clone()
    price[..., -1] = torch.where(hole, deepest[..., 0], price[..., -1])
    following = torch.cat([price[..., 1:], torch.zeros_like(deepest)], -1)
    return torch.stack([lots[..., :levels].to(torch.int32), price - following], -1).flatten(0, 1).contiguous()


def funding_times(tape: BookTape, hours: float) -> Tensor:
    """Return the number of funding times, every ``hours`` from midnight UTC, since the row before. Shape: (T,)."""
    passed = tape.time // round(hours * 3_600_000)
    return torch.diff(passed, prepend=passed[:1]).to(torch.int32)


def _rounded_down(coins: float) -> float:
    """Return a number of coins rounded down to two significant digits."""
    digit = 10.0 ** (math.floor(math.log10(coins)) - 1)
    return math.floor(coins / digit * (1 + 1e-9)) * digit


def _whole_lots(coins: np.ndarray, lot: float) -> np.ndarray:
    """Return coins in lots, rounded down, unless they are whole lots but for the rounding of single precision."""
    lots = coins / lot
    nearest = np.rint(lots)
    return np.where(np.abs(lots - nearest) <= _SINGLE * lots, nearest, np.floor(lots))


def _tick_of(snapshots: Snapshots) -> float:
    """Return the largest power of ten that divides all prices; raises MarketDataError if none down to 10^-9 does."""
    prices = np.unique(np.concatenate([snapshots.bid_price.ravel(), snapshots.ask_price.ravel()]))
    prices = prices[np.isfinite(prices)]
    for exponent in range(3, -10, -1):
        scaled = prices / 10.0**exponent
        if (scaled >= 1 - _ON_TICK).all() and (np.abs(scaled - np.round(scaled)) <= _ON_TICK).all():
            return 10.0**exponent
    raise MarketDataError(f"{snapshots.source}: prices have no common tick: set tick_size")


def _whole_ticks(snapshots: Snapshots, price: np.ndarray, tick: float) -> np.ndarray:
    """Return prices in whole ticks, (T, 2, L), 0 for missing levels; raises MarketDataError naming one that is not."""
    scaled = np.nan_to_num(price / tick)
    whole = np.round(scaled)
    wrong = (np.abs(scaled - whole) > _ON_TICK) | (whole >= LARGEST) | (np.isfinite(price) & (whole < 1))
    if wrong.any():
        value = price[tuple(np.argwhere(wrong)[0])]
        raise MarketDataError(
            f"{snapshots.source}: the price {value:.12g} is no whole number of ticks "
            f"(tick_size {tick:g}) below {LARGEST:,}"
        )
    return whole


HOUR = 3600.0


class Starts(NamedTuple):
    """First rows of episodes: all possible ones, (S,), and those of successive episodes that share no step, (W,)."""

    any: np.ndarray
    disjoint: np.ndarray


def part_rows(tape: BookTape, config: CryptoLobConfig) -> tuple[int, int]:
    """Return first row and end (exclusive) of a config's part; raises MarketDataError if the parts do not fit."""
    if config.part == "all":
        return 0, tape.num_rows
    embargo = round(config.embargo / tape.step_gap)
    if config.test_hours is None:
        test = tape.num_rows - round(config.test_fraction * tape.num_rows)
    else:
        test = tape.num_rows - round(config.test_hours * HOUR / tape.step_gap)
    training = test - embargo
    if config.train_hours is not None:
        wanted = round(config.train_hours * HOUR / tape.step_gap)
        if wanted > training:
            raise MarketDataError(
                f"{tape.source}: {config.train_hours:g} h for training, the embargo and the test are more than its "
                f"{tape.num_rows * tape.step_gap / HOUR:.2f} h"
            )
        training = wanted
    validation = training - round(config.validation_share * training)
    return {
        "test": (max(test, 0), tape.num_rows),
        "validation": (validation, training),
        "train": (0, validation - embargo),
    }[config.part]


def _decided_by(config: CryptoLobConfig) -> str:
    """Return by which settings a part is as long as it is."""
    names = ["test_fraction" if config.test_hours is None else "test_hours"]
    names += ["train_hours", "validation_share", "embargo"] if config.part != "test" else []
    told = [f"{name} {getattr(config, name):g}" for name in names if getattr(config, name) is not None]
    return "" if config.part == "all" else f"; its length follows from {', '.join(told)}"


def episode_starts(tape: BookTape, config: CryptoLobConfig) -> Starts:
    """Return the rows of a config's part at which an episode can begin; raises MarketDataError if there is none.

    Its first row and the last at which orders are carried out are no holes, and it contains no long run of them.
    """
    low, high = part_rows(tape, config)
    steps = config.episode_steps
    is_open = tape.open.numpy()
    last_orders = steps - (config.latency == 0)
    possible = is_open.copy()
    possible[max(len(possible) - steps, 0) :] = False
    possible[: max(len(possible) - last_orders, 0)] &= is_open[last_orders:]
    possible[:low] = False
    possible[max(high - steps, 0) :] = False
    left_out = [(int(row), int(row)) for row in cuts(tape.time.numpy(), tape.step_gap)]
    longest = min(config.max_gap, LONGEST_HOLE)
    holes = sorted([*long_holes(is_open, int(longest / tape.step_gap)), *left_out])
    holes = [hole for hole in holes if low <= hole[0] < high]
    if holes:
        first, end = holes[0]
        gap = round(tape.step_gap * 1000)
        began = int(tape.time[max(first - 1, 0)]) + gap
        ended = int(tape.time[end]) if end < tape.num_rows else began + (end - first) * gap
        warnings.warn(
            f"{tape.source}: no fresh book for {(ended - began) / 1000:,.0f} s from {moment(began)}, row {first} of "
            f"the clock; {len(holes)} such holes of more than {longest:g} s, over which no episode runs",
            MarketDataWarning,
            stacklevel=2,
        )
    for first, end in holes:
        possible[max(first - steps, 0) : end] = False
    rows = np.flatnonzero(possible)
    if not len(rows):
        hours = max(high - low, 0) * tape.step_gap / HOUR
        raise MarketDataError(
            f"{tape.source}: the part {config.part!r} has {hours:.2f} h, in which no episode of {steps} steps "
            f"(episode_steps) of {tape.step_gap:g} s fits without a hole of more than {longest:g} s"
            + _decided_by(config)
        )
    disjoint, place = [], 0
    while place < len(rows):
        disjoint.append(rows[place])
        place = int(np.searchsorted(rows, rows[place] + steps))
    return Starts(rows, np.array(disjoint))
