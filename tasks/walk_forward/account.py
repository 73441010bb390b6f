"""One account that several policies trade one after the other: each goes on with the cash and shares that there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vecenv.learn.settings.ensemble import Combination
from vecenv.market.tape import MarketTape
from vecenv.tasks.backtest.opening import History
from vecenv.tasks.backtest.result import Played, played
from vecenv.tasks.stock_trading.law import StockState

CARRIED = (
    "cash", "holdings", "portfolio_value", "average_price", "traded", "costs", "buy_ratio", "invalid_actions",
)  # fmt: skip
"""Fields of the state that go on. What is counted from the start of an episode, `start_value` and the days, begins
anew with each policy."""

OF_REWARDS = ("moments", "benchmark")
"""Fields that rewards alone read."""


class WalkedAccount:
    """The account of a walk, played span by span.

    Attributes:
        tape: the days of all spans.
    """

    def __init__(self, tape: MarketTape) -> None:
        self.tape = tape
        self._parts: list[tuple[int, Played]] = []
        self._over = False

    def play(self, history: History, combination: Combination | None = None) -> None:
        """Play the days of a span, whose first one is the last of the span before, by the policies of its history.

        An account that the rules have ended stays as it is.
        """
        if self._over:
            return
        config, start = history.config, None
        if self._parts:
            last = self._parts[-1][1].states[-1:]
            config, start = self._continued(config, last)
        env = history.env(config)
        part = played(env, history.agent(env, combination)[1], history.settings.seed, start)
        offset = int(np.searchsorted(self.tape.dates, history.tape.dates[0]))
        self._parts.append((offset, part))
        # By its rules, perhaps on the very day on which the next policy would take it over.
        self._over = bool(env.rows.terminated.all())

    def _continued(self, config: Any, last: StockState) -> tuple[Any, dict[str, Tensor]]:  # noqa: ANN401
        """Return the rules with the account that there is, which bounds what is held, and its exact state."""
        tick = self.tape.tick_size
        held = tuple(last.holdings[0].double().tolist())
        config = replace(config, initial_cash=max(float(last.cash) * tick, tick), initial_holdings=held)
        start = {name: getattr(last, name) for name in CARRIED}
        return config, start | {"start_value": last.portfolio_value}

    def joined(self) -> Played:
        """Return the account from its first day to its last, in the days of the whole tape."""
        parts = []
        for number, (offset, part) in enumerate(self._parts, 1):
            # The close at which the next policy takes over is the first one of its span.
            states = part.states if number == len(self._parts) else part.states[:-1]
            fields = {name: getattr(states, name) for name in states.keys()}  # noqa: SIM118  # not a dict
            fields |= {name: fields[name] + offset for name in ("day", "start_day", "end_day")}
            parts.append(fields | {name: fields[name][:, :0] for name in OF_REWARDS})
        whole = {name: torch.cat([fields[name] for fields in parts]) for name in parts[0]}
        states = StockState(**whole, batch_size=[len(whole["day"])])
        return Played(states, torch.cat([part.actions for _, part in self._parts]))
