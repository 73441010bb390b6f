"""The language of action texts read a second time: one character after the other, without regular expressions.

Written from the numbered rules in ``tasks/tiers/text/parse.py`` alone, to be read beside them; the parser is held to
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.tasks.tiers.oracle import BUY, SELL

KINDS = {"BUY": BUY, "SELL": SELL}
OPENING, CLOSING = "<ANSWER>", "</ANSWER>"
THINKING, THOUGHT = "<THINK>", "</THINK>"
CAPITALS = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
DIGITS = frozenset("0123456789")
SYMBOL_MARKS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789&-._^=/:")
MOST_ORDERS = 8
LONGEST_NUMBER = 32

ActionOrder = tuple[int, int, float]


def read_action(text: object, names: Sequence[str]) -> list[ActionOrder] | None:
    """Return kind, slot and fraction of each order that is no HOLD, None for an invalid text.

    The symbols that may be named come in the order of their slots.
    """
    if not isinstance(text, str):  # rule 1
        return None
    slots = {upper(name): slot for slot, name in enumerate(names)}
    lines = [_words(line) for line in _pieces(_without_commas(_content(_said(upper(text)))), "\n\r;")]
    lines = [words for words in lines if words]
    orders = [_order(words, slots) for words in lines if words != ["HOLD"]]
    good = lines and None not in orders and len(orders) <= MOST_ORDERS  # rules 5 and 9
    return orders if good else None


def upper(text: str) -> str:
    """Return the text with the 26 small letters of ASCII made large, and no other (rule 1)."""
    return text.translate(CAPITALS)


def _said(text: str) -> str:
    """Return the text with its reasoning left out, or the answer that ends open reasoning (rule 2)."""
    pieces = _cut(text, THINKING, THOUGHT)
    closes = [number for number, piece in enumerate(pieces) if piece == THOUGHT]
    opens = [number for number, piece in enumerate(pieces) if piece == THINKING]
    if opens and not any(number > opens[-1] for number in closes):
        after = "".join(pieces[opens[-1] + 1 :])
        block = _block(after)
        if block is not None and all(mark in " \t\n\r" for mark in after[block[1] + len(CLOSING) :]):
            return OPENING + after[block[0] : block[1]] + CLOSING
    said: list[str] = []
    thinking = False
    for piece in pieces:
        if piece == THOUGHT:
            if not thinking:
                said = []
            said.append(" ")
            thinking = False
        elif piece == THINKING:
            thinking = True
        elif not thinking:
            said.append(piece)
    return "".join(said)


def _cut(text: str, *tags: str) -> list[str]:
    """Return the tags in a text and what stands between them, in their order."""
    pieces, start = [], 0
    for place, character in enumerate(text):
        for tag in tags if character == "<" else ():
            if text[place : place + len(tag)] == tag:
                pieces += [text[start:place], tag]
                start = place + len(tag)
    return [*pieces, text[start:]]


def _content(text: str) -> str:
    """Return what stands in the last block, the whole text where there is none (rule 3)."""
    start, end = _block(text) or (0, len(text))
    return text[start:end]


def _block(text: str) -> tuple[int, int] | None:
    """Return where the content of the last block begins and ends, if there is one."""
    start, block = None, None
    for place, character in enumerate(text):
        if character != "<":
            continue
        if text[place : place + len(OPENING)] == OPENING:
            start = place + len(OPENING)
        elif text[place : place + len(CLOSING)] == CLOSING and start is not None:
            block = start, place
    return block


def _without_commas(text: str) -> str:
    """Drop the thousands separators and make blanks of the other commas (rule 4)."""
    kept, start = [], 0
    for place, character in enumerate(text):
        if character != ",":
            continue
        kept.append(text[start:place])
        follow = [mark in DIGITS for mark in text[place + 1 : place + 5]]
        if not (place > 0 and text[place - 1] in DIGITS and follow[:3] == [True] * 3 and follow[3:] != [True]):
            kept.append(" ")
        start = place + 1
    kept.append(text[start:])
    return "".join(kept)


def _words(line: str) -> list[str]:
    """Return the parts of an order; a percent sign is a part of its own."""
    words = _pieces(line, " \t")
    if words and len(words[-1]) > 1 and words[-1][-1] == "%":
        words[-1:] = [words[-1][:-1], "%"]
    return words


def _pieces(text: str, separators: str) -> list[str]:
    """Return what stands between separators, without the empty pieces."""
    for separator in separators:
        text = text.replace(separator, separators[0])
    return [piece for piece in text.split(separators[0]) if piece]


def _order(words: list[str], slots: dict[str, int]) -> ActionOrder | None:
    """Return the order that ``(BUY|SELL) [SYMBOL] [NUMBER [%]]`` spells, None for anything else (rule 6)."""
    kind = KINDS.get(words[0])
    rest = words[1:]
    percent = rest[-1:] == ["%"]
    if percent:
        rest = rest[:-1]
    fraction: float | None = 1.0
    if rest and is_number(rest[-1]):
        fraction = _fraction(rest[-1], percent)
        rest = rest[:-1]
    elif percent:
        return None
    if kind is None or fraction is None or len(rest) > 1:
        return None
    if not rest:
        return (kind, 0, fraction) if len(slots) == 1 else None  # rule 8
    symbol = rest[0]
    if is_number(symbol) or not all(mark in SYMBOL_MARKS for mark in symbol) or symbol not in slots:
        return None
    return kind, slots[symbol], fraction


def is_number(word: str) -> bool:
    """Whether a word in large letters is a NUMBER, of any length and size (rule 7)."""
    mantissa, mark, exponent = word.partition("E")
    whole, _, decimals = _unsigned(mantissa).partition(".")
    parts = [whole + decimals, _unsigned(exponent)] if mark else [whole + decimals]
    return all(part and all(sign in DIGITS for sign in part) for part in parts)


def _unsigned(word: str) -> str:
    return word[1:] if word[:1] in ("+", "-") else word


def _fraction(number: str, percent: bool) -> float | None:
    """Return the share that a NUMBER stands for, None for one that is too long or infinite (rule 7)."""
    if len(number) > LONGEST_NUMBER:
        return None
    value = float(number)
    if math.isinf(value):
        return None
    return min(max(value / 100 if percent else value, 0.0), 1.0)
