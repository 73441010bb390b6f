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

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vecenv.market.state_indicators import LABELS, LEVELS, labels_of
from vecenv.tasks.tiers.language import Order, OrderLanguage
from vecenv.tasks.tiers.law import TierState
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.money import money
from vecenv.tools.calculator import Calculator
from vecenv.tools.declaration import ToolFault
from vecenv.tools.tool_set import Callers, Reply, each, sound, tool

if TYPE_CHECKING:
    from vecenv.tasks.tiers.text import TierText

MOST_DAYS = 60
"""Maximum number of days in a history."""

Slots = tuple[dict[str, int], int | None]
"""Slots of the tradable symbols of a row, by upper-case name, and the default slot, None of several symbols."""


class TierTools(Calculator):
    """Tools of a tier scenario; ``offered`` names tools, families, or all, and an unknown name is a ValueError."""

    example = "position"
    turn = "day"

    def __init__(self, scenario: TierTrading, text: TierText, offered: Sequence[str]) -> None:
        super().__init__(offered)
        self.scenario, self.text = scenario, text

    @tool(
        "market",
        f"closes of a symbol up to today; symbol, and days from 1 to {MOST_DAYS}, 5 by default",
        {"symbol": str, "days": int},
        {"symbol": None, "days": 5},
    )
    def price_history(self, callers: Callers[TierState], symbol: Sequence[str | None], days: Tensor) -> list[Reply]:
        def told(places: list[int], asked: list[tuple[int, int]]) -> list[str]:
            state, sign = callers.state[places], self.text.money_sign
            slots = [slot for slot, _ in asked]
            closes = self._closes(state, slots, [length for _, length in asked])
            return [
                f"{names[slot]}, closes of the last {len(prices)} days, today last: "
                f"{', '.join(money(sign, price) for price in prices)}"
                for names, slot, prices in zip(self.text.symbols(state), slots, closes, strict=True)
            ]

        return sound(each(_asked, self._slots(callers.state), symbol, days), told)

    @tool(
        "market",
        "an indicator of a symbol up to today; name, symbol, and days as for price_history, 1 by default",
        {"name": str, "symbol": str, "days": int},
        {"symbol": None, "days": 1},
    )
    def indicator(
        self, callers: Callers[TierState], name: Sequence[str], symbol: Sequence[str | None], days: Tensor
    ) -> list[Reply]:
        tape = self.scenario.tape

        def named(name: str, slots: Slots, symbol: str | None, length: int) -> tuple[str, int, int]:
            slot = _slot(slots, symbol)
            if name not in tape.feature_names:
                raise ToolFault(f"there is no indicator {name[:40]!r}; there are {', '.join(tape.feature_names)}")
            return name, slot, _days(length)

        def told(chosen: list[int], asked: list[tuple[str, int, int]]) -> list[str]:
            state = callers.state[chosen]
            names, slots, wanted = zip(*asked, strict=True)
            # At most the days since the symbol's listing.
            lengths = [len(prices) for prices in self._closes(state, slots, wanted)]
            days = state.day[:, None] - torch.arange(max(lengths) - 1, -1, -1, device=state.day.device)
            columns = [[tape.feature_names.index(name)] for name in names]
            places = (days.clamp(min=0), torch.tensor(slots)[:, None], torch.tensor(columns))
            seen = tape.features[state.path[:, None], *places].tolist()
            shown = _written(names, [row[-length:] for row, length in zip(seen, lengths, strict=True)])
            return [
                f"{symbols[slot]}, {name} of the last {len(texts)} days, today last: {', '.join(texts)}"
                for symbols, name, slot, texts in zip(self.text.symbols(state), names, slots, shown, strict=True)
            ]

        return sound(each(named, name, self._slots(callers.state), symbol, days), told)

    @tool("account", "what you hold of a symbol; symbol", {"symbol": str}, {"symbol": None})
    def position(self, callers: Callers[TierState], symbol: Sequence[str | None]) -> list[Reply]:
        sign, tick = self.text.money_sign, self.scenario.tape.tick_size

        def told(places: list[int], slots: list[int]) -> list[str]:
            state = callers.state[places]
            index = torch.tensor(slots, device=state.day.device)[:, None]
            held = [
                column.gather(1, index).flatten().tolist()
                for column in (state.holdings, state.average_price, state.days_held)
            ]
            closes = self._closes(state, slots, [1] * len(slots))
            rows = zip(self.text.symbols(state), slots, closes, *held, strict=True)
            return [
                _held(names[slot], sign, int(shares), average * tick, prices, int(days))
                for names, slot, prices, shares, average, days in rows
            ]

        return sound(each(_slot, self._slots(callers.state), symbol), told)

    @tool(
        "account", "what orders would do today, without placing them; orders, written as in an answer", {"orders": str}
    )
    def what_if(self, callers: Callers[TierState], orders: Sequence[str]) -> list[Reply]:
        """Tell what orders would do, by one hypothetical step of all rows that ask, without the next day's prices."""

        def told(places: list[int], wished: list[tuple[Order, ...]]) -> list[str]:
            today = callers.state[places]
            actions, _ = OrderLanguage({}, most=self.scenario.config.max_orders).tensor(wished)
            return self._after(today, callers.step(places, actions.to(today.day.device)))

        return sound(each(self._orders, self._slots(callers.state), orders), told)

    def _slots(self, state: TierState) -> list[Slots]:
        drawn = self.scenario.config.random_symbol
        rows = zip(state.rule.tolist(), self.text.symbols(state), strict=True)
        return [self.text.slots_of(rule, names[0] if drawn else "") for rule, names in rows]

    def _closes(self, state: TierState, slots: Sequence[int], days: Sequence[int]) -> list[list[float]]:
        """Return the last closes of each row up to today, at most since the listing, in currency."""
        tape, device = self.scenario.tape, state.day.device
        back = torch.arange(max(days) - 1, -1, -1, device=device)
        wanted = state.day[:, None] - back
        known = (wanted >= 0) & (back < torch.tensor(days, device=device)[:, None])
        first = (state.path * tape.num_days)[:, None]
        columns = torch.tensor(slots, device=device)[:, None]
        ticks = self.scenario.shared["close"][first + wanted.clamp(min=0), columns].where(known, 0).tolist()
        return [[price * tape.tick_size for price in row if price > 0] for row in ticks]

    def _orders(self, slots: Slots, text: str) -> tuple[Order, ...]:
        try:
            return OrderLanguage(*slots, self.scenario.config.max_orders).read(text)
        except AnswerFault as fault:
            raise ToolFault(f"these are no orders of a day: {fault}") from fault

    def _after(self, today: TierState, after: TierState) -> list[str]:
        """Return the effect of orders, from the states before and after a hypothetical step."""
        tape, sign = self.scenario.tape, self.text.money_sign
        close = self.scenario.shared["close"][today.path * tape.num_days + today.day]
        value = after.cash + (after.holdings.double() * close.double()).sum(-1)
        columns = (after.cash, value, after.costs, after.fills, after.holdings)
        rows = zip(self.text.symbols(today), *(column.tolist() for column in columns), strict=True)
        told = []
        for names, cash, worth, costs, fills, held in rows:
            amounts = [money(sign, amount * tape.tick_size) for amount in (cash, worth, costs)]
            filled = [f"{'bought' if shares > 0 else 'sold'} {abs(int(shares))}" for shares in fills if shares]
            positions = [f"{int(shares)} {names[slot]}" for slot, shares in enumerate(held) if shares]
            told.append(
                f"{', '.join(filled) or 'nothing traded'}; then cash {amounts[0]}, portfolio {amounts[1]} at today's "
                f"closes, costs {amounts[2]}, holding {', '.join(positions) or 'nothing'}"
            )
        return told


