r"""Parsing of orders for one coin as text.

Specification of the language:

1.  **Lines.** Those of `vecenv.text.answer_lines`: reasoning, answer blocks, thousands separators, case and splitting
    are its rules. Without any line the text is invalid.
2.  **Grammar.** Blanks are the space and the tab. Every line must be one of these, else the whole text is invalid; the
    last three only where orders may rest::

        HOLD
        CLOSE
        (BUY|SELL) [COINS]
        (BID|ASK) COINS (AT|@) PRICE
        (BID|ASK) 0
        CANCEL

    One or more blanks stand between the parts; around ``@`` none suffices.
3.  **Numbers.** ``digits``, ``digits.``, ``digits.digits`` or ``.digits``, at most 24 characters; a price may follow
    a dollar sign. COINS are rounded down to lots, of which there must be 1 to 2^30; without a number they are a unit.
    A PRICE is rounded to the nearest tick, of two the even one, and lies in 1 to 2^30 ticks.
4.  **Count.** At most one of ``BUY``, ``SELL`` and ``CLOSE``, at most one ``BID`` and one ``ASK``, and neither beside
    ``CANCEL``. Resting orders that no line names stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_DOWN, Decimal

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.orders import KEEP, LARGEST_ORDER, Order
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown

Orders = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Kind and lots of the market order, price in ticks and lots of the bid, and of the ask."""

NUMBER_LENGTH = 24

HOW = "write HOLD, CLOSE, BUY COINS or SELL COINS, with positive COINS of at least a lot"
HOW_RESTING = "; BID COINS AT PRICE, ASK COINS AT PRICE, BID 0, ASK 0 or CANCEL for orders that wait"
"""How to write an order, and one that waits."""

_NUMBER = r"([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)"
_MARKET = re.compile(rf"(BUY|SELL)(?:[ \t]++{_NUMBER})?")
_QUOTE = re.compile(rf"(BID|ASK)[ \t]++{_NUMBER}(?:(?:[ \t]++AT[ \t]++|[ \t]*+@[ \t]*+)\$?+{_NUMBER})?")
_KEPT, _CANCELLED = (KEEP, 0), (0, 0)
INVALID: Orders = ((int(Order.INVALID), 0), _KEPT, _KEPT)


class LobLanguage(AnswerLanguage[Orders]):
    """Parses orders; ``unit`` are the lots of one without a number, ``resting`` whether orders may rest."""

    def __init__(self, tick: float, lot: float, unit: int, resting: bool) -> None:
        self.tick, self.lot = Decimal(str(tick)).normalize(), Decimal(str(lot)).normalize()
        self.unit, self.resting = unit, resting

    def of_lines(self, lines: Sequence[str]) -> Orders:
        market: tuple[int, int] | None = None
        quotes: dict[str, tuple[int, int]] = {}
        for line in lines:
            if line == "HOLD":
                continue
            order = (int(Order.TARGET), 0) if line == "CLOSE" else self._market(line)
            quoted = self._quoted(line) if self.resting else {}
            if (order is None) == (not quoted):
                raise AnswerFault(f"{shown(line)} is no order: {HOW}{HOW_RESTING if self.resting else ''}")
            if (order and market) or quotes.keys() & quoted.keys():
                raise AnswerFault(f"{shown(line)} is the second order of its kind")
            market, quotes = order or market, quotes | quoted
        return market or (int(Order.HOLD), 0), quotes.get("BID", _KEPT), quotes.get("ASK", _KEPT)

    def _market(self, line: str) -> tuple[int, int] | None:
        """Return kind and lots of a purchase or sale, None for anything else."""
        match = _MARKET.fullmatch(line)
        if match is None:
            return None
        side, number = match.groups()
        lots = self.unit if number is None else self._lots(number)
        return (int(Order.TRADE), lots if side == "BUY" else -lots) if lots else None

    def _quoted(self, line: str) -> dict[str, tuple[int, int]]:
        """Return price and lots of the sides that a line quotes or cancels; empty for anything else."""
        if line == "CANCEL":
            return {"BID": _CANCELLED, "ASK": _CANCELLED}
        match = _QUOTE.fullmatch(line)
        if match is None:
            return {}
        side, number, price = match.groups()
        if price is None:
            return {side: _CANCELLED} if len(number) <= NUMBER_LENGTH and Decimal(number) == 0 else {}
        lots = self._lots(number)
        ticks = round(Decimal(price) / self.tick) if len(price) <= NUMBER_LENGTH else 0
        return {side: (ticks, lots)} if lots and 1 <= ticks <= LARGEST_ORDER else {}

    def _lots(self, number: str) -> int:
        """Return coins in lots, 0 where there are too few or too many."""
        if len(number) > NUMBER_LENGTH:
            return 0
        lots = int((Decimal(number) / self.lot).to_integral_value(ROUND_DOWN))
        return lots if lots <= LARGEST_ORDER else 0

    def coins(self, lots: int) -> str:
        return f"{(lots * self.lot).normalize():,f}" if lots else "0"

    def price(self, ticks: int) -> str:
        """Format a price of whole ticks, exact, with separators."""
        return f"{ticks * self.tick:,f}"

    def tensor(self, parsed: Sequence[Orders | None]) -> tuple[Tensor, Tensor]:
        """Return actions, shape (B, 3, 2), int64, and whether each text is valid, shape (B,), bool."""
        rows = [INVALID if orders is None else orders for orders in parsed]
        actions = torch.tensor(rows, dtype=torch.int64).reshape(len(parsed), 3, 2)
        return actions, torch.tensor([orders is not None for orders in parsed], dtype=torch.bool)
