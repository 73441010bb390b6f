"""Throughput of the tests' scalar reference implementations in plain Python."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import vecenv
from vecenv.market.bars import CLOSE, OPEN
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TIERS, tier_config
from vecenv.tasks.tiers.reward_components import REWARD_PRESETS

STEPS = 400


def scalar_steps_per_second(task: str, tape: MarketTape) -> float | None:
    """Return steps per second of one account in plain Python.

    None without a reference: for other tasks, and outside a checkout.
    """
    if task != "stock_trading" and task not in TIERS:
        return None
    try:
        run = _stock_trading(tape) if task == "stock_trading" else _tier(task, tape)
    except ImportError:
        return None
    started = time.perf_counter()
    steps = run()
    return steps / (time.perf_counter() - started)


def _oracle(family: str) -> ModuleType:
    """Return the scalar oracle of a task family from the checkout's tests.

    It is loaded from its file: by the name `tests` Python might find files of the user's own.

    Raises:
        ImportError: the package is not run from a checkout.
    """
    path = Path(vecenv.__file__).parents[1] / "tests" / "tasks" / family / "oracle.py"
    spec = spec_from_file_location(f"vecenv_oracle_of_{family}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"{path}: no oracle")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _stock_trading(tape: MarketTape) -> Callable[[], int]:
    """Return a function that runs one account over random actions and returns the number of steps."""
    oracle = _oracle("stock_trading")
    start = tape.first_day
    days = slice(start, min(start + STEPS + 1, tape.num_days))
    market = oracle.Market(
        tick_size=tape.tick_size,
        close=tape.price_ticks(CLOSE)[0, days].long().tolist(),
        open=tape.price_ticks(OPEN)[0, days].long().tolist(),
        tradable=tape.tradable[0, days].tolist(),
        gate_series=[0.0] * (days.stop - days.start),
        features=tape.features[0, days].tolist(),
    )
    draw = random.Random(0)
    actions = [[draw.uniform(-1, 1) for _ in tape.symbols] for _ in range(days.stop - days.start - 1)]
    account = oracle.Account(oracle.Rules(), market, 0, len(actions))

    def run() -> int:
        for action in actions:
            account.observation()
            account.step(action)
        return len(actions)

    return run


def _tier(name: str, tape: MarketTape) -> Callable[[], int]:
    """Return a function that runs one account repeatedly over an episode's days with random orders."""
    oracle = _oracle("tiers")
    tier, tape = tier_config(name), tape.select(tier_config(name).symbols)
    start = tape.first_day
    days = slice(start, start + tier.days + 1)
    market = oracle.Market(
        close=tape.price_ticks(CLOSE)[0, days].long().tolist(),
        tradable=tape.tradable[0, days].tolist(),
        rsi=tape.features[0, days, :, tape.feature_names.index("rsi_14")].tolist(),
        tick_size=tape.tick_size,
        features=tape.features[0, days].tolist(),
    )
    rules = oracle.Rules(
        days=tier.days,
        initial_cash_ticks=int(tier.initial_cash / tape.tick_size),
        symbols=(True,) * tape.num_symbols,
        commission=tier.commission,
        slippage=tier.slippage,
        max_trades=tier.max_trades,
        max_position=tier.max_position,
        max_exposure=tier.max_exposure,
        gate=tier.gate,
        weights=REWARD_PRESETS[tier.reward],
        dtype=tier.dtype,
    )
    draw = random.Random(0)
    actions = [
        [
            (draw.randrange(3), draw.randrange(tape.num_symbols), draw.randint(1, 10) / 10)
            for _ in range(tier.max_orders)
        ]
        for _ in range(STEPS)
    ]

    def run() -> int:
        account = oracle.TierAccount(rules, market, 0)
        for action in actions:
            if account.terminated or account.truncated:
                account = oracle.TierAccount(rules, market, 0)
            account.observation()
            account.step(action)
        return len(actions)

    return run
