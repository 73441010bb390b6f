"""Dates as they are written: one rule for columns of files, settings and options.

Read are the year first (2024-01-31, 2024/01/31, 2024.01.31, 20240131), a month by its name (31-Jan-2024, 31 January
2024, Jan 31, 2024), each also with a time of day and a UTC offset, and whole numbers since 1970 in the one of s, ms, µs
and ns in which they lie between 1971 and 2100, which are UTC. Day and month cannot be told apart in 01/02/2024: such
dates are read where the whole column tells their order by days after the 12th, or by a format, which all dates of a
column fit or none. All else is refused.
"""

from __future__ import annotations

import calendar
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from vecenv.market.validation import MarketDataError, MarketDataWarning, refuse_rows

if TYPE_CHECKING:
    import pandas as pd

NOT_A_DATE = "is not a date of the form YYYY-MM-DD; 31-Jan-2024, 20240131 and times since 1970 are read too"

Day = str | int | date | np.datetime64

DAYLIGHT_SAVING = np.timedelta64(60, "m")
"""The most by which the UTC offset of one market changes."""

# Below this share a few special sessions are on weekends; with every Sunday it is 0.2.
_FEW_WEEKENDS = 0.05
# The last minute of a day is its end, as in the closes of coins.
_DAYS_END = np.timedelta64(23 * 60 + 59, "m")
_EXAMPLE = "such as timezone Asia/Kolkata"

_EARLIEST, _LATEST = (int(datetime.fromisoformat(f"{year}-01-01T00:00+00:00").timestamp()) for year in (1971, 2101))
_PER_SECOND = (1, 10**3, 10**6, 10**9)
_MONTHS = {name.lower()[:length]: k for k, name in enumerate(calendar.month_name) if k for length in (3, 4, len(name))}
_WRITTEN = re.compile(
    r"(?:(?P<y>\d{4})(?P<mark>[-/.]?)(?P<m>\d\d?)(?P=mark)(?P<d>\d\d?)"
    r"|(?P<d2>\d\d?)[- ](?P<m2>[a-z]{3,9})[- ](?P<y2>\d{4})|(?P<m3>[a-z]{3,9})\.? (?P<d3>\d\d?),? (?P<y3>\d{4})"
    r"|(?P<one>\d\d?)(?P<mark4>[-/.])(?P<two>\d\d?)(?P=mark4)(?P<y4>\d{4}))"
    r"(?:(?:t|\s+)(?P<hour>\d\d?):?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?"
    r"\s*(?P<zone>z|utc|gmt|(?P<sign>[+-])(?P<zh>\d\d):?(?P<zm>\d\d)?)?)?",
    re.IGNORECASE,
)


class Moment(NamedTuple):
    """A time as it is written, and its UTC offset, None without one."""

    at: datetime
    offset: timedelta | None


class Times(NamedTuple):
    """Times of a column: as they are written, datetime64[us], NaT for none, and UTC offsets, timedelta64[m], or NaT."""

    at: np.ndarray
    offset: np.ndarray

    def days(self) -> np.ndarray:
        """Return the days as they are written. Shape: (rows,), datetime64[D]."""
        return self.at.astype("datetime64[D]")


def day_of(value: Day, what: str) -> np.datetime64:
    """Return a day, as it is written, as datetime64[D].

    Raises:
        MarketDataError: it is not a date of a form that is read; ``what`` is its name in the message.
    """
    if isinstance(value, np.datetime64) and not np.isnat(value):
        return value.astype("datetime64[D]")
    if isinstance(value, date) and value == value:
        return np.datetime64(date(value.year, value.month, value.day), "D")
    (moment,) = _moments([str(value)])
    if moment is None:
        raise MarketDataError(f"{what} {value!r} {why_unread(value, 'write the one that is meant')}")
    return np.datetime64(moment.at.date(), "D")


def why_unread(value: object, do: str = "", otherwise: str = NOT_A_DATE) -> str:
    """Return what is wrong with a date that was not read, by itself or, without ``do``, as one of a column."""
    readings = [_written(str(value).strip(), day_first) for day_first in (False, True)]
    told = " or ".join(dict.fromkeys(str(each.at.date()) for each in readings if each is not None))
    of_column = "its column does not tell the order of day and month, date_format (--date-format) does, as %m/%d/%Y"
    return f"is {told}: {do or of_column}" if told else otherwise


def checked_format(text: str) -> str:
    """Return a format of dates, as of ``strptime``; ValueError unless it tells year, month and day."""
    for day in (datetime(2023, 1, 5, tzinfo=UTC), datetime(2024, 11, 28, tzinfo=UTC)):
        moment = _formatted(day.strftime(text), text)
        if moment is None or moment.at.date() != day.date():
            raise ValueError(f"date_format must tell year, month and day, such as %m/%d/%Y, got {text!r}")
    return text


