"""Whatever dress daily bars come in, the same bars are read; what cannot be told is refused with what to do."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vecenv.market.bar_form import BarForm
from vecenv.market.bars import CLOSE, HIGH, LOW, Bars
from vecenv.market.inspect_bars import inspect
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.sources import convert, read_bars
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.commands import cli

FIELDS = {"open": "Open", "high": "High", "low": "Low", "close": "Close", "volume": "Volume"}


def _yahoo(frame: pd.DataFrame, *, by_ticker: bool = False, names: bool = True) -> pd.DataFrame:
    """The frame of yfinance.download: two levels of columns, NaN where a symbol has no bar."""
    wide = frame.rename(columns=FIELDS).pivot(index="date", columns="symbol").rename_axis("Date")
    wide.columns = wide.columns.set_names(["Price", "Ticker"] if names else [None, None])
    return wide.swaplevel(axis=1).sort_index(axis=1) if by_ticker else wide


def _flat(frame: pd.DataFrame, form: str) -> pd.DataFrame:
    wide = _yahoo(frame)
    return wide.set_axis([form.format(field=field, symbol=symbol) for field, symbol in wide.columns], axis=1)


def _csv(frame: pd.DataFrame, path: Path, **options) -> Path:
    frame.to_csv(path, **options)
    return path


def _parquet(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_parquet(path)
    return path


def _renamed(frame: pd.DataFrame, **names: str) -> pd.DataFrame:
    return frame.rename(columns=names)


def _epoch(frame: pd.DataFrame, unit: int) -> pd.DataFrame:
    days = pd.to_datetime(frame["date"]).astype("datetime64[s]").astype("int64")
    return frame.assign(date=(days + 5 * 3600) * unit)  # midnight in New York


LONG = {
    "yfinance 1.7": lambda f, p: _csv(_yahoo(f), p),
    "yfinance 0.2, levels without names": lambda f, p: _csv(_yahoo(f, names=False), p),
    "yfinance, group_by ticker": lambda f, p: _csv(_yahoo(f, by_ticker=True), p),
    "yfinance, its index a column": lambda f, p: _csv(_yahoo(f).reset_index(), p, index=False),
    "yfinance, a frame": lambda f, _: _yahoo(f),
    "yfinance, a frame by ticker": lambda f, _: _yahoo(f, by_ticker=True).reset_index(),
    "yfinance, Parquet": lambda f, p: _parquet(_yahoo(f), p.with_suffix(".PARQUET")),
    "yfinance, stacked": lambda f, p: _csv(_yahoo(f).stack("Ticker", future_stack=True), p),
    "yfinance, stacked without names": lambda f, p: _csv(
        _yahoo(f).stack("Ticker", future_stack=True).rename_axis(["Date", None]).reset_index(), p, index=False
    ),
    "columns Close_AAA": lambda f, p: _csv(_flat(f, "{field}_{symbol}"), p),
    "columns AAA.close": lambda f, p: _csv(_flat(f, "{symbol}.{field}"), p),
    "newest first": lambda f, p: _csv(f.iloc[::-1], p, index=False),
    "newest first, by symbol": lambda f, _: f.sort_values(["symbol", "date"], ascending=[True, False]),
    "semicolons and decimal commas": lambda f, p: _csv(f, p, index=False, sep=";", decimal=","),
    "tabs": lambda f, p: _csv(f.rename(columns="<{}>".format).rename(columns=str.upper), p, index=False, sep="\t"),
    "bars between": lambda f, p: _csv(f, p, index=False, sep="|"),
    "Alpha Vantage": lambda f, _: f.rename(columns={name: f"{i}. {name}" for i, name in enumerate(FIELDS, 1)}),
    "qlib": lambda f, _: f.rename(columns={name: f"${name}" for name in FIELDS} | {"date": "datetime"}).set_index(
        ["symbol", "datetime"]
    ),
    "Polygon": lambda f, p: _csv(_renamed(_epoch(f, 10**9), symbol="ticker", date="window_start"), p, index=False),
    "Polygon's letters": lambda f, _: _epoch(f, 1000).rename(columns=lambda name: "t" if name == "date" else name[0]),
    "Kaggle": lambda f, p: _csv(_renamed(f, symbol="Name"), p, index=False),
    "last for close": lambda f, p: _csv(_renamed(f, close="Last"), p, index=False),
    "bhavcopy": lambda f, p: _csv(
        _renamed(f, volume="TOTTRDQTY").assign(LAST=1.0, date=pd.to_datetime(f["date"]).dt.strftime("%d-%b-%Y")),
        p,
        index=False,
    ),
    "rows before a listing": lambda f, _: pd.concat(
        [f[:20], f[:4].assign(symbol="CCC", open=np.nan, high=np.nan, low=np.nan, close=np.nan, volume=0.0), f[20:]]
    ),
    "epochs as text": lambda f, p: _csv(_epoch(f, 1), p, index=False),
    "Arrow types": lambda f, _: _epoch(f, 1).assign(
        date=pd.to_datetime(f["date"]).dt.tz_localize("Asia/Kolkata").astype("timestamp[ns, tz=Asia/Kolkata][pyarrow]")
    ),
}  # fmt: skip


def _same(bars: Bars, other: Bars) -> None:
    assert bars.symbols == other.symbols
    np.testing.assert_array_equal(bars.dates, other.dates)
    np.testing.assert_array_equal(bars.ohlcv, other.ohlcv)


@pytest.mark.parametrize("dress", LONG)
@pytest.mark.filterwarnings("ignore:.*(rows without any price|columns of text):UserWarning")
def test_dresses_of_the_same_bars(dress, long_frame, tmp_path):
    _same(read_bars(LONG[dress](long_frame, tmp_path / "bars.csv")), read_bars(long_frame))


ONE = {
    "Binance": ("open_time", 1000, {}, ""),
    "CCXT": ("time", 1000, {}, ""),
    "CoinGecko": (
        "snapped_at",
        None,
        {"close": "price", "volume": "total_volume"},
        "open, high, low equal the close",
    ),
    "closes of indices": ("DATE", None, {"close": "VIXCLS"}, "each of VIXCLS .* closes.*volume is 0"),
    "no volume": ("Date", None, {"close": "close", "open": "open", "high": "high", "low": "low"}, "the volume is 0"),
    "only Adj Close": ("Date", None, {name: name for name in FIELDS} | {"close": "Adj Close"}, ""),
}


@pytest.mark.parametrize("dress", ONE)
def test_files_of_one_symbol(dress, long_frame, tmp_path):
    """Their symbol is that of the file's name, their column's, or `asset_0`; what they lack is told."""
    day, unit, names, words = ONE[dress]
    frame = (_epoch(long_frame, unit) if unit else long_frame)[:10].drop(columns="symbol")
    frame = frame[["date", *(names or FIELDS)]].rename(columns=names | {"date": day})
    path = _csv(frame, tmp_path / "AAA.csv", index=False)
    for source, symbol in (
        (path, "VIXCLS" if "VIXCLS" in frame else "AAA"),
        (frame, "VIXCLS" if "VIXCLS" in frame else "asset_0"),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bars = read_bars(source)
        assert re.search(words, " ".join(str(each.message) for each in caught)) and bool(caught) == bool(words)
        assert bars.symbols == (symbol,) and len(bars.dates) == 10
        np.testing.assert_array_equal(bars.ohlcv[0, :, 0, CLOSE], long_frame["close"][:10])
        if "high" not in frame:
            assert (bars.ohlcv[..., HIGH] == bars.ohlcv[..., CLOSE]).all()


def test_a_column_for_each_symbol(long_frame, tmp_path):
    closes = _yahoo(long_frame)["Close"].assign(V=range(1, 11)).rename(columns={"CCC": "600519"})
    for source in (closes, _csv(closes, tmp_path / "closes.csv")):
        with pytest.warns(MarketDataWarning, match="each of AAA, BBB, 600519, V … is read as a symbol's closes"):
            bars = read_bars(source)
        assert bars.symbols == ("600519", "AAA", "BBB", "V") and not bars.listed[0, :4, 0].any()
        np.testing.assert_array_equal(bars.ohlcv[0, :, 1, LOW], long_frame["close"][:10])


def test_columns_are_named_by_options(long_frame, tmp_path, capsys):
    """The other column of that meaning is left out; the command line, the records' options and Python take the same."""
    other = long_frame.assign(**{"Adj Close": long_frame["close"] * 0.97, "Mein Umsatz": 5.0})
    path = _csv(other.drop(columns="volume"), tmp_path / "bars.csv", index=False)
    options = {"columns": ["close=Adj Close", "volume=Mein Umsatz"]}
    with pytest.warns(MarketDataWarning, match="close is adjusted and open, high, low are not"):
        tape = load_market(path, MarketOptions(features=(), **options))
    np.testing.assert_allclose(tape.ohlcv[0, :, 0, CLOSE], long_frame["close"][:10] * 0.97, rtol=1e-6)
    words = ["data", "convert", str(path), str(tmp_path / "bars.parquet"), "--columns", *options["columns"]]
    assert cli.main(words) == 0
    with pytest.warns(MarketDataWarning, match="close is adjusted"):
        assert set(read_bars(tmp_path / "bars.parquet").ohlcv[0, 4:, :, 4].flatten().tolist()) == {5.0}
    for columns, what in (
        (["close"], "columns are given as close='Adj Close', got 'close'"),
        ({"close": "Adj"}, "there is no column 'Adj' for close; there are date, symbol"),
    ):
        with pytest.raises(ValueError, match=what):
            read_bars(path, form=BarForm.of(None, columns, False))
    assert cli.main(["train", "--market", "synthetic", "--clip", "--timezone", "Asia/Kolkata"]) == 2
    assert "a market of data" in capsys.readouterr().err


