"""Texts scored by the list of words, which runs on one core."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.tasks.signals.news.headlines import HEADLINES
from vecenv.tasks.signals.news.lexicon import LexiconScorer

_FILLERS = (
    "the company said on {day}, in its report for the quarter to {month}",
    "it employs {count:,} people in {number} countries",
    "revenue was ${count:,} million, after ${number} million a year ago",
    "“we’re looking at every option”, the chief executive told reporters in {month}",
    "the figures cover {number} of its {count:,} sites",
    "analysts had expected {number} cents a share, according to a survey of {day}",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_MONTHS = ("March", "June", "September", "December")


def points(config: CaseConfig) -> Sequence[Point]:
    return [Point(f"texts of {words} words", partial(_scored, config, words)) for words in (12, 60)]


def _scored(config: CaseConfig, words: int) -> Sequence[Workload]:
    scorer, texts = LexiconScorer(), news_texts(config.sized(50, 50_000), words)
    told = {
        "words": sum(len(text.split()) for text in texts) / len(texts),
        "known_share": float(scorer.score(texts).known.mean()),
        "scorer": scorer.identity,
    }
    return [Workload("list of words", lambda: scorer.score(texts), len(texts), "texts", told=told)]


def news_texts(count: int, words: int, seed: int = 0) -> list[str]:
    """Return different texts of at least some words: headlines, each with what reports say around them."""
    generator = np.random.default_rng(seed)
    choices = (len(HEADLINES), len(_FILLERS), len(_DAYS), len(_MONTHS), 90)
    texts = []
    for number in range(count):
        # A number of its own makes each text another one.
        pieces = [f"{number}:"]
        while sum(len(piece.split()) for piece in pieces) < words:
            headline, filler, day, month, small = generator.integers(choices)
            pieces.append(HEADLINES[headline] + ",")
            if sum(len(piece.split()) for piece in pieces) < words:
                given = {"day": _DAYS[day], "month": _MONTHS[month], "number": small + 2, "count": 1000 + number}
                pieces.append(_FILLERS[filler].format_map(given) + ".")
        texts.append(" ".join(pieces))
    return texts
