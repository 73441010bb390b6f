"""What scores texts, by name: the list of words, or any language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.tasks.signals.news.scores import Scores

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


SCORERS: dict[str, Callable[[], TextScorer]] = {LEXICON: LexiconScorer}
"""Scorers that need no model, by name."""


def make_scorer(name: str, batch_size: int = 32, device: str = "cpu") -> TextScorer:
    """Return a scorer: one of `SCORERS`, or that of a language model by folder or hub name (`model_scorer`).

    ``batch_size`` and ``device`` are of a model. Raises ValueError if there is no such model, or it cannot score texts,
    ImportError if ``transformers`` is not installed.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if name in SCORERS:
        return SCORERS[name]()
    try:
        from vecenv.tasks.signals.news.model_scorer import load_scorer
    except ImportError as error:
        raise ImportError(
            f"{name}: a model needs transformers: pip install 'vecenv[language]'; {', '.join(SCORERS)} needs none"
        ) from error
    return load_scorer(name, batch_size, device)
