"""Text interface of the tiers: instructions, rendered observations, answers parsed into orders, and tools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from random import Random

from torch import Tensor

from vecenv.tasks.tiers.language import OrderLanguage
from vecenv.tasks.tiers.law import TierState
from vecenv.tasks.tiers.render import TextRenderer
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.tools import TierTools
from vecenv.text.interface import TextInterface
from vecenv.text.money import sign_of
from vecenv.text.symbol_names import shown_names, slots_by_name, told_names

ORDERS = """\
Orders of a day, on one line, separated by ;
  HOLD                 do nothing
  BUY {symbol} 0.5   spend half of the cash; without a number all that the limits allow
  SELL {symbol} 30%  sell 30% of the position; without a number all of it
A number is a share, from 0 to 1 or from 0% to 100%.
{naming}
Symbols: {symbols}"""

TASK = (
    "You trade stocks for {days} days. Every day you are shown the market and your account, and you answer with the "
    "orders of the day alone; they are filled at the day's close.\n"
)


def order_grammar(symbols: Sequence[str]) -> str:
    """Return the description of the order grammar."""
    naming = "The symbol may be left out." if len(symbols) == 1 else "Every order names its symbol."
    return ORDERS.format(symbol=shown_names(tuple(symbols))[0], naming=naming, symbols=told_names(symbols))


def system_prompt(symbols: Sequence[str], days: int) -> str:
    """Return the system prompt of an episode."""
    return TASK.format(days=days) + order_grammar(symbols)


class TierText(TextInterface):
    """Renders observations and parses answers for rows of a tier scenario."""

    called = "orders"

    def __init__(self, scenario: TierTrading) -> None:
        # Symbols of the market from which a random one is drawn.
        self.scenario, self.names = scenario, tuple(scenario.drawn_symbols)

    @cached_property
    def renderer(self) -> TextRenderer:
        config = self.scenario.config
        return TextRenderer(config.context, self.money_sign, config.text_style)

    @property
    def money_sign(self) -> str:
        """Prefix of amounts of money: the rules' setting, else the sign of the market's currency."""
        chosen = self.scenario.config.currency
        return sign_of(self.scenario.tape.currency) if chosen is None else chosen

    def symbols(self, state: TierState) -> list[tuple[str, ...]]:
        """Return the names under which the K slots of each row are shown."""
        return list(map(shown_names, self._own(state)))

    def _own(self, state: TierState) -> list[tuple[str, ...]]:
        if not self.scenario.config.random_symbol:
            return [self.scenario.tape.symbols] * len(state)
        return [(self.names[path % len(self.names)],) for path in state.path.tolist()]

    def render(self, observations: Tensor, state: TierState) -> list[str]:
        return self.renderer.render(self.scenario.unscaled(observations).cpu().numpy(), self.symbols(state))

    def instructions(self, state: TierState) -> list[str]:
        days = (state.end_day - state.start_day).tolist()
        return list(map(system_prompt, self._own(state), days))

    def grammar(self, state: TierState) -> list[str]:
        return list(map(order_grammar, self._own(state)))

    def acted(self, state: TierState) -> Tensor:
        return state.traded > 0

    def examples(self) -> tuple[str, ...]:
        """Return a hold and, with one symbol, which orders need not name, orders of it."""
        single = len(getattr(self.scenario.config, "symbols", ())) == 1
        return ("HOLD", "BUY 0.5", "BUY", "SELL 0.5", "SELL") if single else ("HOLD",)

    def random_answer(self, draw: Random) -> str:
        symbols = shown_names(self.scenario.tape.symbols)
        symbol = draw.choice(symbols)
        named = "" if len(symbols) == 1 else f" {symbol}"
        return draw.choice(["HOLD", f"BUY{named} {draw.random():.2f}", f"SELL{named} {draw.random():.2f}"])

    def parse(self, texts: Sequence[object], state: TierState) -> tuple[Tensor, Tensor]:
        languages = zip(self.languages(state), texts, strict=True)
        every = OrderLanguage({}, most=self.scenario.config.max_orders)
        return every.tensor([language.parse(text) for language, text in languages])

    def languages(self, state: TierState) -> list[OrderLanguage]:
        drawn, most = self.scenario.config.random_symbol, self.scenario.config.max_orders
        rows = zip(state.rule.tolist(), self.symbols(state), strict=True)
        return [self._language(rule, names[0] if drawn else "", most, self.answers_version < 2) for rule, names in rows]

    def _language(self, rule: int, drawn: str, most: int, clamped: bool) -> OrderLanguage:
        key = rule, drawn, most, clamped
        if key not in self._languages:
            self._languages[key] = OrderLanguage(*self.slots_of(rule, drawn), most, clamped)
        return self._languages[key]

    def slots_of(self, rule: int, drawn: str) -> tuple[dict[str, int], int | None]:
        """Return the slots of the symbols that an order may name, and the default slot."""
        known = self._known.get((rule, drawn))
        if known is None:
            market = (drawn,) if drawn else self.scenario.tape.symbols
            symbols = market if drawn else self.scenario.tiers[rule].symbols
            slots = {name: slot for name, slot in slots_by_name(market).items() if market[slot] in symbols}
            known = self._known[rule, drawn] = slots, next(iter(slots.values())) if len(symbols) == 1 else None
        return known

    def tools(self, names: Sequence[str]) -> TierTools:
        return TierTools(self.scenario, self, names)

    @cached_property
    def _languages(self) -> dict[tuple[int, str, int, bool], OrderLanguage]:
        return {}

    @cached_property
    def _known(self) -> dict[tuple[int, str], tuple[dict[str, int], int | None]]:
        return {}
