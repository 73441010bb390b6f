"""Registration record of trading on scores of documents."""

from __future__ import annotations

from vecenv.system.later import later
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.stock_trading.task import ACCOUNTS, OF_POLICY, STOCK_TRADING

SIGNALS = STOCK_TRADING.replaced(
    name="signals",
    version="1",
    scenario=later("vecenv.tasks.signals.scenario:SignalTrading"),
    config=SignalsConfig,
    agents=later("vecenv.tasks.signals.agents:AGENTS"),
    domain=ACCOUNTS.replaced(
        generator="news",
        of_policy=(*OF_POLICY, "observed", "sentiment_strength", "risk_strength", "risk_form"),
        best=later("vecenv.tasks.signals.agents:best_rule"),
        pictures=later("vecenv.tasks.signals.figures:figures"),
    ),
)
"""The record of stock trading, with scores."""
