"""Registration record of trading on scores of documents."""

from __future__ import annotations

from dataclasses import replace

from vecenv.core.env import VecEnv
from vecenv.tasks.signals.agents import AGENTS, Unmoved
from vecenv.tasks.signals.figures import figures
from vecenv.tasks.signals.scenario import SignalsConfig, SignalTrading
from vecenv.tasks.stock_trading.agents import best
from vecenv.tasks.stock_trading.task import ACCOUNTS, STOCK_TRADING


def best_rule(env: VecEnv) -> Unmoved | None:
    """Return the agent of the best rule where the market knows one, as `STOCK_TRADING` has it."""
    known = best(env)
    return None if known is None else Unmoved(known)


SIGNALS = replace(
    STOCK_TRADING,
    name="signals",
    version="1",
    scenario=SignalTrading,
    config=SignalsConfig,
    agents=AGENTS,
    domain=replace(ACCOUNTS, generator="news", best=best_rule, pictures=figures),
)
"""The record of stock trading, with scores."""
