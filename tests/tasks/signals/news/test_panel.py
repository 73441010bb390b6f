"""Panels of means over the texts that could be read, and the cache of scores, of which what is damaged is cut off."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest

from vecenv.market.parquet_files import read_parquet, write_parquet
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.signals.news.headlines import HEADLINES
from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.tasks.signals.news.panel import ScoredNews, score_news, score_panel, summary_of
from vecenv.tasks.signals.news.score_cache import ScoreCache
from vecenv.tasks.signals.news.scores import Scores

NAN = np.nan
DAYS = pd.to_datetime(["2024-01-03", "2024-01-02", "2024-01-02", "2024-01-02", "2024-01-03"]).as_unit("s")
NEWS = pd.DataFrame({"date": DAYS, "symbol": pd.Categorical(["A", "B", "A", "A", "B"]), "text": list("abcde")})
SCORES = Scores(
    np.array([NAN, 2.0, 5.0, 4.0, 3.0]), np.array([NAN, 1.0, NAN, 3.5, 3.0]), np.array([False, True, True, True, False])
)


def test_means_are_over_what_was_read_and_counts_over_all(tmp_path):
    panel = score_panel(NEWS, SCORES)
    rows = [
        (pd.Timestamp("2024-01-02"), "A", 4.5, 3.5, 2, 0),
        (pd.Timestamp("2024-01-02"), "B", 2.0, 1.0, 1, 0),
        (pd.Timestamp("2024-01-03"), "A", NAN, NAN, 1, 1),
        (pd.Timestamp("2024-01-03"), "B", 3.0, 3.0, 1, 0),
    ]
    names = ["date", "symbol", "sentiment", "risk", "texts", "unreadable"]
    pd.testing.assert_frame_equal(panel, pd.DataFrame(rows, columns=names), check_dtype=False)
    times = pd.to_datetime(["2024-01-03 10:00", *["2024-01-02 09:00"] * 2, "2024-01-02 09:01", "2024-01-03 10:00"])
    panel = score_panel(NEWS.assign(published_at=times.tz_localize("UTC").as_unit("us")), SCORES)
    assert list(panel.columns[:3]) == ["date", "symbol", "published_at"] and len(panel) == 5
    assert panel["sentiment"].tolist()[:3] == [5.0, 4.0, 2.0] and panel["texts"].sum() == 5
    write_parquet(panel, tmp_path / "panel.parquet")
    pd.testing.assert_frame_equal(read_parquet(tmp_path / "panel.parquet"), panel, check_dtype=False)


def test_the_summary_counts_rows():
    days = {"days": 2, "first": "2024-01-02", "last": "2024-01-03"}
    assert summary_of(NEWS, ScoredNews(SCORES, 5, 2)) == {
        "texts": 5, "distinct": 5, "cached": 2, "unreadable_share": 0.2, "unknown_share": 0.2, "neutral_share": 0.2,
        "symbols": {"A": {"texts": 3, **days}, "B": {"texts": 2, **days}},
    }  # fmt: skip


TEXTS = [*HEADLINES[:50], ""]
TABLE = pd.DataFrame({"text": TEXTS + TEXTS[:10]})


class Counting(LexiconScorer):
    """The scorer of words, in small blocks, interrupted before one of them."""

    block = 8

    def __init__(self, identity: str = "counting", ends: int = 10**9) -> None:
        super().__init__()
        self.identity, self.asked, self.ends = identity, [], ends

    def score(self, texts):
        if len(self.asked) + len(texts) > self.ends:
            raise KeyboardInterrupt
        self.asked += texts
        return super().score(texts)


def check(found, expected):
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, other)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    first, second, third, told = Counting(ends=20), Counting(), Counting(), []
    with pytest.raises(KeyboardInterrupt):
        score_news(TABLE, first, tmp_path / "scores")
    scored = score_news(TABLE, second, tmp_path / "scores", lambda *state: told.append(state))
    assert len(first.asked) == 16 and first.asked + second.asked == sorted(TEXTS, key=len)
    assert (scored.distinct, scored.cached) == (51, 16)
    assert told == [(count, 51) for count in (16, 24, 32, 40, 48, 51)]
    again = score_news(TABLE, third, tmp_path / "scores")
    assert third.asked == [] and again.cached == 51 and os.listdir(tmp_path) == ["scores"]
    for found in (scored, again):
        check(found.scores, LexiconScorer().score(TABLE["text"].tolist()))
    # Scorers share a file and not their scores.
    assert score_news(TABLE, Counting("other"), tmp_path / "scores").cached == 0
    assert score_news(TABLE, Counting(), tmp_path / "scores").cached == 51


def test_cut_records_and_flipped_bits_are_cut_off_with_a_warning(tmp_path):
    """In the key, a score, the mark, or the checksum of the sixth record."""
    path = tmp_path / "scores"
    score_news(TABLE, Counting(), path)
    whole = path.read_bytes()
    damaged = [(whole[:kept], max(0, (kept - 21) // 37)) for kept in (1, 20, 57, 300)]
    for place in (21 + 5 * 37 + offset for offset in (0, 16, 32, 36)):
        damaged.append((whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :], 5))
    for content, records in damaged:
        path.write_bytes(content)
        cut = len(content) - (21 + 37 * records if len(content) > 20 else 0)
        with pytest.warns(MarketDataWarning, match=rf"scores: the last {cut:,} bytes are damaged and are cut off"):
            assert score_news(TABLE, Counting(), path).cached == records
        assert path.read_bytes() == whole
    for kept, records in ((21, 0), (58, 1)):
        path.write_bytes(whole[:kept])
        assert score_news(TABLE, Counting(), path).cached == records


def test_what_was_appended_is_found_in_any_order(tmp_path):
    keys, scores = ScoreCache.keys("a", TEXTS), LexiconScorer().score(TEXTS)
    with ScoreCache(tmp_path / "scores") as cache:
        for start in (0, 20, 40):
            cache.append(keys[start : start + 20], Scores(*(values[start : start + 20] for values in scores)))
            # On the disk at once: a killed process loses no block.
            assert (tmp_path / "scores").stat().st_size == 21 + 37 * min(start + 20, 51)
        asked = [7, 45, 25, 50, 0]
        found, own = cache.find([*(keys[row] for row in asked), *ScoreCache.keys("b", TEXTS[:1])])
        with pytest.raises(BlockingIOError, match="already being written"):
            score_news(TABLE, Counting(), tmp_path / "scores")
    assert found.tolist() == [True] * 5 + [False]
    check(own, [values[asked] for values in scores])


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "prices.csv").write_text("date,symbol,text\n2024-01-02,A,x\n")
    with pytest.raises(MarketDataError, match=r"prices.csv: no cache of scores"):
        score_news(TABLE, Counting(), tmp_path / "prices.csv")
    assert (tmp_path / "prices.csv").read_text().startswith("date,symbol")
    with pytest.raises(MarketDataError, match="there is no folder"):
        score_news(TABLE, Counting(), tmp_path / "none" / "scores")
