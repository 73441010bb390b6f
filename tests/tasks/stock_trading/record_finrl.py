"""Play two games with FinRL's own environment and write down what it makes of them.

    pip download --no-deps finrl==0.3.7 && unzip FinRL-0.3.7-py3-none-any.whl -d FOLDER
    FILE=FOLDER/finrl/meta/env_stock_trading/env_stocktrading.py
    export VECENV_DATA=...
    python -m tests.tasks.stock_trading.record_finrl $FILE simd
    NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL" python -m tests.tasks.stock_trading.record_finrl $FILE plain

The file is loaded alone, because its package imports brokers. It needs gymnasium, stable-baselines3 and matplotlib.
The second argument names numpy's sort, which decides FinRL's ties: ``simd`` where the processor has AVX2 or AVX-512.
`test_beside_finrl.py` plays the games here and holds the account to ``finrl_record.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import torch

from vecenv.core.engine import Engine
from vecenv.market.bars import CLOSE
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

RECORD = Path(__file__).with_name("finrl_record.json")
TICK = 1e-4
SEEDS = range(8)
DOW_DAYS = 1000
POINTS = 10
"""Days of a run whose cash and total asset are recorded, evenly spaced, the last day included."""
BY_POSITION = "position"


@dataclass(frozen=True)
class Game:
    """One market, all of whose symbols trade every day, and the actions of some runs, (runs, T, K), float32.

    The largest order is of 100 shares, at a commission of 0.1%; cash is in currency.
    """

    tape: MarketTape
    actions: np.ndarray
    cash: int

    @property
    def close_ticks(self) -> np.ndarray:
        """Closes of the days played and the day after them. Shape: (T + 1, K), int64."""
        return self.tape.price_ticks(CLOSE)[0, : self.actions.shape[1] + 1].numpy().astype(np.int64)

    def digest(self) -> str:
        """Hash closes in ticks, as int32, and actions, as float32, both little-endian. SHA-256."""
        numbers = self.close_ticks.astype("<i4").tobytes() + self.actions.astype("<f4").tobytes()
        return hashlib.sha256(numbers).hexdigest()


@dataclass(frozen=True)
class Run:
    """Cash and total asset in currency, (T,), and shares, (T, K), after each day's orders and at the next close."""

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
    """Play all runs of a game with this project's account."""
    num_runs, num_days, _ = game.actions.shape
    config = StockTradingConfig(
        features=(), rationing="by_size", initial_cash=game.cash, random_start=False, episode_length=num_days
    )
    bound, ids, after = Engine(StockTrading(game.tape, config), num_runs).bound(), torch.arange(num_runs), []
    rows = bound.start(torch.tensor(0), ids, torch.zeros_like(ids))
    for action in torch.from_numpy(game.actions).unbind(1):
        rows = bound.step(rows, action).rows
        after.append((rows.state.cash, rows.state.holdings, rows.state.portfolio_value))
    cash, holdings, value = (torch.stack(days, dim=1).numpy() for days in zip(*after, strict=True))
    return [Run(cash[run] * TICK, holdings[run].astype(np.int64), value[run] * TICK) for run in range(num_runs)]


class _NumpyByPosition:
    """numpy for FinRL's file, with ties from the last position to the first: it buys from the end, so by position."""

    def __getattr__(self, name: str) -> object:
        return getattr(np, name)

    @staticmethod
    def argsort(orders: np.ndarray) -> np.ndarray:
        return np.lexsort((-np.arange(len(orders)), orders))


