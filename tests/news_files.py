"""Files of news that several tests read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vecenv.tasks.signals.news.headlines import HEADLINES


def write_news(path: Path) -> None:
    """Write each headline on a day of its own, about three symbols by turns."""
    days = pd.bdate_range("2020-01-02", periods=len(HEADLINES))
    symbols = [("AAPL", "MSFT", "JPM")[number % 3] for number in range(len(HEADLINES))]
    times = days.strftime("%Y-%m-%dT08:30:00-05:00")
    pd.DataFrame({"published_at": times, "symbol": symbols, "title": HEADLINES}).to_csv(path, index=False)
