"""System prompts of the agent-based market: each task's goal, and the grammar of orders."""

from __future__ import annotations

MARKET = (
    "You trade one stock in a limit order book among background agents, whom your orders move. There are {steps} "
    "steps of {seconds:g} seconds. At each you are shown the market and your account, and you answer with orders "
    "alone; they are carried out at once, and the market goes on until the next step.\n"
)

AUCTION = (
    "You trade one stock among background agents. Every {tick_seconds:g} s all orders are cleared at one price, and "
    "none waits for the next. There are {steps} steps of {seconds:g} seconds. At each you are shown the market, what "
    "was not filled last, and your account, and you answer with orders alone; they are cleared next, and the market "
    "goes on until the next step.\n"
)

ORDERS = """\
Answers, on one line separated by ; at most {max_orders} orders
  HOLD                    do nothing
  BUY {size}                 buy at the best prices there are; SELL likewise; without a number {default} shares
  BUY {size} AT {price}      buy up to that price, the rest waits in the book; SELL likewise
  BID {size} AT {price}      have one bid in the book, never traded at once: yours moves there, and keeps its place
                          if it is there already; ASK likewise; BID 0 cancels it
  CANCEL                  cancel all your orders
Orders beyond your limits are cut to them. Prices are multiples of {tick}."""


AUCTION_ORDERS = """\
Answers, on one line separated by ; at most {max_orders} orders
  HOLD                    do nothing
  BUY {size}                 buy at the price of all; SELL likewise; without a number {default} shares
  BUY {size} AT {price}      buy if the price of all is at most this; SELL if it is at least this
Orders beyond your limits are cut to them. Prices are multiples of {tick}."""


def order_grammar(max_orders: int, default: int, price: str, tick: str, auction: bool = False) -> str:
    """Return the description of the grammar; ``price`` is that of its examples, ``tick`` the price tick."""
    return (AUCTION_ORDERS if auction else ORDERS).format(
        max_orders=max_orders, size=default, default=default, price=price, tick=tick
    )


def system_prompt(goal: str, steps: int, seconds: float, grammar: str, auction_seconds: float | None = None) -> str:
    """Return the system prompt of an episode; ``auction_seconds`` is None in a market with an order book."""
    market = MARKET if auction_seconds is None else AUCTION
    return f"{market.format(steps=steps, seconds=seconds, tick_seconds=auction_seconds)}{goal}\n{grammar}"