class FinrlPlayer:
    """FinRL's environment on one game, with `BY_POSITION` as ties, or another name for the sort that numpy brings."""

    def __init__(self, module: ModuleType, game: Game, ties: str) -> None:
        self.module, self.game = module, game
        self.numpy = _NumpyByPosition() if ties == BY_POSITION else np
        self.closes = game.close_ticks / round(1 / TICK)
        days, self.width = self.closes.shape
        day = np.repeat(np.arange(days), self.width)
        # Its account reads the first indicator as a mark that a symbol cannot trade: zeros, so that all can.
        columns = {
            "date": day.astype(str),
            "tic": np.tile(game.tape.symbols, days),
            "close": self.closes.ravel(),
            "mark": 0.0,
        }
        self.env = module.StockTradingEnv(
            df=pd.DataFrame(columns, index=day), stock_dim=self.width, hmax=100, initial_amount=game.cash,
            num_stock_shares=[0] * self.width, buy_cost_pct=[0.001] * self.width,
            sell_cost_pct=[0.001] * self.width, reward_scaling=1e-4, state_space=1 + 3 * self.width,
            action_space=self.width, tech_indicator_list=["mark"],
        )  # fmt: skip

    def run(self, number: int) -> Run:
        """Play one run from its start."""
        self.env.reset()
        return self._played([self._step(action) for action in self.game.actions[number]])

    def from_accounts(self, number: int, ours: Run) -> Run:
        """Play every day of one run from the account that this project has on that day."""
        self.env.reset()
        after = []
        cash, holdings = float(self.game.cash), [0] * self.width
        for day, action in enumerate(self.game.actions[number]):
            self.env.day = day
            self.env.state = [cash, *self.closes[day].tolist(), *holdings, *[0.0] * self.width]
            after.append(self._step(action))
            cash, holdings = float(ours.cash[day]), ours.holdings[day].tolist()
        return self._played(after)

    def _step(self, action: np.ndarray) -> tuple[float, list[float], float]:
        self.module.np = self.numpy
        try:
            state = self.env.step(action)[0]
        finally:
            self.module.np = np
        return state[0], state[1 + self.width : 1 + 2 * self.width], self.env.asset_memory[-1]

    @staticmethod
    def _played(after: list[tuple[float, list[float], float]]) -> Run:
        cash, holdings, value = zip(*after, strict=True)
        return Run(np.array(cash), np.array(holdings).astype(np.int64), np.array(value))


def recorded_run(player: FinrlPlayer, number: int, ours: Run) -> dict:
    """Play one run and describe it, and where and why it parts from ours."""
    run, daily = player.run(number), player.from_accounts(number, ours)
    apart = (run.holdings != ours.holdings).any(1)
    equal = int(apart.argmax()) if apart.any() else len(apart)
    described = {
        "days_equal": equal,
        "holdings_sha256": run.digest(),
        "points": run.points(),
        "last_holdings": run.holdings[-1].tolist(),
        "last_cash_apart": round(float(run.cash[-1] - ours.cash[-1]), 2),
        "last_value_apart": round(float(run.value[-1] - ours.value[-1]), 2),
        "last_shares_apart": int(np.abs(run.holdings[-1] - ours.holdings[-1]).sum()),
        "days_apart_from_our_account": int((daily.holdings != ours.holdings).any(1).sum()),
        "sha256_from_our_account": daily.digest(),
        "parting": None,
    }
    if equal < len(run.cash):
        held = run.holdings[equal], ours.holdings[equal]
        from_our_account = (daily.holdings[equal] != held[1]).any()
        wanted = np.trunc(player.game.actions[number, equal] * np.float32(100)).astype(int)
        described["parting"] = {
            # From one account a different purchase is the sort's doing; otherwise cash was apart before.
            "cause": "tie" if from_our_account else "rounding",
            "sha256_before": run.digest(equal),
            "cash_before": round(float(run.cash[equal - 1]), 6),
            "cash_apart_before": round(float(run.cash[equal - 1] - ours.cash[equal - 1]), 4),
            # Symbol, wanted shares, their holding, ours.
            "shares_apart": [
                [
                    player.game.tape.symbols[k],
                    *(int(shares[k]) for shares in (wanted, run.holdings[equal], ours.holdings[equal])),
                ]
                for k in (run.holdings[equal] != ours.holdings[equal]).nonzero()[0]
            ],
        }
    return described


def recorded_game(module: ModuleType, game: Game, ties: str) -> list[dict]:
    player = FinrlPlayer(module, game, ties)
    return [recorded_run(player, number, ours) for number, ours in enumerate(our_runs(game))]


def load_environment(path: Path) -> ModuleType:
    """Load FinRL's file without its package."""
    spec = importlib.util.spec_from_file_location("env_stocktrading", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Record both games, with ties by position and with the sort that numpy has here."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("environment", type=Path, help="FinRL's env_stocktrading.py")
    parser.add_argument("sort", choices=["simd", "plain"], help="which of numpy's sorts runs here")
    arguments = parser.parse_args()
    module = load_environment(arguments.environment)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record |= {"finrl": "0.3.7", "numpy": np.__version__}
    games = {"planted": planted_game(), "dow": dow_game(Path(os.environ["VECENV_DATA"]))}
    for name, game in games.items():
        section = record.setdefault(name, {})
        section |= {"symbols": list(game.tape.symbols), "game_sha256": game.digest()}
        section["first_day"] = str(game.tape.dates[0])
        section["seeds"] = list(SEEDS) if name == "dow" else [0]
        runs = section.setdefault("runs", {})
        runs |= {ties: recorded_game(module, game, ties) for ties in (BY_POSITION, arguments.sort)}
    text = json.dumps(record, separators=(",", ":"))
    # A line for each run.
    RECORD.write_text(text.replace('{"days_equal"', '\n{"days_equal"') + "\n")


if __name__ == "__main__":
    main()
