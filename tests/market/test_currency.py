"""The currency of a market: where it is told, and what is refused."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vecenv.market.convert import convert
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.sources import read_bars
from vecenv.market.validation import MarketDataError
from vecenv.tasks.commands.market_settings import MarketSettings


def table(**currencies: str | None) -> pd.DataFrame:
    """Twenty days of symbols, with a column of their currencies."""
    days = pd.bdate_range("2020-01-01", periods=20)
    prices = dict.fromkeys(("open", "high", "low", "close"), 10.0)
    rows = [
        pd.DataFrame({"date": days, "symbol": symbol, **prices, "volume": 1e6, "currency": code})
        for symbol, code in currencies.items()
    ]
    return pd.concat(rows, ignore_index=True)


def test_a_column_tells_the_currency_and_is_no_feature(tmp_path, recwarn):
    marked = table(A="USD", B="USD")
    for name, write in (("a.parquet", marked.to_parquet), ("a.csv", marked.to_csv)):
        write(tmp_path / name, index=False)
        bars = read_bars(tmp_path / name)
        assert (bars.currency, bars.columns) == ("USD", {})
    folder = tmp_path / "folder"
    folder.mkdir()
    for symbol, rows in marked.groupby("symbol"):
        rows.to_csv(folder / f"{symbol}.csv", index=False)
    assert read_bars(marked).currency == read_bars(folder).currency == "USD"
    numbers = read_bars(marked.assign(currency=1.5))
    assert numbers.currency is None and list(numbers.columns) == ["currency"]
    # Metadata may tell it, too.
    plain = marked.drop(columns="currency")
    assert read_bars(plain).currency is None
    arrow = pa.Table.from_pandas(plain, preserve_index=False)
    pq.write_table(arrow.replace_schema_metadata({"currency": "JPY"}), tmp_path / "schema.parquet")
    assert read_bars(tmp_path / "schema.parquet").currency == "JPY"
    plain.attrs["currency"] = "USDT"
    plain.to_parquet(tmp_path / "attributes.parquet", index=False)
    assert read_bars(plain).currency == read_bars(tmp_path / "attributes.parquet").currency == "USDT"
    assert not [warning for warning in recwarn if "columns of text" in str(warning.message)]


def test_an_account_is_kept_in_one_currency(tmp_path):
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


def test_conversion_keeps_the_currency(tmp_path):
    source, csv, back = (tmp_path / name for name in ("a.parquet", "b.csv", "c.parquet"))
    table(A="GBP").to_parquet(source, index=False)
    convert(source, csv)
    convert(csv, back)
    assert read_bars(csv).currency == read_bars(back).currency == "GBP"
    assert set(pd.read_csv(csv)["currency"]) == set(pd.read_parquet(back)["currency"]) == {"GBP"}


def test_a_tape_keeps_the_currency_through_everything_that_is_made_of_it():
    tape = load_market(table(A="USD", B="USD"), MarketOptions(features=()))
    parts = [tape.days(0, 5), tape.select(["B"]), tape.paths(0, 1), tape.symbols_as_paths(), *tape.split(0.5, 0)]
    assert {part.currency for part in (tape, *parts, tape.to("cpu"))} == {"USD"}
    assert tape.metadata()["currency"] == "USD"
    # It is a name: the same numbers are the same market.
    assert tape.fingerprint() == load_market(table(A="INR", B="INR"), MarketOptions(features=())).fingerprint()


def test_the_caller_may_say_the_currency():
    plain = table(A="USD").drop(columns="currency")
    assert load_market(plain, MarketOptions(features=(), currency="CHF")).currency == "CHF"
    tape = load_market(table(A="USD"), MarketOptions(features=()))
    assert load_market(tape).currency == "USD" and load_market(tape, MarketOptions(currency="EUR")).currency == "EUR"
    for market in ("synthetic", "planted", "random_walk"):
        assert load_market(market, MarketOptions(features=(), num_paths=1, num_days=30)).currency == "INR"
    for refuse in (lambda: load_market(plain, MarketOptions(currency="Rs.")), lambda: MarketSettings(currency="Rs.")):
        with pytest.raises(ValueError, match=r"currency must be a code .*, got 'Rs\.'"):
            refuse()
