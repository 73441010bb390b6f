"""Text interface of trading on order books: a short ladder, the factors, the account; answers parsed into orders."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.text.language import LobLanguage
from vecenv.text.interface import TextInterface

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
    """Renders rows and parses answers of a task whose config shows levels of the book."""

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
        width = max(len(language.price(price)) for price, _ in (*asks, *bids))
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

    def parse(self, texts: Sequence[object], state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Parse each text to orders, (B, 3, 2), see `orders.choice_of_orders`, and validity; an invalid one holds."""
        orders, valid = self.language.tensor([self.language.parse(text) for text in texts])
        return orders.to(state.row.device), valid.to(state.row.device)

    def languages(self, state: Any) -> list[LobLanguage]:  # noqa: ANN401
        return [self.language] * len(state.row)

    def examples(self) -> tuple[str, ...]:
        return "HOLD", "BUY", "SELL", "CLOSE"

    def random_answer(self, draw: Random) -> str:
        unit = self.language.coins(draw.randrange(1, 2 * self.language.unit + 1)).replace(",", "")
        return draw.choice(("HOLD", "CLOSE", "BUY", "SELL", f"BUY {unit}", f"SELL {unit}"))
