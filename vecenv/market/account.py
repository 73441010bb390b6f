"""Account data of trading tasks, for evaluation plots and per-step training metrics."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.market.bars import CLOSE
from vecenv.market.tape import MarketTape


def tape_of(env: VecEnv) -> MarketTape:
    """Return the market tape of a trading environment."""
    return env.scenario.tape  # type: ignore[attr-defined]


class AccountView(NamedTuple):
    """Accounts of N rows, money in currency, float64; only the first row's positions. Shapes: (N,), positions (K,)."""

    equity: Tensor
    traded: Tensor
    cash: Tensor
    positions: Tensor


class MarketAccount:
    """Reads the accounts of scenarios on a tape.

    Their state has ``cash``, ``portfolio_value``, ``traded`` in ticks, ``holdings`` in shares, and the position on the
    tape: ``path``, ``day`` and ``start_day``.
    """

    def tape(self, env: VecEnv) -> MarketTape:
        return tape_of(env)

    def view(self, env: VecEnv) -> AccountView:
        state: Any = env.state
        tape = self.tape(env)
        prices = tape.ohlcv[state.path[0], state.day[0], :, CLOSE]
        return AccountView(
            equity=state.portfolio_value.double() * tape.tick_size,
            traded=state.traded.double() * tape.tick_size,
            cash=state.cash.double() * tape.tick_size,
            positions=state.holdings[0].double() * prices.double(),
        )

    def starts(self, state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Return path and first day of episodes, on the CPU. Shape of each: (N,)."""
        return state.path.cpu(), state.start_day.cpu()

    def market_rows(self, state: Any) -> int:  # noqa: ANN401
        """Return the number of distinct days of the market, of any path, among states of any batch shape."""
        # Days are far fewer than 2^32.
        return len(torch.unique((state.path << 32) + state.day))

    def exposure(self, state: Any) -> Tensor:  # noqa: ANN401
        return 1.0 - state.cash.double() / state.portfolio_value.double().clamp(min=1e-12)

    def flow(self, before: Any, after: Any) -> Tensor:  # noqa: ANN401
        """Return the sign of a step's net purchase, int8; 0 where nothing was traded. Shape: that of the batch."""
        spent = (before.cash - after.cash).sign()
        return torch.where(after.traded > 0, spent, 0).to(torch.int8)
