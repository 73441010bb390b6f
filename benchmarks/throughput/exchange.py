"""What processes send each other in an update, counted, and on paper for many GPUs.

``python -m vecenv.benchmarks.throughput.exchange`` prints the table of ``benchmarks/results/processes.md``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

import vecenv
from vecenv.benchmarks.result_files import markdown
from vecenv.learn.learner import Learner
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.shards import Ranks, as_rank

HEADINGS = ("GPUs", "received a step", "an update", "at the rate of the links", "in the steps of a ring")


class Counting(Ranks):
    """A single rank, which counts the bytes of what its shards give.

    Attributes:
        given: of each exchange whose size does not depend on what was played: gradients, moments, means.
        played: of all others: episodes that ended, days that were seen.
    """

    def __init__(self) -> None:
        self.given: list[int] = []
        self.played = 0

    def gathered(self, tensor: Tensor) -> Tensor:
        self.given.append(tensor.nbytes)
        return tensor

    def joined(self, tensor: Tensor) -> Tensor:
        self.played += tensor.nbytes
        return tensor


class Exchange(NamedTuple):
    """Bytes that a shard gives: of its gradients in an optimiser step, and in all in an update of so many steps."""

    gradients: int
    update: int
    steps: int


class Links(NamedTuple):
    """GPUs, one shard each, with the published rate and a round latency of what connects each with the next."""

    gpus: int
    name: str
    bytes_per_second: float
    latency: float


LINKS = (
    Links(8, "8, NVLink of an H100 (450 GB/s each way)", 450e9, 2e-6),
    Links(64, "64, InfiniBand NDR (50 GB/s)", 50e9, 5e-6),
    Links(1000, "1,000, the same", 50e9, 5e-6),
)


def exchange_of(learner: Learner[Any], counting: Counting) -> Exchange:
    """Return what a shard of a learner gives in an update; the learner was made as the rank that counts."""
    learner.update()
    counting.given.clear()
    learner.update()
    shards, config = learner.shards.count, learner.config
    steps = config.epochs * config.minibatches
    gradients = sum(parameter.nbytes for parameter in learner.parameters)
    assert counting.given.count(shards * gradients) == steps, "gradients are not exchanged once a step"
    return Exchange(gradients, sum(counting.given) // shards, steps)


def default_exchange() -> Exchange:
    """Return what a shard of the default policy on ``stock_trading`` gives."""
    counting = Counting()
    with as_rank(counting):
        env = vecenv.make("stock_trading", 2, market="synthetic", compile=False)
        # Of as few steps as there are minibatches, on which no size depends.
        config = PPOConfig(num_steps=PPOConfig.minibatches, total_frames=64, shards=2, by_reference=False)
        return exchange_of(PPO(env, config), counting)


def table(exchange: Exchange) -> str:
    """Return the table of the page: what each GPU receives of the others, and how long that takes at least."""
    rows = []
    for links in LINKS:
        others = links.gpus - 1
        update = others * exchange.update
        ring = others * exchange.steps * links.latency
        rows.append(
            (
                links.name,
                bytes_told(others * exchange.gradients),
                bytes_told(update),
                milliseconds_told(update / links.bytes_per_second),
                f"{milliseconds_told(ring)}, at {1e6 * links.latency:.0f} µs",
            )
        )
    return markdown(HEADINGS, rows)


def bytes_told(number: float) -> str:
    unit, name = (1e9, "GB") if number >= 1e9 else (1e6, "MB")
    return f"{number / unit:.{1 if number < 10 * unit else 0}f} {name}"


def milliseconds_told(seconds: float) -> str:
    return f"{1e3 * seconds:.{1 if seconds < 1e-3 else 0}f} ms"


if __name__ == "__main__":
    print(table(default_exchange()))
