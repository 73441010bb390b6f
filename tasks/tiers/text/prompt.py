"""System prompt of the trading tiers: the task and the order grammar."""

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
    """Return the description of the order grammar."""
    naming = "The symbol may be left out." if len(symbols) == 1 else "Every order names its symbol."
    return ORDERS.format(symbol=symbols[0], naming=naming, symbols=", ".join(symbols))


def system_prompt(symbols: Sequence[str], days: int) -> str:
    """Return the system prompt of an episode."""
    return TASK.format(days=days) + order_grammar(symbols)