def _written(names: Sequence[str], values: Sequence[Sequence[float]]) -> list[list[str]]:
    """Return the values of an indicator of each row as texts, with their words or as these alone."""
    told = [[f"{value:.4g}" for value in row] for row in values]
    for name in dict.fromkeys(names):
        if name not in LABELS:
            continue
        own = [place for place, other in enumerate(names) if other == name]
        words = iter(labels_of(name, np.array([value for place in own for value in values[place]])).tolist())
        for place in own:
            labels = zip(told[place], words, strict=False)
            told[place] = [f"{number} ({word})" if name in LEVELS else word for number, word in labels]
    return told


def _held(name: str, sign: str, shares: int, average: float, prices: Sequence[float], days: int) -> str:
    if not shares:
        return f"{name}: no shares"
    price = prices[-1]
    return (
        f"{name}: {shares} shares, average price {money(sign, average)}, value {money(sign, shares * price)}, "
        f"profit {price / average - 1:+z.1%}, held for {days} days"
    )


def _asked(slots: Slots, symbol: str | None, days: int) -> tuple[int, int]:
    return _slot(slots, symbol), _days(days)


def _slot(slots: Slots, symbol: str | None) -> int:
    known, only = slots
    if symbol is None and only is not None:
        return only
    slot = None if symbol is None else known.get(" ".join(symbol.upper().split()))
    if slot is None:
        named = "a symbol is needed" if symbol is None else f"there is no symbol {symbol[:40]!r}"
        raise ToolFault(f"{named}; there are {', '.join(known)}")
    return slot


def _days(days: int) -> int:
    if not 1 <= days <= MOST_DAYS:
        raise ToolFault(f"days must be from 1 to {MOST_DAYS}")
    return days
