"""Agents that ignore the market, to test graders: none may be graded above buy-and-hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent
from vecenv.tasks.tiers.agents import BuyAndHold, orders_for, owned_symbols, quotes, rule_column, shares_for

ENTRY, EXIT = 0.25, 0.75
"""Shares of the episode's days after which late entry buys, and early exit sells."""

MIX = 0.5
"""Share of the exposure limit that a constant mix keeps invested."""


class ConstantMix:
    """Keeps `MIX` of the exposure limit invested, the same in each symbol; the largest differences go first."""

    def act(self, env: VecEnv) -> Tensor:
        state, owned, close = env.state, owned_symbols(env), quotes(env).close
        share = MIX * rule_column(env, "max_exposure") / owned.sum(-1, keepdim=True)
        target = torch.floor(share * state.portfolio_value.unsqueeze(-1) / close.clamp(min=1.0))
        change = torch.where(owned, target - state.holdings, 0.0)
        return orders_for(env, change, rank=change.abs() * close)


class LateEntry(BuyAndHold):
    """Buys and holds after a quarter of the days."""

    def __init__(self) -> None:
        super().__init__(delay=ENTRY)


class EarlyExit(BuyAndHold):
    """Buys and holds for three quarters of the days, then sells everything."""

    def act(self, env: VecEnv) -> Tensor:
        state = env.state
        over = state.day - state.start_day >= EXIT * (state.end_day - state.start_day)
        return orders_for(env, torch.where(over.unsqueeze(-1), -state.holdings.double(), self.purchases(env)))


class Churn:
    """Alternates daily between the buy-and-hold portfolio and cash."""

    def act(self, env: VecEnv) -> Tensor:
        state = env.state
        buys = ((state.day - state.start_day) % 2 == 0).unsqueeze(-1)
        budget = rule_column(env, "holding_share") * state.portfolio_value.unsqueeze(-1)
        held = state.holdings.double()
        return orders_for(env, torch.where(buys, torch.where(held > 0, 0.0, shares_for(env, budget)), -held))


class FixedSymbol:
    """Buys one symbol up to the limits and holds it.

    By default row i takes the tier's symbol i, modulo their number: the mean over the rows is one over the symbols.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def act(self, env: VecEnv) -> Tensor:
        state, owned = env.state, owned_symbols(env)
        number = torch.arange(env.num_envs, device=env.device) if self.number is None else self.number
        place = (number % owned.sum(-1)).unsqueeze(-1)
        chosen = owned & (owned.cumsum(-1) - 1 == place) & (state.holdings == 0)
        share = torch.minimum(rule_column(env, "max_position"), rule_column(env, "max_exposure"))
        wanted = shares_for(env, share * state.portfolio_value.unsqueeze(-1))
        return orders_for(env, torch.where(chosen, wanted, 0.0))


BLIND_AGENTS: dict[str, Callable[[], Agent]] = {
    "constant_mix": ConstantMix,
    "late_entry": LateEntry,
    "early_exit": EarlyExit,
    "churn": Churn,
    "fixed_symbol": FixedSymbol,
}
"""Agents by name."""
