"""Scores by a list of words: by hand and against plain Python; and the synthetic headlines, most of which it reads."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vecenv.tasks.signals.news import lexicon_words
from vecenv.tasks.signals.news.headlines import HEADLINES, RISKS, TONES
from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.tasks.signals.news.lexicon_words import BOUNDARIES, FACTORS, NEGATIONS, WEIGHTS

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


def test_no_text_and_many_texts_keep_their_places():
    assert [len(part) for part in SCORER.score([])] == [0, 0, 0]
    texts = [text for count in range(20) for text in (*HEADLINES, "a\0good\1year", "rises " * count)]
    assert len(texts) > 2 * 1024
    apart = [SCORER.score([text]) for text in texts]
    for together, alone in zip(SCORER.score(texts), zip(*apart, strict=True), strict=True):
        np.testing.assert_array_equal(together, np.concatenate(alone))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.tuples(WORDS, MARKS), max_size=14), min_size=1, max_size=4))
def test_scores_are_those_of_plain_python(parts):
    texts = ["".join(word + mark for word, mark in text) for text in parts]
    told = np.array([oracle(text) for text in texts], dtype=np.float64)
    np.testing.assert_allclose(np.stack(SCORER.score(texts), axis=1).astype(np.float64), told, rtol=1e-12)


def test_lists_do_not_overlap_and_the_identity_tells_them(monkeypatch):
    words = [word for part in (WEIGHTS, NEGATIONS, FACTORS, BOUNDARIES) for word in part]
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)
    assert len(set(words)) == len(words)
    assert sum(len(group.split()) for group in lexicon_words._GROUPS.values()) == len(WEIGHTS), "a word of two groups"
    assert LexiconScorer().identity == SCORER.identity
    monkeypatch.setitem(WEIGHTS, "good", (2.0, 0.0))
    assert LexiconScorer().identity != SCORER.identity


def test_headlines_of_all_classes_are_read_but_for_some():
    counts = Counter(zip(TONES, RISKS, strict=True))
    assert counts.keys() == set(product((-1, 0, 1), repeat=2)) and min(counts.values()) >= 8
    assert len({text.lower() for text in HEADLINES}) == len(HEADLINES) == counts.total() >= 150
    words = {word for text in HEADLINES for word in re.findall(r"[A-Za-z]+", text)}
    assert not any(word.isupper() and len(word) > 1 for word in words), "a symbol"
    scores = SCORER.score(HEADLINES)
    for values, truth in ((scores.sentiment, np.array(TONES)), (scores.risk, np.array(RISKS))):
        assert (np.diff([values[truth == sign].mean() for sign in (-1, 0, 1)]) > 0.5).all()
        misread = np.sign(values - 3) != truth
        assert 0.05 <= misread.mean() <= 0.1, [HEADLINES[row] for row in np.flatnonzero(misread)]
