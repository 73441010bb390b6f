"""Kinds of days against dates of real calendars, and numbers of weekdays."""

import numpy as np
import torch

from vecenv.worldmodel.data.calendar import (
    CALENDAR,
    FIRST_WEEKDAY,
    WEEKDAYS,
    calendar_features,
    weekday_after,
    weekday_features,
)

KINDS = {
    "third_friday": "2018-01-19 2018-06-15 2019-02-15 2021-10-15 2022-12-16 2018-12-21",
    "quarterly_third_friday": "2018-06-15 2022-12-16 2018-12-21",
    "half_day": "2018-11-23 2019-11-29 2018-12-24 2018-07-03",
    "year_end": "2018-12-24 2018-12-31 2019-12-26",
    # The last weekday of March 2018 was Good Friday, of June 2019 the 28th.
    "month_end": "2018-12-31 2018-03-30 2019-06-28 2016-02-29 2018-01-31 2019-11-29 2018-11-30",
    "monday": "2018-12-24 2018-12-31 2018-01-08 2016-02-29",
}
NONE = "2018-01-18 2018-01-26 2018-11-22 2018-07-05 2018-12-20 2019-06-30 2015-02-28 2018-01-12"
"""2015-02-28 and 2019-06-30 are no weekdays."""


def test_kinds_of_days_are_those_of_the_calendar():
    days = sorted({day for listed in (*KINDS.values(), NONE) for day in listed.split()})
    found = calendar_features(np.array(days, "datetime64[D]"))
    assert found.dtype == torch.float32 and found.shape == (len(days), len(CALENDAR)) and tuple(KINDS) == CALENDAR
    for kind, column in zip(CALENDAR, found.T, strict=True):
        assert {day for day, here in zip(days, column.tolist(), strict=True) if here} == set(KINDS[kind].split())


def test_weekdays_are_counted_and_repeat_after_400_years():
    days = (("2018-01-19", "2018-01-22"), ("2018-01-20", "2018-01-22"), ("2018-01-21", "2018-01-22"))
    for date, after in (*days, ("1968-01-19", "1968-01-22"), ("1968-01-20", "1968-01-22")):
        assert np.busday_offset(FIRST_WEEKDAY, weekday_after(np.datetime64(date))) == np.datetime64(after)
    for first in ("2021-11-01", "2331-03-01", "1931-06-01"):
        dates = np.busday_offset(np.datetime64(first), np.arange(300), roll="forward")
        numbers = (weekday_after(dates[0] - 1) + torch.arange(300)) % WEEKDAYS
        assert torch.equal(weekday_features()[numbers], calendar_features(dates))
