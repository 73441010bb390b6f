"""The recent years that a market's moments are calibrated on, each of equal weight."""

from __future__ import annotations

from vecenv.worldmodel.sampling.training_market import TrainingMarket

YEAR = 252
"""Days of a year."""

YEARS = 5
"""Number of years, the one of validation included: one year alone may be a crisis or a calm."""

FIRST_DAY = 60
"""First day with enough context of the trunk and a correlation that is not mostly its prior."""


def recent_years(market: TrainingMarket) -> list[range]:
    """Return the last `YEARS` years up to the end of validation, the earliest first.

    Training ends before the embargo, but an origin's moments are fitted by three numbers at most, so the days from
    there to the end of validation count as well. If there is no whole year, the days that there are count as one.
    """
    stop = market.split.stop
    years = [range(last - YEAR, last) for last in range(stop, FIRST_DAY + YEAR - 1, -YEAR)][:YEARS]
    if not years and stop > FIRST_DAY:
        years = [range(FIRST_DAY, stop)]
    return years[::-1]
