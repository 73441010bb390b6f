"""A task with a warm-up and a donated ledger, which only its step reads; as pure functions, and in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical

from vecenv import Task
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey, random_bits
from vecenv.core.scenario import Scenario

WIDTH, WARM_UP = 8, 5
MODULUS = 1_000_003


def booked(ledger: Tensor, amount: Tensor) -> Tensor:
    """Return a ledger after an entry. Shapes: (..., 8), (...) -> (..., 8)."""
    return (5 * ledger + amount.unsqueeze(-1) + torch.arange(WIDTH)) % MODULUS


@torch.library.custom_op("vecenv_tests::book", mutates_args=("ledger",), device_types="cpu")
def book(ledger: Tensor, amount: Tensor) -> Tensor:
    """Enter an amount in place, and return the sum of the ledger."""
    if not ledger.is_contiguous():
        raise ValueError("the ledger must be contiguous")
    ledger.copy_(booked(ledger, amount))
    return ledger.sum(-1)


@book.register_fake
def _(ledger: Tensor, amount: Tensor) -> Tensor:
    return ledger.new_empty(ledger.shape[:-1])


@book.register_vmap
def _(info: Any, in_dims: tuple[int | None, int | None], ledger: Tensor, amount: Tensor) -> tuple[Tensor, int]:
    ledger_dim, amount_dim = in_dims
    if ledger_dim != 0:
        raise ValueError("the ledger must be mapped along its first dimension")
    amounts = amount.expand(info.batch_size) if amount_dim is None else amount.movedim(amount_dim, 0)
    return torch.ops.vecenv_tests.book(ledger, amounts), 0


class Tally(TensorClass):
    """The ledger, its sum, the steps of the episode and how many there are.

    Attributes:
        ledger: donated. Shape: (8,), int64.
        total: of the ledger. Shape: (), int64.
        day: Shape: (), int64.
        length: Shape: (), int64.
    """

    ledger: Tensor
    total: Tensor
    day: Tensor
    length: Tensor


class LedgerTask(Scenario[Tally]):
    """Enter amounts of 0 … 2; episodes of a random length.

    Args:
        shortest: steps of the shortest episode.
        longest: steps of the longest.
    """

    name, version = "ledger", "1"
    shared = MappingProxyType({})
    warm_up = WARM_UP
    donated = frozenset({"ledger"})

    def __init__(self, shortest: int = 1, longest: int = 6) -> None:
        self.longest = longest
        self.params = {"shortest": torch.tensor(shortest), "lengths": torch.tensor(longest - shortest + 1)}
        self.action_spec = Categorical(3, (1,), dtype=torch.int64)

    def book(self, ledger: Tensor, amount: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ledger after an entry and its sum."""
        after = booked(ledger, amount)
        return after, after.sum(-1)

    def reset(self, key: EpisodeKey, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tally:
        words = random_bits(key, 0)
        ledger = (words[0] % 1_000).expand(WIDTH).clone()
        return Tally(
            ledger, ledger.sum(), words[0] * 0, params["shortest"] + words[1] % params["lengths"], batch_size=[]
        )

    def warmed(self, state: Tally, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tally:
        ledger, total = self.book(state.ledger, state.day + 7)
        return Tally(ledger, total, state.day, state.length, batch_size=[])

    def step(self, state: Tally, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tally:
        ledger, total = self.book(state.ledger, action[0])
        return Tally(ledger, total, state.day + 1, state.length, batch_size=[])

    def observation(self, state: Tally, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> tuple[Tensor]:
        return (torch.stack([state.total, state.day, state.length]).float(),)

    def reward(
        self,
        state: Tally,
        action: Tensor,
        next_state: Tally,
        params: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
    ) -> Tensor:
        return (next_state.total - state.total).float()

    def terminated(self, state: Tally, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        return state.day >= state.length

    def truncated(self, state: Tally, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        return state.day < 0

    def grade(self, state: Tally, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        return (state.total % 2).float()


class InPlaceLedgerTask(LedgerTask):
    """The same, by an operator that overwrites the ledger."""

    def book(self, ledger: Tensor, amount: Tensor) -> tuple[Tensor, Tensor]:
        return ledger, torch.ops.vecenv_tests.book(ledger, amount)


@dataclass(frozen=True)
class LedgerConfig:
    """Steps of the shortest and the longest episode."""

    shortest: int = 1
    longest: int = 6


LEDGER = Task(
    name="ledger",
    version="1",
    scenario=lambda config: InPlaceLedgerTask(config.shortest, config.longest),
    config=LedgerConfig,
)

KINDS = {"pure": LedgerTask, "in_place": InPlaceLedgerTask}


def ledger_env(kind: str, num_envs: int = 9, compiled: bool = False, seed: int = 3, **rules: int) -> VecEnv:
    """Return an environment of one of the `KINDS`."""
    return VecEnv(KINDS[kind](**rules), num_envs, seed, "cpu", compiled)
