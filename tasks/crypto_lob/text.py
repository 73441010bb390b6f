r"""Text interface of trading on order books: a short ladder, the factors, the account; answers parsed into orders.

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
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.orders import KEEP, LARGEST_ORDER, Order
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown
from vecenv.text.interface import TextInterface

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
        """Return orders, (B, 3, 2), int64, see `orders.choice_of_orders`, and validity; an invalid text holds."""
        rows = [INVALID if orders is None else orders for orders in parsed]
        actions = torch.tensor(rows, dtype=torch.int64).reshape(len(parsed), 3, 2)
        return actions, torch.tensor([orders is not None for orders in parsed], dtype=torch.bool)


SYSTEM = (
    "You trade one coin on an exchange. There are {steps} steps of {seconds:g} seconds. At each you are shown the "
    "order book and your position, and answer with orders. They reach the market {latency}. Market orders take "
    "what the book shows, and pay a fee of {fee:g} basis points. You may hold or be short at most {most} coins; "
    "what you hold is closed at the end.\nMake as much profit as you can.\n{grammar}"
)

GRAMMAR = """\
Answers, on lines or separated by ;
  HOLD               do nothing
  BUY {unit}           buy at the market; SELL likewise; without a number {unit} coins
  CLOSE              close the position"""

RESTING = """
  BID {unit} AT {price}   have one bid in the book, which pays {fee:g} basis points; ASK likewise; BID 0 cancels it
  CANCEL             cancel both
Orders that you do not name stay. A bid or ask that would trade at once is refused. Prices are multiples of {tick}."""


class LobText(TextInterface):
    """Renders rows, with as many levels of the book as the config shows, and parses answers."""

    called = "orders"
    language: LobLanguage

    def __init__(self, scenario: CryptoLob) -> None:
        tape = scenario.tape
        self.scenario, self.config = scenario, scenario.config
        self.language = LobLanguage(tape.tick_size, tape.lot_size, tape.unit, self.config.action == "limit")

    def render(self, observations: Tensor, state: Any) -> list[str]:  # noqa: ANN401
        tape, config = self.scenario.tape, self.config
        rows = state.row.cpu().long()
        columns = (
            (state.row - state.start_row).cpu(),
            tape.price[rows, :, : config.depth],
            tape.size[rows, :, : config.depth],
            state.position.cpu(),
            state.age.cpu(),
            (state.position.long() * self.scenario.shared["mid"][state.row.long()].abs() - state.trade_cost).cpu(),
            state.resting.cpu(),
            observations[:, -len(tape.factor_names) :].cpu() if tape.factor_names else torch.zeros(len(rows), 0),
            tape.open[rows],
        )
        shown = zip(*(column.tolist() for column in columns), strict=True)
        return ["\n".join(self._lines(*row)) for row in shown]

    def _lines(
        self,
        step: int,
        prices: list[list[int]],
        sizes: list[list[int]],
        position: int,
        age: int,
        profit: int,
        resting: list[list[int]],
        factors: list[float],
        fresh: bool,
    ) -> list[str]:
        """Return the lines of one row; prices in ticks and sizes in lots by side, asks first; profit in money."""
        config, tape, language = self.config, self.scenario.tape, self.language
        ended = step >= config.episode_steps
        lines = ["The episode has ended." if ended else f"Step {step + 1} of {config.episode_steps}"]
        if not fresh:
            lines.append("There is no fresh book: these are the last prices, and nothing can be traded at them.")
        asks, bids = ([(p, s) for p, s in zip(*side, strict=True) if p] for side in zip(prices, sizes, strict=True))
        if levels := [*asks, *bids]:
            width = max(len(language.price(price)) for price, _ in levels)
            lines.append(f"{'bids':>12}  {'price':>{width}}  {'asks':>12}")
            lines += [f"{'':>12}  {language.price(p):>{width}}  {language.coins(s):>12}" for p, s in reversed(asks)]
            lines += [f"{language.coins(s):>12}  {language.price(p):>{width}}" for p, s in bids]
        told = zip(tape.factor_names, factors, strict=True)
        lines.append(
            "Factors: " + (", ".join(f"{name.replace('_', ' ')} {value:+.3g}" for name, value in told) or "none")
        )
        held = f"{'-' if position < 0 else ''}{language.coins(abs(position))} coins"
        if position:
            held += f" for {age} {'step' if age == 1 else 'steps'}, open profit {profit * tape.money_size:+,.2f}"
        lines.append(f"Position: {held}")
        if config.action == "limit":
            orders = [
                f"{side} {language.coins(left)} at {language.price(price)}, about {language.coins(ahead)} before it"
                for side, (price, left, ahead) in zip(("bid", "ask"), resting, strict=True)
                if left
            ]
            lines.append(f"Your orders: {'; '.join(orders) or 'none'}")
        most = self.scenario.most
        lines.append(f"You may buy {language.coins(most - position)} and sell {language.coins(most + position)}.")
        return lines

    def grammar(self, state: Any) -> list[str]:  # noqa: ANN401
        language, unit = self.language, self.language.coins(self.language.unit)
        prices = self.scenario.tape.price[state.row.cpu().long(), 1, 0].tolist()
        told = GRAMMAR.format(unit=unit)
        if not language.resting:
            return [told] * len(prices)
        return [
            told
            + RESTING.format(
                unit=unit, price=f"{price * language.tick:f}", fee=self.config.maker_fee, tick=f"{language.tick:f}"
            )
            for price in prices
        ]

    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        config = self.config
        late = {0: "at once", 1: "one step later"}.get(config.latency, f"{config.latency} steps later")
        return [
            SYSTEM.format(
                steps=config.episode_steps,
                seconds=config.step_gap,
                latency=late,
                fee=config.taker_fee + config.slippage,
                most=self.language.coins(self.scenario.most),
                grammar=grammar,
            )
            for grammar in self.grammar(state)
        ]

    def acted(self, state: Any) -> Tensor:  # noqa: ANN401
        return (state.bought + state.sold > 0) | (state.resting[..., 1] > 0).any(-1)

    def examples(self) -> tuple[str, ...]:
        return "HOLD", "BUY", "SELL", "CLOSE"

    def random_answer(self, draw: Random) -> str:
        unit = self.language.coins(draw.randrange(1, 2 * self.language.unit + 1)).replace(",", "")
        return draw.choice(("HOLD", "CLOSE", "BUY", "SELL", f"BUY {unit}", f"SELL {unit}"))
