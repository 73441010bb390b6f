"""One rule reads the dates of files, settings and options; the days of times are those of the market's zone."""

from datetime import date, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from vecenv.market.bar_form import BarForm
from vecenv.market.dates import day_of, read_times
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.sources import read_bars
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.system.preset_files import with_values
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment.markets import FileMarket

SECONDS = 1706659200 + 64800  # 2024-01-31 18:00 UTC
READ = (
    *("2024-01-31", "2024/1/31", "2024.01.31", "20240131", 20240131, "31-JAN-2024", "31 January 2024", "Jan 31, 2024"),
    *("2024-01-31 18:00", "2024-01-31T18:00:00.123456789", "20240131T180000", "2024-01-31 18:00:00 UTC"),
    *("2024-01-31T18:00Z", "2024-01-31 18:00:00+05", "2024-01-31T18:00:00.5-0500", " 2024-01-31 "),
    *(SECONDS, SECONDS * 10**3, SECONDS * 10**6, str(SECONDS * 10**9), date(2024, 1, 31), np.datetime64("2024-01-31")),
    *(datetime(2024, 1, 31, 18), pd.Timestamp("2024-01-31 18:00", tz="Asia/Kolkata")),
)
REFUSED = (
    *(
        "now",
        "today",
        "NaT",
        "",
        "24-01-02",
        "2-Feb-24",
        "2024",
        "2024-02",
        "202402",
        "45000",
    ),
    *("2024-W05-1", "2024-02-30", "2024-13-01", "2024112", "1e9", "-1706659200", "20240131180000", "9" * 30),
    *("2024-01-31 25:00", "2024-01-31T18:00 Asia/Kolkata", np.datetime64("NaT"), pd.NaT, 1.5),
)


@pytest.mark.parametrize("value", [*READ, *REFUSED], ids=repr)
def test_one_rule_for_columns_and_settings(value):
    known = np.datetime64("2024-01-31") if any(value is each for each in READ) else None
    for column in (pd.Series([value, value]), pd.Series([value, None], dtype=object)):
        times = read_times(column)
        assert np.isnat(times.at[0]) if known is None else times.days()[0] == known
    assert np.isnat(times.at[1])
    if known is not None:
        assert day_of(value, "start") == known
    else:
        with pytest.raises(MarketDataError, match=r"start .* is not a date of the form YYYY-MM-DD"):
            day_of(value, "start")


@pytest.mark.parametrize(
    ("texts", "form", "days"),
    [
        (["01/31/2024", "02/01/2024"], None, ["2024-01-31", "2024-02-01"]),
        (["31/01/2024", "01/02/2024", "2024-03-01"], None, ["2024-01-31", "2024-02-01", "2024-03-01"]),
        (["31.1.2024 18:00", "1-2-2024T18:00:05 +01:00"], None, ["2024-01-31", "2024-02-01"]),
        (["01/02/2024", "02/02/2024", "2024-01-31"], None, ["NaT", "NaT", "2024-01-31"]),
        (["31/01/2024", "02/13/2024", "05/05/2024"], None, ["NaT"] * 3),
        (["13/13/2024", "31/01/24", "1/2/3/2024"], None, ["NaT"] * 3),
        (["01/02/2024", "2/2/2024"], "%m/%d/%Y", ["2024-01-02", "2024-02-02"]),
        (["2024/01/02", "2024/02/13"], "%Y/%d/%m", ["2024-02-01", "NaT"]),
        # Never by another order than the one that is told.
        (["13/02/2024", "14/02/2024"], "%m/%d/%Y", ["NaT"] * 2),
        (["2024-01-31", "1 Feb 2024"], "%m/%d/%Y", ["2024-01-31", "2024-02-01"]),
        (["01/02/24 16:00", "01/03/24 16:00"], "%m/%d/%y %H:%M", ["2024-01-02", "2024-01-03"]),
        ([12312024, 1012024], "%m%d%Y", ["2024-12-31", "NaT"]),
    ],
)
def test_days_and_months_are_told_apart_by_the_whole_column_or_a_format(texts, form, days):
    assert read_times(pd.Series(texts), form).days().astype(str).tolist() == days


