"""Sentiment of texts by a classifier, such as FinBERT (Araci, arXiv 1908.10063, 2019); it tells no risk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from vecenv.language.generation import half_precision
from vecenv.language.hub import found_model
from vecenv.language.models import longest_context
from vecenv.tasks.signals.news.scores import Scores

LABELS = {
    "very negative": 1.0,
    "negative": 1.0,
    "bearish": 1.0,
    "neutral": 3.0,
    "positive": 5.0,
    "bullish": 5.0,
    "very positive": 5.0,
    "1 star": 1.0,
    **{f"{stars} stars": float(stars) for stars in range(2, 6)},
}
"""Sentiment of each label that is understood. With two grades of a direction the plain one lies between."""

LONGEST = 512
"""Most tokens of a text; the end of longer ones is cut off."""


def label_values(labels: Mapping[int, str], name: str) -> np.ndarray:
    """Return the sentiment of each label; raises ValueError if one is none of `LABELS`. Shape: (labels,), float64."""
    told = [labels[number].strip().lower().replace("_", " ") for number in range(len(labels))]
    unknown = [label for label in told if label not in LABELS]
    if unknown:
        raise ValueError(f"{name}: label {unknown[0]!r} of the classifier is none of {', '.join(LABELS)}")
    graded = any(label.startswith("very ") for label in told)
    between = {"negative": 2.0, "positive": 4.0} if graded else {}
    return np.array([(LABELS | between)[label] for label in told])


def load_classifier(place: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a sequence classifier in evaluation mode, and its tokenizer; raises ValueError if it cannot be loaded."""
    found = found_model(place)
    try:
        tokenizer = AutoTokenizer.from_pretrained(found)
        model = AutoModelForSequenceClassification.from_pretrained(found)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{place}: no classifier with a tokenizer could be loaded: {reason}") from error
    return model.to(device).eval(), tokenizer


class ClassifierScorer:
    """Scorer of sentiment: the mean of the labels' values under the classifier's probabilities.

    The tokenizer needs a padding token; ``name`` is of the model and its weights. Raises ValueError if a label is none
    of `LABELS`.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, batch_size: int) -> None:
        labels = model.config.id2label or {}
        self.identity = f"classifier 1 {name}"
        self._model, self._tokenizer, self.block = model, tokenizer, batch_size
        self._values = label_values({int(key): str(label) for key, label in labels.items()}, name)
        self._longest = min(LONGEST, longest_context(model) or LONGEST)

    def score(self, texts: Sequence[str]) -> Scores:
        sentiment = np.full(len(texts), np.nan)
        asked = [row for row, text in enumerate(texts) if text.strip()]
        for start in range(0, len(asked), self.block):
            rows = asked[start : start + self.block]
            sentiment[rows] = self._probabilities([texts[row] for row in rows]) @ self._values
        return Scores(sentiment, np.full(len(texts), np.nan), ~np.isnan(sentiment))

    @torch.no_grad()
    def _probabilities(self, texts: list[str]) -> np.ndarray:
        given = self._tokenizer(texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt")
        with half_precision(self._model):
            logits = self._model(
                input_ids=given["input_ids"].to(self._model.device),
                attention_mask=given["attention_mask"].to(self._model.device),
            ).logits
        return logits.double().softmax(-1).cpu().numpy()
