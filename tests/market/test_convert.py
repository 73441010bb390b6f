"""Files written in another format lose nothing; damaged ones are refused; what is in a file, and its currency."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vecenv.market.inspect_bars import inspect
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.parquet_files import read_parquet, write_parquet
from vecenv.market.sources import convert, read_bars
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.experiment.markets import FileMarket

FINRL = ["date", "tic", "open", "high", "low", "close", "volume", "day"]


def _finrl(frame: pd.DataFrame) -> pd.DataFrame:
    """The fixture in FinRL's format, with two indicators and the context."""
    frame = frame.rename(columns={"symbol": "tic"}).sort_values(["date", "tic"])
    frame["day"] = pd.to_datetime(frame["date"]).dt.day_of_week
    codes = pd.factorize(frame["date"])[0]
    rng = np.random.default_rng(3)
    frame["macd"], frame["rsi_30"] = rng.normal(size=len(frame)), rng.uniform(0, 100, len(frame))
    frame.iloc[4, frame.columns.get_loc("macd")] = np.nan
    frame["vix"], frame["turbulence"] = 20 + codes / 3, np.sqrt(codes)
    return frame.set_index(codes)


def test_finrl_to_parquet_and_back(long_frame, tmp_path):
    """The very file, protected by a digest; also where closes alone are adjusted; a fault writes nothing."""
    finrl_csv, target = tmp_path / "finrl.csv", tmp_path / "bars.parquet"
    _finrl(long_frame).to_csv(finrl_csv)
    assert convert(finrl_csv, target) == 26
    table = pd.read_parquet(target)
    names = [*FINRL[:-1], "macd", "rsi_30", "vix", "turbulence"]
    assert list(table.columns) == ["date", "symbol", *names[2:]]
    original = pd.read_csv(finrl_csv).sort_values(["tic", "date"])
    for name in names[2:]:
        np.testing.assert_array_equal(table[name], original[name])
    assert len(pq.read_metadata(target).metadata[b"vecenv.sha256"]) == 64
    convert(target, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == finrl_csv.read_text()
    closes = np.exp(np.random.default_rng(0).normal(size=(12, 3)) / 50)
    np.savez(tmp_path / "arrays.npz", price_ary=closes, tech_ary=np.ones((12, 6)))
    convert(tmp_path / "arrays.npz", tmp_path / "arrays.csv")
    written = pd.read_csv(tmp_path / "arrays.csv")
    assert list(written.columns) == ["Unnamed: 0", *FINRL, "tech_0", "tech_1"]
    # 2000-01-03 is a Monday.
    assert written["day"].tolist()[::3] == [0, 1, 2, 3, 4] * 2 + [0, 1]
    adjusted = tmp_path / "adjusted.csv"
    _finrl(long_frame.assign(close=long_frame["close"] * 0.9)).to_csv(adjusted)
    with pytest.warns(MarketDataWarning, match="close is adjusted"):
        convert(adjusted, target)
        convert(target, tmp_path / "again.csv")
        np.testing.assert_array_equal(read_bars(adjusted).ohlcv, read_bars(target).ohlcv)
    assert (tmp_path / "again.csv").read_text() == adjusted.read_text()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(MarketDataError, match=r"bars.xlsx: unknown extension .xlsx; known are .csv, .parquet"):
        convert(long_frame, tmp_path / "bars.xlsx")
    with pytest.raises(MarketDataError, match="there is no folder"):
        convert(long_frame, tmp_path / "none" / "bars.csv")
    long_frame.loc[3, "close"] *= 0.5
    with pytest.raises(MarketDataError, match="symbol AAA, date 2024-01-04, column close"):
        convert(long_frame, tmp_path / "wrong.parquet")
    assert sorted(tmp_path.iterdir()) == before


def test_inspect(long_frame: pd.DataFrame) -> None:
    long_frame.loc[long_frame["symbol"] == "AAA", ["open", "high", "low", "close"]] *= 3
    gap = (long_frame["symbol"] == "BBB") & (long_frame["date"] == "2024-01-04")
    frame = long_frame[~gap].assign(score=1.0, vix=20.0)
    summary = inspect(frame)
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["source"], summary["span"]) == ("DataFrame", ["2024-01-01", "2024-01-12"])
    assert (summary["days"], summary["symbols"], summary["rows"]) == (10, 3, 25)
    assert summary["periods_per_year"] == 252
    assert (summary["columns"], summary["context"]) == (["score"], ["vix"])
    assert summary["price_range"] == [frame["low"].min(), frame["high"].max()]
    assert summary["listings"] == {
        "AAA": {"first": "2024-01-01", "last": "2024-01-12", "bars": 10, "missing": 0},
        "BBB": {"first": "2024-01-01", "last": "2024-01-12", "bars": 9, "missing": 1},
        "CCC": {"first": "2024-01-05", "last": "2024-01-12", "bars": 6, "missing": 0},
    }
    moves = frame.assign(move=frame.groupby("symbol")["close"].pct_change())
    largest = moves.loc[moves["move"].abs().sort_values(ascending=False).index[:5]]
    told = pd.DataFrame(summary["largest_moves"])[["symbol", "date", "move"]]
    pd.testing.assert_frame_equal(told, largest[["symbol", "date", "move"]].reset_index(drop=True))


