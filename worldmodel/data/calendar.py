"""Days of the calendar on which the volumes of a market rise or fall together, as far as a date alone tells.

On third Fridays options expire, on those that end a quarter of a year futures as well and indices change. On half days
American exchanges close early, on the last weekdays of months funds are valued. What they mean for a market is learned
(`vecenv.worldmodel.training.calendar_moves`): NSE has no half days. Days drawn after a history are its next Mondays to
Fridays.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

CALENDAR = ("third_friday", "quarterly_third_friday", "half_day", "year_end", "month_end", "monday")
"""Kinds of days, in order. Half days are the day after Thanksgiving, 24 December and 3 July; year ends begin on 24
December, month ends are last weekdays."""

WEEKDAYS = 104_355
"""Weekdays of 400 years, after which dates repeat: 146,097 days are whole weeks."""

FIRST_WEEKDAY = np.datetime64("1570-01-05")
"""A Monday before all dates, from which weekdays are counted: `numpy.busday_count` backwards has other bounds."""


def calendar_features(dates: np.ndarray) -> Tensor:
    """Return whether dates are of each of the kinds. Shape: (T,) -> (T, len(CALENDAR)), float32."""
    day = dates.astype("datetime64[D]")
    month_of = day.astype("datetime64[M]")
    number, month = (day - month_of).astype(int) + 1, month_of.astype(int) % 12 + 1
    weekday = (day - FIRST_WEEKDAY).astype(int) % 7
    friday = weekday == 4
    third = friday & (number >= 15) & (number <= 21)
    # Thanksgiving is the fourth Thursday.
    after_thanksgiving = friday & (month == 11) & (number >= 23) & (number <= 29)
    half = after_thanksgiving | ((month == 12) & (number == 24)) | ((month == 7) & (number == 3))
    last = np.busday_offset((month_of + 1).astype("datetime64[D]"), -1, roll="forward")
    kinds = (third, third & (month % 3 == 0), half, (month == 12) & (number >= 24), day == last, weekday == 0)
    return torch.from_numpy(np.stack(kinds, axis=-1)).float()


def weekday_after(date: np.datetime64) -> int:
    """Return the number of the first weekday after a date, counted from `FIRST_WEEKDAY`."""
    return int(np.busday_count(FIRST_WEEKDAY, date.astype("datetime64[D]") + 1))


@cache
def weekday_features() -> Tensor:
    """Return the features of all weekdays by their number modulo `WEEKDAYS`. Shape: (WEEKDAYS, len(CALENDAR))."""
    return calendar_features(np.busday_offset(FIRST_WEEKDAY, np.arange(WEEKDAYS)))
