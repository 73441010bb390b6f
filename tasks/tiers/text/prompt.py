"""What an agent of the trading tiers is told before the first day: how it answers."""

from __future__ import annotations

from collections.abc import Sequence

ORDERS = """\
Orders of a day, on one line, separated by ;
  HOLD                 do nothing
  BUY {symbol} 0.5   spend half of the cash; without a number all that the limits allow
  SELL {symbol} 30%  sell 30% of the position; without a number all of it
{naming}
Symbols: {symbols}"""

TASK = (
    "You trade stocks for {days} days. Every day you are shown the market and your account, and you answer with the "
    "orders of the day alone; they are filled at the day's close.\n"
)


def order_grammar(symbols: Sequence[str]) -> str:
    """Return how orders are written."""
    naming = "The symbol may be left out." if len(symbols) == 1 else "Every order names its symbol."
    return ORDERS.format(symbol=symbols[0], naming=naming, symbols=", ".join(symbols))


def system_prompt(symbols: Sequence[str], days: int) -> str:
    """Return what a language model is told of an episode before its first day."""
    return TASK.format(days=days) + order_grammar(symbols)
