"""Throughput of the tests' scalar reference of stock trading in plain Python."""

from __future__ import annotations

import random
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import vecenv
from vecenv.market.bars import CLOSE, OPEN
from vecenv.market.tape import MarketTape

STEPS = 400


def scalar_steps_per_second(tape: MarketTape) -> float | None:
    """Return steps per second of one account over random actions; None outside a checkout.

    The oracle is loaded from its file: by the name `tests` Python might find files of the user's own.
    """
    path = Path(vecenv.__file__).parents[1] / "tests" / "tasks" / "stock_trading" / "oracle.py"
    spec = spec_from_file_location("vecenv_oracle_of_stock_trading", path)
    if not path.is_file() or spec is None or spec.loader is None:
        return None
    oracle = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(oracle)
    days = slice(tape.first_day, min(tape.first_day + STEPS + 1, tape.num_days))
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
    started = time.perf_counter()
    for action in actions:
        account.observation()
        account.step(action)
    return len(actions) / (time.perf_counter() - started)
