"""Removal of reasoning blocks from an agent's text, before orders and tool calls are parsed.

Rule 2 of `vecenv.text.answer_lines` defines reasoning. Never raises; time is linear in the text's length.
"""

from __future__ import annotations

import re

# Without re.ASCII, case-insensitive matching accepts other alphabets: the Kelvin sign is a K.
_THINK = re.compile(r"<(/?)think>", re.ASCII | re.IGNORECASE)
_ANSWER = re.compile(r"<(/?)answer>", re.ASCII | re.IGNORECASE)


def without_reasoning(text: str) -> str:
    """Return a text with each reasoning block replaced by a blank.

    If unclosed reasoning is followed by a block ``<answer>…</answer>`` that ends the text, this block is returned.
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
            # A closing tag without an opening one: the chat template opened the block.
            said.clear()
        start, opened = tag.end(), -1
    if opened < 0:
        return " ".join([*said, text[start:]])
    return _closing_block(text, opened) or " ".join(said)


def _closing_block(text: str, start: int) -> str:
    """Return the last answer block after a position if it ends the text, else nothing."""
    opened, block = -1, (0, 0)
    for tag in _ANSWER.finditer(text, start):
        if not tag[1]:
            opened = tag.start()
        elif opened >= 0:
            block = opened, tag.end()
    return text[slice(*block)] if not text[block[1] :].strip(" \t\n\r") else ""
