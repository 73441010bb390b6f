"""A training that plays its rows itself, also with older weights: the reference of actors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.scenario import Observation
from vecenv.distributed.actors import BEHAVIOUR, weights_of
from vecenv.learn.checkpoints import state_digest
from vecenv.learn.ppo import PPO, PPOConfig

ROWS = {"market": "planted", "episode_length": 9, "min_episode_length": 3, "compile": False, "seed": 3}
PATHS, NUM_ENVS, SHARDS = 4, 64, 4
ROWS |= {"market_options": {"num_paths": PATHS, "num_days": 120}}
CONFIG = PPOConfig(
    num_steps=8, total_frames=NUM_ENVS * 8 * 6, minibatches=4, epochs=2, hidden=(16, 16), checkpoint_every=1,
    shards=SHARDS,
)  # fmt: skip


class Late(FusedCollector):
    """Plays with the weights of one rollout ago, after the first two."""

    _rollouts = 0

    def play(self) -> None:
        weights = weights_of(self.policy)
        now = [tensor.clone() for tensor in weights]
        if self._rollouts > 1:
            torch._foreach_copy_(weights, self._kept)
        super().play()
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


def make_learner(late: bool = False) -> PPO:
    learner = PPO(make_env(), CONFIG)
    if late:
        learner.collector = Late(learner.env, learner.collector.policy, CONFIG.num_steps, parts=SHARDS)
    return learner


def digest(state: Mapping[str, Any]) -> str:
    """Return a hash of a learner's state, without what is under way."""
    return state_digest({name: value for name, value in state.items() if name != BEHAVIOUR})
