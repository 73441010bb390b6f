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

import hashlib
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

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


# numpy for FinRL's file, with ties from the last position to the first: it buys from the end, so by position.
numpy_by_position = SimpleNamespace(
    **vars(np) | {"argsort": lambda orders: np.lexsort((-np.arange(len(orders)), orders))}
)


def finrls_run(module: ModuleType, game: Game, ties: str, number: int, accounts: Run | None = None) -> Run:
    """Play one run with FinRL's environment, from its start or, every day, from the account that this project has.

    Ties are those of `BY_POSITION` or, under another name, of the sort that numpy brings.
    """
    closes = game.close_ticks / round(1 / TICK)
    days, width = closes.shape
    day = np.repeat(np.arange(days), width)
    # Its account reads the first indicator as a mark that a symbol cannot trade: zeros, so that all can.
    columns = {"date": day.astype(str), "tic": np.tile(game.tape.symbols, days), "close": closes.ravel(), "mark": 0.0}
    env = module.StockTradingEnv(
        df=pd.DataFrame(columns, index=day), stock_dim=width, hmax=100, initial_amount=game.cash,
        num_stock_shares=[0] * width, buy_cost_pct=[0.001] * width, sell_cost_pct=[0.001] * width, reward_scaling=1e-4,
        state_space=1 + 3 * width, action_space=width, tech_indicator_list=["mark"],
    )  # fmt: skip
    module.np = numpy_by_position if ties == BY_POSITION else np
    env.reset()
    after = []
    for today, action in enumerate(game.actions[number]):
        if accounts is not None and today > 0:
            cash, held = float(accounts.cash[today - 1]), accounts.holdings[today - 1].tolist()
            env.day, env.state = today, [cash, *closes[today].tolist(), *held, *[0.0] * width]
        state = env.step(action)[0]
        after.append((state[0], state[1 + width : 1 + 2 * width], env.asset_memory[-1]))
    cash, holdings, value = zip(*after, strict=True)
    return Run(np.array(cash), np.array(holdings).astype(np.int64), np.array(value))


def recorded_run(module: ModuleType, game: Game, ties: str, number: int, ours: Run) -> dict:
    """Play one run and describe it, and where and why it parts from ours."""
    run, daily = finrls_run(module, game, ties, number), finrls_run(module, game, ties, number, ours)
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
        wanted = np.trunc(game.actions[number, equal] * np.float32(100)).astype(int)
        described["parting"] = {
            # From one account a different purchase is the sort's doing; otherwise cash was apart before.
            "cause": "tie" if from_our_account else "rounding",
            "sha256_before": run.digest(equal),
            "cash_before": round(float(run.cash[equal - 1]), 6),
            "cash_apart_before": round(float(run.cash[equal - 1] - ours.cash[equal - 1]), 4),
            # Symbol, wanted shares, their holding, ours.
            "shares_apart": [
                [
                    game.tape.symbols[k],
                    *(int(shares[k]) for shares in (wanted, run.holdings[equal], ours.holdings[equal])),
                ]
                for k in (run.holdings[equal] != ours.holdings[equal]).nonzero()[0]
            ],
        }
    return described


def main() -> None:
    """Record both games, with ties by position and with the sort that numpy has here."""
    path, sort = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("env_stocktrading", path)
    assert spec is not None and spec.loader is not None and sort in ("simd", "plain")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record |= {"finrl": "0.3.7", "numpy": np.__version__}
    games = {"planted": planted_game(), "dow": dow_game(Path(os.environ["VECENV_DATA"]))}
    for name, game in games.items():
        section, ours = record.setdefault(name, {}), our_runs(game)
        section |= {"symbols": list(game.tape.symbols), "game_sha256": game.digest()}
        section |= {"first_day": str(game.tape.dates[0]), "seeds": list(SEEDS) if name == "dow" else [0]}
        for ties in (BY_POSITION, sort):
            runs = [recorded_run(module, game, ties, number, run) for number, run in enumerate(ours)]
            section.setdefault("runs", {})[ties] = runs
    text = json.dumps(record, separators=(",", ":"))
    # A line for each run.
    RECORD.write_text(text.replace('{"days_equal"', '\n{"days_equal"') + "\n")


if __name__ == "__main__":
    main()
