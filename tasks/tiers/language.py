r"""Parsing and formatting of orders as text.

Specification of the language:

1.  **Lines.** Those of `vecenv.text.answer_lines`: reasoning, answer blocks, commas, case and splitting are its rules.
    A text without any line is invalid.
2.  **Grammar.** Blanks are the space and the tab. Every line must be ``HOLD`` or
    ``(BUY|SELL) [SYMBOL] [NUMBER [%]]``, else the whole text is invalid. One or more blanks stand between the parts,
    none or more before the percent sign.
3.  **NUMBER.** ``[+-]`` optional, then ``digits``, ``digits.``, ``digits.digits`` or ``.digits``, then optionally ``E``
    with an optional sign and digits; digits are 0 to 9. A percent sign divides by 100. The result is the share: with
    more than 32 characters (without thousands separators), or not within [0, 1], the text is invalid: ten shares of a
    stock are not all the cash. In records of version 1 it is clamped to [0, 1]. No number means 1.
4.  **SYMBOL.** The name of a known symbol by the rules of `vecenv.text.symbol_names`: the longest that fits, also one
    that reads as a number. Any other makes the text invalid. Without a symbol the order is for the only one; where
    there are several, the text is invalid.
5.  **Count.** ``HOLD`` adds no order. More others than the task allows, eight by default, make the text invalid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.tasks.tiers.law import Kind
from vecenv.tasks.tiers.limits import MAX_ORDERS
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown
from vecenv.text.symbol_names import split_name

MAX_NUMBER_LENGTH = 32

# Possessive quantifiers keep a failing match linear; only of single characters, for those of groups are wrong before
# CPython 3.11.5 (gh-106052).
_NUMBER = re.compile(r"[+-]?+(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:E[+-]?+[0-9]++)?%?")
_ORDER = re.compile(r"(BUY|SELL)(?:[ \t]++(.*))?")
_BLANKS = re.compile(r"[ \t]++")
_KINDS = {"BUY": Kind.BUY, "SELL": Kind.SELL}
HOW = "write HOLD, BUY SYMBOL SHARE or SELL SYMBOL SHARE, and nothing else"
"""How to write an order."""
SHARES = "0 to 1, or 0% to 100%"
MOST_NAMED = 5
"""Symbols that a fault names."""


class Order(NamedTuple):
    """One order of a day, of a share in [0, 1] of the cash to spend or of the position to sell."""

    kind: Kind
    symbol: int
    fraction: float


@dataclass(frozen=True)
class OrderLanguage(AnswerLanguage[tuple[Order, ...]]):
    """Reads at most ``most`` orders; shares are ``clamped`` by version 1 of the rules.

    ``symbols`` is from `slots_by_name`; ``only`` is the slot of orders without a symbol, None if all must name theirs.
    """

    symbols: Mapping[str, int]
    only: int | None = None
    most: int = MAX_ORDERS
    clamped: bool = False

    def of_lines(self, lines: Sequence[str]) -> tuple[Order, ...]:
        orders: list[Order] = []
        for line in lines:
            if line == Kind.HOLD.name:
                continue
            order = _ORDER.fullmatch(line)
            if order is None:
                raise AnswerFault(f"{shown(line)} is no order: {HOW}")
            side, rest = order.groups("")
            # A percent sign belongs to the number before it, so that no name ends there.
            slot, rest = split_name(_BLANKS.sub(" ", rest).replace(" %", "%"), self.symbols)
            match = _NUMBER.fullmatch(rest)
            if match is None and rest:
                raise AnswerFault(self._misread(line, slot, rest))
            slot = self.only if slot is None else slot
            if slot is None:
                raise AnswerFault(f"{shown(line)} must name its symbol")
            if len(orders) == self.most:
                raise AnswerFault(f"a day has at most {self.most} orders")
            orders.append(Order(_KINDS[side], slot, _share(rest, self.clamped) if match else 1.0))
        return tuple(orders)

    def _misread(self, line: str, slot: int | None, rest: str) -> str:
        """Return why an order is none by what follows its side, and the slot of its symbol if that is known."""
        if slot is not None:
            return f"{shown(rest)} is no share: {SHARES}"
        name, _, last = rest.rpartition(" ")
        number = last if _NUMBER.fullmatch(last) else ""
        if _NUMBER.fullmatch(rest.partition(" ")[0]):
            return f"{shown(line)} is no order: {HOW}"
        names = list(self.symbols)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        fault = f"there is no {shown(name if number else rest)}, only {', '.join(names[:MOST_NAMED])}{more}"
        return fault if not number or _is_share(number) else f"{fault}, and {shown(number)} is no share: {SHARES}"

    def tensor(self, parsed: Sequence[tuple[Order, ...] | None]) -> tuple[Tensor, Tensor]:
        """Return actions, (B, ``most``, 3), float32, and their validity, (B,), bool.

        Orders are padded with holds; an invalid text is flagged in its first order. A text of too many is a ValueError.
        """
        valid = np.fromiter((orders is not None for orders in parsed), bool, len(parsed))
        texts = [orders or () for orders in parsed]
        counts = np.fromiter(map(len, texts), np.int64, len(texts))
        if counts.max(initial=0) > self.most:
            raise ValueError(f"text {counts.argmax()} has {counts.max()} orders, the tensor holds {self.most}")
        total = int(counts.sum())
        values = chain.from_iterable(chain.from_iterable(texts))
        actions = np.zeros((len(texts), self.most, 3), np.float32)
        # A row-major mask enumerates the orders in the order of the texts.
        actions[np.arange(self.most) < counts[:, None]] = np.fromiter(values, np.float32, 3 * total).reshape(-1, 3)
        actions[~valid, 0, 0] = Kind.INVALID
        return torch.from_numpy(actions), torch.from_numpy(valid)


def _value(number: str) -> float:
    digits = number.rstrip("%")
    return float(digits if len(digits) <= MAX_NUMBER_LENGTH else "inf") / (100.0 if digits != number else 1.0)


def _is_share(number: str) -> bool:
    return 0.0 <= _value(number) <= 1.0


def _share(number: str, clamped: bool) -> float:
    value = _value(number)
    if not _is_share(number) and (not clamped or math.isinf(value)):
        raise AnswerFault(f"{shown(number)} is no share: {SHARES}")
    return min(max(0.0, value), 1.0)


def format_orders(orders: Sequence[Order], names: Sequence[str]) -> str:
    """Format buys and sells as text that `OrderLanguage` parses back, fractions to four decimals; holds are left out.

    Raises:
        ValueError: there are too many orders, or one is invalid.
    """
    traded = [order for order in orders if order.kind != Kind.HOLD]
    if len(traded) > MAX_ORDERS:
        raise ValueError(f"{len(traded)} orders, at most {MAX_ORDERS} a day")
    for order in traded:
        if order.kind == Kind.INVALID:
            raise ValueError(f"{order} has no text")
    return (
        "; ".join(
            f"{Kind(order.kind).name} {names[order.symbol]} {f'{order.fraction:.4f}'.rstrip('0').rstrip('.')}"
            for order in traded
        )
        or Kind.HOLD.name
    )
