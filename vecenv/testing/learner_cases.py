"""The learners of the package as cases of `check_learner`: on the tiny task `Aim`, with three updates to a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vecenv.core.env import VecEnv
from vecenv.learn.a2c import A2C, A2CConfig
from vecenv.learn.cppo import CPPO, CPPOConfig
from vecenv.learn.ddpg import DDPG, DDPGConfig
from vecenv.learn.dqn import DQN, DQNConfig
from vecenv.learn.exact import Exact, ExactConfig
from vecenv.learn.grpo import GRPO, GRPOConfig
from vecenv.learn.members import ensemble_of, row_seeds
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.sac import SAC, SACConfig
from vecenv.learn.td3 import TD3, TD3Config
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
    """

    name: str
    make: Callable[[VecEnv, Any], Any]
    config: Any
    env: Callable[[int, int, bool], VecEnv]
    stranger: Callable[[VecEnv], Any]
    loss: Callable[..., tuple[float, list[torch.Tensor]]] | None = None
    draws: bool = True
    scratch: frozenset[str] = field(default=frozenset({"gradients"}))

    def new(self, env_seed: int = 3, num_envs: int = ROWS, compiled: bool = False, **settings: Any) -> Any:  # noqa: ANN401
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

_KINDS: dict[str, tuple[Any, Any, Callable[..., tuple[float, list[torch.Tensor]]]]] = {
    "ppo": (PPO, PPOConfig(**_ON_POLICY), ppo_loss),
    "cppo": (CPPO, CPPOConfig(**_ON_POLICY, **_TAILS), ppo_loss),
    "a2c": (A2C, A2CConfig(**_ON_POLICY), a2c_loss),
    "dqn": (DQN, DQNConfig(**_REPLAY, exploration_fraction=0.9), dqn_loss),
    "sac": (SAC, SACConfig(**_REPLAY), continuous_loss),
    "td3": (TD3, TD3Config(**_REPLAY, policy_every=1), continuous_loss),
    "ddpg": (DDPG, DDPGConfig(**_REPLAY), continuous_loss),
    "exact": (Exact, ExactConfig(**_SHARED, num_steps=STEPS), exact_loss),
    "grpo": (lambda env, config: GRPO(env, config, ROWS // 2), GRPOConfig(**_GROUPS), grpo_loss),
}

_SCRATCH = frozenset({"gradients", "epsilon", "so_far", "told"})


def _stranger(env: VecEnv, name: str) -> Any:  # noqa: ANN401
    """Return PPO, or in its place A2C, with the settings but the head that all learners share."""
    kind, config, _ = _KINDS["a2c" if name == "ppo" else "ppo"]
    own = vars(_KINDS[name][1])
    return kind(
        env, replace(config, **{key: value for key, value in own.items() if hasattr(config, key) and key != "head"})
    )


def learner_case(name: str, actions: str | None = None, ensemble: bool = False, **settings: Any) -> LearnerCase:  # noqa: ANN401
    """Return a learner of the package, such as ``ppo``, as a case; KeyError of an unknown name.

    Args:
        name: ``ppo``, ``cppo``, ``a2c``, ``dqn``, ``sac``, ``td3``, ``ddpg``, ``exact`` or ``grpo``.
        actions: ``numbers`` or ``choices``, of which some are masked; by default numbers, and choices for ``dqn``.
        ensemble: two members in one batch, of ``ppo`` or ``cppo``; their loss is not compared.
        **settings: of the learner.
    """
    kind, config, loss = _KINDS[name]
    given = actions or ("choices" if name == "dqn" else "numbers")
    told = [name, *([actions] if actions else []), *(["ensemble"] if ensemble else [])]
    told += [f"{key} {value}" for key, value in settings.items()]

    def env(seed: int, num_envs: int, compiled: bool) -> VecEnv:
        if not ensemble:
            return aim_env(given, num_envs, seed, compiled)
        return aim_env(given, MEMBERS * num_envs, compiled=compiled, **row_seeds((seed, seed + 1), num_envs))

    def members(env: VecEnv, config: Any) -> Any:  # noqa: ANN401
        return ensemble_of(kind)(env, config, range(config.seed, config.seed + MEMBERS))

    return LearnerCase(
        name=", ".join(told),
        make=members if ensemble else kind,
        config=replace(config, **settings),
        env=env,
        stranger=lambda env: _stranger(env, name),
        loss=None if ensemble else loss,
        draws=name != "exact",
        scratch=_SCRATCH,
    )
