"""Base class of learners on the fused collector: rollouts and minibatch optimisation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector, Policy
from vecenv.core.compiling import FirstCallCompiled
from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.episode_metrics import episode_metrics
from vecenv.learn.learner_config import NetworkConfig
from vecenv.learn.network_learner import NetworkLearner
from vecenv.learn.running_moments import batch_moments, table_moments
from vecenv.learn.runs import Metrics, checked_losses, update_seed

Config = TypeVar("Config", bound=NetworkConfig)


class Learner(NetworkLearner[Config], Generic[Config]):
    """A learner that samples actions; `run` runs it. Errors are those of `NetworkLearner`.

    An update collects T steps of N sub-environments, makes some epochs of minibatch steps on them, and adds the
    observations to the running moments that scale those of the next one. ``units`` is the number of steps or episodes
    by which the batch is shuffled and split; a multiple of the minibatches.
    """

    loss_metrics: Sequence[str]
    """Names of the metrics that `objective` returns with the loss; early stopping needs ``approx_kl`` among them."""

    def __init__(self, env: VecEnv, config: Config, num_steps: int, units: int, with_critic: bool) -> None:
        super().__init__(env, config, num_steps, with_critic)
        self.units = units
        # Before the collector, which binds the parameter tensors.
        self.schedule = env.scenario.schedule(env.num_envs)
        if self.schedule is not None:
            env.follow(self.schedule)
        self.collector = FusedCollector(env, self.collecting_policy(), num_steps)
        self.generator = torch.Generator(env.device)
        self.gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self._gradients = FirstCallCompiled(self._minibatch_gradients, lambda: self.env.compiled)

    def collecting_policy(self) -> Policy:
        return ActorPolicy(self.network, self.moments, self.actor)

    def constants(self) -> list[Tensor]:
        """Return tensors that `objective` reads whole, beside the minibatch, as they are at each step; mostly none."""
        return []

    def clipped_together(self) -> list[int]:
        """Return the sizes of the groups of parameters, in their order, whose gradients have one norm: mostly one."""
        return [len(self.parameters)]

    def before_step(self, number: int) -> None:
        """Choose what an optimiser step changes, with its number in the run, from 1; mostly all.

        A parameter without ``grad`` keeps its value and the optimiser's moments of it.
        """

    def after_step(self, number: int) -> None:
        """Follow up on an optimiser step, with its number in the run, from 1; mostly nothing."""

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
        None to allow all; the minibatch of the tensors that follow what was seen in the batch of `minimise`; and the
        `constants`.
        """

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"schedule": None if self.schedule is None else self.schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
            self.env.write_params(self.schedule.params())

    def prepare(self) -> None:
        self.collect()
        self.update_moments()

    def make_update(self) -> Metrics:
        self.collect()
        self.seed_shuffles()
        metrics = self.learn()
        metrics |= self.episode_metrics()
        if self.schedule is not None:
            rows = self.collector.rows()
            step, ids = rows.done.nonzero(as_tuple=True)
            ended, bound = rows[step, ids], self.env.engine.bound().of_rows(ids)
            metrics |= self.schedule.update(ended, ids, lambda: bound.grade(ended))
            self.env.write_params(self.schedule.params())
        self.update_moments()
        return metrics

    def episode_metrics(self) -> Metrics:
        return episode_metrics(self.collector)

    def update_moments(self) -> None:
        """Add the rollout's observations to the running moments that scale the next rollout."""
        seen, references = [part.flatten(0, 1) for part in self.collector.seen], self.collector.references
        if references is None:
            self.add_observations(seen[0])
        elif self.config.normalise_observations:
            own, rows = seen
            table = references.table(self.env.engine.bound())
            parts = zip(batch_moments(own), table_moments(table, rows), strict=True)
            self.observation_moments.merge(len(rows), *(references.joined(*pair) for pair in parts))
            self.take_moments()

    def minimise(self, batch: list[Tensor], largest_kl: float | None = None) -> Metrics:
        """Make the optimiser steps of one update and return the means of the loss metrics.

        The batch is what was seen, as in the collector's `seen`, then the further tensors of `objective`. No further
        epoch is made once the mean ``approx_kl`` of one exceeds ``largest_kl``. A loss that is not finite raises a
        FloatingPointError.
        """
        means = checked_losses(self, self.optimise(batch, largest_kl).tolist())
        return dict(zip(self.loss_metrics, means, strict=True))

    def optimise(self, batch: list[Tensor], largest_kl: float | None = None) -> Tensor:
        """Make the optimiser steps of `minimise`, and return the means of the metrics. Shape: `losses_shape`."""
        config = self.config
        shared = [*self.parameters, *self.moments, *self._market(), *self.constants(), *batch]
        steps = torch.zeros(config.epochs, config.minibatches, *self.losses_shape(), device=self.env.device)
        first = self.update_number * config.epochs * config.minibatches
        for epoch in range(config.epochs):
            for minibatch, index in enumerate(self.shuffled()):
                number = first + epoch * config.minibatches + minibatch + 1
                self._gradients([*shared, index], [*self.gradients, steps[epoch, minibatch]])
                self.before_step(number)
                self.optimiser.step()
                self.after_step(number)
            if largest_kl is not None and steps[epoch, :, self.loss_metrics.index("approx_kl")].mean() > largest_kl:
                break
        return steps[: epoch + 1].mean((0, 1))

    def losses_shape(self) -> tuple[int, ...]:
        return (len(self.loss_metrics),)

    def seed_shuffles(self) -> None:
        self.generator.manual_seed(update_seed(self.config.seed, self.update_number))

    def shuffled(self) -> Tensor:
        """Return the units of the batch in random order. Shape: (minibatches, units of one)."""
        order = torch.randperm(self.units, generator=self.generator, device=self.env.device)
        return order.view(self.config.minibatches, -1)

    def _market(self) -> list[Tensor]:
        """Return the tensors that observations by reference are put together from, none without such."""
        return [] if self.collector.references is None else self.env.engine.inputs

    def _minibatch_gradients(self, *tensors: Tensor) -> list[Tensor]:
        """Return clipped gradients and metrics of a minibatch; the last tensor is the index of its units."""
        remaining = list(tensors)

        def take(count: int) -> list[Tensor]:
            taken = remaining[:count]
            del remaining[:count]
            return taken

        parameters, (mean, deviation), market = take(len(self.parameters)), take(2), take(len(self._market()))
        constants = take(len(self.constants()))
        *batch, index = remaining
        picked = [self.pick(tensor, index) for tensor in batch]
        seen, others = picked[: len(self.collector.seen)], picked[len(self.collector.seen) :]
        observation = self.collector.whole(seen, market)
        gradients, metrics = self.clipped_gradients(parameters, mean, deviation, observation, others, constants)
        return [*gradients, metrics]

    def clipped_gradients(
        self,
        parameters: list[Tensor],
        mean: Tensor,
        deviation: Tensor,
        observation: Tensor,
        others: list[Tensor],
        constants: list[Tensor],
    ) -> tuple[list[Tensor], Tensor]:
        """Return the clipped gradients and the metrics of a minibatch; ``others`` are what `objective` takes of it."""
        observation = observation.flatten(0, -2)
        allowed = self.network.mask(observation)
        gradients, metrics = torch.func.grad(self.objective, has_aux=True)(
            parameters, self.network.normalised(observation, mean, deviation), allowed, *others, *constants
        )
        clipped: list[Tensor] = []
        for count in self.clipped_together():
            group = gradients[len(clipped) : len(clipped) + count]
            norm = torch.stack([gradient.square().sum() for gradient in group]).sum().sqrt()
            factor = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            clipped += [gradient * factor for gradient in group]
        return clipped, metrics
