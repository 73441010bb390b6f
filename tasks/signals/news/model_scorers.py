"""Language models that score texts: causal ones that are asked, and classifiers of sentiment."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vecenv.language.chat import ChatFormat
from vecenv.language.generation import GenerationContext, half_precision
from vecenv.language.hub import found_model
from vecenv.language.models import chat_format, load_model, longest_context
from vecenv.tasks.signals.news.scores import Scores
from vecenv.text.dress import look_alikes, without_marks
from vecenv.text.reasoning import without_reasoning

PROMPT_VERSION = 3
"""Changes with the prompt and with the reading of answers."""

INSTRUCTIONS = (
    "You read news about a company and rate it with two numbers from 1 to 5. "
    "sentiment is what the news means for the company's share price: 1 very negative, 3 neutral, 5 very positive. "
    "risk is how risky the news says that the company is: 1 very low, 3 ordinary, 5 very high. "
    "Answer in one line and with nothing else, for example: sentiment: 4, risk: 2"
)
"""System message."""

QUESTION = "News: {text}"
"""User message."""

ANSWER_TOKENS = 32
"""Longest answer."""

MOST_TOKENS = 2048
"""Longest prompt; the end of longer texts is cut off."""

_NUMBER = r"(-?\d+(?:\.\d+)?)"
_NAMES = ("sentiment", "risk")
# The scale, where an answer repeats it.
_SCALE = re.compile(r"\(?\b1\s*(?:-|to)\s*5\b\)?|/\s*5\b|\bout of 5\b", re.IGNORECASE)
# A number belongs to the last name before it.
_BETWEEN = rf"(?:(?!\b(?:{'|'.join(_NAMES)})\b)[^\d\n-]){{0,24}}?"
_NAMED = [re.compile(rf"\b{name}\b{_BETWEEN}{_NUMBER}(?![\d.]*\d)", re.IGNORECASE) for name in _NAMES]
_ALONE = re.compile(rf"(?<![\w.]){_NUMBER}(?!\w)")


def read_answer(answer: str) -> tuple[float, float] | None:
    """Return sentiment and risk of a model's answer, None where it is unreadable.

    Both numbers have their names before them, in prose, as JSON or in Markdown, or the answer has no names and two
    numbers, sentiment first. A number outside of 1 to 5 is unreadable.
    """
    told = _SCALE.sub(" ", without_reasoning(without_marks(look_alikes(answer))))
    named = [pattern.search(told) for pattern in _NAMED]
    if any(named):
        values = [float(found[1]) for found in named if found]
    else:
        values = [float(number) for number in _ALONE.findall(told)]
    if len(values) != 2 or not all(1 <= value <= 5 for value in values):
        return None
    return values[0], values[1]


class ModelScorer(ABC):
    """Scores the texts that are not blank, ``block`` of them at once; ``identity`` is of the model and its weights."""

    identity: str
    block: int

    def score(self, texts: Sequence[str]) -> Scores:
        scores = np.full((2, len(texts)), np.nan)
        asked = [row for row, text in enumerate(texts) if text.strip()]
        for start in range(0, len(asked), self.block):
            rows = asked[start : start + self.block]
            scores[:, rows] = self.read([texts[row] for row in rows])
        return Scores(scores[0], scores[1], ~np.isnan(scores[0]))

    @abstractmethod
    def read(self, texts: list[str]) -> np.ndarray:
        """Return sentiment and risk of a block, NaN where unreadable. Shape: (2, B)."""


class PromptScorer(ModelScorer):
    """Scorer by the greedily decoded answers of a causal model; ``name`` is of the model and its weights.

    Raises ValueError if the model's context has no room for a text.
    """

    def __init__(self, model: PreTrainedModel, chat: ChatFormat, name: str, batch_size: int) -> None:
        self.identity = f"prompt {PROMPT_VERSION} {name}"
        self._model, self._chat, self.block = model, chat, batch_size
        longest = longest_context(model)
        self._room = MOST_TOKENS if longest is None else min(MOST_TOKENS, longest - ANSWER_TOKENS)
        # A text could else end its message and speak for the system.
        self._special = re.compile("|".join(map(re.escape, chat.tokenizer.all_special_tokens)) or r"(?!)")
        used = len(self._tokens("")[0])
        if used >= self._room:
            raise ValueError(f"{name}: the prompt has {used} tokens, and the model's context is {longest}")

    def read(self, texts: list[str]) -> np.ndarray:
        unread = (np.nan, np.nan)
        return np.array([read_answer(answer) or unread for answer in self._answers(texts)]).T

    def _answers(self, texts: Sequence[str]) -> list[str]:
        context = GenerationContext(self._model, len(texts), self._chat.pad)
        context.read([self._prompt(text) for text in texts])
        writing = torch.ones(len(texts), dtype=torch.bool, device=self._model.device)
        # Greedy decoding draws nothing.
        written = context.write(lambda _: writing, self._chat.stop, ANSWER_TOKENS, 0.0, writing)
        rows = zip(written.tokens.tolist(), written.mask.tolist(), strict=True)
        return self._chat.texts([[token for token, own in zip(*row, strict=True) if own] for row in rows])

    def _prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt, of a long text only the beginning."""
        tokens = self._tokens(text)[0]
        while len(tokens) > self._room:
            # Characters per token differ along a text, so that a cut by their mean may have to be repeated.
            text = text[: min(len(text) - 1, len(text) * self._room // len(tokens))]
            tokens = self._tokens(text)[0]
        return tokens

    def _tokens(self, text: str) -> list[list[int]]:
        return self._chat.openings([INSTRUCTIONS], [QUESTION.format(text=self._special.sub(" ", text))])


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


class ClassifierScorer(ModelScorer):
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

    @torch.no_grad()
    def read(self, texts: list[str]) -> np.ndarray:
        given = self._tokenizer(texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt")
        with half_precision(self._model):
            logits = self._model(
                input_ids=given["input_ids"].to(self._model.device),
                attention_mask=given["attention_mask"].to(self._model.device),
            ).logits
        sentiment = logits.double().softmax(-1).cpu().numpy() @ self._values
        return np.stack([sentiment, np.full(len(texts), np.nan)])


@contextmanager
def _loading(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{what} could be loaded: {reason}") from error


def load_scorer(place: str, batch_size: int, device: str) -> ModelScorer:
    """Return the scorer of a model, in a folder or on the hub; its configuration tells whether it is a classifier.

    Raises ValueError if there is no such model, or it cannot score texts.
    """
    found = found_model(place)
    with _loading(f"{place}: no language model"):
        config = AutoConfig.from_pretrained(found)
    name = f"{place} {_version(found, config)}"
    if any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ()):
        with _loading(f"{place}: no classifier with a tokenizer"):
            reader = AutoTokenizer.from_pretrained(found)
            classifier = AutoModelForSequenceClassification.from_pretrained(found)
        return ClassifierScorer(classifier.to(device).eval(), reader, name, batch_size)
    model, tokenizer = load_model(place, device)
    return PromptScorer(model, chat_format(model, tokenizer), name, batch_size)


def _version(found: str, config: PretrainedConfig) -> str:
    """Return a digest of a folder's files, or the commit of a model of the hub."""
    if not Path(found).is_dir():
        return str(getattr(config, "_commit_hash", None))
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(found).iterdir() if path.is_file()):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]
