"""Books on a clock and as whole numbers; parts of a tape and the starts of episodes in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from random_books import book_table, random_tape, snapshots

from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.crypto_lob.clock import clocked
from vecenv.tasks.crypto_lob.config import BookOptions, CryptoLobConfig
from vecenv.tasks.crypto_lob.parts import episode_starts, part_rows
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.sources.parquet_snapshots import snapshots_of_table
from vecenv.tasks.crypto_lob.tape import tape_of_snapshots


def test_a_row_is_the_last_book_at_or_before_its_time():
    """Snapshots at 0.5, 0.9, 1.0 and 2.7 s on a clock of a second from 1 s on."""
    table = book_table(rows=4, ts_ms=[500, 900, 1_000, 2_700], buy_qty=[1.0, 2.0, 4.0, 8.0])
    books = clocked(snapshots_of_table(table, "x"), 1.0, 1.0)
    assert books.time.tolist() == [1_000, 2_000] and books.open.tolist() == [True, True]
    assert (books.bid_price[:, 0] == table["bid_px_0"][2]).all()
    assert books.bought.tolist() == [0.0, 0.0]
    finer = clocked(snapshots_of_table(table, "x"), 0.5, 1.0)
    # 2.5 s is more than a second after the last book, which had come at 1.0 s.
    assert finer.time.tolist() == [500, 1_000, 1_500, 2_000, 2_500]
    assert finer.open.tolist() == [True, True, True, True, False] and finer.bid_size[4].tolist() == [0.0] * 3
    assert finer.bought.tolist() == [0.0, 6.0, 0.0, 0.0, 0.0]


def test_old_books_are_holes_that_repeat_prices():
    table = book_table(rows=6, gap_ms=1_000, age_ms=[0, 0, 5_000, 6_000, 0, 0])
    books = clocked(snapshots_of_table(table, "x"), 1.0, 1.0)
    assert books.open.tolist() == [True, True, False, False, True, True]
    assert books.ask_price[2:4, 0].tolist() == [table["ask_px_0"][1]] * 2
    assert (books.ask_size[2:4] == 0).all() and books.sold[2:4].tolist() == [0.0, 0.0]
    lasting = clocked(replace(snapshots_of_table(table[:2], "x"), lasting=True), 0.25, 0.1)
    assert lasting.open.all()


def test_prices_are_ticks_and_sizes_lots():
    books = snapshots()
    tape = tape_of_snapshots(books, BookOptions(step_gap=0.5, unit=20.0, lot_size=0.125, factors=()))
    assert tape.tick_size == 0.1 and tape.unit == 160 and tape.money_size == 0.1 * 0.125 / 2
    assert np.allclose(tape.price[:, 1].numpy() * tape.tick_size, books.bid_price)
    assert np.array_equal(tape.size[:, 0].numpy() * 0.125, books.ask_size)
    assert torch.equal(tape.doubled_mid, tape.price[:, 0, 0] + tape.price[:, 1, 0])
    assert np.allclose(tape.taken[1:].numpy() * 0.125, np.stack([books.bought, books.sold], 1)[1:])
    # Sizes are rounded down, and the tick of small prices is found.
    tape = tape_of_snapshots(books, BookOptions(step_gap=0.5, unit=20.0, lot_size=0.3, factors=()))
    assert np.array_equal(tape.size[:, 0].numpy(), np.floor(books.ask_size / 0.3 + 1e-6))
    table = book_table()
    prices = [name for name in table if "_px_" in name]
    table[prices] = (table[prices] * 2 * 1e-5).round(5)
    assert tape_of_snapshots(snapshots_of_table(table, "x"), BookOptions(factors=())).tick_size == 1e-5


def test_books_that_do_not_fit_are_refused():
    for options, message in (
        ({"tick_size": 3.0}, "is no whole number of ticks of 3"),
        ({"unit": 1e-3, "lot_size": 1.0}, "a unit of 0.001 coins is less than a lot of 1"),
        ({"tick_size": 1e-7}, "is no whole number of ticks of 1e-07 below"),
    ):
        with pytest.raises(MarketDataError, match=message):
            tape_of_snapshots(snapshots(), BookOptions(factors=(), **options))
    for options, message in (
        ({"age_ms": 5_000}, "no book is at most 1 s old"),
        ({"rows": 2, "gap_ms": 90}, "fewer than two of 1 times"),
    ):
        with pytest.raises(MarketDataError, match=message):
            clocked(snapshots(**options), 1.0, 1.0)
    config = CryptoLobConfig(step_gap=0.5, factors=(), episode_steps=10, unit=1e6, lot_size=1e-3, taker_fee=1_000.0)
    with pytest.raises(ValueError, match="do not fit into exact accounts"):
        CryptoLob(config, tape_of_snapshots(snapshots(), config.options))


PARTED = CryptoLobConfig(embargo=2.0, train_hours=40 / 3600, test_hours=25 / 3600, validation_share=0.25)


def test_parts_do_not_meet():
    """100 s in rows of half a second: 40 s for training and validation, 25 s for the test, 2 s between them."""
    tape = random_tape(np.random.default_rng(0), rows=200)
    parts = {name: part_rows(tape, replace(PARTED, part=name)) for name in ("all", "train", "validation", "test")}
    assert parts == {"all": (0, 200), "train": (0, 56), "validation": (60, 80), "test": (150, 200)}
    fractions = CryptoLobConfig(embargo=2.0, test_fraction=0.25, validation_share=0.25, part="validation")
    assert part_rows(tape, fractions) == (110, 146)
    with pytest.raises(MarketDataError, match=r"80 h for training.* are more than its 0.03 h"):
        part_rows(tape, replace(PARTED, train_hours=80.0, part="train"))


@pytest.mark.parametrize("latency", [0, 1])
def test_episodes_avoid_holes_where_they_must(latency):
    tape, is_open = random_tape(np.random.default_rng(0), rows=60), torch.ones(60, dtype=torch.bool)
    is_open[[10, 30, 31, 32]] = False
    config = CryptoLobConfig(episode_steps=5, max_gap=1.0, latency=latency, step_gap=0.5)
    with pytest.warns(MarketDataWarning, match=r"no fresh book for 2 s from .*, row 30 of the clock; 1 such holes"):
        starts = episode_starts(replace(tape, open=is_open), config)
    wanted = [
        row
        for row in range(55)
        if is_open[row] and is_open[row + 5 - (latency == 0)] and not {30, 31, 32} & set(range(row, row + 6))
    ]
    assert starts.any.tolist() == wanted
    assert (np.diff(starts.disjoint) >= 5).all() and starts.disjoint[0] == wanted[0]


def test_a_part_without_room_is_refused():
    """A part of 56 rows has room for an episode of 55 steps."""
    for rows, part, message in ((60, "test", "the part 'test' has 0.00 h, in"), (40, "all", "in"), (30, "all", "in")):
        tape, config = random_tape(np.random.default_rng(0), rows), CryptoLobConfig(episode_steps=40, max_gap=100.0)
        with pytest.raises(MarketDataError, match=f"{message} which no episode of 40 steps"):
            episode_starts(tape, replace(config, part=part))
    tape = random_tape(np.random.default_rng(0), rows=200)
    tape, config = replace(tape, open=torch.ones_like(tape.open)), replace(PARTED, part="train", episode_steps=55)
    assert episode_starts(tape, config).any.tolist() == [0]
    with pytest.raises(MarketDataError, match=r"the part 'train' has 0.01 h, in which no episode of 56 steps"):
        episode_starts(tape, replace(config, episode_steps=56))