def test_prices_just_outside_their_range_are_clipped_by_option(long_frame, tmp_path):
    long_frame.loc[3, "close"] = long_frame.loc[3, "high"] * 1.0009
    with pytest.raises(MarketDataError, match=r"AAA, date 2024-01-04, column close: .*\(1 row in all\).*clip"):
        read_bars(long_frame)
    long_frame.loc[14, "low"] = long_frame.loc[14, ["open", "close"]].min() * 1.0009
    with pytest.warns(
        MarketDataWarning, match="2 bars whose prices leave .* by at most 0.1% are widened, .*AAA, date 2024-01-04"
    ):
        ohlcv = read_bars(long_frame, form=BarForm.of(None, (), True)).ohlcv
        convert(long_frame, tmp_path / "a.parquet", BarForm.of(None, (), True))
    assert ohlcv[0, 3, 0, HIGH] == ohlcv[0, 3, 0, CLOSE] == long_frame.loc[3, "close"]
    np.testing.assert_array_equal(read_bars(tmp_path / "a.parquet").ohlcv, ohlcv)
    long_frame.loc[3, "close"] *= 1.001
    with pytest.warns(MarketDataWarning, match="1 bars"), pytest.raises(MarketDataError, match="column close"):
        read_bars(long_frame, form=BarForm.of(None, (), True))


