"""The learner of a training: by algorithm, and with validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vecenv.core.env import VecEnv
from vecenv.learn.a2c import A2C
from vecenv.learn.actor_policy import make_network
from vecenv.learn.cppo import CPPO, EnsembleCPPO
from vecenv.learn.ddpg import DDPG
from vecenv.learn.dqn import DQN
from vecenv.learn.exact import Exact
from vecenv.learn.grpo import GRPO, GRPOConfig
from vecenv.learn.network_learner import NetworkLearner
from vecenv.learn.ppo import PPO
from vecenv.learn.ppo_ensemble import EnsemblePPO
from vecenv.learn.runs import Runnable
from vecenv.learn.sac import SAC
from vecenv.learn.td3 import TD3
from vecenv.learn.validated_ensemble import ValidatedEnsemble
from vecenv.learn.validation import ValidatedLearner, Validation
from vecenv.market.tape import MarketTape
from vecenv.tasks.commands.comparison import validation_environment
from vecenv.tasks.commands.language_training import language_learner, with_seed
from vecenv.tasks.commands.simulated import held_out_simulation, is_simulated
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.commands.training_report import AnyLearner

LEARNERS = {
    "ppo": PPO, "cppo": CPPO, "a2c": A2C, "dqn": DQN, "sac": SAC, "td3": TD3, "ddpg": DDPG, "exact": Exact,
}  # fmt: skip
"""Learners of a policy by algorithm, all but those that compare groups."""

ENSEMBLES = {"ppo": EnsemblePPO, "cppo": EnsembleCPPO}
"""Learners of several seeds as one batch, by the algorithms of `STACKED`."""


def new_learner(settings: TrainSettings, env: VecEnv) -> AnyLearner:
    """Return the learner in its initial state."""
    if settings.model is not None:
        return language_learner(env, settings.model, with_seed(settings.language, settings.seed), settings.group_size)
    config = settings.learner_config()
    if settings.ensemble is not None:
        seeds = range(config.seed, config.seed + settings.ensemble)
        return ENSEMBLES[settings.algorithm](env, config, seeds)
    if isinstance(config, GRPOConfig):
        return GRPO(env, config, settings.group_size)
    return LEARNERS[settings.algorithm](env, config)


def with_validation(
    settings: TrainSettings,
    learner: Runnable,
    config: Any,  # noqa: ANN401
    spans: Mapping[str, MarketTape],
) -> Runnable:
    """Return the learner with validation, if there is a span for it.

    Raises:
        ValueError: the policy of the task cannot be validated.
    """
    simulated = is_simulated(settings.task) and settings.validation_fraction > 0
    if "Validation" not in spans and not simulated:
        return learner
    if not isinstance(learner, NetworkLearner):
        raise ValueError("a language model is trained without validation: set --validation-fraction 0")
    count = settings.validation_episodes
    if simulated:
        env = held_out_simulation(settings.task, config, count, "validation", settings.device, settings.compile)
    else:
        env = validation_environment(settings.task, spans["Validation"], config, count, settings.compile)
    # Policies of symbols train on some of them and are validated on all.
    network = None if settings.symbols_per_path is None else make_network(env, learner.config)
    validation, often = Validation(env, settings.seed, network), (settings.evaluations, settings.patience)
    if isinstance(learner, EnsemblePPO):
        return ValidatedEnsemble(learner, validation, *often)
    return ValidatedLearner(learner, validation, *often)
