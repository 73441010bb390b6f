"""What an agent's text says outside of its reasoning: the part that orders and calls of tools are read from.

Rule 2 of ``tasks/tiers/text/parse.py`` says what is reasoning. Nothing raises, and the time is linear in the text's
length.
"""

from __future__ import annotations

import re

# Without ASCII, letters of other alphabets would match in either case: the Kelvin sign is a K.
_THINK = re.compile(r"<(/?)think>", re.ASCII | re.IGNORECASE)
_ANSWER = re.compile(r"<(/?)answer>", re.ASCII | re.IGNORECASE)


def without_reasoning(text: str) -> str:
    """Return a text with a blank in the place of each of its parts that are reasoning.

    Reasoning that is never closed ends where a block ``<answer>…</answer>`` ends the text: then this block is returned.
    """
    said: list[str] = []
    start, opened = 0, -1
    for tag in _THINK.finditer(text):
        if not tag[1]:
            if opened < 0:
                said.append(text[start : tag.start()])
            opened = tag.end()
            continue
        if opened < 0:
            # What is closed here was opened by a template, before all that the agent wrote.
            said.clear()
        start, opened = tag.end(), -1
    if opened < 0:
        return " ".join([*said, text[start:]])
    return _closing_block(text, opened) or " ".join(said)


def _closing_block(text: str, start: int) -> str:
    """Return the last block of an answer after a place if it ends the text, else nothing."""
    opened, block = -1, (0, 0)
    for tag in _ANSWER.finditer(text, start):
        if not tag[1]:
            opened = tag.start()
        elif opened >= 0:
            block = opened, tag.end()
    return text[slice(*block)] if not text[block[1] :].strip(" \t\n\r") else ""