HEAD = "date,symbol,open,high,low,close,volume\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1704067200000,9,9,9,9,1,1704153599999\n", "the first row holds values, not names .*: '1704.*write names"),
        (HEAD.replace(",", ";") + "2024-01-02;A;1,234;1,234;1,234;1,234;5\n", "column open: '1,234' is not a number"),
        (HEAD + "2024-01-02 09:30,A,9,9,9,9,1\n2024-01-02 09:31,A,9,9,9,9,1\n", "duplicate date: bars are daily"),
        ("date,open,high,low,close,Volume BTC\n2024-01-02,9,9,9,9,1\n", "missing columns volume; .*--columns vol"),
        ("date,symbol,high,close,volume\n2024-01-02,A,9,9,1\n", "missing columns open, low"),
        ("date,sector\n2024-01-02,IT\n", "missing columns open, high, low, close, volume"),
        (HEAD.replace(",symbol", "") + "2024-01-02,9,9,9,9,1\n2024-01-02,8,8,8,8,1\n", "several symbols need a column"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused_with_what_to_do(text, what, tmp_path):
    path = tmp_path / "bars.csv"
    path.write_text(text)
    with pytest.raises(MarketDataError, match=what):
        read_bars(path)


@pytest.mark.parametrize(
    ("cells", "separator", "expected"),
    [
        (['"1,549"', '"12"', "7"], ",", [1549, 12, 7]),
        (['"1,549.95"', '"1,234,567"', "$9.5"], ",", [1549.95, 1234567, 9.5]),
        (['"59,79,215"', '"1,04,23,456"'], ",", [5979215, 10423456]),
        (["1,549.5", "12"], ";", [1549.5, 12]),
        (['"1,549"', "12345"], ",", "1,549"),
        (['"1,549"', '"1,54"'], ",", "1,549"),
        (["1,549", "2,345"], ";", "1,549"),
    ],
)
def test_marks_of_thousands_are_read_where_every_number_of_a_column_has_them(cells, separator, expected, tmp_path):
    rows = [f"2024-01-{day:02},A,9,9,9,9,".replace(",", separator) + cell for day, cell in enumerate(cells, 2)]
    (path := tmp_path / "bars.csv").write_text("\n".join([HEAD.strip().replace(",", separator), *rows]))
    if isinstance(expected, str):
        with pytest.raises(MarketDataError, match=f"column volume: '{expected}' is not a number"):
            read_bars(path)
    else:
        assert read_bars(path).ohlcv[0, :, 0, 4].tolist() == expected


PAGES = {
    "NSE": (
        '"Date ","series ","OPEN ","HIGH ","LOW ","close ","VOLUME "',
        '"{}-Jan-2024","EQ","2,700","2,750.55","999.9","2,700.5","1,04,23,456"',
    ),
    "Nasdaq": ("Date,Close/Last,Volume,Open,High,Low", '01/{}/2024,"$2,700.5","10,423,456",$2700,"$2,750.55",$999.9'),
    "Yahoo": ("Date,Open,High,Low,Close,Volume", '"Jan {}, 2024","2,700.00","2,750.55",999.9,"2,700.5","10,423,456"'),
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore:.*columns of text:UserWarning")
def test_exports_of_pages(page, tmp_path):
    head, row = PAGES[page]
    (path := tmp_path / "TCS.csv").write_text("\n".join([head, row.format(31), row.format(30)]))
    bars = read_bars(path)
    assert bars.symbols == ("TCS",) and bars.dates.astype(str).tolist() == ["2024-01-30", "2024-01-31"]
    assert bars.ohlcv[0, :, 0].tolist() == [[2700, 2750.55, 999.9, 2700.5, 10423456]] * 2


def test_dividends_of_a_column_that_the_adjusted_close_lacks_are_told():
    frame = pd.DataFrame({"date": pd.bdate_range("2024-01-01", periods=6), "symbol": "A", "volume": 1.0})
    frame = frame.assign(**dict.fromkeys(("open", "high", "low", "close"), 100.0), Dividends=[0, 0, 2, 0, 0.1, 0])
    told = "1 dividends that a column tells are not in Adj Close, the first: symbol A, date 2024-01-03, 2;"
    for before, expected in ((100.0, [told]), (98.0, [])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read_bars(frame.assign(**{"Adj Close": [before] * 2 + [100.0] * 4}))
        assert [str(one.message).split(": ", 1)[1][: len(told)] for one in caught] == expected


def test_inspect_tells_of_days_without_a_bar_frozen_prices_and_splits_of_a_column(tmp_path, capsys):
    days = pd.bdate_range("2024-01-01", "2024-12-31")
    close = 100 + np.arange(len(days)) % 7 * 0.1
    close[50:80] = close[50]
    frame = pd.DataFrame({"date": days, "symbol": "A", "volume": 1.0, "Stock Splits": 0.0})
    frame[["open", "high", "low", "close"]] = np.repeat(close[:, None], 4, axis=1)
    frame.loc[200:, ["open", "high", "low", "close"]] /= 1.5
    frame.loc[200, "Stock Splits"] = 1.5
    frame = frame[(days < "2024-06-03") | (days > "2024-07-31")]
    for each, split in ((frame, True), (frame.drop(columns="Stock Splits"), False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            summary = inspect(each)
        told = "1 splits that a column tells are not in the prices, the first: symbol A, date 2024-10-07, -33.3%"
        assert [told in str(one.message) for one in caught] == [True] * split
    assert summary["calendar"]["days"] == 262 and summary["calendar"]["missing"] == 43
    assert summary["calendar"]["runs"] == [{"first": "2024-06-03", "last": "2024-07-31", "days": 43}]
    assert summary["frozen"] == [{"symbol": "A", "first": "2024-03-11", "last": "2024-04-19", "bars": 30}]
    assert cli.main(["data", "inspect", str(_csv(frame, tmp_path / "a.csv", index=False))]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    told = "Monday to Friday; no symbol has a bar on 43 of these 262 days. The longest gaps, of two such days or more:"
    assert f"{told} 2024-06-03 to 2024-07-31, 43 days" in shown and "scaled" not in shown
    adjusted = frame.assign(**{"Adj Close": frame["close"] / 2})
    assert cli.main(["data", "inspect", str(_csv(adjusted, tmp_path / "a.csv", index=False))]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Prices 33.33 to 50.3; all four are scaled by Adj Close / Close" in shown
    assert "A: 30 bars, 2024-03-11 to 2024-04-19" in shown
    coins = pd.DataFrame({"date": pd.date_range("2024-01-01", periods=60), "volume": 1.0})
    coins[["open", "high", "low", "close"]] = np.repeat(np.arange(1.0, 61), 4).reshape(60, 4)
    assert inspect(coins.drop(index=[20, 21]))["calendar"]["runs"] == [
        {"first": "2024-01-21", "last": "2024-01-22", "days": 2}
    ]
    assert len(inspect(coins[::7])["calendar"]["weekdays"]) == 1 and inspect(coins[::14])["calendar"] is None