def test_an_order_that_is_not_certain_is_refused_with_both_readings_and_the_setting(tmp_path, capsys):
    both = "'01/02/2024' is 2024-01-02 or 2024-02-01: "
    path = tmp_path / "bars.csv"
    _bars(["01/02/2024", "01/03/2024"]).to_csv(path, index=False)
    told = r"symbol A, date 01/02/2024, column date: " + both + r".*, date_format \(--date-format\) does, as %m/%d/%Y"
    with pytest.raises(MarketDataError, match=told):
        read_bars(path)
    with pytest.raises(MarketDataError, match="start " + both + "write the one that is meant"):
        read_bars(path, start="01/02/2024")
    options = MarketOptions(date_format="%m/%d/%Y", features=(), context=("vix",), context_market=path)
    tape = load_market(path, options)
    assert tape.dates.astype(str).tolist() == ["2024-01-02", "2024-01-03"] and "vix" in tape.context_names
    assert cli.main(["data", "inspect", str(path), "--date-format", "%m/%d/%Y"]) == 0
    assert "2024-01-02 to 2024-01-03" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(MarketDataError, match="'01/02/2024' is not of the date_format that is given"):
        read_bars(path, form=BarForm.of(None, (), False, "%d.%m.%Y"))
    for form in ("%m/%d", "%Y", "x", "%", "%d%d%Y", "%Y-11-28"):
        with pytest.raises(ValueError, match=f"date_format must tell year, month and day, such as .*, got '{form}'"):
            FileMarket(date_format=form)


def test_days_and_offsets_of_columns():
    """Numbers have one unit, that of most; Arrow's times and their zones are read as pandas' are."""
    times = read_times(pd.Series([SECONDS * 1000, SECONDS * 1000 + 1, 864_000_000, SECONDS]))
    assert times.days()[:3].astype(str).tolist() == ["2024-01-31", "2024-01-31", "1970-01-11"]
    assert times.at[3] == np.datetime64("1970-01-20T18:05:24") and (times.offset == np.timedelta64(0)).all()
    zoned = pd.Series(pd.date_range("2024-03-08", periods=4, tz="America/New_York"))
    for column in (zoned, zoned.astype("timestamp[us, tz=America/New_York][pyarrow]"), zoned.astype(str)):
        times = read_times(column)
        assert times.days()[[0, 3]].astype(str).tolist() == ["2024-03-08", "2024-03-11"]
        assert times.offset.astype(int).tolist() == [-300, -300, -300, -240]


def _bars(times) -> pd.DataFrame:
    prices = dict.fromkeys(("open", "high", "low", "close", "volume"), 10.0)
    return pd.DataFrame({"date": times, "symbol": "A", **prices})


def _midnights(zone: str, hours: float = 0, to: str | None = "UTC") -> pd.Series:
    days = pd.bdate_range("2024-03-04", "2024-04-26").tz_localize(zone) + pd.Timedelta(hours=hours)
    return pd.Series(days.tz_convert(to))


BUSINESS_DAYS = np.arange("2024-03-04", "2024-04-27", dtype="datetime64[D]")
BUSINESS_DAYS = BUSINESS_DAYS[np.is_busday(BUSINESS_DAYS)]


