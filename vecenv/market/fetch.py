"""Daily bars from Yahoo Finance through yfinance, an optional dependency."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from vecenv.market.dates import day_of
from vecenv.market.dress import undressed
from vecenv.market.long_table import load_table
from vecenv.market.sources import checked_prices
from vecenv.market.validation import OHLCV, MarketDataError, MarketDataWarning

INTERVALS = ("1d", "1wk", "1mo")

_DOW30 = """
    AAPL AMGN AMZN AXP BA CAT CRM CSCO CVX DIS GS HD HON IBM JNJ JPM KO MCD MMM MRK MSFT NKE NVDA PG SHW TRV
    UNH V VZ WMT
"""
_NIFTY25 = """
    RELIANCE INFY TCS HDFCBANK SBIN ICICIBANK BHARTIARTL ITC KOTAKBANK LT AXISBANK BAJFINANCE SUNPHARMA
    TITAN HINDUNILVR HCLTECH WIPRO NTPC POWERGRID ADANIENT TATASTEEL JSWSTEEL COALINDIA ONGC MARUTI
"""
_NIFTY50_ONLY = """
    ADANIPORTS APOLLOHOSP ASIANPAINT BAJAJ-AUTO BAJAJFINSV BEL CIPLA DRREDDY EICHERMOT ETERNAL GRASIM
    HDFCLIFE HINDALCO INDIGO JIOFIN M&M MAXHEALTH NESTLEIND SBILIFE SHRIRAMFIN TATACONSUM TECHM TMPV TRENT
    ULTRACEMCO
"""


@dataclass(frozen=True)
class Universe:
    """The symbols of an index as in a fetched file, Yahoo's suffix for the exchange, and the currency, if known."""

    symbols: tuple[str, ...]
    suffix: str = ""
    currency: str | None = None


# dow30: the index since 2024-11-08; nifty25: the symbols of the trading tiers, in their order; nifty50:
# the index since 2025-09-30, the tiers' symbols first.
UNIVERSES: dict[str, Universe] = {
    "dow30": Universe(tuple(_DOW30.split()), currency="USD"),
    "nifty25": Universe(tuple(_NIFTY25.split()), suffix=".NS", currency="INR"),
    "nifty50": Universe(tuple((_NIFTY25 + _NIFTY50_ONLY).split()), suffix=".NS", currency="INR"),
}

_SOURCE = "Yahoo Finance"


def fetch_bars(symbols: Sequence[str], start: str, end: str, interval: str = "1d", *, suffix: str = "") -> pd.DataFrame:
    """Download bars adjusted for splits and dividends.

    Args:
        symbols: symbols to download, which with the suffix are Yahoo's tickers.
        start: first day, YYYY-MM-DD, inclusive.
        end: last day, YYYY-MM-DD, inclusive.
        interval: ``1d``, ``1wk`` or ``1mo``.
        suffix: ending of the tickers that the symbols lack, as in ``Universe``.

    Returns:
        Long table with the columns ``date, symbol, open, high, low, close, volume``, checked, sorted by
        symbol (as given, and in the order given) and date.

    Raises:
        ImportError: where yfinance is not installed.
        MarketDataError: for an unknown interval, a symbol without data, or bars that fail a check.
    """
    if interval not in INTERVALS:
        raise MarketDataError(f"unknown interval {interval}; known are {', '.join(INTERVALS)}")
    try:
        import yfinance
    except ImportError as error:
        raise ImportError("fetching needs yfinance: pip install 'vecenv[data]'") from error
    first, last = day_of(start, "start"), day_of(end, "end")
    if first > last:
        raise MarketDataError(f"no span from {start} to {end}: two dates YYYY-MM-DD in order are needed")
    frame = yfinance.download(
        [symbol + suffix for symbol in symbols],
        start=str(first),
        # Yahoo's end date is exclusive.
        end=str(last + np.timedelta64(1, "D")),
        interval=interval,
        auto_adjust=True,
        progress=False,
    )
    return long_from_yahoo(frame, symbols, suffix)


def long_from_yahoo(frame: pd.DataFrame | None, symbols: Sequence[str], suffix: str = "") -> pd.DataFrame:
    """Bring the result of ``yfinance.download`` into the long form of ``fetch_bars``, whose symbols lack the suffix.

    The frame's columns have two levels named ``Price`` and ``Ticker`` in either order; a symbol without data is absent
    or all NaN.

    Raises:
        MarketDataError: naming the tickers without data, or the first fault of the bars.
    """
    # yfinance upper-cases tickers in requests and results.
    given = {f"{symbol}{suffix}".upper(): symbol for symbol in symbols}
    with warnings.catch_warnings():
        # Tickers without a price are an error here.
        warnings.simplefilter("ignore", MarketDataWarning)
        empty = frame is None or frame.dropna(how="all").empty
        prices = pd.DataFrame({"symbol": []}) if empty else undressed(frame, {}, _SOURCE)[0]
    absent = [f"{symbol}{suffix}" for ticker, symbol in given.items() if ticker not in set(prices["symbol"])]
    if absent:
        raise MarketDataError(f"{_SOURCE}: no data for {', '.join(absent)}")
    table = prices.assign(symbol=prices["symbol"].map(given))[["date", "symbol", *OHLCV]]
    return checked_prices(load_table(table, list(symbols), name=_SOURCE), _SOURCE)
