"""Parts of a tape, for training, validation and test, and the starts of episodes in them."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.crypto_lob.clock import LONGEST_HOLE, cuts, long_holes, moment
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.tape import BookTape

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
