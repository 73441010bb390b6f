"""What a throughput curve is shown beside: others' figures as published, and a scalar reference in plain Python."""

from __future__ import annotations

import random
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

import vecenv
from vecenv.market.bars import CLOSE, OPEN
from vecenv.market.tape import MarketTape

STEPS = 400
"""Steps of the scalar reference."""


class Published(NamedTuple):
    """A published throughput: of what and where, on what and what differs, number of environments, and rates."""

    what: str
    conditions: str
    num_envs: int | None = None
    steps_per_second: int | None = None
    messages_per_second: int | None = None

    def line(self) -> str:
        rates = [
            f"{rate:,} {unit}/s"
            for rate, unit in ((self.steps_per_second, "steps"), (self.messages_per_second, "messages"))
            if rate is not None
        ]
        count = "" if self.num_envs is None else f" at N={self.num_envs:,}"
        return f"published, not measured here: {', '.join(rates)}{count}: {self.what}; {self.conditions}"


_FINRL = Published(
    "parallel stock environment with PPO sampling, FinRL contests paper, figure 3",
    "one NVIDIA A100; its environment keeps day-0 features, leaves market profit out of the reward and lets cash go "
    "negative",
    num_envs=2048,
    steps_per_second=227_212,
)
_BOOKS = (
    Published(
        "JaxMARL-HFT, JAX order books with replayed and learning agents",
        "one NVIDIA L40S, 100 messages a step",
        num_envs=4000,
        steps_per_second=21_969,
        messages_per_second=2_196_900,
    ),
    Published("ABIDES, discrete-event simulation of agents", "one CPU core", messages_per_second=3_091),
    Published(
        "ABIDES, as measured by the authors of JaxMARL-HFT",
        "64 CPU cores, 100 messages a step",
        steps_per_second=734,
        messages_per_second=73_400,
    ),
)

PUBLISHED: dict[str, tuple[Published, ...]] = {
    "stock_trading": (_FINRL,),
    **dict.fromkeys(("agent_market", "execution", "market_making"), _BOOKS),
}
"""By task."""


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
