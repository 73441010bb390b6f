"""Base class of learners on the fused collector: parameters, update loop, minibatch optimisation and checkpoints.

One update: collect T steps of N sub-environments, make some epochs of minibatch steps on them, and add the
observations to the running moments that scale those of the next update.
"""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.compiling import FirstCallCompiled
from vecenv.core.env import VecEnv
from vecenv.learn.checkpoints import check_optimiser, check_same_form
from vecenv.learn.episode_metrics import episode_metrics
from vecenv.learn.learner_config import LearnerConfig
from vecenv.learn.networks import ActorPolicy, make_network, normalised
from vecenv.learn.running_moments import RunningMoments
from vecenv.learn.runs import Metrics, check_resumable, origin, set_learning_rate, update_seed

Config = TypeVar("Config", bound=LearnerConfig)


class Learner(ABC, Generic[Config]):
    """A learner and its state; `run` runs it.

    Args:
        env: the training environment; its rows advance.
        config: settings.
        num_steps: of a rollout, T.
        units: number of steps or episodes by which the batch is shuffled and split; a multiple of the minibatches.
        with_critic: train a critic beside the actor.

    Raises:
        TypeError: there is no head for the environment's actions.
    """

    loss_metrics: Sequence[str]
    """Names of the metrics that `objective` returns with the loss, ``approx_kl`` among them."""

    def __init__(self, env: VecEnv, config: Config, num_steps: int, units: int, with_critic: bool) -> None:
        self.env, self.config, self.units = env, config, units
        self.batch_size = num_steps * env.num_envs
        self.num_updates = -(-config.total_frames // self.batch_size)
        self.update_number = 0
        device = env.device
        self.network = make_network(env, config.hidden, config.initial_std, config.bf16)
        self.actor, critic = self.network.initial_parameters(torch.Generator().manual_seed(config.seed), device)
        self.critic = critic if with_critic else []
        self.parameters = [*self.actor, *self.critic]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimiser = torch.optim.Adam(self.parameters, config.learning_rate, eps=1e-5, fused=True)
        size = self.network.observation_size
        self.observation_moments = RunningMoments((size,), device)
        # The moments at the start of the rollout, in float32 for the fused step.
        self.moments = [torch.zeros(size, device=device), torch.ones(size, device=device)]
        # Before the collector, which binds the parameter tensors.
        self.schedule = env.scenario.schedule(env.num_envs)
        if self.schedule is not None:
            env.follow(self.schedule)
        self.collector = FusedCollector(env, ActorPolicy(self.network, self.moments, self.actor), num_steps)
        self.generator = torch.Generator(device)
        self._gradients = FirstCallCompiled(self._minibatch_gradients, lambda: self.env.compiled)

    @abstractmethod
    def collect(self) -> None:
        """Fill the collector's buffers with a rollout."""

    @abstractmethod
    def learn(self) -> Metrics:
        """Make all optimiser steps of one update on the rollout, and return metrics."""

    @abstractmethod
    def pick(self, tensor: Tensor, index: Tensor) -> Tensor:
        """Return the units ``index`` of one of the batch's tensors."""

    @abstractmethod
    def objective(self, *arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Return the loss to minimise and `loss_metrics` for a minibatch.

        Its arguments are the parameters of actor and critic; normalised observations, of shape (B, D); the action mask,
        None to allow all; and the minibatch of the tensors that follow the observations in the batch of `minimise`.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the state needed to resume, of types that `torch.load` with ``weights_only`` accepts."""
        return {
            **origin(self.config, self.env),
            "update": self.update_number,
            "actor": [parameter.clone() for parameter in self.actor],
            "critic": [parameter.clone() for parameter in self.critic],
            "moments": [moment.clone() for moment in self.moments],
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "observation_moments": self.observation_moments.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "environment": self.env.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, bit for bit.

        Raises:
            ValueError: it is of another task, market or number of sub-environments, its settings differ in more than
                ``total_frames``, ``checkpoint_every`` and ``tensorboard``, or its tensors in shape or type.
        """
        check_resumable(state, self.config, self.env)
        # Before anything is loaded; without entries that are checked elsewhere or may differ.
        apart = ("config", "scenario", "optimiser")
        saved, own = ({name: one[name] for name in one if name not in apart} for one in (state, self.state_dict()))
        check_same_form(saved, own, "state")
        check_optimiser(state.get("optimiser"), self.optimiser)
        self.env.load_state_dict(state["environment"])
        self.update_number = state["update"]
        for name in ("actor", "critic", "moments"):
            for own_tensor, saved in zip(getattr(self, name), state[name], strict=True):
                own_tensor.copy_(saved)
        self.optimiser.load_state_dict(state["optimiser"])
        self.observation_moments.load_state_dict(state["observation_moments"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
            self.env.write_params(self.schedule.params())

    @torch.no_grad()
    def update(self) -> Metrics:
        """Collect one batch, learn from it and return metrics; the first update includes compilation."""
        started = time.perf_counter()
        if self.update_number == 0:
            # A rollout for the moments alone, so that the first policy sees scaled observations too.
            self.collect()
            self.update_moments()
        rate = set_learning_rate(self.optimiser, self.config, self.update_number / self.num_updates)
        self.collect()
        metrics = self.learn()
        metrics |= episode_metrics(self.collector)
        if self.schedule is not None:
            rows = self.collector.rows()
            step, ids = rows.done.nonzero(as_tuple=True)
            ended, bound = rows[step, ids], self.env.engine.bound().of_rows(ids)
            metrics |= self.schedule.update(ended, ids, lambda: bound.grade(ended))
            self.env.write_params(self.schedule.params())
        self.update_moments()
        self.update_number += 1
        seconds = time.perf_counter() - started
        progress = {
            "update": self.update_number,
            "frames": self.update_number * self.batch_size,
            "samples_per_second": self.batch_size / seconds,
            "learning_rate": rate,
        }
        return progress | metrics

    def update_moments(self) -> None:
        """Add the rollout's observations to the running moments that scale the next rollout."""
        assert self.collector.observation is not None
        if self.config.normalise_observations:
            self.observation_moments.update(self.collector.observation.flatten(0, 1))
            self.moments[0].copy_(self.observation_moments.mean)
            self.moments[1].copy_(self.observation_moments.deviation())

    def minimise(self, batch: list[Tensor], largest_kl: float | None = None) -> Metrics:
        """Make the optimiser steps of one update and return the means of the loss metrics.

        Args:
            batch: of the update: raw observations, then the further tensors of `objective`.
            largest_kl: early stopping: no further epochs once the mean ``approx_kl`` of an epoch exceeds this.

        Raises:
            FloatingPointError: a loss is not finite.
        """
        config = self.config
        shared = [*self.parameters, *self.moments, *batch]
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        steps = torch.zeros(config.epochs, config.minibatches, len(self.loss_metrics), device=self.env.device)
        self.generator.manual_seed(update_seed(config, self.update_number))
        for epoch in range(config.epochs):
            order = torch.randperm(self.units, generator=self.generator, device=self.env.device)
            for minibatch, index in enumerate(order.view(config.minibatches, -1)):
                self._gradients([*shared, index], [*gradients, steps[epoch, minibatch]])
                self.optimiser.step()
            kl = steps[epoch, :, self.loss_metrics.index("approx_kl")]
            if largest_kl is not None and kl.mean() > largest_kl:
                break
        means = steps[: epoch + 1].mean((0, 1)).tolist()
        if not all(math.isfinite(mean) for mean in means):
            raise FloatingPointError(f"update {self.update_number + 1}: losses are not finite: {means}")
        return dict(zip(self.loss_metrics, means, strict=True))

    def _minibatch_gradients(self, *tensors: Tensor) -> list[Tensor]:
        """Return clipped gradients and metrics of a minibatch; the last tensor is the index of its units."""
        count = len(self.parameters)
        parameters = list(tensors[:count])
        mean, deviation, *batch, index = tensors[count:]
        observation, *others = (self.pick(tensor, index) for tensor in batch)
        observation = observation.flatten(0, -2)
        allowed = self.network.mask(observation)
        gradients, metrics = torch.func.grad(self.objective, has_aux=True)(
            parameters, normalised(observation, mean, deviation), allowed, *others
        )
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        factor = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        return [*(gradient * factor for gradient in gradients), metrics]


TensorLearner = TypeVar("TensorLearner", bound=Learner[Any])


@dataclass(frozen=True)
class Trained(Generic[TensorLearner]):
    """A learner of a tensor policy after `run`.

    Attributes:
        learner: with the final parameters, optimiser and environment.
        metrics: of every update of this call.
    """

    learner: TensorLearner
    metrics: list[Metrics]

    def policy(self, deterministic: bool = True) -> ActorPolicy:
        """Return the trained actor for a `FusedCollector`."""
        return ActorPolicy(self.learner.network, self.learner.moments, self.learner.actor, deterministic)
