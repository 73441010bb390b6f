"""Texts scored per second of processor time by the list of words, which runs on one core."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
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


@dataclass(frozen=True)
class NewsScoringConfig:
    """Settings of the benchmark of scoring news."""

    texts: int = 50_000
    """Texts of each length, all different."""
    words: tuple[int, ...] = (12, 60)
    """Least words of a text, one length after the other."""
    repeats: int = 5
    """Timed passes over the texts of a length."""
    out: Path | None = RESULTS
    """Folder of the result file."""

    def __post_init__(self) -> None:
        for name, value in (("texts", self.texts), ("words", min(self.words, default=0)), ("repeats", self.repeats)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


def news_texts(count: int, words: int, seed: int = 0) -> list[str]:
    """Return different texts of at least some words: headlines, each with what reports say around them.

    Args:
        count: number of texts.
        words: least words of each.
        seed: of the choice.
    """
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


def main(config: NewsScoringConfig) -> dict[str, Any]:
    """Measure, print and write the figures."""
    torch.set_num_threads(1)
    scorer = LexiconScorer()
    lengths = []
    for least in config.words:
        texts = news_texts(config.texts, least)
        seconds = statistics.median(_processor_seconds(partial(scorer.score, texts)) for _ in range(config.repeats))
        own = {
            "words": sum(len(text.split()) for text in texts) / len(texts),
            "distinct": len(set(texts)),
            "known_share": float(scorer.score(texts).known.mean()),
            "texts_per_second": len(texts) / seconds,
        }
        print(f"{own['distinct']:,} texts of {own['words']:.0f} words: {own['texts_per_second']:,.0f} texts/s")
        lengths.append(own)
    device = machine.device_name(torch.device("cpu"))
    result = {
        "benchmark": "news_scoring",
        "device": device,
        "config": plain(config),
        "scorer": scorer.identity,
        "lengths": lengths,
    }
    write_result(config.out, f"news-scoring-{machine.file_stem(device)}", result)
    return result


def _processor_seconds(function: Callable[[], object]) -> float:
    """Return the time that a call takes of the processor, whatever else runs on it."""
    started = time.process_time()
    function()
    return time.process_time() - started


if __name__ == "__main__":
    main(tyro.cli(NewsScoringConfig, prog="python -m vecenv.benchmarks.throughput.news_scoring"))
