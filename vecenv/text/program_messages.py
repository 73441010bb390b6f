"""Programs in messages: what stands between ``` fences, or as the last one in ``<final_code>``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE | re.ASCII)
OPENED, CLOSED = "<final_code>", "</final_code>"


class Said(NamedTuple):
    """What is read from a message: a program, whether it is the last, or why there is none."""

    program: str = ""
    final: bool = False
    fault: str = ""


def program_said(message: str, fits: Callable[[str], bool]) -> Said | None:
    """Return the program of a message, in linear time; None of one that marks none.

    It is what stands in the last ``<final_code>``, with fences or without, or else in the last block between fences
    whose name, in small letters, ``fits``. Within ``<final_code>`` the last fence need not be closed.
    """
    start = message.rfind(OPENED)
    if start < 0:
        blocks = _blocks(message, fits, at_end=False)
        return Said(blocks[-1]) if blocks else None
    end = message.find(CLOSED, start)
    if end < 0:
        return Said(fault=f"{OPENED} is not closed by {CLOSED}")
    inner = message[start + len(OPENED) : end]
    program = (_blocks(inner, fits, at_end=True) or [inner.strip("\n")])[-1]
    return Said(program, final=True) if program.strip() else Said(fault=f"there is nothing in {OPENED}")


def _blocks(text: str, fits: Callable[[str], bool], at_end: bool) -> list[str]:
    """Return what stands in fences that fit, without blank blocks; the end of the text may close the last one."""
    blocks, opened = [], None
    for fence in [*FENCE.finditer(text), None]:
        if opened is None:
            opened = fence
        elif fence is None or (not fence[2] and fence[1].startswith(opened[1])):
            block = text[opened.end() + 1 : None if fence is None else fence.start()]
            if block.strip() and fits(opened[2].lower()) and (fence is not None or at_end):
                blocks.append(block)
            opened = None
    return blocks