def table(**currencies: str | None) -> pd.DataFrame:
    """Twenty days of symbols, with a column of their currencies."""
    days = pd.DataFrame({"date": pd.bdate_range("2020-01-01", periods=20), "volume": 1e6})
    days[["open", "high", "low", "close"]] = 10.0
    rows = [days.assign(symbol=symbol, currency=code) for symbol, code in currencies.items()]
    return pd.concat(rows, ignore_index=True)


def test_a_column_or_metadata_tells_the_currency_which_conversion_keeps(tmp_path, recwarn):
    marked = table(A="USD", B="USD")
    for name, write in (("a.parquet", marked.to_parquet), ("a.csv", marked.to_csv)):
        write(tmp_path / name, index=False)
        bars = read_bars(tmp_path / name)
        assert (bars.currency, bars.columns) == ("USD", {})
    (tmp_path / "folder").mkdir()
    marked[marked["symbol"] == "A"].to_csv(tmp_path / "folder" / "A.csv", index=False)
    assert read_bars(marked).currency == read_bars(tmp_path / "folder").currency == "USD"
    numbers = read_bars(marked.assign(currency=1.5))
    assert numbers.currency is None and list(numbers.columns) == ["currency"]
    plain = marked.drop(columns="currency")
    assert read_bars(plain).currency is None
    arrow = pa.Table.from_pandas(plain, preserve_index=False)
    pq.write_table(arrow.replace_schema_metadata({"currency": "JPY"}), tmp_path / "schema.parquet")
    assert read_bars(tmp_path / "schema.parquet").currency == "JPY"
    plain.attrs["currency"] = "USDT"
    plain.to_parquet(tmp_path / "attributes.parquet", index=False)
    assert read_bars(plain).currency == read_bars(tmp_path / "attributes.parquet").currency == "USDT"
    assert not [warning for warning in recwarn if "columns of text" in str(warning.message)]
    source, csv, back = (tmp_path / name for name in ("d.parquet", "e.csv", "f.parquet"))
    table(A="GBP").to_parquet(source, index=False)
    convert(source, csv)
    convert(csv, back)
    assert read_bars(csv).currency == read_bars(back).currency == "GBP"
    assert set(pd.read_csv(csv)["currency"]) == set(pd.read_parquet(back)["currency"]) == {"GBP"}


