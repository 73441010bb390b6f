"""A task with a warm-up and donated fields, written with new tensors and with an operator in place."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Bounded

from vecenv import Scenario, Task, VecEnv
from vecenv.core.capabilities import Donating, WarmUp
from vecenv.core.random import uniform

SLOTS = 5
WARM_UP = 3


class Ledger(TensorClass):
    """Entries by slot, and who made the last two."""

    entries: Tensor
    makers: Tensor


class Tally(TensorClass):
    """A donated tensorclass, a donated tensor, and numbers that are kept of every step."""

    ledger: Ledger
    trail: Tensor
    word: Tensor
    day: Tensor
    last_day: Tensor
    before: Tensor
    worth: Tensor


@dataclass(frozen=True)
class TallyConfig:
    """How the fields are overwritten, and how many days episodes last: shortest, and how many lengths there are."""

    in_place: bool = False
    warm_up: int = WARM_UP
    shortest: int = 1
    lengths: int = 6


@torch.library.custom_op("tests::post", mutates_args=("entries", "makers", "trail"))
def _post(entries: Tensor, makers: Tensor, trail: Tensor, slot: Tensor, amount: Tensor, maker: Tensor) -> Tensor:
    """Post an amount to each ledger of a batch in place; return the worths. Shape of slot: (N, 1)."""
    trail.copy_(entries)
    entries.scatter_add_(-1, slot, amount)
    makers.copy_(torch.stack([maker, makers[..., 0]], dim=-1))
    return _worth(entries)


@_post.register_fake
def _(entries: Tensor, makers: Tensor, trail: Tensor, slot: Tensor, amount: Tensor, maker: Tensor) -> Tensor:
    return torch.empty_like(entries[..., 0])


@_post.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *arguments: Tensor) -> tuple[Tensor, int]:
    assert in_dims == (0,) * len(arguments)
    return torch.ops.tests.post(*arguments), 0


def _worth(entries: Tensor) -> Tensor:
    return (entries * torch.arange(1, SLOTS + 1, device=entries.device)).sum(-1)


class Tallying(WarmUp, Donating, Scenario[Tally]):
    """Posts amounts to a ledger, of which the worth is seen."""

    donated = frozenset({"ledger", "trail"})
    off_scale = MappingProxyType({"reward": "amounts of tens"})

    def __init__(self, config: TallyConfig) -> None:
        self.config, self.warm_up = config, config.warm_up
        self.longest = config.shortest + config.lengths - 1
        self.params = {"scale": torch.tensor(4)}
        self.shared = {"opening": torch.arange(SLOTS)}
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def reset(self, key, params, shared):
        word = (uniform(key, stream=0) * 2**24).to(torch.int64)
        zero = 0 * key.episode
        return Tally(
            # A tensor that all rows share, as vmap hands it on.
            ledger=Ledger(entries=shared["opening"], makers=zero.expand(2).to(torch.int32), batch_size=[]),
            trail=torch.zeros(SLOTS, dtype=torch.int64, device=word.device),
            word=word,
            day=zero - self.warm_up,
            last_day=self.config.shortest + word % self.config.lengths,
            before=zero,
            worth=zero,
            batch_size=[],
        )

    def warmed(self, state, params, shared):
        return self._posted(state, state.word % 3)

    def step(self, state, action, params, shared):
        return self._posted(state, (action[0].clamp(-1, 1) * params["scale"]).to(torch.int64))

    def _posted(self, state: Tally, amount: Tensor) -> Tally:
        word = (state.word * 1103515245 + 12345) & 0x7FFFFFFF
        ledger, trail, slot = state.ledger, state.trail, word % SLOTS
        # Read before the entries are overwritten, and kept.
        before = ledger.entries[0] * 2 + state.day
        maker = (word % 7).to(torch.int32)
        if self.config.in_place:
            worth = torch.ops.tests.post(
                ledger.entries, ledger.makers, trail, slot.unsqueeze(-1), amount.unsqueeze(-1), maker
            )
        else:
            posted = torch.arange(SLOTS, device=slot.device) == slot
            # The entries become the trail, one donated field another.
            trail = ledger.entries
            entries = torch.where(posted, trail + amount, trail)
            ledger = Ledger(entries=entries, makers=torch.stack([maker, ledger.makers[0]]), batch_size=[])
            worth = _worth(entries)
        return state.replace(ledger=ledger, trail=trail, word=word, day=state.day + 1, before=before, worth=worth)

    def observation(self, state, params, shared):
        return (torch.stack([state.day, state.before, state.worth]).float() / 8, state.last_day.float().unsqueeze(-1))

    def reward(self, state, action, next_state, params, shared):
        return (next_state.worth - state.worth).float() + action[0]

    def terminated(self, state, params, shared):
        return (state.worth % 8 == 3) & (self.config.lengths > 1)

    def truncated(self, state, params, shared):
        return state.day >= state.last_day

    def grade(self, state, params, shared):
        return (state.worth % 5).float() / 5

    def info(self, state, params, shared):
        return {"worth": state.worth}


TALLY = Task(name="tally", version="1", scenario=Tallying, config=TallyConfig, outcomes={"worth": "count"})


def tally_env(num_envs: int, compiled: bool = False, seed: int = 3, device: str = "cpu", **options: Any) -> VecEnv:
    """Make an environment of the task."""
    more = {name: options.pop(name) for name in ("params", "env_ids") if name in options}
    return VecEnv(TALLY.build(config=TallyConfig(**options)), num_envs, seed, device, compiled, **more)
