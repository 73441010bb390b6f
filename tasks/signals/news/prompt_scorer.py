"""Scores of texts by a causal language model that is asked for two numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from vecenv.language.chat import ChatFormat
from vecenv.language.generation import GenerationContext
from vecenv.language.models import longest_context
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


class PromptScorer:
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

    def score(self, texts: Sequence[str]) -> Scores:
        scores = np.full((2, len(texts)), np.nan)
        asked = [row for row, text in enumerate(texts) if text.strip()]
        for start in range(0, len(asked), self.block):
            rows = asked[start : start + self.block]
            for row, answer in zip(rows, self._answers([texts[row] for row in rows]), strict=True):
                scores[:, row] = read_answer(answer) or np.nan
        return Scores(scores[0], scores[1], ~np.isnan(scores[0]))

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
