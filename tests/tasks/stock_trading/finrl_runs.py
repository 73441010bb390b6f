"""Markets and actions that this project and FinRL's environment both play, and what of a run is recorded.

`record_finrl.py` plays them with FinRL's own environment and writes `finrl_record.json`;
`tests/tasks/stock_trading/test_beside_finrl.py` plays them here and holds the account to those numbers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from tests.tasks.stock_trading.oracle import Account, Market, Rules
from vecenv.market.bars import CLOSE
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape

RECORD = Path(__file__).with_name("finrl_record.json")
TICK = 1e-4
SEEDS = range(8)
DOW_DAYS = 1000
POINTS = 10
"""Days of a run whose cash and total asset are recorded, evenly spaced, the last day included."""


@dataclass(frozen=True)
class Game:
    """One market under one set of rules, and the actions of some runs.

    Attributes:
        tape: the market, one path, all symbols tradable on all days.
        actions: Shape: (runs, T, K), float32.
        cash: at the start, in currency.
        hmax: shares of the largest order.
        commission: share of the traded value.
    """

    tape: MarketTape
    actions: np.ndarray
    cash: int
    hmax: int = 100
    commission: float = 0.001

    @property
    def close_ticks(self) -> np.ndarray:
        """Closes of the days played and the day after them. Shape: (T + 1, K), int64."""
        return self.tape.price_ticks(CLOSE)[0, : self.actions.shape[1] + 1].numpy().astype(np.int64)

    def orders(self, run: int, day: int) -> np.ndarray:
        """Return the wanted shares. Shape: (K,)."""
        return np.trunc(self.actions[run, day] * np.float32(self.hmax)).astype(int)


@dataclass(frozen=True)
class Run:
    """A run day by day, after each day's orders and at the next close.

    Attributes:
        cash: currency. Shape: (T,).
        holdings: shares. Shape: (T, K), int64.
        value: total asset, currency. Shape: (T,).
    """

    cash: np.ndarray
    holdings: np.ndarray
    value: np.ndarray

    def digest(self, days: int | None = None) -> str:
        """Hash the holdings of the first days, all by default, as little-endian int32, day by day. SHA-256."""
        return hashlib.sha256(self.holdings[:days].astype("<i4").tobytes()).hexdigest()

    def points(self) -> list[list[float]]:
        """Return (days played, cash, total asset) of the recorded days."""
        length = len(self.cash)
        days = range(length // POINTS, length + 1, length // POINTS)
        return [[day, round(float(self.cash[day - 1]), 6), round(float(self.value[day - 1]), 6)] for day in days]


def dow_game(folder: Path) -> Game:
    """The 28 symbols of us_dow30.parquet that have all its days, its first 1,000 days, eight runs of random actions."""
    path = folder / "us_dow30.parquet"
    days = pd.read_parquet(path, columns=["symbol"])["symbol"].value_counts()
    symbols = sorted(days.index[days == days.max()])
    tape = load_market(path, MarketOptions(symbols=symbols, features=(), tick_size=TICK))
    # numpy promises the stream of RandomState for good.
    draws = [np.random.RandomState(seed).uniform(-1, 1, (DOW_DAYS, len(symbols))) for seed in SEEDS]
    return Game(tape, np.stack(draws).astype(np.float32), cash=1_000_000)


def planted_game() -> Game:
    """Prices of whole currency units and orders of four sizes: many ties, and commissions of whole ticks."""
    num_days, num_symbols = 120, 8
    draw = np.random.RandomState(0)
    walk = draw.randint(20, 200, num_symbols) + draw.randint(-3, 4, (num_days + 1, num_symbols)).cumsum(0)
    close = np.maximum(walk, 20).astype(np.float64)
    frame = pd.DataFrame(
        {
            "date": np.repeat(np.datetime64("2020-01-01") + np.arange(num_days + 1), num_symbols),
            "symbol": np.tile([f"S{k}" for k in range(num_symbols)], num_days + 1),
            **{name: close.ravel() for name in ("open", "high", "low", "close")},
            "volume": 1_000.0,
        }
    )
    tape = load_market(frame, MarketOptions(features=(), tick_size=TICK))
    actions = draw.randint(-4, 5, (1, num_days, num_symbols)) / 4
    return Game(tape, actions.astype(np.float32), cash=20_000)


def our_runs(game: Game) -> list[Run]:
    """Play all runs of a game with this project's rules, as the oracle states them."""
    close = game.close_ticks.tolist()
    everything = [[True] * len(game.tape.symbols)] * len(close)
    market = Market(TICK, close, close, everything, gate_series=[0.0] * len(close), features=[])
    rules = Rules(rationing="by_size", initial_cash=game.cash, hmax=game.hmax, commission=game.commission)
    return [_our_run(Account(rules, market, 0, len(actions)), actions) for actions in game.actions]


def _our_run(account: Account, actions: np.ndarray) -> Run:
    after = []
    for action in actions.tolist():
        account.step(action)
        after.append((account.cash, account.holdings, account.value))
    cash, holdings, value = zip(*after, strict=True)
    return Run(np.array(cash) * TICK, np.array(holdings), np.array(value) * TICK)


def game_digest(game: Game) -> str:
    """Hash closes in ticks, as int32, and actions, as float32, both little-endian. SHA-256."""
    return hashlib.sha256(game.close_ticks.astype("<i4").tobytes() + game.actions.astype("<f4").tobytes()).hexdigest()


def days_equal(one: Run, other: Run) -> int:
    """Count the days before the holdings of two runs first differ."""
    apart = (one.holdings != other.holdings).any(1)
    return int(apart.argmax()) if apart.any() else len(apart)


def shares_apart(game: Game, run: int, day: int, theirs: Run, ours: Run) -> list[list]:
    """Return (symbol, wanted shares, their holding, ours) of the symbols whose holdings differ after a day."""
    holdings, others, orders = ours.holdings[day], theirs.holdings[day], game.orders(run, day)
    apart = (others != holdings).nonzero()[0]
    return [[game.tape.symbols[k], int(orders[k]), int(others[k]), int(holdings[k])] for k in apart]


@cache
def record() -> dict:
    """Return what FinRL's environment made of the games."""
    return json.loads(RECORD.read_text())
