"""Accounts of episodes on a tape, read while an agent plays."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.finance.evaluation import AccountRecord
from vecenv.finance.metrics import EpisodeCurves
from vecenv.learn.domain import AgentRecord, Watch
from vecenv.learn.evaluation import Agent, play
from vecenv.market.bars import CLOSE
from vecenv.market.tape import MarketTape


def tape_of(env: VecEnv) -> MarketTape:
    """Return the market tape of a trading environment."""
    return env.scenario.tape  # type: ignore[attr-defined]


class Accounts(Watch):
    """Equity, traded value and cash of every row in currency, and the first row's positions, after each step."""

    def __init__(self, env: VecEnv) -> None:
        self.year = tape_of(env).periods_per_year
        self.columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.step(env, env.ended == 0)

    def step(self, env: VecEnv, running: Tensor) -> None:
        state, tape = env.held.state, tape_of(env)
        prices = tape.ohlcv[state.path[0], state.day[0], :, CLOSE]
        value, traded, cash = (getattr(state, name).double() for name in ("portfolio_value", "traded", "cash"))
        traded = torch.where(running, traded * tape.tick_size, 0.0)
        positions = state.holdings[0].double() * prices.double()
        self.columns.append((value * tape.tick_size, traded, cash * tape.tick_size, positions))

    def record(self, record: AgentRecord) -> AccountRecord:
        equity, traded, cash, positions = (torch.stack(column) for column in zip(*self.columns, strict=True))
        curves = EpisodeCurves(equity, traded[1:], cash, record.length, self.year)
        return AccountRecord(**vars(record), curves=curves, positions=positions)


def play_account(env: VecEnv, agent: Agent, seed: int) -> AccountRecord:
    """Play as `vecenv.learn.evaluation.play`; ValueError of a task that does not trade on a tape."""
    record = play(env, agent, seed)
    if not isinstance(record, AccountRecord):
        raise ValueError(f"{env.scenario.name} does not trade on a tape")
    return record
