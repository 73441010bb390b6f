"""The dress of a table of bars: how its columns are called and laid out. Undressed, a row is a symbol on a day."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence

import pandas as pd

from vecenv.market.validation import OHLCV, PRICES, MarketDataError, MarketDataWarning, check_columns

ALIASES = {
    "tic": "symbol",
    "ticker": "symbol",
    "instrument": "symbol",
    "datetime": "date",
    "timestamp": "date",
    "vol": "volume",
    "vol.": "volume",
    "close/last": "close",
    "adj close": "adj_close",
    "adj. close": "adj_close",
    "adjclose": "adj_close",
    "adjusted close": "adj_close",
    "adjusted_close": "adj_close",
    "adjcp": "adj_close",
}
"""Other usual names of columns, in lower case: those of FinRL, yfinance, Qlib, Alpha Vantage, Nasdaq Data Link and
Stooq, which puts names in angle brackets. Qlib's `$` and Alpha Vantage's numbers before a name are left out."""

FALLBACKS = {
    "date": (
        "time",
        "open time",
        "open_time",
        "window_start",
        "snapped_at",
        "trade_date",
        "observation_date",
        "index",
        "level_0",
        "",
    ),
    "symbol": ("name", "code", "ts_code", "act_symbol", "level_1"),
    "close": ("last", "price", "adj_close"),
    "volume": ("total_volume", "tickvol", "tottrdqty"),
}
"""Names of columns that are taken only where a file has none of the others, the first that it has: those of CCXT,
Polygon, Binance, CoinGecko, FRED, Kaggle, MetaTrader, NSE and Tushare; an unnamed column is that of the dates."""

_LETTERS = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume", "t": "date", "s": "symbol"}
# Single letters are tickers too: they have a meaning only together.
_PRICE_LETTERS = {"o", "h", "l", "c"}

ONE_SYMBOL = "asset_0"
"""Symbol of a table of one that has no name."""

_FIELDS = {*OHLCV, "adj_close"}
_FIELD = "|".join(sorted((*_FIELDS, *(name for name, role in ALIASES.items() if role in _FIELDS)), key=len)[::-1])
_OF_BOTH = [
    re.compile(rf"(?P<field>{_FIELD})[_ .:/|-](?P<symbol>.+)", re.IGNORECASE),
    re.compile(rf"(?P<symbol>.+)[_ .:/|-](?P<field>{_FIELD})", re.IGNORECASE),
]


def canonical_names(names: Sequence[object]) -> list[str]:
    """Return the meanings of columns by their names, empty for those without a name."""
    lower = [str(name).strip().lower().removeprefix("<").removesuffix(">").removeprefix("$") for name in names]
    lower = [re.sub(r"^\d+[ab]?\. ", "", name) for name in lower]
    return ["" if re.match(r"unnamed: \d", name) else ALIASES.get(name, name) for name in lower]


def meanings(names: Sequence[object], columns: Mapping[str, str], source: str) -> list[str]:
    """Return what columns are read as: by the names given for a meaning, their own names, and usual ones.

    Raises:
        MarketDataError: a given column is not there, or two columns are read as one.
    """
    found, given = canonical_names(names), [str(name).strip() for name in names]
    lower = [name.lower() for name in given]
    for role, name in columns.items():
        if lower.count(name.lower()) != 1:
            what = "there are two of" if name.lower() in lower else "there is no"
            raise MarketDataError(f"{source}: {what} column {name!r} for {role}; there are {', '.join(given[:20])}")
        found = ["" if each == role else each for each in found]
        found[lower.index(name.lower())] = role
    claims: dict[str, list[str]] = {}
    for name, role in zip(given, found, strict=True):
        claims.setdefault(role, []).append(name)
    for role, those in claims.items():
        if role and len(those) > 1:
            raise MarketDataError(f"{source}: duplicate columns {role}: {' and '.join(those)} are read as one")
    if {*found} >= _PRICE_LETTERS:
        found = [_LETTERS[name] if name in _LETTERS and _LETTERS[name] not in found else name for name in found]
    for role, others in FALLBACKS.items():
        usual = next((name for name in others if name in found), None)
        if role not in found and usual is not None:
            found[found.index(usual)] = role
    return found


def undressed(
    frame: pd.DataFrame, columns: Mapping[str, str], source: str, symbol: str | None = None
) -> tuple[pd.DataFrame, bool]:
    """Return a table with the columns ``date, symbol, open, high, low, close, volume`` and further ones, as they are.

    Read are a row per symbol and date, also without a column of the symbol if there is one only, named ``symbol``; a
    column per field and symbol, by two levels of columns in either order, as of yfinance, or names such as
    ``Close_AAPL``; and a column per symbol, of closes. Where a file has only a close, open, high and low equal it, and
    where it has no volume, that is 0; a warning says so. The second value says that the close alone is adjusted.

    Raises:
        MarketDataError: columns are missing, or two are read as one.
    """
    if isinstance(frame.columns, pd.MultiIndex):
        frame = _stacked(frame, source)
    elif frame.index.nlevels > 1 or frame.index.name is not None or _are_dates(frame):
        frame = frame.reset_index()
    if not {"symbol", "close"} & {*meanings(frame.columns, columns, source)}:
        frame = _long(frame, columns, source)
    names = meanings(frame.columns, columns, source)
    finrl = "tic" in [str(name).strip().lower() for name in frame.columns]
    closes = [name for name, role in zip(frame.columns, names, strict=True) if role == "close"]
    adjusted = finrl or "adj_close" in canonical_names(closes)
    keep = [bool(name) and not (finrl and name == "day") for name in names]
    table = frame.loc[:, keep].set_axis([name for name, kept in zip(names, keep, strict=True) if kept], axis=1)
    table = _complete(table, source)
    return table if "symbol" in table else table.assign(symbol=symbol or ONE_SYMBOL), adjusted


def _are_dates(frame: pd.DataFrame) -> bool:
    return isinstance(frame.index, pd.DatetimeIndex) and "date" not in canonical_names(frame.columns)


def _complete(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """Fill in the prices and the volume of a file of closes."""
    lacking = [name for name in OHLCV if name not in table]
    alike = [name for name in table if "volume" in name and "volume" in lacking]
    prices = [name for name in lacking if name in PRICES]
    if "date" in table and lacking and not alike and prices in ([], PRICES[:3]):
        told = [f"{', '.join(prices)} equal the close"] if prices else []
        told += ["the volume is 0"] if "volume" in lacking else []
        message = f"{source}: there are no columns {', '.join(lacking)}: {' and '.join(told)}"
        warnings.warn(message, MarketDataWarning, stacklevel=2)
        table = table.assign(**{name: table["close"] if name in PRICES else 0.0 for name in lacking})
    check_columns(list(table.columns), ["date", *OHLCV], source, "; --columns {}=NAME tells which is meant")
    return table


def _long(frame: pd.DataFrame, columns: Mapping[str, str], source: str) -> pd.DataFrame:
    """Bring columns whose names are of a field and a symbol, or of a symbol, into one row per symbol and date."""
    roles = meanings(frame.columns, columns, source)
    own = [name for name, role in zip(frame.columns, roles, strict=True) if role not in ("date", "")]
    if "date" not in roles or not own:
        return frame
    dated = frame.set_index(frame.columns[roles.index("date")])[own]
    for form in _OF_BOTH:
        found = {name: form.fullmatch(str(name).strip()) for name in own}
        pairs = {name: (match["field"], match["symbol"]) for name, match in found.items() if match}
        if "close" in canonical_names([field for field, _ in pairs.values()]):
            left = [str(name) for name in own if name not in pairs]
            if left:
                message = f"{source}: columns without a field and a symbol are left out: {', '.join(left)}"
                warnings.warn(message, MarketDataWarning, stacklevel=2)
            both = dated[list(pairs)].set_axis(pd.MultiIndex.from_tuples(pairs.values()), axis=1)
            return _stacked(both, source)
    if _FIELDS & {*roles} or not all(map(pd.api.types.is_numeric_dtype, dated.dtypes)):
        return frame
    message = f"{source}: no column is a price: each of {', '.join(map(str, own[:5]))} … is read as a symbol's closes"
    warnings.warn(message, MarketDataWarning, stacklevel=2)
    names = [str(name).strip() for name in own]
    return _stacked(dated.set_axis(pd.MultiIndex.from_product([["close"], names]), axis=1), source)


def _stacked(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Stack the level of symbols of two levels of columns; rows without a price are left out."""
    if frame.columns.nlevels != 2 or not frame.columns.is_unique:
        raise MarketDataError(
            f"{source}: two levels of columns are needed, of fields and symbols, without a repetition"
        )
    dates = [name for name in frame.columns if "date" in canonical_names(name)]
    if dates:
        frame = frame.set_index(dates[0])
    fields = [len(_FIELDS & {*canonical_names(frame.columns.unique(level))}) for level in (0, 1)]
    symbols = frame.columns.unique(level := int(fields[0] >= fields[1]))
    table = frame.stack(level, future_stack=True).rename_axis(["date", "symbol"]).reset_index()
    prices = [name for name, role in zip(table, canonical_names(table), strict=True) if role in {*PRICES, "adj_close"}]
    table = table.dropna(subset=prices, how="all") if prices else table
    without = [str(symbol) for symbol in symbols if symbol not in set(table["symbol"])]
    if without:
        warnings.warn(f"{source}: there is no price of {', '.join(without)}", MarketDataWarning, stacklevel=2)
    return table.assign(symbol=table["symbol"].astype(str))
