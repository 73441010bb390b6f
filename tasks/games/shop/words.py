"""Words of texts and queries, the same for products, instructions and answers."""

from __future__ import annotations

import re
import unicodedata

_STOP = (
    "a am an and are as at be but by can for from have i if in into is it its looking me more my need no not of on or "
    "so than that the their then there these they this to under want was will with would you your"
)
STOP_WORDS = frozenset(_STOP.split())
"""Words that are not searched for."""

BUTTONS = ("back to search", "next >", "< prev", "description", "attributes", "buy now")
"""Names of what can be clicked beside products and options."""

_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_WORD = re.compile(r"[a-z]+|[0-9]+(?:\.[0-9]+)?")


def folded(text: str) -> str:
    """Return a text without accents, and in small letters where it has any: ``Größe`` becomes ``grosse``."""
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in apart if not unicodedata.combining(letter))


def words(text: str) -> list[str]:
    """Return the words of a text in their order: runs of the 26 letters, and numbers, that are no stop words.

    Case, accents and separators of thousands do not matter; other alphabets have no words.
    """
    found = _WORD.findall(_THOUSANDS.sub("", folded(text)).lower())
    return [word for word in found if word not in STOP_WORDS]


def canonical(name: str) -> str:
    """Return what of a name tells it apart: letters, digits and ``.-+/`` in upper case, single blanks between."""
    kept = re.sub(r"[^A-Z0-9.+/-]+", " ", _THOUSANDS.sub("", folded(name)).upper())
    return kept.strip(" .")
