"""Learners and agents as paths that run on a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import vecenv
from tests.device.task_paths import BOTH_RULES, ROWS, make
from tests.device.trial import Path, Trial
from tests.learn.tails_task import RatedTails
from vecenv import VecEnv
from vecenv.learn.a2c import A2C, A2CConfig
from vecenv.learn.cppo import CPPO, CPPOConfig
from vecenv.learn.ddpg import DDPG, DDPGConfig
from vecenv.learn.dqn import DQN, DQNConfig
from vecenv.learn.evaluation import play
from vecenv.learn.exact import Exact, ExactConfig
from vecenv.learn.grpo import GRPO, VARIANTS, GRPOConfig
from vecenv.learn.grpo_config import EpisodeReward
from vecenv.learn.network_learner import NetworkLearner
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.ppo_ensemble import EnsemblePPO, row_seeds
from vecenv.learn.sac import SAC, SACConfig
from vecenv.learn.td3 import TD3, TD3Config
from vecenv.registry import task_of

STEPS = 6

SHORT = {"task": "stock_trading", "episode_length": 5, "min_episode_length": 3}

SCORED = {**BOTH_RULES, "observed": ("sentiment", "risk"), "episode_length": 5, "min_episode_length": 3}

PPO_PATHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "PPO stock_trading": (SHORT, {"by_reference": False}),
    "PPO by reference": (SHORT, {"by_reference": True}),
    "PPO target_kl": (SHORT, {"target_kl": 0.02, "epochs": 2}),
    "PPO tier": ({"task": "single_stock_costs", "days": 5}, {}),
    "PPO curriculum": ({"task": "curriculum", "tiers": ("single_stock",)}, {}),
    "PPO signals": (SCORED, {"by_reference": True}),
    "PPO dirichlet": ({**SHORT, "action": "weights"}, {"head": "dirichlet", "policy": "symbol"}),
}
"""Environment and settings of the learner."""

A2C_PATHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "A2C stock_trading": (SHORT, {"by_reference": True}),
    "A2C tier": ({"task": "single_stock_costs", "days": 5}, {"minibatches": 2}),
}
"""Environment and settings of the learner."""

SMOOTH = {**SHORT, "whole_shares": False, "reward": "excess_log_return"}

EXACT_PATHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "exact shares": (SMOOTH, {}),
    "exact tilt": ({**SMOOTH, "action": "tilt"}, {"policy": "symbol", "worst": 0.5}),
    "exact dirichlet": ({**SMOOTH, "action": "weights"}, {"head": "dirichlet"}),
}
"""Environment and settings of the learner."""

CPPO_PATHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "CPPO stock_trading": (SHORT, {"by_reference": False}),
    "CPPO signals": ({**SCORED, "risk_form": "trajectory"}, {"weigh_risk": True}),
    "CPPO tier": ({"task": "single_stock_costs", "days": 5}, {"cvar_clip_of": "advantage"}),
}
"""Environment and settings of the learner."""


ENSEMBLE_PATHS: dict[str, dict[str, Any]] = {
    "ensemble flat": {"by_reference": False},
    "ensemble symbol": {"policy": "symbol", "gamma": 0.0},
}
"""Settings of the members, of which there are two."""

DQN_PATHS: dict[str, dict[str, Any]] = {"DQN plain": {}, "DQN variants": {"double": True, "duelling": True}}
"""Settings of the learner, on order books."""

CONTINUOUS_PATHS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "DDPG": (DDPG, DDPGConfig, {**SHORT, "action": "weights"}),
    "TD3": (TD3, TD3Config, {**SHORT, "action": "tilt"}),
    "SAC": (SAC, SACConfig, {**SHORT, "action": "weights"}),
    "SAC order books": (SAC, SACConfig, {}),
}
"""Learners of continuous actions from replay, with their settings and the environment, by default on order books."""

FROM_REPLAY: dict[str, Any] = {
    "num_steps": STEPS, "minibatches": 2, "minibatch_size": 8, "buffer_size": 100, "total_frames": 3 * ROWS * STEPS,
    "hidden": (8,),
}  # fmt: skip

RISK_PATH = "CPPO risk"
"""The path of a learner that weighs risk, on a task of the tests."""

GRPO_PATHS = tuple(f"GRPO {variant}" for variant in VARIANTS)

AGENT_PATHS = ("agents stock_trading", "agents full_autonomous")

LEARNER_PATHS = (
    *PPO_PATHS, *CPPO_PATHS, RISK_PATH, *ENSEMBLE_PATHS, *A2C_PATHS, *DQN_PATHS, *CONTINUOUS_PATHS, *EXACT_PATHS,
    *GRPO_PATHS, *AGENT_PATHS,
)  # fmt: skip


def learner_path(name: str) -> Path:
    """Return the path of a learner, or of agents, in `LEARNER_PATHS`."""
    if name in PPO_PATHS:
        return lambda trial: _ppo(trial, *PPO_PATHS[name])
    if name in CPPO_PATHS:
        return lambda trial: _cppo(trial, make(trial.device, **CPPO_PATHS[name][0]), CPPO_PATHS[name][1])
    if name == RISK_PATH:
        return lambda trial: _cppo(trial, _rated(trial), {"weigh_risk": True})
    if name in ENSEMBLE_PATHS:
        return lambda trial: _ensemble(trial, ENSEMBLE_PATHS[name])
    if name in A2C_PATHS:
        return lambda trial: _a2c(trial, *A2C_PATHS[name])
    if name in EXACT_PATHS:
        return lambda trial: _exact(trial, *EXACT_PATHS[name])
    if name in CONTINUOUS_PATHS:
        return lambda trial: _continuous(trial, *CONTINUOUS_PATHS[name])
    if name in DQN_PATHS:
        return lambda trial: _dqn(trial, DQN_PATHS[name])
    kind, _, which = name.partition(" ")
    return lambda trial: _grpo(trial, which) if kind == "GRPO" else _agents(trial, which)


def _ppo(trial: Trial, rules: dict[str, Any], settings: dict[str, Any]) -> None:
    config = PPOConfig(num_steps=STEPS, minibatches=2, epochs=1, total_frames=3 * ROWS * STEPS, hidden=(8,))
    _updates(trial, PPO(make(trial.device, **rules), replace(config, **settings)))


def _rated(trial: Trial) -> VecEnv:
    return VecEnv(RatedTails(7), ROWS, 0, trial.device, trial.device == "cuda")


def _cppo(trial: Trial, env: VecEnv, settings: dict[str, Any]) -> None:
    config = CPPOConfig(num_steps=STEPS, minibatches=2, epochs=1, total_frames=3 * ROWS * STEPS, hidden=(8,))
    _updates(trial, CPPO(env, replace(config, **settings)))


def _ensemble(trial: Trial, settings: dict[str, Any]) -> None:
    options = {"num_paths": 2, "num_days": 330, "seed": 5}
    env = vecenv.make(
        num_envs=ROWS, market_options=options, device=trial.device, compile=trial.device == "cuda", **SHORT,
        action="tilt", **row_seeds((3, 4), ROWS // 2),
    )  # fmt: skip
    config = PPOConfig(num_steps=STEPS, minibatches=2, epochs=1, total_frames=3 * ROWS // 2 * STEPS, hidden=(8,))
    _updates(trial, EnsemblePPO(env, replace(config, **settings), (3, 4)))


def _a2c(trial: Trial, rules: dict[str, Any], settings: dict[str, Any]) -> None:
    config = A2CConfig(num_steps=STEPS, total_frames=3 * ROWS * STEPS, hidden=(8,))
    _updates(trial, A2C(make(trial.device, **rules), replace(config, **settings)))


def _exact(trial: Trial, rules: dict[str, Any], settings: dict[str, Any]) -> None:
    config = ExactConfig(num_steps=STEPS, total_frames=3 * ROWS * STEPS, hidden=(8,))
    _updates(trial, Exact(make(trial.device, **rules), replace(config, **settings)))


def _dqn(trial: Trial, settings: dict[str, Any]) -> None:
    _updates(trial, DQN(_books(trial, "target"), replace(DQNConfig(**FROM_REPLAY), **settings)))


def _continuous(trial: Trial, learner: Any, config: Any, rules: dict[str, Any]) -> None:
    env = make(trial.device, **rules) if rules else _books(trial, "continuous")
    _updates(trial, learner(env, config(**FROM_REPLAY)))


def _books(trial: Trial, action: str) -> VecEnv:
    rules = {"synthetic_hours": 1.0, "episode_steps": 5, "cost_ramp": 2, "action": action}
    return vecenv.make("crypto_lob", ROWS, device=trial.device, compile=trial.device == "cuda", **rules)


def _grpo(trial: Trial, variant: Any) -> None:
    env = make(trial.device, task="single_stock", days=4)
    worth = EpisodeReward(grade=1.0, steps=0.1, invalid=1.0)
    config = GRPOConfig(variant=variant, minibatches=2, epochs=1, total_frames=3 * ROWS * 4, hidden=(8,), reward=worth)
    _updates(trial, GRPO(env, replace(config, kl_coef=0.01, refills=1), 4))


def _updates(trial: Trial, learner: NetworkLearner[Any]) -> None:
    """Make two updates, the second of which is watched, and go on from a state."""
    first = learner.update()
    with trial.part("update"):
        second = learner.update()
    with trial.part("save and load"):
        learner.load_state_dict(learner.state_dict())
    for name, metrics in (("first", first), ("second", second)):
        trial.keep(name, {key: value for key, value in metrics.items() if key != "samples_per_second"})
    trial.keep("parameters", [parameter.detach() for parameter in learner.parameters])
    trial.keep("moments", learner.moments)


def _agents(trial: Trial, task: str) -> None:
    """Let every agent of a task play."""
    rules = {"episode_length": 4} if task == "stock_trading" else {"action": "orders", "days": 4}
    env = make(trial.device, task=task, **rules)
    for name, agent in task_of(env).agents.items():
        with trial.part("play"):
            record = play(env, agent(), 3)
        trial.keep(name, [record.curves.equity, record.grades, record.curves.cash, record.account.positions])
