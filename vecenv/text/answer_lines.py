r"""Reading of an agent's answer as lines, the same in all languages of orders.

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
"""

from __future__ import annotations

import re

from vecenv.text.reasoning import without_reasoning

_OPEN, _CLOSE = "<ANSWER>", "</ANSWER>"
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


def answer_lines(text: object) -> list[str]:
    """Return the lines of an answer in upper case by the rules of this module; never raises."""
    if not isinstance(text, str):
        return []
    if not str.isascii(text):
        # Replace non-ASCII characters by question marks, which no order has, so that upper-casing affects ASCII only.
        text = str.encode(text, "ascii", "replace").decode("ascii")
    text = str.upper(text)
    content = _block(without_reasoning(text) if "THINK>" in text else text)
    if "," in content:
        content = _THOUSANDS.sub("", content).replace(",", " ")
    lines = (line.strip(" \t") for line in content.replace("\r", "\n").replace(";", "\n").split("\n"))
    return [line for line in lines if line]


def _block(text: str) -> str:
    """Return the content of the last complete block of an upper-case text, or the whole text."""
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    return text if start < 0 else text[start + len(_OPEN) : end]
