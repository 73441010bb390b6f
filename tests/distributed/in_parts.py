"""A training of which a process plays the parts itself, one after the other: the reference of actors and ranks."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.scenario import Observation
from vecenv.distributed.actors import BEHAVIOUR, weights_of
from vecenv.distributed.parts import PartCollector, empty_part, parts_of
from vecenv.learn.ppo import PPO, PPOConfig

ROWS = {"market": "planted", "episode_length": 9, "min_episode_length": 3, "compile": False, "seed": 3}
PATHS, NUM_ENVS, PARTS = 4, 64, 4
ROWS |= {"market_options": {"num_paths": PATHS, "num_days": 120}}
CONFIG = PPOConfig(
    num_steps=8, total_frames=NUM_ENVS * 8 * 6, minibatches=4, epochs=2, hidden=(16, 16), checkpoint_every=1
)


class InParts(PartCollector):
    """Plays each part by a collector of as many rows, with the weights of so many rollouts ago after the first two."""

    def __init__(self, env: VecEnv, policy, num_steps: int, lag: int = 0) -> None:
        super().__init__(env, policy, num_steps)
        self._slices = parts_of(env.num_envs, PARTS)
        self._outcomes = [self.outcome(rows) for rows in self._slices]
        self._one = PartCollector(VecEnv(**empty_part(env, self._slices[0])), policy, num_steps)
        self._late, self._rollouts = lag, 0
        self._kept: list[Tensor] = []

    def play(self) -> None:
        weights = weights_of(self.policy)
        now = [tensor.clone() for tensor in weights]
        if self._late and self._rollouts > 1:
            torch._foreach_copy_(weights, self._kept)
        for rows, outcome in zip(self._slices, self._outcomes, strict=True):
            self._one.begin(self.start_of(self._buffers.rows.steps[0], rows))
            self._one.rollout()
            torch._foreach_copy_(outcome, self._one.outcome())
        torch._foreach_copy_(weights, now)
        self._kept, self._rollouts = now, self._rollouts + 1


class Ledger:
    """Episodes that ended in the rollouts that a learner took, by row and number."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, int]] = []

    def follow(self, learner: PPO) -> None:
        """Count what ends in every rollout from now on."""
        collect = learner.collect

        def counted() -> None:
            collect()
            self._read(learner)

        learner.collect = counted

    def _read(self, learner: PPO) -> None:
        rows = learner.collector.rows()
        step, ids = rows.done.nonzero(as_tuple=True)
        self.ended += zip(learner.env.env_ids[ids].tolist(), rows.episode[step, ids].tolist(), strict=True)

    def check(self) -> None:
        """Every row has ended its episodes from the first one on, each once."""
        by_row: dict[int, list[int]] = {}
        for row, episode in self.ended:
            by_row.setdefault(row, []).append(episode)
        assert sorted(by_row) == list(range(NUM_ENVS))
        assert all(found == list(range(len(found))) for found in by_row.values())


class ZeroPolicy:
    """Does nothing, for any door."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape, self.parameters, self.extras = shape, [], {}

    def act(self, parameters: list[Tensor], observation: Observation, key, elapsed: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros(len(elapsed), *self.shape),)

    def __call__(self, tensordict):
        return tensordict.set("action", torch.zeros(*tensordict.batch_size, *self.shape))


def make_env(num_envs: int = NUM_ENVS, **options) -> VecEnv:
    return vecenv.make("stock_trading", num_envs, **ROWS, **options)


def make_learner(lag: int | None = None) -> PPO:
    """Return a learner, played in parts here if there is a lag."""
    learner = PPO(make_env(), CONFIG)
    if lag is not None:
        learner.collector = InParts(learner.env, learner.collector.policy, CONFIG.num_steps, lag)
    return learner


def digest(state: Mapping[str, Any]) -> str:
    """Return a hash of a learner's state, without what is under way."""
    found = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, Mapping):
            for name in sorted(value, key=str):
                found.update(str(name).encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        else:
            found.update(value.numpy().tobytes() if isinstance(value, Tensor) else str(value).encode())

    add({name: value for name, value in state.items() if name != BEHAVIOUR})
    return found.hexdigest()