@pytest.mark.parametrize(
    ("times", "wrong"),
    [
        (_midnights("Asia/Kolkata"), True),
        (_midnights("Asia/Kolkata").astype(str), True),
        (_midnights("Asia/Kolkata").astype("int64"), True),
        (_midnights("Asia/Kolkata", to=None), True),
        (_midnights("Europe/Berlin"), True),
        (_midnights("Europe/London"), True),
        (_midnights("Asia/Tokyo", to="Europe/London"), True),
        (_midnights("America/New_York", hours=20), True),
        (_midnights("America/New_York"), False),
        (_midnights("America/New_York", hours=16), False),
        (_midnights("America/New_York", hours=16, to="America/New_York").astype(str), False),
        (_midnights("Asia/Kolkata", hours=15.5), False),
        (_midnights("Asia/Kolkata", to="Asia/Kolkata").astype(str), False),
        (
            pd.concat([_midnights("America/New_York", hours=16)[:5], _midnights("America/New_York", hours=13)[5:]]),
            False,
        ),
    ],
)
def test_midnights_of_an_exchange_in_another_zone(times, wrong, recwarn):
    """They put every bar on the day before, or after; their weekends tell, and the market's zone mends it."""
    if not wrong:
        np.testing.assert_array_equal(read_bars(_bars(times)).dates, BUSINESS_DAYS)
        assert not recwarn.list
        return
    with pytest.raises(
        MarketDataError,
        match=r"column date: 2024-.* is 2024-.* as it is written, and 2024-.*weekends:.*\d rows in all",
    ) as told:
        read_bars(_bars(times))
    zoned = "timezone Asia/Kolkata" in str(told.value)
    assert zoned != ("write plain dates" in str(told.value))
    zones = ("Asia/Kolkata", "Europe/Berlin", "Europe/London", "Asia/Tokyo", "America/New_York")
    found = [read_bars(_bars(times), form=BarForm.of(zone, (), False)).dates for zone in zones] if zoned else []
    assert any(np.array_equal(dates, BUSINESS_DAYS) for dates in found) == zoned


def test_where_the_days_do_not_tell_a_late_time_in_utc_is_warned_of(recwarn):
    coins = pd.Series(pd.date_range("2024-03-04 18:30", periods=30, tz="UTC"))
    for times in (coins, coins[:3]):
        with pytest.warns(
            MarketDataWarning, match="2024-03-04 18:30 UTC is 2024-03-04 .* 2024-03-05 as a midnight .* first is"
        ):
            assert str(read_bars(_bars(times)).dates[0]) == "2024-03-04"
    read_bars(_bars(coins), form=BarForm.of("UTC", (), False))
    read_bars(_bars(coins.dt.normalize() + timedelta(hours=23, minutes=59, seconds=59)))
    assert not recwarn.list
    for times in (["2024-03-04 00:00+05:30", "2024-03-05 00:00-05:00"], ["2024-03-04", "2024-03-05T00:00Z"]):
        with pytest.raises(
            MarketDataError, match=r"column date: mixed time zones, .*: (give that of the market|write plain)"
        ):
            read_bars(_bars(times))
    mixed = ["2024-03-04 00:00+05:30", "2024-03-05 00:00-05:00"]
    dates = read_bars(_bars(mixed), form=BarForm.of("Asia/Kolkata", (), False)).dates
    assert dates.astype(str).tolist() == ["2024-03-04", "2024-03-05"]
    with pytest.raises(ValueError, match=r"timezone must be a name such as Asia/Kolkata .*, got 'IST'"):
        BarForm.of("IST", (), False)


@pytest.mark.parametrize("value", ["03/02/2023", "13/02/23", "now", "2023-W05-1"])
def test_settings_read_dates_by_that_rule(value, tmp_path, capsys):
    why = "is 2023-03-02 or 2023-02-03" if value == "03/02/2023" else "is not a date"
    assert day_of("13/02/2023", "start") == np.datetime64("2023-02-13")
    with pytest.raises(MarketDataError, match=rf"DataFrame: start '{value}' {why}"):
        read_bars(_bars(BUSINESS_DAYS), start=value)
    assert str(read_bars(_bars(BUSINESS_DAYS), start="2 April 2024").dates[0]) == "2024-04-02"
    words = [
        "data",
        "fetch",
        "--start",
        value,
        "--end",
        "20240131",
        "--out",
        str(tmp_path / "a.parquet"),
        "--symbols",
        "A",
    ]
    assert cli.main(words) == 2
    assert f"'{value}' {why}" in " ".join(capsys.readouterr().err.split()).replace(" │ │ ", " ")
    with pytest.raises(ValueError, match=f"preset: start: '{value}' is not of the type"):
        with_values(FileMarket(), {"start": value}, "preset")
