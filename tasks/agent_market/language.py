r"""Parsing and formatting of lists of orders as text.

Specification of the language:

1.  **Lines.** Those of `vecenv.text.answer_lines`: reasoning, answer blocks, thousands separators, case and splitting
    are its rules. Without any line the text is invalid.
2.  **Grammar.** Blanks are the space and the tab. Every line must be one of these, else the whole text is invalid::

        HOLD
        CANCEL
        (BUY|SELL) [SHARES] [(AT|@) PRICE]
        (BID|ASK) SHARES (AT|@) PRICE
        (BID|ASK) 0

    One or more blanks stand between the parts; around ``@`` none suffices.
3.  **SHARES.** Digits, at most nine of them; 0 only in the last form. Without a number it is that of the task.
4.  **PRICE.** A dollar sign or none, then ``digits``, ``digits.``, ``digits.digits`` or ``.digits``, at most 24
    characters, rounded to the nearest price tick, of two the even one. Below one tick or above 2^30 the text is
    invalid.
5.  **Count.** ``HOLD`` adds no order. More other lines than the task allows make the text invalid, and so does a
    second ``BID`` or ``ASK``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import torch
from torch import Tensor

from vecenv.kernels.order_book.messages import MAX_PRICE
from vecenv.tasks.agent_market.orders import Order
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown

Line = tuple[Order, int, int]
"""An order: kind, price in price ticks (1 where it has none), shares."""

MAX_PRICE_LENGTH = 24

_BLANKS = r"[ \t]++"
_AT = r"(?:[ \t]++AT[ \t]++|[ \t]*+@[ \t]*+)"
_PRICE = r"\$?+((?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++))"
_SHARES = r"([0-9]++)"
_ENTRY = re.compile(rf"(BUY|SELL)(?:{_BLANKS}{_SHARES})?(?:{_AT}{_PRICE})?")
_QUOTE = re.compile(rf"(BID|ASK){_BLANKS}{_SHARES}(?:{_AT}{_PRICE})?")
HOW = (
    "write HOLD, CANCEL, BUY SHARES, BUY SHARES AT PRICE, BID SHARES AT PRICE or BID 0, SELL for BUY and ASK for BID, "
    "with whole SHARES from 1 to 999999999 and a PRICE above 0, and nothing else"
)
"""How to write an order."""

_AT_MARKET = {"BUY": Order.BUY, "SELL": Order.SELL}
_LIMITED = {"BUY": Order.BUY_LIMIT, "SELL": Order.SELL_LIMIT}
_QUOTES = {"BID": Order.BID, "ASK": Order.ASK}


class OrderLanguage(AnswerLanguage[tuple[Line, ...]]):
    """Parses and formats lists of at most ``max_orders`` orders; ``default``: shares where none are named."""

    def __init__(self, price_tick: float, default: int, max_orders: int) -> None:
        self.price_tick, self.default, self.max_orders = Decimal(str(price_tick)), default, max_orders

    def of_lines(self, lines: Sequence[str]) -> tuple[Line, ...]:
        orders: list[Line] = []
        for line in lines:
            if line == "HOLD":
                continue
            order = (Order.CANCEL, 1, 0) if line == "CANCEL" else self._entry(line) or self._quote(line)
            if order is None:
                raise AnswerFault(f"{shown(line)} is no order: {HOW}")
            if len(orders) == self.max_orders:
                raise AnswerFault(f"a step has at most {self.max_orders} orders")
            if order[0] in (Order.BID, Order.ASK) and any(order[0] == other for other, _, _ in orders):
                raise AnswerFault(f"there is a second {order[0].name}")
            orders.append(order)
        return tuple(orders)

    def _entry(self, line: str) -> Line | None:
        """Return a purchase or sale, None for anything else."""
        match = _ENTRY.fullmatch(line)
        if match is None:
            return None
        side, number, price = match.groups()
        shares = self.default if number is None else _shares(number)
        if not shares:
            return None
        if price is None:
            return _AT_MARKET[side], 1, shares
        ticks = self._ticks(price)
        return None if ticks is None else (_LIMITED[side], ticks, shares)

    def _quote(self, line: str) -> Line | None:
        """Return a quote or its cancellation, None for anything else."""
        match = _QUOTE.fullmatch(line)
        if match is None:
            return None
        side, number, price = match.groups()
        shares = _shares(number)
        if price is None:
            return (_QUOTES[side], 1, 0) if shares == 0 else None
        ticks = self._ticks(price)
        return (_QUOTES[side], ticks, shares) if shares and ticks is not None else None

    def _ticks(self, price: str) -> int | None:
        """Return a price in price ticks, None where it is too long or out of range."""
        if len(price) > MAX_PRICE_LENGTH:
            return None
        ticks = round(Decimal(price) / self.price_tick)
        return ticks if 1 <= ticks <= MAX_PRICE else None

    def written(self, orders: Sequence[Sequence[int]]) -> str:
        """Format orders (kind, ticks, shares) so that `parse` reads them; what a book would refuse is left out."""
        lines = [self._line(Order(kind), price, shares) for kind, price, shares in orders if kind in _KINDS]
        return "; ".join(filter(None, lines)) or "HOLD"

    def _line(self, kind: Order, price: int, shares: int) -> str:
        """Return an order as text, empty where a book would refuse it."""
        if kind == Order.CANCEL:
            return "CANCEL"
        if kind in _QUOTES.values() and shares <= 0:
            return f"{kind.name} 0"
        if kind in (Order.NONE, Order.INVALID) or shares <= 0:
            return ""
        if kind in _AT_MARKET.values():
            return f"{kind.name} {shares}"
        return f"{kind.name.removesuffix('_LIMIT')} {shares} AT {self.price(price)}" if 1 <= price <= MAX_PRICE else ""

    def price(self, ticks: int) -> str:
        """Format a price without separators, exact."""
        return f"{ticks * self.price_tick:f}"

    def tensor(self, parsed: Sequence[tuple[Line, ...] | None]) -> tuple[Tensor, Tensor]:
        """Stack parsed texts into one tensor of actions, with whether each is valid. Shapes: (B, M, 3), (B,).

        Orders are kind, price and shares, int64, padded with none; an invalid text is one of kind `Order.INVALID`.
        """
        nothing, invalid = (int(Order.NONE), 1, 0), (int(Order.INVALID), 1, 0)
        lists = [(invalid,) if orders is None else orders for orders in parsed]
        rows = [[*orders, *[nothing] * (self.max_orders - len(orders))] for orders in lists]
        actions = torch.tensor(rows, dtype=torch.int64).reshape(len(parsed), self.max_orders, 3)
        return actions, torch.tensor([orders is not None for orders in parsed], dtype=torch.bool)


_KINDS = frozenset(map(int, Order))


def _shares(number: str) -> int | None:
    """Return a number of shares, None where it is too long."""
    return int(number) if len(number) <= 9 else None
