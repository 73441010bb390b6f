"""System prompts of the agent-based market: each task's goal, and the grammar of orders."""

from __future__ import annotations

MARKET = (
    "You trade one stock in a limit order book among background agents, whom your orders move. There are {steps} "
    "steps of {seconds:g} seconds. At each you are shown the market and your account, and you answer with orders "
    "alone; they are carried out at once, and the market goes on until the next step.\n"
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


def order_grammar(max_orders: int, default: int, price: str, tick: str) -> str:
    """Return the description of the grammar.

    Args:
        max_orders: of an answer.
        default: shares of an order without a number.
        price: of the examples.
        tick: the price tick.
    """
    return ORDERS.format(max_orders=max_orders, size=default, default=default, price=price, tick=tick)


def system_prompt(goal: str, steps: int, seconds: float, grammar: str) -> str:
    """Return the system prompt of an episode.

    Args:
        goal: what is asked of the agent.
        steps: of the longest episode.
        seconds: of a step.
        grammar: of the answers.
    """
    return f"{MARKET.format(steps=steps, seconds=seconds)}{goal}\n{grammar}"