def test_an_account_is_kept_in_one_currency_which_a_tape_keeps(tmp_path):
    mixed = table(A="USD", B="INR", C=None)
    with pytest.raises(MarketDataError, match="several currencies, A in USD, B in INR: choose symbols of one"):
        read_bars(mixed)
    assert [read_bars(mixed, [name]).currency for name in "ABC"] == ["USD", "INR", None]
    assert read_bars(mixed, ["C", "B"]).currency == "INR"
    mixed.loc[3, "currency"] = "INR"
    with pytest.raises(MarketDataError, match="symbol A, column currency: its prices are in USD, INR"):
        read_bars(mixed, ["A"])
    with pytest.raises(MarketDataError, match="currency must be a code such as USD, INR or USDT, got '₹'"):
        read_bars(table(A="₹"))
    tape = load_market(table(A="USD", B="USD"), MarketOptions(features=()))
    parts = [tape.days(0, 5), tape.select(["B"]), tape.paths(0, 1), tape.symbols_as_paths(), *tape.split(0.5, 0)]
    assert {part.currency for part in (tape, *parts, tape.to("cpu"))} == {"USD"}
    assert tape.metadata()["currency"] == "USD"
    # It is a name: the same numbers are the same market.
    assert tape.fingerprint() == load_market(table(A="INR", B="INR"), MarketOptions(features=())).fingerprint()
    plain = table(A="USD").drop(columns="currency")
    assert load_market(plain, MarketOptions(features=(), currency="CHF")).currency == "CHF"
    tape = load_market(table(A="USD"), MarketOptions(features=()))
    assert load_market(tape).currency == "USD" and load_market(tape, MarketOptions(currency="EUR")).currency == "EUR"
    assert load_market("synthetic", MarketOptions(features=(), num_paths=1, num_days=30)).currency == "INR"
    for refuse in (lambda: load_market(plain, MarketOptions(currency="Rs.")), lambda: FileMarket(currency="Rs.")):
        with pytest.raises(ValueError, match=r"currency must be a code .*, got 'Rs\.'"):
            refuse()


def test_what_is_written_is_what_is_read_and_damage_is_found(tmp_path: Path, long_frame: pd.DataFrame):
    path = tmp_path / "table.parquet"
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    table = pd.DataFrame(
        {
            "number": [1.5, np.nan, *odd],
            "small": np.array([1.5, 2.5, np.nan, -0.0], dtype=np.float32),
            "flag": [True, False, True, True],
            "day": pd.to_datetime(["2020-01-01", None, "2020-01-03", "2020-01-04"]).astype("datetime64[ms]"),
            "text": ["a", None, "ü", ""],
            "kind": pd.Categorical(["x", "y", "x", None]),
        },
        index=[5, 6, 7, 8],
    )
    write_parquet(table, path)
    pd.testing.assert_frame_equal(read_parquet(path), table.reset_index(drop=True))
    assert [file.name for file in tmp_path.iterdir()] == ["table.parquet"]
    path, refused = tmp_path / "bars.parquet", 0
    write_parquet(long_frame, path)
    whole, draw = path.read_bytes(), np.random.default_rng(0)
    places = range(0, len(whole), 47)
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << int(draw.integers(8))]) + whole[place + 1 :])
        try:
            table = read_parquet(path)
        except ValueError as error:
            assert "damaged" in str(error) and "\n" not in str(error)
            refused += 1
        else:
            pd.testing.assert_frame_equal(table, long_frame, check_exact=True, obj=f"byte {place}")
    assert refused > len(places) / 2
    write_parquet(long_frame, path)
    table = pq.read_table(path)
    for other in (long_frame.assign(volume=long_frame["volume"] + 1), long_frame.assign(symbol="AAA")):
        pq.write_table(pa.Table.from_pandas(other, preserve_index=False, schema=table.schema), path)
        with pytest.raises(MarketDataError, match=r"bars\.parquet: .*damaged: the digest of its values"):
            read_bars(path)
    # A flip in the last byte of a page of values, which no rule of the data forbids.
    table = pa.Table.from_pandas(long_frame.assign(rsi=50.0 + np.arange(len(long_frame))), preserve_index=False)
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
    column = pq.read_metadata(path).row_group(0).column(7)
    assert column.path_in_schema == "rsi"
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size - 8] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(MarketDataError, match=r"bars\.parquet: cannot be read as \.parquet: damaged"):
        read_bars(path)
