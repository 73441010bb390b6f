"""Synthetic headlines: their classes are complete, and lists of words read most of them, not all."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

import numpy as np

from vecenv.tasks.signals.news.headlines import HEADLINES, RISKS, TONES
from vecenv.tasks.signals.news.lexicon import LexiconScorer

TONE, RISK = np.array(TONES), np.array(RISKS)
SCORES = LexiconScorer().score(HEADLINES)


def test_classes_are_complete_and_every_headline_is_there_once():
    assert len(HEADLINES) == len(TONES) == len(RISKS) >= 150
    assert len({text.lower() for text in HEADLINES}) == len(HEADLINES)
    words = [re.findall(r"[A-Za-z]+", text) for text in HEADLINES]
    assert len({word.lower() for text in words for word in text}) < 400
    assert not any(word.isupper() and len(word) > 1 for text in words for word in text), "a symbol"
    counts = Counter(zip(TONES, RISKS, strict=True))
    assert counts.keys() == set(product((-1, 0, 1), repeat=2)) and min(counts.values()) >= 8


def test_mean_scores_of_classes_are_ordered_as_tone_and_risk():
    tones, risks = (np.arange(-1, 2) == values[:, None] for values in (TONE, RISK))

    def means(values):
        members = tones[:, :, None] & risks[:, None]
        return (values[:, None, None] * members).sum(0) / members.sum(0)

    assert (np.diff(means(SCORES.sentiment), axis=0) > 0.5).all()
    assert (np.diff(means(SCORES.risk), axis=1) > 0.5).all()


def test_some_headlines_are_misread():
    for values, truth in ((SCORES.sentiment, TONE), (SCORES.risk, RISK)):
        misread = np.sign(values - 3) != truth
        assert 0.05 <= misread.mean() <= 0.1, [HEADLINES[row] for row in np.flatnonzero(misread)]
