"""Play the games of `finrl_runs.py` with FinRL's own environment and write down what it makes of them.

    pip download --no-deps finrl==0.3.7 && unzip FinRL-0.3.7-py3-none-any.whl -d FOLDER
    FILE=FOLDER/finrl/meta/env_stock_trading/env_stocktrading.py
    export VECENV_DATA=...
    python -m tests.tasks.stock_trading.record_finrl $FILE simd
    NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL" python -m tests.tasks.stock_trading.record_finrl $FILE plain

The file is loaded alone, because its package imports brokers. It needs gymnasium, stable-baselines3 and matplotlib.
The second argument names numpy's sort, which decides FinRL's ties: ``simd`` where the processor has AVX2 or AVX-512.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd

from tests.tasks.stock_trading.finrl_runs import (
    RECORD,
    SEEDS,
    TICK,
    Game,
    Run,
    days_equal,
    dow_game,
    game_digest,
    our_runs,
    planted_game,
    shares_apart,
)

BY_POSITION = "position"


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
            df=pd.DataFrame(columns, index=day), stock_dim=self.width, hmax=game.hmax, initial_amount=game.cash,
            num_stock_shares=[0] * self.width, buy_cost_pct=[game.commission] * self.width,
            sell_cost_pct=[game.commission] * self.width, reward_scaling=1e-4, state_space=1 + 3 * self.width,
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
    equal = days_equal(run, ours)
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
        from_our_account = (daily.holdings[equal] != ours.holdings[equal]).any()
        described["parting"] = {
            # From one account a different purchase is the sort's doing; otherwise cash was apart before.
            "cause": "tie" if from_our_account else "rounding",
            "sha256_before": run.digest(equal),
            "cash_before": round(float(run.cash[equal - 1]), 6),
            "cash_apart_before": round(float(run.cash[equal - 1] - ours.cash[equal - 1]), 4),
            "shares_apart": shares_apart(player.game, number, equal, run, ours),
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
        section |= {"symbols": list(game.tape.symbols), "game_sha256": game_digest(game)}
        section["first_day"] = str(game.tape.dates[0])
        section["seeds"] = list(SEEDS) if name == "dow" else [0]
        runs = section.setdefault("runs", {})
        runs |= {ties: recorded_game(module, game, ties) for ties in (BY_POSITION, arguments.sort)}
    text = json.dumps(record, separators=(",", ":"))
    # A line for each run.
    RECORD.write_text(text.replace('{"days_equal"', '\n{"days_equal"') + "\n")


if __name__ == "__main__":
    main()
