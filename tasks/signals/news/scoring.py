"""Scorers of texts by name, and panels of scores: what the texts of a moment say about each company."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from vecenv.market.panels import NEUTRAL
from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.tasks.signals.news.scores import ScoreCache, Scores

LEXICON = "lexicon"
"""Name of the scorer that needs no model."""


class TextScorer(Protocol):
    """Scores texts, each by itself.

    ``identity`` changes whenever the score of any text may change; scores are cached under it. ``block`` is the number
    of texts per call, after which scores are saved.
    """

    identity: str
    block: int

    def score(self, texts: Sequence[str]) -> Scores: ...


def make_scorer(name: str, batch_size: int = 32, device: str = "cpu") -> TextScorer:
    """Return a scorer: the `LEXICON`, or that of a language model by folder or hub name.

    ``batch_size`` and ``device`` are of a model. Raises ValueError if there is no such model, or it cannot score texts,
    ImportError if ``transformers`` is not installed.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if name == LEXICON:
        return LexiconScorer()
    try:
        from vecenv.tasks.signals.news.model_scorers import load_scorer
    except ImportError as error:
        raise ImportError(
            f"{name}: a model needs transformers: pip install 'vecenv[language]'; {LEXICON} needs none"
        ) from error
    return load_scorer(name, batch_size, device)


class ScoredNews(NamedTuple):
    """Scores of the rows of a table of news, how many different texts they have, and how many of these were cached."""

    scores: Scores
    distinct: int
    cached: int


def score_news(
    news: pd.DataFrame,
    scorer: TextScorer,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ScoredNews:
    """Score the texts of a table of news, as `read_news` returns it, each different text once.

    ``cache`` is a file of scores that is read and appended to, block by block. ``progress`` is told how many of the
    different texts are done, and their number. Raises MarketDataError if the cache is a file of another kind, OSError
    if it cannot be written, or another process has it.
    """
    codes, unique = pd.factorize(news["text"])
    texts = [str(text) for text in unique]
    distinct = Scores(np.full(len(texts), np.nan), np.full(len(texts), np.nan), np.zeros(len(texts), dtype=bool))
    with ScoreCache(cache) if cache is not None else nullcontext() as store:
        keys: list[bytes] = []
        left = np.arange(len(texts))
        if store is not None:
            keys = store.keys(scorer.identity, texts)
            found, scores = store.find(keys)
            _put(distinct, np.flatnonzero(found), scores)
            left = np.flatnonzero(~found)
        cached = len(texts) - len(left)
        # A batch of texts of one length has little padding.
        left = left[np.argsort([len(texts[row]) for row in left], kind="stable")]
        progress(cached, len(texts))
        for start in range(0, len(left), scorer.block):
            rows = left[start : start + scorer.block]
            scores = scorer.score([texts[row] for row in rows])
            if store is not None:
                store.append([keys[row] for row in rows], scores)
            _put(distinct, rows, scores)
            progress(cached + start + len(rows), len(texts))
    return ScoredNews(Scores(*(values[codes] for values in distinct)), len(texts), cached)


def _put(scores: Scores, rows: np.ndarray, new: Scores) -> None:
    for values, own in zip(scores, new, strict=True):
        values[rows] = own


def score_panel(news: pd.DataFrame, scores: Scores) -> pd.DataFrame:
    """Return the mean scores of each date, symbol and time of publication in a table that `read_news` returns.

    The result is sorted by its keys ``date``, ``symbol`` and, where the news have it, ``published_at``, with
    ``sentiment`` and ``risk`` (means over the texts that have one, NaN where none has), ``texts`` (their number) and
    ``unreadable`` (number of those without sentiment).
    """
    keys = ["date", "symbol", *(["published_at"] if "published_at" in news else [])]
    table = news[keys].assign(
        symbol=news["symbol"].astype(str),
        sentiment=scores.sentiment,
        risk=scores.risk,
        texts=1,
        unreadable=np.isnan(scores.sentiment).astype(np.int64),
    )
    measures = {"sentiment": "mean", "risk": "mean", "texts": "sum", "unreadable": "sum"}
    return table.groupby(keys, sort=True, as_index=False).agg(measures)


def summary_of(news: pd.DataFrame, scored: ScoredNews) -> dict[str, Any]:
    """Return counts and shares of the texts, and by symbol the number of texts, of days with one, and both ends."""
    scores, symbols = scored.scores, news.groupby("symbol", observed=True)["date"]
    coverage = symbols.agg(texts="size", days="nunique", first="min", last="max")
    return {
        "texts": len(news),
        "distinct": scored.distinct,
        "cached": scored.cached,
        "unreadable_share": float(np.isnan(scores.sentiment).mean()),
        "unknown_share": float((~scores.known & ~np.isnan(scores.sentiment)).mean()),
        "neutral_share": float((scores.sentiment == NEUTRAL).mean()),
        "symbols": {
            str(symbol): {"texts": int(texts), "days": int(days), "first": str(first.date()), "last": str(last.date())}
            for symbol, texts, days, first, last in coverage.itertuples()
        },
    }
