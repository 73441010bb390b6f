"""Names of symbols in texts: how they are shown, and how they are recognised in an answer, the same in all languages.

1.  **Shown.** A symbol is shown by its own name if that has 1 to 8 words, one blank between them, of letters, digits or
    ``& - . _ ^ = / :``, begins with a letter, digit or one of ``& . ^ /``, and ends with a letter or digit. Of names
    that differ by case alone the first is shown so. Any other is shown as ``SYMBOL_n``, n its place from 1, and
    instructions say which name that stands for.
2.  **Recognised.** Case does not matter, for the ASCII letters. Where a name may stand, the longest name that fits is
    one, also if it reads as a number (``600519``) or as a word of the language (``HOLD``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

MOST_WORDS = 8

_WORD = r"[A-Z0-9&._^=/:-]+"
_PLAIN = re.compile(rf"(?=[A-Z0-9&.^/]){_WORD}(?: {_WORD}){{0,{MOST_WORDS - 1}}}(?<=[A-Z0-9])")


@lru_cache(maxsize=1024)
def shown_names(symbols: tuple[str, ...]) -> tuple[str, ...]:
    """Return the name under which each symbol is shown; they differ, also where case does not matter."""
    own, shown = {name.upper() for name in symbols}, dict[str, str]()
    for place, name in enumerate(symbols, 1):
        if not (name.isascii() and _PLAIN.fullmatch(name.upper())) or name.upper() in shown:
            name = f"SYMBOL_{place}"
            while name in own:
                name += "X"
        shown[name.upper()] = name
    return tuple(shown.values())


def told_names(symbols: Sequence[str]) -> str:
    """Return the list of symbols for instructions."""
    shown = shown_names(tuple(symbols))
    told = (name if name == own else f"{name} ({own!r})" for name, own in zip(shown, symbols, strict=True))
    return ", ".join(told)


def slots_by_name(symbols: Sequence[str]) -> dict[str, int]:
    """Return the place of each symbol by its shown name in upper case, as `split_name` takes them."""
    return {name.upper(): place for place, name in enumerate(shown_names(tuple(symbols)))}


def split_name(text: str, slots: Mapping[str, int]) -> tuple[int | None, str]:
    """Return the slot of the longest name that begins a text and what follows it, else None and all of it.

    The text is in upper case, with one blank between words.
    """
    words = text.split(" ", MOST_WORDS)
    for count in range(len(words), 0, -1):
        slot = slots.get(" ".join(words[:count]))
        if slot is not None:
            return slot, " ".join(words[count:])
    return None, text
