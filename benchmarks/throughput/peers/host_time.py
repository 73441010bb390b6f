"""Doors, messages, a served session and starts, which the host's time decides, beside what others have for the same.

The second table of ``vecenv bench --peers``. Workloads that stand beside another one are its peers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import torch

import vecenv
from vecenv.benchmarks.harness import Figure, Workload
from vecenv.benchmarks.result_files import markdown
from vecenv.benchmarks.throughput import served_sessions
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.workloads import fill_given_actions
from vecenv.core.collector import FusedCollector
from vecenv.kernels.order_book.messages import BUY, SELL, Kind
from vecenv.tasks.agent_market.message_book import MessageBook
from vecenv.tasks.agent_market.scenario import MarketScenario

ROWS, ROOM, OWNERS = 16, 64, 8
"""Rows beside CartPole; orders a side and owners of the book."""

NOT_RUN = (
    "Not run: JAX-LOB beside the book (`jaxlob` 0.19 needs an older JAX), ABIDES beside `agent_market` (no package)."
)

FIRST_ROLLOUT = """
import vecenv
from vecenv.core.collector import FusedCollector
FusedCollector(vecenv.make("stock_trading", 2048, market="synthetic", seed=0, compile={}), num_steps=16).rollout()
"""


class Part(NamedTuple):
    """Workloads that take turns; which modules they need beside ours, and whether the clock counts: of servers.

    Starts are measured in fewer rounds, as each takes seconds.
    """

    name: str
    make: Callable[[], Sequence[Workload]]
    needed: tuple[str, ...] = ()
    by_clock: bool = False
    rounds: int | None = None

    @property
    def lacking(self) -> str:
        """Why it is not run; empty if it is."""
        names = [name for name in self.needed if find_spec(name) is None]
        return f"Not run, for want of {', '.join(names)}: {self.name}." if names else ""


def parts(config: CaseConfig) -> list[Part]:
    """Return what is measured at the size of a case."""
    serving = ("openenv", "uvicorn", "websockets")
    counts = config.sized((ROWS,), (1, ROWS, 2048))
    return [
        *(Part(f"N = {rows:,}", partial(_steps, config, rows), ("gymnasium",)) for rows in counts),
        Part("order book", partial(_messages, config.sized(100, 10_000))),
        Part("agent_market, N = 1", partial(_ticks, config)),
        Part("served", partial(_session, config), serving, by_clock=True),
        Part("starts", partial(_starts, config), rounds=3),
    ]


def _steps(config: CaseConfig, rows: int) -> list[Workload]:
    import gymnasium

    # It needs Gymnasium, too.
    from vecenv.benchmarks.throughput.doors import steps

    given = {"market": "synthetic", "seed": 0, "device": "cpu", "compile": config.compile}
    # A step of all rows is one.
    workloads = [each._replace(units=1, unit="calls") for each in steps(rows, given)]
    if rows != ROWS:
        return workloads
    peer = gymnasium.vector.SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * rows)
    peer.reset(seed=0)
    actions = peer.action_space.sample()
    beside = workloads[-1].name
    return [
        *workloads,
        Workload("CartPole in Gymnasium's SyncVectorEnv", lambda: peer.step(actions), 1, "calls", beside),
    ]


def _messages(count: int) -> list[Workload]:
    """Return random messages, four of five limit orders, the others market orders and cancellations of all."""
    draw = torch.Generator().manual_seed(0)

    def drawn(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=draw, dtype=torch.int32)

    kinds = torch.tensor([Kind.LIMIT] * 8 + [Kind.MARKET, Kind.CANCEL_ALL], dtype=torch.int32)[drawn(0, 10).long()]
    sides, none = drawn(min(BUY, SELL), max(BUY, SELL) + 1), torch.full((count,), -1, dtype=torch.int32)
    together = torch.stack([kinds, sides, drawn(90, 111), drawn(1, 11), drawn(0, OWNERS), none], -1)
    one, many, words = MessageBook(ROOM, OWNERS), MessageBook(ROOM, OWNERS), together.tolist()

    def sent() -> None:
        for message in words:
            one.send(*message)

    return [
        Workload("one message a call", sent, count, "messages"),
        Workload("messages of a list", lambda: many.send_all(together), count, "messages"),
    ]


def _ticks(config: CaseConfig) -> list[Workload]:
    env = vecenv.make("agent_market", 1, seed=0, compile=config.compile)
    collector = FusedCollector(env, "given", config.sized(8, 256))
    fill_given_actions(collector)
    assert isinstance(env.scenario, MarketScenario)
    ticks = len(collector.actions) * env.scenario.config.ticks_per_step
    return [Workload("a market", collector.rollout, ticks, "ticks")]


def _session(config: CaseConfig) -> list[Workload]:
    nothing, ours = served_sessions.served(config, 1)
    alone = ours._replace(name="a session alone", beside=None)
    return [alone, nothing._replace(name="an OpenEnv environment that does nothing", beside=alone.name)]


def _starts(config: CaseConfig) -> list[Workload]:
    python = (sys.executable, "-c")
    commands: Mapping[str, tuple[Sequence[str], str | None]] = {
        "vecenv train --help": ((sys.executable, "-m", "vecenv", "train", "--help"), None),
        "import torchrl": ((*python, "import torchrl"), "vecenv train --help"),
        "import to a first rollout of 2,048 rows": ((*python, FIRST_ROLLOUT.format(config.compile)), None),
        "import jax": ((*python, "import jax"), "import to a first rollout of 2,048 rows"),
    }
    run = partial(subprocess.run, check=True, capture_output=True)
    return [
        Workload(name, partial(run, words), 1, "starts", beside=beside) for name, (words, beside) in commands.items()
    ]


def table(found: Mapping[Part, Sequence[Figure]]) -> str:
    """Return a page's table: time of a unit, ours and a peer's, and how many times as fast as the peer we are."""
    rows = []
    for part, figures in found.items():
        peers = {figure.beside: figure for figure in figures if figure.beside is not None}
        for figure in figures:
            if figure.beside is not None:
                continue
            peer = peers.get(figure.name)
            ratio = None if peer is None else peer.time_ratio if part.by_clock else peer.processor_ratio
            rows.append(
                [
                    f"{part.name}: {figure.name}{', by the clock' if part.by_clock else ''}",
                    _time(figure, part),
                    "–" if peer is None else f"{_time(peer, part)}: {peer.name}",
                    "–" if ratio is None else f"{ratio:.3g}",
                ]
            )
    return markdown(["processor time of one", "vecenv", "peer", "times as fast"], rows)


def _time(figure: Figure, part: Part) -> str:
    seconds = 1 / (figure.per_second if part.by_clock else figure.told["per_processor_second"])
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
