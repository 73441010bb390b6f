"""The learners of the package as cases of `check_learner`: on the tiny task `Aim`, with three updates to a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vecenv.core.env import VecEnv
from vecenv.learn import Algorithm, algorithm_named
from vecenv.learn.members import ensemble_of, row_seeds
from vecenv.testing.aim import LONGEST, aim_env
from vecenv.testing.reference_losses import a2c_loss, continuous_loss, dqn_loss, exact_loss, grpo_loss, ppo_loss

ROWS, STEPS, UPDATES = 8, 3, 3
MEMBERS = 2


@dataclass(frozen=True)
class LearnerCase:
    """A learner, its environment, and settings of a run of three updates.

    Attributes:
        name: for messages.
        make: returns the learner, from environment and settings.
        config: a dataclass of settings with ``seed``, ``total_frames``, ``learning_rate``, ``anneal``,
            ``max_grad_norm`` and ``hidden``; it should make several minibatches of a rollout.
        env: returns the environment, from its seed, the number of its rows and whether it is compiled.
        stranger: returns another kind of learner for the same environment, with settings as alike as can be.
        loss: loss and gradients that those of the learner are compared with, from a learner before its first update,
            the parameters of an optimiser step, and what the learner's ``objective`` was given for it, if it has one;
            None compares nothing.
        draws: whether minibatches are drawn by the seed.
        scratch: names of attributes that hold tensors which are made anew at each update, and so need no saving.
        rows_of_rank: returns an environment of rows with given ``env_ids``, as `VecEnv`; without it, as for several
            members, ranks are not compared.
    """

    name: str
    make: Callable[[VecEnv, Any], Any]
    config: Any
    env: Callable[[int, int, bool], VecEnv]
    stranger: Callable[[VecEnv], Any]
    loss: Callable[..., tuple[float, list[torch.Tensor]]] | None = None
    draws: bool = True
    scratch: frozenset[str] = field(default=frozenset({"gradients"}))
    rows_of_rank: Callable[[torch.Tensor], VecEnv] | None = None

    def new(self, env_seed: int = 3, num_envs: int = ROWS, compiled: bool = False, **settings: Any) -> Any:
        return self.make(self.env(env_seed, num_envs, compiled), replace(self.config, **settings))


_SHARED: dict[str, Any] = {
    "total_frames": UPDATES * STEPS * ROWS,
    "hidden": (4,),
    "minibatches": 2,
    "learning_rate": 0.02,
}
_ON_POLICY: dict[str, Any] = _SHARED | {"num_steps": STEPS, "epochs": 1, "gamma": 0.9, "entropy_coef": 0.01}
# Less than the steps of a run: the last rollout takes the place of the first.
_REPLAY: dict[str, Any] = _SHARED | {
    "num_steps": STEPS,
    "minibatch_size": 8,
    "buffer_size": 2 * STEPS * ROWS + 7,
    "gamma": 0.9,
}
_GROUPS: dict[str, Any] = _SHARED | {
    "total_frames": UPDATES * LONGEST * ROWS,
    "epochs": 1,
    "entropy_coef": 0.01,
    "kl_coef": 0.1,
}
_TAILS: dict[str, Any] = {"beta": 0.3, "nu_start": 0.2, "lam_start": 0.5, "lam_lr": 0.1, "cvar_clip_ratio": 0.5}

_LOSSES: dict[str, tuple[dict[str, Any], Callable[..., tuple[float, list[torch.Tensor]]]]] = {
    "ppo": (_ON_POLICY, ppo_loss),
    "cppo": (_ON_POLICY | _TAILS, ppo_loss),
    "a2c": (_ON_POLICY, a2c_loss),
    "dqn": (_REPLAY | {"exploration_fraction": 0.9}, dqn_loss),
    "sac": (_REPLAY, continuous_loss),
    "td3": (_REPLAY | {"policy_every": 1}, continuous_loss),
    "ddpg": (_REPLAY, continuous_loss),
    "exact": (_SHARED | {"num_steps": STEPS}, exact_loss),
    "grpo": (_GROUPS, grpo_loss),
}
"""Settings of the package's algorithms in a run of three updates, and their losses."""

_SCRATCH = frozenset({"gradients", "epsilon", "so_far", "told"})


def _config(algorithm: Algorithm, **settings: Any) -> Any:
    """Return the settings of an algorithm in a run of three updates; of a registered one, as far as it has them."""
    kind = type(algorithm.config())
    known = _LOSSES[algorithm.name][0] if algorithm.name in _LOSSES else _ON_POLICY
    return kind(**{name: value for name, value in known.items() if name in kind.__dataclass_fields__} | settings)


def _stranger(env: VecEnv, name: str, own: Any) -> Any:
    """Return PPO, or in its place A2C, with the settings but the head that all learners share."""
    other = algorithm_named("a2c" if name == "ppo" else "ppo")
    config = _config(other)
    shared = {key: value for key, value in vars(own).items() if hasattr(config, key) and key != "head"}
    return other.learner(env, replace(config, **shared))


def learner_case(
    algorithm: str | Algorithm, actions: str | None = None, ensemble: bool = False, **settings: Any
) -> LearnerCase:
    """Return a learner of the package, such as ``ppo``, or a registered one, as a case; ValueError of an unknown name.

    Args:
        algorithm: the name or the record. Of one that is not of the package the loss is not compared.
        actions: ``numbers`` or ``choices``, of which some are masked; by default numbers where it learns them.
        ensemble: two members in one batch; their loss is not compared.
        **settings: of the learner.
    """
    record = algorithm_named(algorithm)
    name = record.name
    given = actions or ("choices" if record.actions == "one choice" else "numbers")
    told = [name, *([actions] if actions else []), *(["ensemble"] if ensemble else [])]
    told += [f"{key} {value}" for key, value in settings.items()]
    config = _config(record)

    def env(seed: int, num_envs: int, compiled: bool) -> VecEnv:
        if not ensemble:
            return aim_env(given, num_envs, seed, compiled)
        return aim_env(given, MEMBERS * num_envs, compiled=compiled, **row_seeds((seed, seed + 1), num_envs))

    def make(env: VecEnv, config: Any) -> Any:
        if ensemble:
            return ensemble_of(record.learner)(env, config, range(config.seed, config.seed + MEMBERS))
        return record.learner(env, config, *([ROWS // 2] if record.groups else []))

    return LearnerCase(
        name=", ".join(told),
        make=make,
        config=replace(config, **settings),
        env=env,
        stranger=lambda env: _stranger(env, name, config),
        loss=None if ensemble or name not in _LOSSES else _LOSSES[name][1],
        draws=not record.smooth,
        scratch=_SCRATCH,
        rows_of_rank=None if ensemble else lambda ids: aim_env(given, len(ids), 3, env_ids=ids),
    )
