"""Tools for text agents of the trading tiers, without access to later days.

========  ==============================================  =====================================================
family    tool                                            result
========  ==============================================  =====================================================
market    ``price_history(symbol, days)``                 closes up to today
market    ``indicator(name, symbol, days)``               one of the shown indicators up to today
account   ``position(symbol)``                            shares, average price, value, profit, days held
account   ``what_if(orders)``                             what orders would do today, at today's prices and limits
math      ``calculator(expression)``                      the value of an expression
========  ==============================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vecenv.market.state_indicators import LABELS, LEVELS, labels_of
from vecenv.tasks.tiers.language import OrderLanguage
from vecenv.tasks.tiers.law import TierState
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.money import money
from vecenv.text.tool_calls import Step, ToolCall
from vecenv.text.tool_set import CALCULATOR, Tool, ToolFault, ToolSet, told_fault

if TYPE_CHECKING:
    from vecenv.tasks.tiers.text import TierText

MOST_DAYS = 60
"""Maximum number of days in a history."""


TOOLS: dict[str, Tool] = {
    "price_history": Tool(
        "market",
        f"closes of a symbol up to today; symbol, and days from 1 to {MOST_DAYS}, 5 by default",
        {"symbol": str, "days": int},
    ),
    "indicator": Tool(
        "market",
        "an indicator of a symbol up to today; name, symbol, and days as for price_history, 1 by default",
        {"name": str, "symbol": str, "days": int},
        ("name",),
    ),
    "position": Tool("account", "what you hold of a symbol; symbol", {"symbol": str}),
    "what_if": Tool(
        "account",
        "what orders would do today, without placing them; orders, written as in an answer",
        {"orders": str},
        ("orders",),
    ),
    "calculator": CALCULATOR,
}


@dataclass(frozen=True)
class _Row:
    """Context of a tool call: one row; ``place`` is its position in the batch of ``state``.

    ``slots`` are of the tradable symbols, by upper-case name; ``only`` is the default slot, None of several symbols.
    """

    state: TierState
    place: int
    names: Sequence[str]
    slots: Mapping[str, int]
    only: int | None
    path: int
    day: int


class TierTools(ToolSet[_Row]):
    """Tools of a tier scenario; ``offered`` names tools, families, or all, and an unknown name is a ValueError."""

    tools = TOOLS
    example = "position"
    turn = "day"

    def __init__(self, scenario: TierTrading, text: TierText, offered: Sequence[str]) -> None:
        super().__init__(offered)
        self.scenario, self.text = scenario, text

    def results(self, state: TierState, calls: Sequence[ToolCall], step: Step) -> list[str]:
        """Return the result or error text of each call; all orders of ``what_if`` take one hypothetical step."""
        rows = self.rows(state)
        told: list[str] = [""] * len(calls)
        wished: dict[int, Tensor] = {}
        for place, (row, call) in enumerate(zip(rows, calls, strict=True)):
            if call.name != "what_if":
                told[place] = self.result(row, call)
                continue
            try:
                wished[place] = self._orders(row, self.arguments(call)["orders"])
            except ToolFault as fault:
                told[place] = told_fault(fault)
        if wished:
            places = list(wished)
            after = step(places, torch.stack(list(wished.values())).to(state.day.device))
            for place, text in zip(places, self._what_if(after, [rows[place] for place in places]), strict=True):
                told[place] = text
        return told

    def rows(self, state: TierState) -> list[_Row]:
        text, columns = self.text, (state.path.tolist(), state.day.tolist(), state.rule.tolist())
        rows = []
        for place, (names, path, day, rule) in enumerate(zip(text.symbols(state), *columns, strict=True)):
            slots, only = text.slots_of(rule, names[0] if self.scenario.config.random_symbol else "")
            rows.append(_Row(state, place, names, slots, only, path, day))
        return rows

    @property
    def functions(self) -> dict[str, Callable[..., str]]:
        """Functions by name; ``what_if`` is answered in `results`."""
        return {"price_history": self._price_history, "indicator": self._indicator, "position": self._position}

    def _price_history(self, row: _Row, symbol: str | None = None, days: int = 5) -> str:
        slot = _slot(row, symbol)
        closes = [money(self.text.money_sign, price) for price in self._closes(row, slot, _days(days))]
        return f"{row.names[slot]}, closes of the last {len(closes)} days, today last: {', '.join(closes)}"

    def _indicator(self, row: _Row, name: str, symbol: str | None = None, days: int = 1) -> str:
        slot, tape = _slot(row, symbol), self.scenario.tape
        if name not in tape.feature_names:
            raise ToolFault(f"there is no indicator {name[:40]!r}; there are {', '.join(tape.feature_names)}")
        # At most the days since the symbol's listing.
        first = row.day + 1 - len(self._closes(row, slot, _days(days)))
        values = tape.features[row.path, first : row.day + 1, slot, tape.feature_names.index(name)].tolist()
        words = [f"({labels_of(name, value)})" if name in LABELS else "" for value in values]
        if name in LABELS and name not in LEVELS:
            shown = [word.strip("()") for word in words]
        else:
            shown = [f"{value:.4g} {word}".rstrip() for value, word in zip(values, words, strict=True)]
        return f"{row.names[slot]}, {name} of the last {len(shown)} days, today last: {', '.join(shown)}"

    def _position(self, row: _Row, symbol: str | None = None) -> str:
        slot, sign, tick = _slot(row, symbol), self.text.money_sign, self.scenario.tape.tick_size
        here = row.place, slot
        shares = int(row.state.holdings[here])
        if not shares:
            return f"{row.names[slot]}: no shares"
        average = float(row.state.average_price[here]) * tick
        price = self._closes(row, slot, 1)[-1]
        return (
            f"{row.names[slot]}: {shares} shares, average price {money(sign, average)}, value "
            f"{money(sign, shares * price)}, profit {price / average - 1:+z.1%}, held for "
            f"{int(row.state.days_held[here])} days"
        )

    def _closes(self, row: _Row, slot: int, days: int) -> list[float]:
        """Return the last closes up to today, at most since the listing, in currency."""
        tape = self.scenario.tape
        last = row.path * tape.num_days + row.day
        ticks = self.scenario.shared["close"][max(last - days + 1, row.path * tape.num_days) : last + 1, slot].tolist()
        return [price * tape.tick_size for price in ticks if price > 0]

    def _orders(self, row: _Row, text: str) -> Tensor:
        """Parse orders into an action. Shape: (M, 3)."""
        language = OrderLanguage(row.slots, row.only, self.scenario.config.max_orders)
        try:
            return language.tensor([language.read(text)])[0][0]
        except AnswerFault as fault:
            raise ToolFault(f"these are no orders of a day: {fault}") from fault

    def _what_if(self, after: TierState, rows: Sequence[_Row]) -> list[str]:
        """Return the effect of orders, from the state after a hypothetical step, without the next day's prices."""
        scenario, tick = self.scenario, self.scenario.tape.tick_size
        today = [row.path * scenario.tape.num_days + row.day for row in rows]
        close = scenario.shared["close"][torch.tensor(today, device=after.cash.device)]
        value = after.cash + (after.holdings.double() * close.double()).sum(-1)
        columns = (after.cash, value, after.costs, after.fills, after.holdings)
        told = []
        for row, cash, worth, costs, fills, held in zip(rows, *(column.tolist() for column in columns), strict=True):
            amounts = [money(self.text.money_sign, amount * tick) for amount in (cash, worth, costs)]
            filled = [f"{'bought' if shares > 0 else 'sold'} {abs(int(shares))}" for shares in fills if shares]
            positions = [f"{int(shares)} {row.names[slot]}" for slot, shares in enumerate(held) if shares]
            told.append(
                f"{', '.join(filled) or 'nothing traded'}; then cash {amounts[0]}, portfolio {amounts[1]} at today's "
                f"closes, costs {amounts[2]}, holding {', '.join(positions) or 'nothing'}"
            )
        return told


def _slot(row: _Row, symbol: str | None) -> int:
    if symbol is None and row.only is not None:
        return row.only
    slot = None if symbol is None else row.slots.get(" ".join(symbol.upper().split()))
    if slot is None:
        named = "a symbol is needed" if symbol is None else f"there is no symbol {symbol[:40]!r}"
        raise ToolFault(f"{named}; there are {', '.join(row.slots)}")
    return slot


def _days(days: int) -> int:
    if not 1 <= days <= MOST_DAYS:
        raise ToolFault(f"days must be from 1 to {MOST_DAYS}")
    return days
