"""Scores by a list of words: by hand and against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.signals.news.lexicon_oracle import oracle
from vecenv.tasks.signals.news import lexicon_words
from vecenv.tasks.signals.news.headlines import HEADLINES
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


@pytest.mark.parametrize(
    ("text", "sentiment", "risk"),
    [
        ("Company opens an office", 3, 3),
        ("Sales rise", 4, 3),
        ("SALES RISE!", 4, 3),
        ("Sales rise, margins improve", 3 + 4 / 3, 3),
        ("Sales rise, margins fall", 3, 3),
        ("Sales soar", 3 + 4 / 3, 3),
        ("Sales rise strongly", 4, 3),
        ("Strongly rising: very strong", 3 + 6 / 4, 3),
        ("Slightly lower", 3 - 1 / 1.5, 3),
        ("Not good", 3 - 1 / 1.5, 3),
        ("It isn't very good", 3 - 1.5 / 1.75, 3),
        ("It isn’t good", 3 - 1 / 1.5, 3),
        ("Not that it was good", 4, 3),
        ("Not now, good", 4, 3),
        ("Not now but good", 4, 3),
        ("No loss without gain", 3 + 1.5 / 1.75, 3),
        ("Volatile", 3, 4),
        ("Stable", 3, 2),
        ("No risk", 3, 3 - 1 / 1.5),
        ("Bankruptcy", 3 - 4 / 3, 3 + 4 / 3),
    ],
)
def test_scores_by_hand(text, sentiment, risk):
    scores = SCORER.score([text])
    np.testing.assert_allclose([scores.sentiment[0], scores.risk[0]], [sentiment, risk])


def test_a_text_without_listed_words_is_neutral_and_not_known_and_an_empty_one_has_no_scores():
    scores = SCORER.score(["Meeting on Monday", "", "  \n", "-- ... !", "7", "Sales rise and fall", "\0"])
    np.testing.assert_array_equal(scores.sentiment, [3, np.nan, np.nan, np.nan, 3, 3, np.nan])
    np.testing.assert_array_equal(scores.risk, [3, np.nan, np.nan, np.nan, 3, 3, np.nan])
    assert scores.known.tolist() == [False, False, False, False, False, True, False]


def test_no_text_and_many_texts_keep_their_places():
    assert [len(part) for part in SCORER.score([])] == [0, 0, 0]
    texts = [text for count in range(20) for text in (*HEADLINES, "a\0good\1year", "rises " * count)]
    assert len(texts) > 2 * 1024
    whole = SCORER.score(texts)
    apart = [SCORER.score([text]) for text in texts]
    for place in range(3):
        np.testing.assert_array_equal(whole[place], [scores[place][0] for scores in apart])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.tuples(WORDS, MARKS), max_size=14), min_size=1, max_size=4))
def test_scores_are_those_of_plain_python(parts):
    texts = ["".join(word + mark for word, mark in text) for text in parts]
    scores = SCORER.score(texts)
    told = np.array([oracle(text) for text in texts], dtype=np.float64)
    np.testing.assert_allclose(np.stack(scores, axis=1).astype(np.float64), told, rtol=1e-12)
    assert (np.isnan(told[:, :2]) | ((told[:, :2] > 1) & (told[:, :2] < 5))).all()


def test_lists_do_not_overlap_and_have_plain_words():
    lists = [WEIGHTS.keys(), NEGATIONS, FACTORS.keys(), BOUNDARIES]
    words = [word for part in lists for word in part]
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)
    assert len(set(words)) == len(words)
    assert sum(len(group.split()) for group in lexicon_words._GROUPS.values()) == len(WEIGHTS), "a word of two groups"


def test_the_identity_tells_the_list(monkeypatch):
    assert LexiconScorer().identity == SCORER.identity
    monkeypatch.setitem(WEIGHTS, "good", (2.0, 0.0))
    assert LexiconScorer().identity != SCORER.identity
