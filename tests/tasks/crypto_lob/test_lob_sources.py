"""Order books from files, on a clock and as whole numbers; parts of a tape and the starts of episodes in them."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from random_books import book_table, random_tape, snapshots

import vecenv
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.system import memory
from vecenv.tasks.crypto_lob.agents import Constant
from vecenv.tasks.crypto_lob.clock import clocked
from vecenv.tasks.crypto_lob.config import BookOptions, BookSource, CryptoLobConfig
from vecenv.tasks.crypto_lob.forecasts.runs import rows_of
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.snapshot_files import contest_snapshots, read_snapshots, snapshots_of_table
from vecenv.tasks.crypto_lob.snapshots import Snapshots
from vecenv.tasks.crypto_lob.synthetic import synthetic_snapshots
from vecenv.tasks.crypto_lob.tape import episode_starts, part_rows, tape_of_options, tape_of_snapshots

FAULTS = {
    "row 7, ts_ms: nan is no whole number": ("ts_ms", 7, np.nan),
    "row 7, time: 1003000 is the time of the row before again": ("ts_ms", 7, 1_003_000),
    "row 7, time: 5 is a time before that of the row before, 1003000": ("ts_ms", 7, 5),
    "row 9, bid_px_0 and ask_px_0: the book is crossed": ("bid_px_0", 9, 5_000.0),
    "row 9, ask_px_0: the book has no ask": ("ask_px_0", 9, np.nan),
    "row 9, bid_px_0: the book has no bid": ("bid_qty_0", 9, 0.0),
    "row 3, ask_qty_1: -1 is not positive": ("ask_qty_1", 3, -1.0),
    "row 3, ask_px_2: a level behind one that is missing": ("ask_px_1", 3, np.nan),
    "row 4, ask_px_2: levels are not sorted": ("ask_px_2", 4, 1.0),
    "row 4, bid_px_1: levels are not sorted": ("bid_px_1", 4, 999_999.0),
    "row 2, bought: a negative volume": ("buy_qty", 2, -1.0),
    "row 2, sold: a negative volume": ("sell_qty", 2, -1.0),
    "row 4, ask_px_1: 'oops' is no number": ("ask_px_1", 4, "oops"),
    "row 4, ts_ms: 'noon' is no number": ("ts_ms", 4, "noon"),
    "row 9, ts_ms: 17.* in another unit than that of row 0, milliseconds": ("ts_ms", 9, 1_735_689_600_000_000),
    "row 9, ts_ms: 5000000000000.* is no time from 1970 to 2100": ("ts_ms", 9, 5_000_000_000_000),
    "row 9, ts_ms: -1.0 is no time from 1970 to 2100": ("ts_ms", 9, -1),
    "row 9, .*: the book is locked, bid 9[0-9.]* and .*; with --env.faulty-rows hole": ("bid_px_0", 9, "ask_px_0"),
    "row 3, symbol: missing": ("symbol", 3, None),
    "row 5, age_ms: -1 ms: the book would be newer than its row": ("age_ms", 5, -1.0),
}


def test_coins_are_chosen_by_name_and_faults_named(tmp_path):
    file = tmp_path / "books.parquet"
    pd.concat([book_table(seed=1), book_table(seed=2, symbol="B")]).to_parquet(file)
    chosen = read_snapshots(str(file), "B")
    assert (chosen.symbol, chosen.rows[0]) == ("B", 50)
    assert (chosen.bid_price[:, 0] == book_table(seed=2)["bid_px_0"]).all()
    for symbol, message in (("", "several coins, choose one as symbol: A, B"), ("C", "no coin 'C'; there are A, B")):
        with pytest.raises(MarketDataError, match=message):
            read_snapshots(str(file), symbol)
    for name, symbol, read in (
        ("numbers.PARQUET", 600519, "600519"),
        ("my_orderbook.csv", 600519, "600519"),
        ("a_orderbook_5.csv", "000001", "000001"),
        ("floats.parquet", 600519.0, "600519"),
        ("words.parquet", pd.Categorical(["1INCH"] * 50), "1INCH"),
    ):
        table = book_table(symbol=symbol)
        table.to_csv(tmp_path / name, index=False) if name.endswith("csv") else table.to_parquet(tmp_path / name)
        assert read_snapshots(str(tmp_path / name), read).symbol == read
    (tmp_path / "bad.parquet").write_text("nonsense")
    for name, message in (("no.parquet", "no such file"), ("bad.parquet", "cannot be read")):
        with pytest.raises(MarketDataError, match=f"{name}: {message}"):
            read_snapshots(str(tmp_path / name))
    for message, (column, row, value) in FAULTS.items():
        table = book_table().astype({column: float if isinstance(value, int | float) else object})
        table.loc[row, column] = table.loc[row, value] if value in table else value
        table.to_csv(tmp_path / "books.csv", index=False)
        with pytest.raises(MarketDataError, match=rf"books\.csv.*{message}"):
            read_snapshots(str(tmp_path / "books.csv"))


@pytest.mark.parametrize("hashed", [2**24, 0])
def test_a_file_that_was_written_again_is_read_again(hashed, tmp_path, monkeypatch):
    monkeypatch.setattr("vecenv.system.files.HASHED", hashed)
    path, messages = tmp_path / "books.csv", tmp_path / "message.csv"
    messages.with_name("orderbook.csv").write_text(BOOK)
    for name in ("orderbook.csv", "books.csv"):
        options, tapes = BookOptions(book=str(tmp_path / name), step_gap=0.005, factors=("spread",)), []
        for seed in (1, 2):
            book_table(seed=seed).to_csv(path, index=False)
            messages.write_text(MESSAGES.replace(",100,", f",{seed}00,"))
            tapes.append(tape_of_options(options))
            assert tape_of_options(options) is tapes[-1]
        assert not torch.equal(tapes[0].taken, tapes[1].taken)
    path.write_text("no book\n")
    with pytest.raises(MarketDataError, match="missing columns"):
        tape_of_options(options)


def test_files_of_the_contests_are_read(tmp_path):
    """Two rows: prices 99.99 and 100.01 around 100, two levels."""
    columns = {"system_time": ["2021-04-07 11:32:42.122161+00:00", "2021-04-07 11:32:43.122161+00:00"]}
    columns |= {"midpoint": [100.0, 100.005], "spread": [0.02, 0.01], "buys": [50.0, 0.0], "sells": [0.0, 200.01]}
    for level, distance in enumerate((1e-4, 2e-4)):
        columns[f"bids_distance_{level}"] = [-distance, -distance + 5e-5]
        columns[f"asks_distance_{level}"] = [distance, distance - 5e-5]
        for side in ("bids", "asks"):
            columns[f"{side}_notional_{level}"] = [1_000.0 * (level + 1)] * 2
    table = pd.DataFrame(columns)
    table.to_csv(tmp_path / "one.csv", index=False)
    books = read_snapshots(str(tmp_path / "one.csv"))
    assert np.allclose(books.bid_price, [[99.99, 99.98], [100.0, 99.99]])
    assert np.allclose(books.ask_price, [[100.01, 100.02]] * 2)
    assert np.allclose(books.ask_size[0], [1_000 / 100.01, 2_000 / 100.02])
    assert np.allclose(books.bought, [0.5, 0.0]) and np.allclose(books.sold, [0.0, 200.01 / 100.005])
    assert np.diff(books.time).tolist() == [1_000]
    for column, value, message in (
        ("midpoint", np.nan, "row 1, midpoint: not a positive number"),
        ("system_time", "noon", "row 1, system_time: 'noon' is no time"),
        ("buys", "1,000", "row 1, buys: '1,000' is no number"),
        ("asks_distance_0", -0.1, "row 1, bids_distance_0 and asks_distance_0: the book is crossed"),
    ):
        with pytest.raises(MarketDataError, match=message):
            contest_snapshots(table.assign(**{column: [table[column][0], value]}), "one.csv")
        with pytest.raises(MarketDataError, match=f"one.csv: missing columns {column}"):
            contest_snapshots(table.drop(columns=column), "one.csv")


BOOK = "5859400,200,5853300,18,5859800,200,5853000,150\n" * 2 + "5859400,100,5853300,18,9999999999,0,-9999999999,0\n"
MESSAGES = "34200.0042,1,16113575,18,5853300,1\n34200.0043,4,28,7,5853300,1\n34200.0253,5,16113584,100,5859400,-1\n"


def test_files_of_lobster_are_read(tmp_path):
    """The last book of each millisecond, with what was executed since the one before."""
    file = tmp_path / "AAPL_2012-06-21_34200000_57600000_orderbook_2.CSV"

    def read(book: str, messages: str) -> Snapshots:
        file.write_text(book)
        file.with_name(file.name.replace("orderbook", "message")).write_text(messages)
        return read_snapshots(str(file))

    books = read(BOOK, MESSAGES)
    assert books.symbol == "AAPL" and books.rows.tolist() == [1, 2] and books.lasting
    assert np.datetime64(int(books.time[0]), "ms") == np.datetime64("2012-06-21T09:30:00.004")
    assert np.allclose(books.bid_price, [[585.33, 585.3], [585.33, np.nan]], equal_nan=True)
    assert books.bid_size.tolist() == [[18, 150], [18, 0]]
    assert np.allclose(books.ask_price[0], [585.94, 585.98]) and np.isnan(books.ask_price[1, 1])
    assert books.sold.tolist() == [7, 0] and books.bought.tolist() == [0, 100]
    for book, messages, fault in (
        (BOOK, MESSAGES.split("\n")[0], "3 lines, but AAPL.*message_2.CSV has 1"),
        ("1,2,3\n" * 3, MESSAGES, "3 columns, which is no multiple of 4"),
        (BOOK, MESSAGES.replace("34200.0253", "34199.0"), "row 2, time: before that of the row before"),
        (BOOK, "a,b\nc,d\ne,f\n", "message_2.CSV: row 0, column 0: 'a' is no number"),
        (BOOK, MESSAGES.replace(",7,", ",,"), "message_2.CSV: row 1, size: missing"),
        (BOOK, MESSAGES.replace("34200.", "34200000."), "row 0, time: no seconds after midnight"),
        (BOOK.replace("9999999999,0,", "oops,0,"), MESSAGES, "orderbook_2.CSV: row 2, column 4: 'oops' is no number"),
        (BOOK.replace("5859400", "5853300"), MESSAGES, "row 1, bid_price_0 and ask_price_0: the book is locked"),
    ):
        with pytest.raises(MarketDataError, match=fault):
            read(book, messages)


def test_generated_books_are_these():
    books, again, other = (synthetic_snapshots(hours=0.5, seed=seed) for seed in (1, 1, 2))
    assert (books.bid_price == again.bid_price).all() and (books.bid_price != other.bid_price).any()
    assert len(books.time) == 1_800 and (np.diff(books.time) == 1_000).all()
    sums = {name: round(float(getattr(books, name).sum()), 3) for name in ("bid_size", "ask_size", "bought", "sold")}
    assert sums == {"bid_size": 20_927.106, "ask_size": 13_825.478, "bought": 970.981, "sold": 610.599}
    assert (books.bid_price.sum(), books.ask_price.sum()) == (906_087_539, 906_460_094)
    for options in ({"hours": 0.0}, {"step_gap": -1.0}, {"levels": 0}, {"strength": np.inf}):
        with pytest.raises(ValueError, match=r"needs two rows|must be finite"):
            synthetic_snapshots(**options)


@pytest.mark.parametrize(("unit", "name"), [(1_000, "int64"), (10**6, "int64"), (10**6, "time"), (10**6, "text")])
def test_times_of_a_unit_that_is_certain_are_read(unit, name, tmp_path):
    """Books a nanosecond after a second of the clock are known at the next one only: numbers are read exactly."""
    start, steps = 1_735_689_600_000, np.arange(0, 4_000, 500)
    late = [part * unit + (1 if unit > 1_000 else 0) for part in (start + steps)]
    table = book_table(rows=8, ts_ms=np.array(late, np.int64))
    if name != "int64":
        table["ts_ms"] = pd.to_datetime(table["ts_ms"], utc=True)
    if name == "text":
        table["ts_ms"] = table["ts_ms"].astype(str)
    table.to_parquet(tmp_path / "books.parquet")
    books = clocked(read_snapshots(str(tmp_path / "books.parquet")), 1.0, 1.0)
    for times, fault in (
        (start // 1_000 + np.arange(8), "row 0, ts_ms: 1735689600 is a time from 1990 to 2100 in seconds, in .* 1970"),
        (np.append(start + steps[1:], start // 1_000), "row 7, ts_ms: 1735689600 is a time from 1990 to 2100 in"),
        (start * 10 + steps, r"row 0, ts_ms: 17356896\d+ is no time from 1970 to 2100"),
    ):
        with pytest.raises(MarketDataError, match=fault):
            snapshots(rows=8, ts_ms=times)
    plain = clocked(snapshots(rows=8, ts_ms=start + steps + (1 if unit > 1_000 else 0)), 1.0, 1.0)
    assert books.time.tolist() == plain.time.tolist() and books.time[0] == start + (1_000 if unit > 1_000 else 0)
    assert (books.bid_price == plain.bid_price).all() and (books.sold == plain.sold).all()


def far_apart(late: int = 3 * 86_400_000) -> list[pd.DataFrame]:
    """Return two recordings, of a minute and of half a minute."""
    return [book_table(rows=120, seed=1), book_table(rows=60, seed=2, ts_ms=1_000_000 + late + 500 * np.arange(60))]


def test_a_hole_of_days_parts_recordings(tmp_path):
    """What is kept of a file of two recordings is what is kept of each: rows, factors, moves and volumes."""
    options, tables = BookOptions(unit=1.0, lot_size=0.125, max_age=0.4), far_apart()
    whole, *parts = (tape_of_snapshots(snapshots_of_table(t, "x"), options) for t in (pd.concat(tables), *tables))
    for name in ("time", "open", "price", "size", "taken", "doubled_mid", "factors"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts])), name
    moves = []
    for table in (pd.concat(tables), *tables):
        table.to_parquet(tmp_path / "books.parquet")
        moves.append(rows_of(BookSource(book=str(tmp_path / "books.parquet"), max_age=0.4)).moves)
    assert np.array_equal(moves[0], np.concatenate(moves[1:]), equal_nan=True)
    # Up to a quarter of an hour is a hole of the clock.
    for late, rows in ((60_000 + 899_000, 60 + 899 + 30), (60_000 + 900_000, 60 + 900 + 30), (60_000 + 901_000, 90)):
        assert clocked(snapshots_of_table(pd.concat(far_apart(late)), "x"), 1.0, 0.4).time.size == rows
    stale = pd.concat([tables[0], tables[1].assign(age_ms=401)])
    assert clocked(snapshots_of_table(stale, "x"), 1.0, 0.4).time.size == 60
    config = CryptoLobConfig(episode_steps=10, max_gap=1e9, max_age=0.4, embargo=5.0)
    with pytest.warns(MarketDataWarning, match=r"no fresh book for 259,140 s from 1970-01-01 00:17:40, row 60 of"):
        starts = episode_starts(whole, config)
    assert set(range(60)) - set(starts.any.tolist()) == set(range(50, 60)) and 60 in starts.any


FAULTY = {
    "crossed": ("bid_px_0", 5_000.0),
    "locked": ("bid_px_0", "ask_px_0"),
    "without a side": ("ask_px_0", np.nan),
    "with a number below zero": ("bid_qty_1", -1.0),
    "with a level missing": ("ask_px_1", np.nan),
    "unsorted": ("ask_px_2", 1.0),
    "newer than their time": ("age_ms", -1.0),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_faulty_books_are_holes_by_option(kind):
    column, value = FAULTY[kind]
    table = book_table().astype(dict.fromkeys(("bid_px_0", "bid_qty_1", "age_ms"), float))
    table.loc[[6, 7], column] = table.get(value, value)
    with pytest.raises(MarketDataError, match=r"row 6, .*faulty_rows='hole'"):
        snapshots_of_table(table, "x")
    with pytest.warns(MarketDataWarning, match=f"x, A: faulty rows, of 50: 2 {kind}"):
        books = snapshots_of_table(table, "x", faulty_rows="hole")
    tape = tape_of_snapshots(books, BookOptions(step_gap=0.5, factors=("spread",)))
    assert np.flatnonzero(~tape.open.numpy()).tolist() == [6, 7] and tape.metadata()["faulty_rows"] == {kind: 2}
    assert torch.equal(tape.price[6], tape.price[5]) and int(tape.size[6].sum()) == 0


def test_rows_out_of_order_are_put_in_order_by_option():
    table = book_table()
    mixed = pd.concat([table[:5], table[6:7], table[5:6], table[7:8], table[8:9].assign(ask_qty_0=7e6), table[8:]])
    with pytest.raises(MarketDataError, match=r"row 6, time: .* is a time before that of the row before"):
        snapshots_of_table(mixed, "x")
    with pytest.warns(MarketDataWarning, match="of 51: 1 with the time of the row before, 1 out of order"):
        books = snapshots_of_table(mixed, "x", faulty_rows="hole")
    books, plain = (clocked(part, 0.5, 1.0) for part in (books, snapshots_of_table(table, "x")))
    assert (books.ask_size == plain.ask_size).all() and (books.time == plain.time).all()
    assert books.bought.sum() == plain.bought.sum() + table["buy_qty"][8]


def test_books_that_do_not_fit_into_memory_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device: 10**8)
    late = replace(snapshots(rows=2, ts_ms=[0, 10**12]), lasting=True)
    for make, message in (
        (
            lambda: clocked(late, 1.0, 1.0),
            r"1,000,000,001 rows of 3 levels every 1 s need 640\.0 GB .* larger step_gap",
        ),
        (lambda: synthetic_snapshots(hours=1e9), r"3,600,000,000,000 generated rows .* of 10 levels need"),
        (lambda: synthetic_snapshots(levels=2**31), r"86,400 generated rows .* of 2,147,483,648 levels need"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


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
    # Old books are holes that repeat prices.
    table = book_table(rows=6, gap_ms=1_000, age_ms=[0, 0, 5_000, 6_000, 0, 0])
    books = clocked(snapshots_of_table(table, "x"), 1.0, 1.0)
    assert books.open.tolist() == [True, True, False, False, True, True]
    assert books.ask_price[2:4, 0].tolist() == [table["ask_px_0"][1]] * 2
    assert (books.ask_size[2:4] == 0).all() and books.sold[2:4].tolist() == [0.0, 0.0]
    assert clocked(replace(snapshots_of_table(table[:2], "x"), lasting=True), 0.25, 0.1).open.all()
    books = clocked(snapshots(age_ms=np.where(np.arange(50) == 8, np.nan, 0.0)), 1.0, 60.0)
    assert np.flatnonzero(~books.open).tolist() == [4]


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
    table.update((table.filter(like="_px_") * 2e-5).round(5))
    assert tape_of_snapshots(snapshots_of_table(table, "x"), BookOptions(factors=())).tick_size == 1e-5


def test_books_that_do_not_fit_are_refused():
    for options, message in (
        ({"tick_size": 3.0}, r"is no whole number of ticks \(tick_size 3\)"),
        ({"unit": 1e-3, "lot_size": 1.0}, "a unit of 0.001 coins is less than a lot_size of 1"),
        ({"tick_size": 1e-7}, "is no whole number of ticks .tick_size 1e-07. below"),
    ):
        with pytest.raises(MarketDataError, match=message):
            tape_of_snapshots(snapshots(), BookOptions(factors=(), **options))
    for options, message in (
        ({"age_ms": 5_000}, "no book is at most 1 s old"),
        ({"rows": 2, "gap_ms": 90}, "fewer than two of 1 times"),
    ):
        with pytest.raises(MarketDataError, match=message):
            clocked(snapshots(**options), 1.0, 1.0)
    config = CryptoLobConfig(step_gap=0.5, factors=(), episode_steps=10, unit=1e9)
    with pytest.raises(ValueError, match="initial_cash 1000 is no whole number of 5000, half a tick times a lot"):
        CryptoLob(config, tape_of_snapshots(snapshots(), config.options))
    config = CryptoLobConfig(step_gap=0.5, factors=(), episode_steps=10, unit=1e6, lot_size=1e-3, taker_fee=1_000.0)
    with pytest.raises(ValueError, match="do not fit into exact accounts"):
        CryptoLob(config, tape_of_snapshots(snapshots(), config.options))
    # Ten points of the highest mid, 20,070, are just more than twenty of the smallest amounts.
    config = replace(config, unit=1.0, lot_size=1.0, taker_fee=10.0, maker_fee=9.9)
    with pytest.warns(UserWarning, match="a maker_fee of 9.9 points on a unit is 0.993, and rounded up") as told:
        CryptoLob(config, tape_of_snapshots(snapshots(), config.options))
    assert len(told) == 1


PARTED = CryptoLobConfig(embargo=2.0, train_hours=40 / 3600, test_hours=25 / 3600, validation_share=0.25)


def test_parts_do_not_meet_and_those_without_room_are_refused():
    """100 s in rows of half a second: 40 s for training and validation, 25 s for the test, 2 s between them."""
    tape = random_tape(np.random.default_rng(0), rows=200)
    parts = {name: part_rows(tape, replace(PARTED, part=name)) for name in ("all", "train", "validation", "test")}
    assert parts == {"all": (0, 200), "train": (0, 56), "validation": (60, 80), "test": (150, 200)}
    fractions = CryptoLobConfig(embargo=2.0, test_fraction=0.25, validation_share=0.25, part="validation")
    assert part_rows(tape, fractions) == (110, 146)
    with pytest.raises(MarketDataError, match=r"80 h for training.* are more than its 0.03 h"):
        part_rows(tape, replace(PARTED, train_hours=80.0, part="train"))
    # A part of 56 rows has room for an episode of 55 steps.
    tape, config = replace(tape, open=torch.ones_like(tape.open)), replace(PARTED, part="train", episode_steps=55)
    assert episode_starts(tape, config).any.tolist() == [0]
    told = r"'train' has 0.01 h, .* no episode of 56 steps .* follows from test_hours \S+, train_hours \S+, validation_"
    with pytest.raises(MarketDataError, match=told):
        episode_starts(tape, replace(config, episode_steps=56))
    for rows, part, message in ((60, "test", "the part 'test' has 0.00 h, in"), (40, "all", "in"), (30, "all", "in")):
        config = CryptoLobConfig(episode_steps=40, max_gap=100.0, part=part)
        with pytest.raises(MarketDataError, match=f"{message} which no episode of 40 steps"):
            episode_starts(random_tape(np.random.default_rng(0), rows), config)


@pytest.mark.parametrize("latency", [0, 1])
def test_episodes_avoid_holes_where_they_must(latency):
    tape, is_open = random_tape(np.random.default_rng(0), rows=60), torch.ones(60, dtype=torch.bool)
    is_open[[10, 11, 30, 31, 32]] = False
    config = CryptoLobConfig(episode_steps=5, max_gap=1.0, latency=latency, step_gap=0.5)
    with pytest.warns(MarketDataWarning, match=r"no fresh book for 2 s from .*, row 30 of the clock; 1 such holes"):
        starts = episode_starts(replace(tape, open=is_open), config)
    wanted = [
        row
        for row in range(55)
        if is_open[row] and is_open[row + 5 - (latency == 0)] and not {30, 31, 32} & set(range(row, row + 6))
    ]
    assert starts.any.tolist() == wanted
    assert starts.disjoint[0] == wanted[0] and wanted[-1] < starts.disjoint[-1] + 5
    nearest = [min(row for row in wanted if row >= before + 5) for before in starts.disjoint[:-1]]
    assert starts.disjoint[1:].tolist() == nearest


DATA = Path(os.environ.get("VECENV_DATA", ""))
BOOKS: dict[str, tuple[dict[str, Any], float]] = {
    "standx": ({"book": "standx_btcusd_500ms.parquet", "train_hours": 24.0, "test_hours": 10.0}, 0.1),
    **{
        coin: ({"book": "hyperliquid_4coins_500ms.parquet", "symbol": f"{coin}.hyperliquid"}, tick)
        for coin, tick in (("BTC", 1.0), ("ETH", 0.1), ("SOL", 0.01), ("WLFI", 1e-5))
    },
    "okcoin": ({"book": "okcoin_btccny_20160303_500ms.parquet"}, 0.01),
    "bitstamp": ({"book": "bitstamp_btcusd_20150501_1s.parquet"}, 0.01),
    "binance": ({"book": "crypto_lob_100ms.parquet", "symbol": "BTCUSD_PERP.cm", "step_gap": 0.1}, 0.1),
}


@pytest.mark.realdata
@pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.assembly if name == "okcoin" else pytest.mark.nightly) for name in BOOKS],
)
def test_real_books_are_traded(name):
    """Long and short together lose the spread and the fees of both; the tick is the coin's; factors vary."""
    options, tick = BOOKS[name]
    options = {**options, "book": str(DATA / options["book"]), "episode_steps": 100, "part": "all"}
    env = vecenv.make("crypto_lob", 8, compile=False, seed=1, **options)
    tape = env.scenario.tape
    assert tape.tick_size == tick and tape.open.double().mean() > 0.8
    assert bool((tape.factors.std(0) > 1e-4).all()) and bool(tape.factors.isfinite().all())
    profits = []
    for share in (1, -1):
        env.reset_groups(8, 1, 1)
        while not bool(env.rows.done.all()):
            env.advance(Constant(share).act(env), eager=True)
        info = env.info()
        profits.append(info["profit"])
        assert torch.equal(env.state.position, torch.zeros_like(env.state.position))
        # The fee is 2 basis points of what is traded, rounded up at each order.
        fee = 2e-4 * info["turnover"] * env.scenario.initial * tape.money_size
        assert bool((info["costs"] - fee).abs().max() < 1e-4)
    assert bool((profits[0] + profits[1] < 0).all())
