"""The scalar oracle of the tests as a yardstick: what the same rules cost in plain Python."""

from __future__ import annotations

import random
import time

from vecenv.market.bars import CLOSE, OPEN
from vecenv.market.tape import MarketTape

STEPS = 400


def scalar_steps_per_second(tape: MarketTape) -> float | None:
    """Return steps per second of one account in plain Python; None outside a checkout, where the oracle is missing."""
    try:
        from tests.oracles.stock_trading import Account, Market, Rules
    except ImportError:
        return None
    start = tape.first_day
    days = slice(start, min(start + STEPS + 1, tape.num_days))
    market = Market(
        tick_size=tape.tick_size,
        close=tape.price_ticks(CLOSE)[0, days].int().tolist(),
        open=tape.price_ticks(OPEN)[0, days].int().tolist(),
        tradable=tape.tradable[0, days].tolist(),
        gate_series=[0.0] * (days.stop - days.start),
        features=tape.features[0, days].tolist(),
    )
    draw = random.Random(0)
    actions = [[draw.uniform(-1, 1) for _ in tape.symbols] for _ in range(days.stop - days.start - 1)]
    account = Account(Rules(), market, 0, len(actions))
    started = time.perf_counter()
    for action in actions:
        account.observation()
        account.step(action)
    return len(actions) / (time.perf_counter() - started)
