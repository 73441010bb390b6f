"""The day on whose close a document can first be acted upon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vecenv.market.market_close import MarketClose

if TYPE_CHECKING:
    import pandas as pd


def decision_days(published: pd.Series, dates: np.ndarray, close: MarketClose) -> np.ndarray:
    """Return positions of the first trading days whose close is not before a publication.

    ``published`` has times with a zone. T stands for what was published after the last close. Shape: (rows,), int64.
    """
    local = published.dt.tz_convert(close.zone)
    days = local.dt.tz_localize(None).to_numpy().astype("datetime64[D]")
    unique, place = np.unique(days, return_inverse=True)
    closes = np.array([close.other.get(day, close.at) for day in unique.tolist()], dtype=object)
    late = (local.dt.time.to_numpy() > closes[place]).astype(bool)
    return np.searchsorted(dates, np.where(late, days + 1, days), "left")


def dated_days(days: np.ndarray, dates: np.ndarray, delay: int) -> np.ndarray:
    """Return positions of the trading days from which documents with a date and no time count.

    They count on the ``delay``-th trading day after theirs; 1 since one may have been published after that day's close.
    Without a delay it is that day, or the next on which there is trading. T stands for days after the last. Shape:
    (rows,), int64.
    """
    place = np.searchsorted(dates, days, "right") + delay - 1 if delay else np.searchsorted(dates, days, "left")
    return np.minimum(place, len(dates))
