"""Scores by a list of words beside plain Python, panels of their means, and the cache of scores."""

import math
import os
import re
from collections import Counter
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vecenv.market.parquet_files import read_parquet, write_parquet
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.signals.news import lexicon
from vecenv.tasks.signals.news.headlines import HEADLINES, RISKS, TONES
from vecenv.tasks.signals.news.lexicon import BOUNDARIES, FACTORS, NEGATIONS, WEIGHTS, LexiconScorer
from vecenv.tasks.signals.news.scores import ScoreCache, Scores
from vecenv.tasks.signals.news.scoring import ScoredNews, score_news, score_panel, summary_of

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
    # Files of another kind are refused.
    (tmp_path / "prices.csv").write_text("date,symbol,text\n2024-01-02,A,x\n")
    with pytest.raises(MarketDataError, match=r"prices.csv: no cache of scores"):
        score_news(TABLE, Counting(), tmp_path / "prices.csv")
    assert (tmp_path / "prices.csv").read_text().startswith("date,symbol")
    with pytest.raises(MarketDataError, match="there is no folder"):
        score_news(TABLE, Counting(), tmp_path / "none" / "scores")


SCORER = LexiconScorer()
# Every kind of word more often than text has it, words of no list, and marks.
WORDS = st.sampled_from(
    [*sorted(NEGATIONS), *sorted(FACTORS), *sorted(BOUNDARIES), *sorted(WEIGHTS)[::9], "the", "company", "Ünal", "3.5"]
)
MARKS = st.sampled_from(
    [" ", " ", " ", ", ", ". ", "; ", "! ", "? ", ": ", "-", " (", ") ", '" ', "\n", "  ", "— ", "… "]
)
BY_HAND = {
    "Sales rise": (4, 3),
    "SALES RISE!": (4, 3),
    "Sales rise, margins improve": (3 + 4 / 3, 3),
    "Sales rise, margins fall": (3, 3),
    "Sales soar": (3 + 4 / 3, 3),
    "Strongly rising: very strong": (3 + 6 / 4, 3),
    "Slightly lower": (3 - 1 / 1.5, 3),
    "Not good": (3 - 1 / 1.5, 3),
    "It isn't very good": (3 - 1.5 / 1.75, 3),
    "It isn’t good": (3 - 1 / 1.5, 3),
    "Not that it was good": (4, 3),
    "Not now, good": (4, 3),
    "Not now but good": (4, 3),
    "No loss without gain": (3 + 1.5 / 1.75, 3),
    "Volatile": (3, 4),
    "No risk": (3, 3 - 1 / 1.5),
    "Bankruptcy": (3 - 4 / 3, 3 + 4 / 3),
}
UNKNOWN = {"Company opens an office": (3, 3), "7": (3, 3)} | dict.fromkeys(
    ("", "  \n", "-- ... !", "\0"), (np.nan,) * 2
)


def oracle(text: str) -> tuple[float, float, bool]:
    """Return sentiment, risk, and whether any word is listed, word by word."""
    text = text.replace("’", "'").replace("—", ", ").replace("…", ", ").replace("'", "")
    sums, known, words = [0.0, 0.0], False, 0
    for clause in re.split(r"[.,;:!?](?=\s|$)|[.,;:!?](?=[^\w.,;:!?]*$)", text):
        before: list[str] = []
        for word in re.findall(r"[^\W_]+", clause.lower(), re.UNICODE):
            words += 1
            if word in BOUNDARIES:
                before = []
                continue
            if word in WEIGHTS:
                known = True
                factor = math.prod(-0.5 for near in before[-3:] if near in NEGATIONS)
                factor *= FACTORS.get(before[-1], 1.0) if before else 1.0
                sums = [total + weight * factor for total, weight in zip(sums, WEIGHTS[word], strict=True)]
            before.append(word)
    if not words:
        return math.nan, math.nan, False
    sentiment, risk = (3 + 2 * total / (1 + abs(total)) for total in sums)
    return sentiment, risk, known


def test_scores_by_hand():
    for texts, known in ((BY_HAND, True), (UNKNOWN, False)):
        scores = SCORER.score(list(texts))
        np.testing.assert_allclose(np.stack([scores.sentiment, scores.risk], 1), list(texts.values()))
        assert (scores.known == known).all()
    # No text, and many, keep their places.
    assert [len(part) for part in SCORER.score([])] == [0, 0, 0]
    texts = [text for count in range(20) for text in (*HEADLINES, "a\0good\1year", "rises " * count)]
    assert len(texts) > 2 * 1024
    apart = [SCORER.score([text]) for text in texts]
    for together, alone in zip(SCORER.score(texts), zip(*apart, strict=True), strict=True):
        np.testing.assert_array_equal(together, np.concatenate(alone))


@settings(max_examples=200)
@given(st.lists(st.lists(st.tuples(WORDS, MARKS), max_size=14), min_size=1, max_size=4))
def test_scores_are_those_of_plain_python(parts):
    texts = ["".join(word + mark for word, mark in text) for text in parts]
    told = np.array([oracle(text) for text in texts], dtype=np.float64)
    np.testing.assert_allclose(np.stack(SCORER.score(texts), axis=1).astype(np.float64), told, rtol=1e-12)


def test_lists_do_not_overlap_and_the_identity_tells_them(monkeypatch):
    words = [word for part in (WEIGHTS, NEGATIONS, FACTORS, BOUNDARIES) for word in part]
    assert len(set(words)) == len(words) and all(word.isalpha() and word.islower() for word in words)
    assert sum(len(group.split()) for group in lexicon._GROUPS.values()) == len(WEIGHTS), "a word of two groups"
    assert LexiconScorer().identity == SCORER.identity
    monkeypatch.setitem(WEIGHTS, "good", (2.0, 0.0))
    assert LexiconScorer().identity != SCORER.identity


def test_headlines_of_all_classes_are_read_but_for_some():
    counts = Counter(zip(TONES, RISKS, strict=True))
    assert counts.keys() == set(product((-1, 0, 1), repeat=2)) and min(counts.values()) >= 8
    assert len({text.lower() for text in HEADLINES}) == len(HEADLINES) == counts.total() >= 150
    scores = SCORER.score(HEADLINES)
    for values, truth in ((scores.sentiment, np.array(TONES)), (scores.risk, np.array(RISKS))):
        assert (np.diff([values[truth == sign].mean() for sign in (-1, 0, 1)]) > 0.5).all()
        misread = np.sign(values - 3) != truth
        assert 0.05 <= misread.mean() <= 0.1, [HEADLINES[row] for row in np.flatnonzero(misread)]
