"""Order books from files: what is read of them, and what is refused by file, row and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from random_books import book_table

from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.snapshots import read_snapshots
from vecenv.tasks.crypto_lob.sources.contest_csv import contest_snapshots
from vecenv.tasks.crypto_lob.sources.synthetic import synthetic_snapshots

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
    "row 2, sold: a negative volume": ("sell_qty", 2, -1.0),
}


def test_coins_are_chosen_by_name_and_faults_named(tmp_path):
    file = tmp_path / "books.parquet"
    pd.concat([book_table(seed=1), book_table(seed=2, symbol="B")]).to_parquet(file)
    chosen = read_snapshots(str(file), "B")
    assert chosen.symbol == "B" and (chosen.bid_price[:, 0] == book_table(seed=2)["bid_px_0"]).all()
    for symbol, message in (("", "several coins, choose one as symbol: A, B"), ("C", "no coin 'C'; there are A, B")):
        with pytest.raises(MarketDataError, match=message):
            read_snapshots(str(file), symbol)
    (tmp_path / "bad.parquet").write_text("nonsense")
    for name, message in (("no.parquet", "no such file"), ("bad.parquet", "cannot be read")):
        with pytest.raises(MarketDataError, match=f"{name}: {message}"):
            read_snapshots(str(tmp_path / name))
    for message, (column, row, value) in FAULTS.items():
        table = book_table().astype({"ts_ms": float})
        table.loc[row, column] = value
        table.to_csv(tmp_path / "books.csv", index=False)
        with pytest.raises(MarketDataError, match=rf"books\.csv.*{message}"):
            read_snapshots(str(tmp_path / "books.csv"))


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
        ("asks_distance_0", -0.1, "row 1, bids_distance_0 and asks_distance_0: the book is crossed"),
    ):
        with pytest.raises(MarketDataError, match=message):
            contest_snapshots(table.assign(**{column: [table[column][0], value]}), "one.csv")
        with pytest.raises(MarketDataError, match=f"one.csv: missing columns {column}"):
            contest_snapshots(table.drop(columns=column), "one.csv")


def lobster_files(folder: Path, book: str, messages: str) -> str:
    """Write a pair of LOBSTER's files, and return the name of the order-book file."""
    (folder / "AAPL_2012-06-21_34200000_57600000_orderbook_2.csv").write_text(book)
    (folder / "AAPL_2012-06-21_34200000_57600000_message_2.csv").write_text(messages)
    return str(folder / "AAPL_2012-06-21_34200000_57600000_orderbook_2.csv")


BOOK = "5859400,200,5853300,18,5859800,200,5853000,150\n" * 2 + "5859400,100,5853300,18,9999999999,0,5853000,150\n"
MESSAGES = "34200.0042,1,16113575,18,5853300,1\n34200.0043,4,28,7,5853300,1\n34200.0253,4,16113584,100,5859400,-1\n"


def test_files_of_lobster_are_read(tmp_path):
    """The last book of each millisecond, with what was executed since the one before."""
    books = read_snapshots(lobster_files(tmp_path, BOOK, MESSAGES))
    assert books.symbol == "AAPL" and books.rows.tolist() == [1, 2] and books.lasting
    assert np.datetime64(int(books.time[0]), "ms") == np.datetime64("2012-06-21T09:30:00.004")
    assert np.allclose(books.bid_price, [[585.33, 585.3]] * 2) and books.bid_size.tolist() == [[18, 150]] * 2
    assert np.allclose(books.ask_price[0], [585.94, 585.98]) and np.isnan(books.ask_price[1, 1])
    assert books.sold.tolist() == [7, 0] and books.bought.tolist() == [0, 100]
    for book, messages, fault in (
        (BOOK, MESSAGES.split("\n")[0], "3 lines, but AAPL.*message_2.csv has 1"),
        ("1,2,3\n" * 3, MESSAGES, "3 columns, which is no multiple of 4"),
        (BOOK, MESSAGES.replace("34200.0253", "34199.0"), "row 2, time: before that of the row before"),
        (BOOK, "a,b\nc,d\ne,f\n", "cannot be read"),
    ):
        with pytest.raises(MarketDataError, match=fault):
            read_snapshots(lobster_files(tmp_path, book, messages))


def test_generated_books_are_valid_and_their_imbalance_predicts_the_mid_as_asked_for():
    books, again, other = (synthetic_snapshots(hours=0.5, seed=seed) for seed in (1, 1, 2))
    assert (books.bid_price == again.bid_price).all() and (books.bid_price != other.bid_price).any()
    assert len(books.time) == 1_800 and (np.diff(books.time) == 1_000).all()
    sums = {name: round(float(getattr(books, name).sum()), 3) for name in ("bid_size", "ask_size", "bought", "sold")}
    assert sums == {"bid_size": 20_927.106, "ask_size": 13_825.478, "bought": 970.981, "sold": 610.599}
    assert (books.bid_price.sum(), books.ask_price.sum()) == (906_087_539, 906_460_094)
    # Its sign is that of the mid's move over the next minute more often than not, without strength half the time.
    for strength, low, high in ((0.1, 0.58, 0.9), (0.0, 0.42, 0.58)):
        books = synthetic_snapshots(hours=6.0, strength=strength)
        mid = (books.bid_price[:, 0] + books.ask_price[:, 0]) / 2
        lean = books.bid_size.sum(1) - books.ask_size.sum(1)
        assert low < (np.sign(lean[:-60]) == np.sign(mid[60:] - mid[:-60])).mean() < high
    for options in ({"hours": 0.0}, {"step_gap": -1.0}, {"levels": 0}, {"strength": np.inf}):
        with pytest.raises(ValueError, match=r"needs two rows|must be finite"):
            synthetic_snapshots(**options)
