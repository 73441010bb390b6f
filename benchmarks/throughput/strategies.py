"""Strategies on common paths with the full account: as programs together, one by one in pandas, and in vectorbt.

The rule is a crossover of two means of closes for each symbol, with whole shares and a commission. vectorbt
(`pip install vectorbt`) trades each strategy on all paths at once, symbol after symbol from one account's cash; it is
left out where it is not installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch

from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.market.bars import CLOSE
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.programs.parsing import parsed
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.strategy.grading import Grader

CASH, COMMISSION = 1e6, 0.001

NEAR = 1e-2
"""How far a return may be from the programs': vectorbt counts on no commission, and the loop rounds down otherwise."""


def points_of_strategies(config: CaseConfig) -> Sequence[Point]:
    days = config.sized(8, 126)
    sizes = config.sized([(2, 4, 3)], [(4, 16, 30), (64, 256, 1), (64, 256, 30)])
    if not _has_vectorbt():
        print("vectorbt is not installed, and is left out: pip install vectorbt")
    return [
        Point(f"{count} strategies, {paths} paths, {days} days, {symbols} symbols", partial(_compared, *size, days))
        for size in sizes
        for count, paths, symbols in [size]
    ]


def _has_vectorbt() -> bool:
    return importlib.util.find_spec("vectorbt") is not None


def _compared(count: int, paths: int, symbols: int, days: int) -> Sequence[Workload]:
    names = tuple(f"S{number}" for number in range(symbols))
    tape = MarketTape.from_bars(synthetic_bars(paths, 60 + days, names, seed=3), features=("rsi_14",))
    share, pairs = round(0.95 / symbols, 4), [(2 + number % 8, 12 + number // 8) for number in range(count)]
    rules = StockTradingConfig(
        features=("rsi_14",), action="weights", episode_length=days, initial_cash=CASH, commission=COMMISSION
    )
    grader, start = Grader("stock_trading", rules, tape), tape.num_days - 1 - days
    texts = [f"weight = {share} if mean(close, bars={fast}) > mean(close, bars={slow}) else 0" for fast, slow in pairs]
    programs = [parsed(text, grader.vocabulary) for text in texts]
    closes = tape.ohlcv[..., CLOSE].double().numpy()
    common, first = torch.arange(paths), torch.full((paths,), start)

    def engine() -> np.ndarray:
        return grader.grades(programs, common, first).total_return.numpy()

    calls = {"programs together": engine}
    if count * paths <= 64:
        calls["pandas, one at a time"] = partial(_in_pandas, closes, pairs, share, start)
    if _has_vectorbt():
        calls["vectorbt"] = partial(_in_vectorbt, closes, pairs, share, start)
    wanted, found = engine(), []
    for name, call in calls.items():
        away = float(np.abs(call() - wanted).max())
        assert away < NEAR, f"{name}: returns are {away:g} from those of the programs"
        beside = None if call is engine else "programs together"
        units = count * paths * days
        found.append(Workload(name, call, units, "days", beside=beside, told={"away": away, "native": grader.native}))
    return found


def _weights(means: Sequence[pd.DataFrame], share: float) -> np.ndarray:
    """Return the weights of the rule; means are rounded as programs round them."""
    fast, slow = (mean.to_numpy().astype(np.float32) for mean in means)
    return np.where(fast > slow, share, 0.0)


def _in_pandas(closes: np.ndarray, pairs: Sequence[tuple[int, int]], share: float, start: int) -> np.ndarray:
    """Return the returns of strategies, (P, M): one strategy and one path at a time, day after day."""
    returns = np.empty((len(pairs), len(closes)))
    for number, (fast, slow) in enumerate(pairs):
        for path, prices in enumerate(closes):
            frame = pd.DataFrame(prices)
            weights = _weights([frame.rolling(window).mean() for window in (fast, slow)], share)
            cash, held = CASH, np.zeros(prices.shape[1])
            for day in range(start, len(prices) - 1):
                price = prices[day]
                target = np.floor(weights[day] * (cash + held @ price) / (price * (1.0 + COMMISSION)))
                bought, sold = np.maximum(target - held, 0.0), np.maximum(held - target, 0.0)
                cash += (sold @ price) * (1.0 - COMMISSION)
                cost = (bought @ price) * (1.0 + COMMISSION)
                if cost > cash:
                    bought = np.floor(bought * (cash / cost))
                    cost = (bought @ price) * (1.0 + COMMISSION)
                cash, held = cash - cost, held + bought - sold
            returns[number, path] = (cash + held @ prices[-1]) / CASH - 1.0
    return returns


def _in_vectorbt(closes: np.ndarray, pairs: Sequence[tuple[int, int]], share: float, start: int) -> np.ndarray:
    """Return the returns of strategies, (P, M): one strategy on all paths at a time."""
    import vectorbt

    paths, days, symbols = closes.shape
    columns = pd.DataFrame(closes.transpose(1, 0, 2).reshape(days, paths * symbols))
    returns = []
    for fast, slow in pairs:
        weights = _weights([columns.vbt.rolling_mean(window) for window in (fast, slow)], share)[start:]
        # Nothing is ordered on the last day.
        weights[-1] = np.nan
        account = vectorbt.Portfolio.from_orders(
            columns.iloc[start:],
            size=weights,
            size_type="targetpercent",
            size_granularity=1.0,
            fees=COMMISSION,
            init_cash=CASH,
            group_by=np.repeat(np.arange(paths), symbols),
            cash_sharing=True,
            call_seq="auto",
        )
        returns.append(account.final_value().to_numpy() / CASH - 1.0)
    return np.stack(returns)