def read_times(column: pd.Series, date_format: str | None = None) -> Times:
    """Read a column of dates or times: datetimes, dates, texts or numbers; what cannot be read is NaT."""
    import pandas as pd

    if isinstance(column.dtype, pd.ArrowDtype):
        column = column.astype(object)
    codes, unique = pd.factorize(column)
    if isinstance(unique, pd.DatetimeIndex):
        at = unique.tz_localize(None).to_numpy().astype("datetime64[us]")
        zoned = np.full(len(at), "NaT", "timedelta64[us]") if unique.tz is None else at - _utc(unique)
        offset = zoned.astype("timedelta64[m]")
    else:
        values = np.asarray(unique)
        whole = values.dtype.kind == "f" and bool((values == np.floor(values)).all())
        moments = _moments([str(value) for value in (values.astype(np.int64) if whole else values)], date_format)
        at = np.array([None if each is None else each.at for each in moments], "datetime64[us]")
        offset = np.array([None if each is None else each.offset for each in moments], "timedelta64[m]")
    # Code -1, a missing value, takes the last one.
    return Times(np.append(at, np.datetime64("NaT"))[codes], np.append(offset, np.timedelta64("NaT"))[codes])


def market_dates(
    table: pd.DataFrame, source: str, zone: ZoneInfo | None = None, date_format: str | None = None
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Read the ``date`` column as calendar days, in the zone of the market or, without one, as they are written.

    Offsets may differ by an hour, as with daylight saving. Days that show by their weekends that their times are
    midnights of another zone are refused; where they do not tell, a late time of day in UTC is warned of.

    Returns:
        Days, ``datetime64[D]``, shape (rows,), and the UTC offsets in minutes, none if the days are of a given zone.

    Raises:
        MarketDataError: for missing or unreadable dates, different zones, and dates of another zone.
    """
    times = read_times(table["date"], date_format)
    refuse_rows(table, table["date"].isna().to_numpy(bool), "date", "the date is missing", source)
    unread = np.isnat(times.at)
    refuse_rows(table, unread, "date", f"'{{value}}' {column_unread(table['date'], unread, date_format)}", source)
    zoned = ~np.isnat(times.offset)
    if not zoned.any():
        _check_weekends(table, times, source)
        return times.days(), ()
    _refuse_zones(table, times, zoned != zoned[0], "write plain dates, or all with the offset of their zone", source)
    if zone is not None:
        import pandas as pd

        local = pd.DatetimeIndex(times.at - times.offset).tz_localize("UTC").tz_convert(zone).tz_localize(None)
        return local.to_numpy().astype("datetime64[D]"), ()
    far = np.abs(times.offset - times.offset[0]) > DAYLIGHT_SAVING
    _refuse_zones(table, times, far, f"give that of the market, {_EXAMPLE}", source)
    _check_weekends(table, times, source)
    return times.days(), tuple(np.unique(times.offset).astype(int).tolist())


def column_unread(column: pd.Series, unread: np.ndarray, date_format: str | None, otherwise: str = NOT_A_DATE) -> str:
    """Return what is wrong with the first date of a column that was not read; an empty text if all were."""
    if date_format is not None:
        return "is not of the date_format that is given"
    return why_unread(column.iloc[int(np.argmax(unread))], otherwise=otherwise) if unread.any() else ""


def shown_offset(minutes: int | None) -> str:
    """Return a UTC offset such as +05:30."""
    if minutes is None:
        return "no zone"
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}"


def _refuse_zones(table: pd.DataFrame, times: Times, other: np.ndarray, hint: str, source: str) -> None:
    if other.any():
        pair = [times.offset[row].item() for row in (0, int(np.argmax(other)))]
        first, second = (shown_offset(None if each is None else int(each.total_seconds()) // 60) for each in pair)
        refuse_rows(table, other, "date", f"mixed time zones, {first} and {second}: {hint}", source)


def _check_weekends(table: pd.DataFrame, times: Times, source: str) -> None:
    """Compare the days as they are written with those of the next and the last noon of their times."""
    inside = np.flatnonzero(times.at != times.days())
    at, half = times.at[inside], np.timedelta64(12, "h")
    written, later, before = (each.astype("datetime64[D]") for each in (at, at + half, at - half))
    share = [1 - np.is_busday(np.unique(days)).mean() if len(days) else 0.0 for days in (written, later, before)]
    other = later if share[1] <= share[2] else before
    utc = times.offset[inside] == np.timedelta64(0, "m")
    shows = share[0] > 2 * _FEW_WEEKENDS and min(share[1:]) < _FEW_WEEKENDS
    unsure = utc & (later > written) & (at - written < _DAYS_END) & ~(share[0] < _FEW_WEEKENDS < share[1])
    if not shows and not unsure.any():
        return
    other = other if shows else later
    row = int(np.argmax(other != written if shows else unsure))
    time = f"{str(at[row].astype('datetime64[m]')).replace('T', ' ')}{' UTC' if utc[row] else ''}"
    told = f"{time} is {written[row]} as it is written, and {other[row]} as a midnight of another zone"
    zone = f"give the market's zone, {_EXAMPLE}" if not np.isnat(times.offset[inside[row]]) else "write plain dates"
    if not shows:
        message = f"{source}: column date: {told}; the first is taken: if it is wrong, {zone}"
        warnings.warn(message, MarketDataWarning, stacklevel=2)
        return
    marked = np.zeros(len(table), dtype=bool)
    marked[inside] = other != written
    what = f"{told}; {share[0]:.0%} of the first and {min(share[1:]):.0%} of the second are on weekends: {zone}"
    refuse_rows(table, marked, "date", what, source)


def _utc(index: pd.DatetimeIndex) -> np.ndarray:
    return index.tz_convert(None).to_numpy().astype("datetime64[us]")


def _moments(texts: Sequence[str], date_format: str | None = None) -> list[Moment | None]:
    texts = [text.strip() for text in texts]
    if date_format is not None and any(told := [_formatted(text, date_format) for text in texts]):
        return told
    numbers = [int(text) if text.isascii() and text.isdigit() and len(text) not in (6, 8) else None for text in texts]
    units = Counter(_unit(number) for number in numbers if number is not None)
    unit = units.most_common(1)[0][0] if units else None
    found = [
        _written(text) if number is None else _since_1970(number, unit)
        for text, number in zip(texts, numbers, strict=True)
    ]
    order = _day_first([text for text, each in zip(texts, found, strict=True) if each is None])
    if date_format is not None or order is None:
        return found
    return [each or _written(text, order) for text, each in zip(texts, found, strict=True)]


def _day_first(texts: Sequence[str]) -> bool | None:
    """Return whether days are before months in texts such as 31/01/2024, None if that is not certain."""
    found = [each for each in map(_WRITTEN.fullmatch, texts) if each is not None and each["y4"]]
    pairs = [(int(each["one"]), int(each["two"])) for each in found]
    first, second = (any(pair[place] > 12 for pair in pairs) for place in (0, 1))
    return first if first != second else True if pairs and all(one == other for one, other in pairs) else None


def _formatted(text: str, date_format: str) -> Moment | None:
    try:
        at = datetime.strptime(text, date_format)
    except (ValueError, re.error):
        return None
    # Of digits alone a number may have lost its first zero.
    if text.isdigit() and at.strftime(date_format) != text:
        return None
    return Moment(at.replace(tzinfo=None), at.utcoffset())


def _unit(number: int) -> int | None:
    """Return how many units of a number are a second: the ranges of the four do not overlap."""
    return next((unit for unit in _PER_SECOND if _EARLIEST * unit <= number < _LATEST * unit), None)


def _since_1970(number: int, unit: int | None) -> Moment | None:
    if unit is None or number >= _LATEST * unit:
        return None
    seconds, rest = divmod(number, unit)
    return Moment(datetime(1970, 1, 1) + timedelta(seconds=seconds, microseconds=rest * 10**6 // unit), timedelta(0))


def _written(text: str, day_first: bool | None = None) -> Moment | None:
    if len(text) == 10 and text[4::3] == "--" and text.isascii():
        # The usual form, which is read ten times faster.
        with suppress(ValueError):
            return Moment(datetime.fromisoformat(text), None)
    found = _WRITTEN.fullmatch(text)
    if found is None:
        return None
    part = found.groupdict()
    if part["y4"]:
        if day_first is None:
            return None
        both = part["one"], part["two"]
        part |= {"y": part["y4"], "d": both[not day_first], "m": both[day_first]}
    year, month, day = (part[name] or part[f"{name}2"] or part[f"{name}3"] for name in "ymd")
    if part["mark"] == "" and len(month + day) < 4:
        return None
    hour, minute, second = (int(part[name] or 0) for name in ("hour", "minute", "second"))
    micros = int((part["fraction"] or "0")[:6].ljust(6, "0"))
    try:
        number = int(month) if month.isdigit() else _MONTHS[month.lower()]
        at = datetime(int(year), number, int(day), hour, minute, second, micros)
    except (ValueError, KeyError):
        return None
    if part["zone"] is None:
        return Moment(at, None)
    shift = timedelta(hours=int(part["zh"] or 0), minutes=int(part["zm"] or 0))
    return Moment(at, -shift if part["sign"] == "-" else shift)
