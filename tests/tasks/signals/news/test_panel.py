"""Panels: means by date, symbol and time over the texts that could be read."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vecenv.market.parquet_files import read_parquet, write_parquet
from vecenv.tasks.signals.news.panel import ScoredNews, score_panel, summary_of
from vecenv.tasks.signals.news.scores import Scores

NAN = np.nan
DAYS = pd.to_datetime(["2024-01-03", "2024-01-02", "2024-01-02", "2024-01-02", "2024-01-03"]).as_unit("s")
NEWS = pd.DataFrame({"date": DAYS, "symbol": pd.Categorical(["A", "B", "A", "A", "B"]), "text": list("abcde")})
SCORES = Scores(
    np.array([NAN, 2.0, 5.0, 4.0, 3.0]), np.array([NAN, 1.0, NAN, 3.5, 3.0]), np.array([False, True, True, True, False])
)


def test_means_are_over_what_was_read_and_counts_over_all():
    panel = score_panel(NEWS, SCORES)
    rows = [
        (pd.Timestamp("2024-01-02"), "A", 4.5, 3.5, 2, 0),
        (pd.Timestamp("2024-01-02"), "B", 2.0, 1.0, 1, 0),
        (pd.Timestamp("2024-01-03"), "A", NAN, NAN, 1, 1),
        (pd.Timestamp("2024-01-03"), "B", 3.0, 3.0, 1, 0),
    ]
    names = ["date", "symbol", "sentiment", "risk", "texts", "unreadable"]
    pd.testing.assert_frame_equal(panel, pd.DataFrame(rows, columns=names), check_dtype=False)


def test_several_texts_of_a_day_may_have_risks_and_be_unreadable():
    scores = Scores(np.array([5.0, 4.0, NAN, NAN]), np.array([1.0, 4.0, NAN, NAN]), np.ones(4, dtype=bool))
    (row,) = score_panel(NEWS.iloc[[1, 1, 1, 1]], scores).to_dict("records")
    assert (row["sentiment"], row["risk"], row["texts"], row["unreadable"]) == (4.5, 2.5, 4, 2)


def test_times_are_keys_and_a_panel_survives_its_file(tmp_path):
    times = pd.to_datetime(["2024-01-03 10:00", "2024-01-02 09:00", "2024-01-02 09:00", "2024-01-02 09:01", None])
    times = times.tz_localize("UTC").as_unit("us").fillna(pd.Timestamp("2024-01-03 10:00", tz="UTC"))
    panel = score_panel(NEWS.assign(published_at=times), SCORES)
    assert list(panel.columns[:3]) == ["date", "symbol", "published_at"] and len(panel) == 5
    assert panel["sentiment"].tolist()[:3] == [5.0, 4.0, 2.0] and panel["texts"].sum() == 5
    write_parquet(panel, tmp_path / "panel.parquet")
    pd.testing.assert_frame_equal(read_parquet(tmp_path / "panel.parquet"), panel, check_dtype=False)


def test_the_summary_counts_rows():
    summary = summary_of(NEWS, ScoredNews(SCORES, 5, 2))
    assert summary["symbols"] == {
        "A": {"texts": 3, "days": 2, "first": "2024-01-02", "last": "2024-01-03"},
        "B": {"texts": 2, "days": 2, "first": "2024-01-02", "last": "2024-01-03"},
    }
    del summary["symbols"]
    shares = {"unreadable_share": 0.2, "unknown_share": 0.2, "neutral_share": 0.2}
    assert summary == {"texts": 5, "distinct": 5, "cached": 2} | shares
