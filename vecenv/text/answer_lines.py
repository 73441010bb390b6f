r"""Reading of an agent's answer as lines, the same in all languages of orders: strict in meaning, lenient in dress.

1.  **Input.** Anything may come in and nothing raises; what is not a ``str`` has no lines. Case does not matter, for
    the 26 ASCII letters alone. A character outside ASCII is part of no order. The time is linear in the text's length.
2.  **Reasoning.** ``<think>`` and ``</think>`` are tags, without blanks or attributes inside. What stands between a
    ``<think>`` and the next ``</think>`` is reasoning, and so is all that stands before a ``</think>`` that no
    ``<think>`` opens: a template may have written that one. Each is read as one blank. Where no ``</think>`` follows
    the last ``<think>``, all from the first open one on is reasoning, unless an answer ends the text: if an
    ``<answer>`` and then a ``</answer>`` follow the last ``<think>``, and nothing but blanks, ``\n`` and ``\r`` follows
    the last ``</answer>``, then the text is what stands from the last ``<answer>`` before that on.
3.  **Block.** ``<answer>`` and ``</answer>`` are tags, without blanks or attributes inside. The content ends at the
    last ``</answer>`` and begins after the last ``<answer>`` before it. Where there is no such pair, the whole text is
    the content.
4.  **Commas.** A comma after a digit and before exactly three digits (the fourth character is no digit) is a thousands
    separator and is dropped. Every other comma becomes a blank.
5.  **Lines.** The content is split at ``\n``, ``\r`` and ``;``. Blanks are the space and the tab; they are stripped
    from both ends of each line, and empty lines are skipped.
6.  **Dress.** Only if these lines cannot be read as they stand, they are read by the rules of `vecenv.text.dress` as
    well: its marks and look-alikes before rule 2, its box after rule 3, its lines after rule 5. Then all of them must
    be orders; nothing else is passed over.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from vecenv.text.dress import bare, boxed, look_alikes, without_marks
from vecenv.text.reasoning import without_reasoning

if TYPE_CHECKING:
    from torch import Tensor

Answer = TypeVar("Answer")

ANSWERS_VERSION = 2
"""Version of the rules by which answers are read, in the records of episodes: 1 knew no dress, and clamped shares."""

_OPEN, _CLOSE = "<ANSWER>", "</ANSWER>"
_BLANK = re.compile(r"[\t,\"'`*{}\[\]]")
_QUOTED = re.compile(r"(?<=')[^'\\…]++(?=…?')")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


class AnswerFault(ValueError):
    """Why an answer is invalid, in words for whoever gave it."""


class AnswerLanguage(ABC, Generic[Answer]):
    """Reads the answers of one language by the rules of this module.

    Attributes:
        passes_over: whether the grammar passes over what it does not know, so that lines are read without dress only.
    """

    passes_over: ClassVar[bool] = False

    @abstractmethod
    def of_lines(self, lines: Sequence[str]) -> Answer:
        """Return what lines, of which there is at least one, stand for; `AnswerFault` if they are no answer."""

    @abstractmethod
    def tensor(self, parsed: Sequence[Answer | None]) -> tuple[Tensor, Tensor]:
        """Return the actions of `parse`'s results, (B, *action), and whether each answer is valid, (B,), bool."""

    def read(self, text: object) -> Answer:
        """Return what an answer stands for.

        Raises:
            AnswerFault: the answer is invalid.
        """
        if not isinstance(text, str):
            raise AnswerFault("an answer is a text")
        if not self.passes_over and (lines := answer_lines(text)):
            with suppress(AnswerFault):
                return self.of_lines(lines)
        if not (lines := answer_lines(text, undressed=True)):
            raise AnswerFault("there is no answer in it, outside of reasoning")
        return self.of_lines(lines)

    def parse(self, text: object) -> Answer | None:
        """Return what an answer stands for, None where it is invalid; never raises."""
        try:
            return self.read(text)
        except AnswerFault:
            return None

    def fault(self, text: object) -> str:
        """Return why an answer is invalid, quoting it as it was written, empty if it is valid; never raises."""
        try:
            self.read(text)
        except AnswerFault as fault:
            return _as_written(str(fault), text) if isinstance(text, str) else str(fault)
        return ""


def shown(line: str) -> str:
    """Return a line for the words of a fault."""
    return repr(line if len(line) <= 40 else f"{line[:40]}…")


def _as_written(fault: str, text: str) -> str:
    """Return a fault with the case that quoted parts of lines, which are in upper case, have in the answer."""
    # A character for each of the text, so that places are the same.
    upper = _BLANK.sub(" ", str.encode(text, "ascii", "replace").decode("ascii").upper())

    def written(quoted: re.Match[str]) -> str:
        place = upper.rfind(quoted[0])
        return quoted[0] if place < 0 else repr(text[place : place + len(quoted[0])])[1:-1]

    return _QUOTED.sub(written, fault)


def answer_lines(text: str, undressed: bool = False) -> list[str]:
    """Return the lines of an answer in upper case by the rules of this module; never raises."""
    if undressed:
        text = look_alikes(without_marks(str(text)))
    if not str.isascii(text):
        # Replace non-ASCII characters by question marks, which no order has, so that upper-casing affects ASCII only.
        text = str.encode(text, "ascii", "replace").decode("ascii")
    text = str.upper(text)
    content = _block(without_reasoning(text) if "THINK>" in text else text)
    if undressed:
        content = boxed(content)
    if "," in content:
        content = _THOUSANDS.sub("", content).replace(",", " ")
    split = (line.strip(" \t") for line in content.replace("\r", "\n").replace(";", "\n").split("\n"))
    lines = [line for line in split if line]
    return [own for line in lines if (own := bare(line))] if undressed else lines


def _block(text: str) -> str:
    """Return the content of the last complete block of an upper-case text, or the whole text."""
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    return text if start < 0 else text[start + len(_OPEN) : end]
