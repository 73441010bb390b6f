"""Steps per second of the environments of other packages, each by its own code and in its own words.

Run alone, in a Python environment that has the package, as they want other versions of TorchRL than we do::

    pip install --no-deps finrl==0.3.7 && pip install gymnasium stable-baselines3 matplotlib pandas
    python benchmarks/throughput/peers/packages.py finrl
    pip install torchtrade==0.1.0
    python benchmarks/throughput/peers/packages.py torchtrade

It prints a line of JSON for each number of accounts: steps of all accounts per second of processor time, medians of
rounds. Prices are invented; actions are drawn before. FinRL trades 30 stocks with eight indicators, one account an
environment, and TorchTrade one asset with ten bars of five values, thousands of accounts an environment. Of FinRL it
also prints what two of its rules do to an account at constant prices.
"""

import importlib.metadata
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

ROUNDS, STOCKS, DAYS = 7, 30, 252


def finrl_env(close: np.ndarray, indicators: dict[str, np.ndarray]) -> Any:  # noqa: ANN401, FinRL's own
    """Return FinRL's `StockTradingEnv` on closes, (days, stocks). Loaded alone, as its package imports brokers."""
    found = importlib.metadata.distribution("finrl")
    file = found.locate_file("finrl/meta/env_stock_trading/env_stocktrading.py")
    spec = importlib.util.spec_from_file_location("env_stocktrading", str(file))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    days, stocks = close.shape
    table = pd.DataFrame({"date": np.repeat(np.arange(days), stocks), "close": close.ravel(), "turbulence": 0.0})
    table["tic"] = np.tile([f"S{number:02}" for number in range(stocks)], days)
    table = table.assign(**{name: values.ravel() for name, values in indicators.items()})
    table.index = np.repeat(np.arange(days), stocks)
    return module.StockTradingEnv(
        table, stocks, 100, 1_000_000, [0] * stocks, [1e-3] * stocks, [1e-3] * stocks, 1e-4,
        1 + 2 * stocks + len(indicators) * stocks, stocks, list(indicators), print_verbosity=10**9,
    )  # fmt: skip


def finrl_faults() -> dict[str, Any]:
    """Return what an account of FinRL holds after a buy, by its first indicator, and the rewards of four days."""
    bought = {}
    for flag in (0.0, 1.0):
        env = finrl_env(np.full((6, 1), 100.0), {"flag": np.full((6, 1), flag)})
        env.reset()
        env.step(np.ones(1, dtype=np.float32))
        bought[f"first indicator {flag:.0f}"] = int(env.state[2])
    env = finrl_env(np.full((4, 1), 100.0), {"flag": np.zeros((4, 1))})
    env.reset()
    rewards = [round(float(env.step(np.ones(1, dtype=np.float32))[1]), 6) for _ in range(4)]
    return {"shares bought": bought, "rewards": rewards, "commission in all": float(env.cost)}


def finrl_steps() -> dict[int, Callable[[], int]]:
    """Return an episode of FinRL's environment."""
    generator = np.random.default_rng(0)
    names = ("macd", "boll_ub", "boll_lb", "rsi_30", "cci_30", "dx_30", "close_30_sma", "close_60_sma")
    close = 100 * np.exp(generator.normal(0, 0.01, (DAYS, STOCKS)).cumsum(0))
    env = finrl_env(close, {name: generator.normal(size=close.shape) for name in names})
    actions = generator.uniform(-1, 1, (DAYS, STOCKS)).astype(np.float32)

    def episode() -> int:
        env.reset()
        return 1 + next(number for number, action in enumerate(actions) if env.step(action)[2])

    return {1: episode}


def torchtrade_steps() -> dict[int, Callable[[], int]]:
    """Return rollouts of TorchTrade's `VectorizedSequentialTradingEnv`, with the resets of accounts that are done."""
    import torch
    from torchtrade.envs.offline import VectorizedSequentialTradingEnv, VectorizedSequentialTradingEnvConfig

    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    close = 100 * np.exp(generator.normal(0, 0.001, 20_000).cumsum())
    table = pd.DataFrame({"timestamp": pd.date_range("2020-01-01", periods=len(close), freq="h"), "close": close})
    table["open"] = table["close"].shift(1).fillna(100.0)
    table["high"], table["low"] = table[["open", "close"]].max(axis=1), table[["open", "close"]].min(axis=1)
    table["volume"] = 1000.0
    values = ["open", "high", "low", "close", "volume"]

    def features(bars: pd.DataFrame) -> pd.DataFrame:
        scaled = {f"features_{name}": bars[name] / bars[name].iloc[0] for name in values}
        return bars.reset_index().assign(**scaled)

    def rollout_of(accounts: int) -> Callable[[], int]:
        config = VectorizedSequentialTradingEnvConfig(num_envs=accounts, max_traj_length=DAYS, transaction_fee=1e-3)
        env = VectorizedSequentialTradingEnv(table, config, features)
        actions = torch.randint(0, 3, (64, accounts))
        with torch.no_grad():
            td = env.reset()

        def rollout() -> int:
            nonlocal td
            with torch.no_grad():
                for action in actions:
                    td["action"] = action
                    _, td = env.step_and_maybe_reset(td)
            return actions.numel()

        return rollout

    return {accounts: rollout_of(accounts) for accounts in (1, 16, 256, 2048, 16384)}


def main(package: str) -> None:
    """Measure a package and print its lines."""
    version = importlib.metadata.version(package)
    for accounts, rollout in {"finrl": finrl_steps, "torchtrade": torchtrade_steps}[package]().items():
        rollout()
        rates = []
        for _ in range(ROUNDS):
            begin = time.process_time()
            count = rollout()
            rates.append(count / (time.process_time() - begin))
        line = {"package": f"{package} {version}", "accounts": accounts, "steps_per_second": statistics.median(rates)}
        print(json.dumps(line), flush=True)
    if package == "finrl":
        print(json.dumps(finrl_faults()))


if __name__ == "__main__":
    main(sys.argv[1])
