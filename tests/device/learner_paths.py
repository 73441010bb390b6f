"""Learners and agents as paths that run on a device."""

from dataclasses import replace
from typing import Any

import vecenv
from tests.device.task_paths import BOTH_RULES, ROWS, make
from tests.device.trial import Path, Trial
from tests.learn.tails_task import RatedTails
from vecenv import VecEnv
from vecenv.learn import algorithm_named, evaluation, group_episodes, members, ppo
from vecenv.learn.grpo import GRPO, GRPOConfig
from vecenv.learn.learner import Learner
from vecenv.learn.settings.grpo import VARIANTS
from vecenv.registry import task_of

STEPS = 6
SHORT = {"task": "stock_trading", "episode_length": 5, "min_episode_length": 3}
WEIGHTS = {**SHORT, "action": "weights"}
BOOKS = {"task": "crypto_lob", "synthetic_hours": 1.0, "episode_steps": 5, "cost_ramp": 2}
SCORED = {**BOTH_RULES, "observed": ("sentiment", "risk"), "episode_length": 5, "min_episode_length": 3}
SMOOTH = {**SHORT, "whole_shares": False, "reward": "excess_log_return"}
TIER = {"task": "single_stock_costs", "days": 5}
ROLLOUTS: dict[str, Any] = {"num_steps": STEPS, "total_frames": 3 * ROWS * STEPS, "hidden": (8,)}
EPOCH = {**ROLLOUTS, "minibatches": 2, "epochs": 1}
REPLAY = {**ROLLOUTS, "minibatches": 2, "minibatch_size": 8, "buffer_size": 100}

UPDATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "PPO stock_trading": (SHORT, {**EPOCH, "by_reference": False}),
    "PPO by reference": (SHORT, {**EPOCH, "by_reference": True}),
    "PPO target_kl": (SHORT, {**EPOCH, "target_kl": 0.02, "epochs": 2}),
    "PPO tier": (TIER, EPOCH),
    "PPO curriculum": ({"task": "curriculum", "tiers": ("single_stock",)}, EPOCH),
    "PPO signals": (SCORED, {**EPOCH, "by_reference": True}),
    "PPO dirichlet": (WEIGHTS, {**EPOCH, "head": "dirichlet", "policy": "symbol"}),
    "CPPO stock_trading": (SHORT, {**EPOCH, "by_reference": False}),
    "CPPO signals": ({**SCORED, "risk_form": "trajectory"}, {**EPOCH, "weigh_risk": True}),
    "CPPO tier": (TIER, {**EPOCH, "cvar_clip_of": "advantage"}),
    "CPPO risk": ({"task": "tails"}, {**EPOCH, "weigh_risk": True}),
    "A2C stock_trading": (SHORT, {**ROLLOUTS, "by_reference": True}),
    "A2C tier": (TIER, {**ROLLOUTS, "minibatches": 2}),
    "DQN plain": ({**BOOKS, "action": "target"}, REPLAY),
    "DQN variants": ({**BOOKS, "action": "target"}, {**REPLAY, "double": True, "duelling": True}),
    "DDPG": (WEIGHTS, REPLAY),
    "TD3": ({**SHORT, "action": "tilt"}, REPLAY),
    "SAC": (WEIGHTS, REPLAY),
    "SAC order books": ({**BOOKS, "action": "continuous"}, REPLAY),
    "exact shares": (SMOOTH, ROLLOUTS),
    "exact tilt": ({**SMOOTH, "action": "tilt"}, {**ROLLOUTS, "policy": "symbol", "worst": 0.5}),
    "exact dirichlet": ({**SMOOTH, "action": "weights"}, {**ROLLOUTS, "head": "dirichlet"}),
}
"""Environment and settings of the learner that a path begins with."""

ENSEMBLES: dict[str, dict[str, Any]] = {
    "ensemble flat": {"by_reference": False},
    "ensemble symbol": {"policy": "symbol", "gamma": 0.0},
}
"""Settings of the members, of which there are two."""

GROUPS = tuple(f"GRPO {variant}" for variant in VARIANTS)
LEARNER_PATHS = (*UPDATES, *ENSEMBLES, *GROUPS, "agents stock_trading", "agents full_autonomous")


def learner_path(name: str) -> Path:
    if name in UPDATES:
        rules, settings = UPDATES[name]
        algorithm = algorithm_named(name.split()[0].lower())
        config = replace(algorithm.config(), **settings)
        return lambda trial: _updates(trial, algorithm.learner(_environment(trial, **rules), config))
    if name in ENSEMBLES:
        return lambda trial: _ensemble(trial, ENSEMBLES[name])
    kind, _, which = name.partition(" ")
    return lambda trial: _grpo(trial, which) if kind == "GRPO" else _agents(trial, which)


def _environment(trial: Trial, task: str, **rules: Any) -> VecEnv:
    compiled = trial.device == "cuda"
    if task == "tails":
        return VecEnv(RatedTails(7), ROWS, 0, trial.device, compiled)
    if task == "crypto_lob":
        return vecenv.make(task, ROWS, device=trial.device, compile=compiled, **rules)
    return make(trial.device, task=task, **rules)


def _ensemble(trial: Trial, settings: dict[str, Any]) -> None:
    options = {"num_paths": 2, "num_days": 330, "seed": 5}
    env = vecenv.make(
        num_envs=ROWS, market_options=options, device=trial.device, compile=trial.device == "cuda", **SHORT,
        action="tilt", **members.row_seeds((3, 4), ROWS // 2),
    )  # fmt: skip
    config = ppo.PPOConfig(**EPOCH | {"total_frames": 3 * ROWS // 2 * STEPS} | settings)
    _updates(trial, members.ensemble_of(ppo.PPO)(env, config, (3, 4)))


def _grpo(trial: Trial, variant: Any) -> None:
    env = make(trial.device, task="single_stock", days=4)
    worth = group_episodes.EpisodeReward(grade=1.0, steps=0.1, invalid=1.0)
    config = GRPOConfig(variant=variant, minibatches=2, epochs=1, total_frames=3 * ROWS * 4, hidden=(8,), reward=worth)
    _updates(trial, GRPO(env, replace(config, kl_coef=0.01, refills=1), 4))


def _updates(trial: Trial, learner: Learner[Any]) -> None:
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
    rules = {"episode_length": 4} if task == "stock_trading" else {"action": "orders", "days": 4}
    env = make(trial.device, task=task, **rules)
    for name, agent in task_of(env).agents.items():
        with trial.part("play"):
            record = evaluation.play(env, agent(), 3)
        trial.keep(name, [record.curves.equity, record.grades, record.curves.cash, record.positions])
