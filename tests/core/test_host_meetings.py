"""A step meets the host nowhere: it reads no number from a tensor and makes no tensor of numbers.

On a GPU the one waits for the device, the other cannot be recorded in a graph.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import Categorical, MultiCategorical

import vecenv
from tests.small_env import make_env
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.random import episode_key
from vecenv.core.random_actions import random_action
from vecenv.learn.heads import make_head

aten = torch.ops.aten
MEETINGS = {
    aten._local_scalar_dense: "reads a number",
    aten.lift_fresh: "makes a tensor of numbers",
    aten.nonzero: "counts",
    aten.masked_select: "counts",
    aten.equal: "compares on the host",
    aten.is_nonzero: "asks a tensor",
}
INDEXED = (aten.index, aten.index_put, aten.index_put_)


class HostMeetings(TorchDispatchMode):
    """Records operations in which host and device meet."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        packet = function.overloadpacket
        if packet in MEETINGS:
            self.met.append(f"{function} {MEETINGS[packet]}")
        if packet in INDEXED and any(index is not None and index.dtype == torch.bool for index in args[1]):
            self.met.append(f"{function} counts what a mask leaves")
        return function(*args, **(kwargs or {}))


def test_meetings_are_seen_and_draws_of_choices_make_none():
    numbers = torch.arange(3)
    with HostMeetings() as mode:
        _ = torch.tensor(5)
        _ = torch.vmap(lambda row: row + numbers[numbers[0]])(torch.ones(4, 2))
        _ = numbers[numbers > 0]
        numbers[numbers > 1] = 0
    assert [met.split()[0] for met in mode.met] == [
        "aten.lift_fresh.default",
        "aten._local_scalar_dense.default",
        "aten.index.Tensor",
        *("aten.lift_fresh.default", "aten.index_put_.default"),
    ]
    for spec in (Categorical(7), Categorical(7, (3,)), MultiCategorical([2, 5])):
        key, elapsed = episode_key(3, torch.arange(4), torch.zeros(4, dtype=torch.int64)), torch.arange(4)
        head = make_head(spec, 0.5)
        outputs = torch.zeros(4, head.size)
        with HostMeetings() as mode:
            random_action(spec, key, elapsed)
            head.sample(outputs, [], key, elapsed)
        assert mode.met == []


def small_environment(name: str) -> VecEnv:
    """Return accounts of shares with all rules, of weights, with parameters that differ, or of a tier."""
    if name == "weights":
        return make_env(5, action="weights", reward="differential_sharpe", stop_loss=0.0)
    if name == "orders":
        return vecenv.make(
            "curriculum", 5, action=name, compile=False, market_options={"num_paths": 2, "num_days": 330}
        )
    varied = {"params": {"commission": torch.linspace(0, 0.01, 5)}, "rationing": "by_size"}
    return make_env(5, **(varied if name == "varied" else {}))


@pytest.mark.parametrize("name", ["shares", "weights", "varied", "orders"])
def test_a_step_meets_the_host_nowhere(name):
    """Collected, and of some rows."""
    collector = FusedCollector(small_environment(name), num_steps=2)
    collector.rollout()
    env, mask = collector.env, torch.arange(5) < 3
    action = env.action_spec.zero()
    with HostMeetings() as mode:
        collector._replay()
        env.advance(action, mask)
        env.observations()
    assert mode.met == []
