"""The cache of scores: a run that was killed goes on, and what is damaged is cut off and scored again."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest

from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.signals.news.headlines import HEADLINES
from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.tasks.signals.news.panel import score_news
from vecenv.tasks.signals.news.score_cache import ScoreCache
from vecenv.tasks.signals.news.scores import Scores

TEXTS = [*HEADLINES[:50], ""]
NEWS = pd.DataFrame({"text": TEXTS + TEXTS[:10]})


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
    first, second, third = Counting(ends=20), Counting(), Counting()
    told = []
    with pytest.raises(KeyboardInterrupt):
        score_news(NEWS, first, tmp_path / "scores")
    scored = score_news(NEWS, second, tmp_path / "scores", lambda *state: told.append(state))
    assert len(first.asked) == 16 and not set(first.asked) & set(second.asked)
    assert first.asked + second.asked == sorted(TEXTS, key=len)
    assert (scored.distinct, scored.cached) == (51, 16)
    assert told == [(count, 51) for count in (16, 24, 32, 40, 48, 51)]
    check(scored.scores, LexiconScorer().score(NEWS["text"].tolist()))
    again = score_news(NEWS, third, tmp_path / "scores")
    assert third.asked == [] and again.cached == 51
    check(again.scores, LexiconScorer().score(NEWS["text"].tolist()))
    assert os.listdir(tmp_path) == ["scores"]
    # Scorers share a file and not their scores.
    assert score_news(NEWS, Counting("other"), tmp_path / "scores").cached == 0
    assert score_news(NEWS, Counting(), tmp_path / "scores").cached == 51


@pytest.mark.parametrize("kept", [1, 20, 21, 57, 58, 300])
def test_a_cut_record_is_cut_off_with_a_warning(tmp_path, kept):
    path = tmp_path / "scores"
    score_news(NEWS, Counting(), path)
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    records = max(0, (kept - 21) // 37)
    scorer = Counting()
    if kept in (21, 58):
        scored = score_news(NEWS, scorer, path)
    else:
        with pytest.warns(MarketDataWarning, match=r"scores: the last [\d,]+ bytes are damaged and are cut off"):
            scored = score_news(NEWS, scorer, path)
    assert scored.cached == records and len(scorer.asked) == 51 - records
    check(scored.scores, LexiconScorer().score(NEWS["text"].tolist()))
    assert path.read_bytes() == content


def test_a_flipped_bit_is_found(tmp_path):
    """In the key, a score, the mark, or the checksum of the sixth record."""
    path = tmp_path / "scores"
    score_news(NEWS, Counting(), path)
    whole = path.read_bytes()
    for place in (0, 16, 32, 36):
        content = bytearray(whole)
        content[21 + 5 * 37 + place] ^= 4
        path.write_bytes(content)
        with pytest.warns(MarketDataWarning, match=f"the last {46 * 37:,} bytes"):
            scored = score_news(NEWS, Counting(), path)
        assert scored.cached == 5
    check(scored.scores, LexiconScorer().score(NEWS["text"].tolist()))


def test_what_was_appended_is_found_in_any_order(tmp_path):
    keys = ScoreCache.keys("a", TEXTS)
    scores = LexiconScorer().score(TEXTS)
    with ScoreCache(tmp_path / "scores") as cache:
        for start in (0, 20, 40):
            cache.append(keys[start : start + 20], Scores(*(values[start : start + 20] for values in scores)))
            # On the disk at once: a killed process loses no block.
            assert (tmp_path / "scores").stat().st_size == 21 + 37 * min(start + 20, 51)
        asked = [7, 45, 25, 50, 0]
        found, own = cache.find([*(keys[row] for row in asked), *ScoreCache.keys("b", TEXTS[:1])])
    assert found.tolist() == [True] * 5 + [False]
    assert ScoreCache.keys("a", ["b"]) != ScoreCache.keys("a", ["c"])
    check(own, [values[asked] for values in scores])


def test_files_of_another_kind_and_second_writers_are_refused(tmp_path):
    (tmp_path / "prices.csv").write_text("date,symbol,text\n2024-01-02,A,x\n")
    with pytest.raises(MarketDataError, match=r"prices.csv: no cache of scores"):
        score_news(NEWS, Counting(), tmp_path / "prices.csv")
    assert (tmp_path / "prices.csv").read_text().startswith("date,symbol")
    with pytest.raises(MarketDataError, match="there is no folder"):
        score_news(NEWS, Counting(), tmp_path / "none" / "scores")
    with ScoreCache(tmp_path / "scores"), pytest.raises(BlockingIOError, match="already being written"):
        score_news(NEWS, Counting(), tmp_path / "scores")
