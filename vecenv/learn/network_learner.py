"""Base class of learners with an actor network: parameters, moments of the inputs, optimiser and checkpoints."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import ActorPolicy, make_network
from vecenv.learn.checkpoints import check_optimiser, check_same_form
from vecenv.learn.learner_config import NetworkConfig
from vecenv.learn.running_moments import RunningMoments
from vecenv.learn.runs import Metrics, check_resumable, origin, progress_metrics, set_learning_rate

Config = TypeVar("Config", bound=NetworkConfig)


class NetworkLearner(ABC, Generic[Config]):
    """A learner with an actor network, and its state; `run` runs it, which advances the rows of ``env``.

    Raises:
        TypeError: there is no head for the environment's actions.
        ValueError: the network does not fit the task.
    """

    num_members = 1
    """Policies that are trained as one batch, S; each has its own rows."""

    adam_epsilon = 1e-5
    """Added to the root of Adam's second moments: small beside gradients of advantages, whose deviation is 1."""

    def __init__(self, env: VecEnv, config: Config, num_steps: int, with_critic: bool) -> None:
        self.env, self.config = env, config
        self.batch_size = num_steps * env.num_envs // self.num_members
        self.num_updates = -(-config.total_frames // self.batch_size)
        self.update_number = 0
        device = env.device
        self.network = make_network(env, config)
        self.actor, critic = self.seeded_parameters()
        self.critic = critic if with_critic else []
        self.parameters = [*self.actor, *self.critic]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimiser = torch.optim.Adam(self.parameters, config.learning_rate, eps=self.adam_epsilon, fused=True)
        shape = self.moments_shape()
        self.observation_moments = RunningMoments(shape, device)
        # The moments at the start of the update, in float32 for the fused step.
        self.moments = [torch.zeros(shape, device=device), torch.ones(shape, device=device)]

    def seeded_parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        return self.initial_parameters(torch.Generator().manual_seed(self.config.seed))

    def moments_shape(self) -> tuple[int, ...]:
        return (self.network.moments_size,)

    def initial_parameters(self, generator: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters of actor and critic of one policy: by default those of the network."""
        return self.network.initial_parameters(generator, self.env.device)

    @abstractmethod
    def make_update(self) -> Metrics:
        """Make all optimiser steps of one update, and return metrics; the moments are those of earlier updates."""

    def prepare(self) -> None:
        """Add observations to the moments before the first update, so that its policy sees scaled inputs too."""

    def start_from(
        self, actor: list[Tensor], critic: list[Tensor], moments: list[Tensor], running: Mapping[str, Tensor]
    ) -> None:
        """Copy an initial policy, of the forms of one's own; `vecenv.learn.initial_policy.start_from` checks them.

        The first rollout is added to the running moments.
        """
        own, given = [*self.parameters, *self.moments], [*actor, *critic, *moments]
        for tensor, initial in zip(own, given, strict=True):
            tensor.copy_(initial)
        self.observation_moments.load_state_dict(running)

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
            "environment": self.env.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, bit for bit.

        Raises:
            ValueError: it is of another task, market or number of sub-environments, its settings differ in more than
                `vecenv.learn.runs.MAY_CHANGE`, or its tensors in shape or type.
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
        # It would go on in the memory of the state that it is given.
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        self.observation_moments.load_state_dict(state["observation_moments"])

    @torch.no_grad()
    def update(self) -> Metrics:
        """Make one update and return metrics; the first update includes compilation."""
        started = time.perf_counter()
        if self.update_number == 0:
            self.prepare()
        rate = set_learning_rate(self.optimiser, self.config, self.update_number / self.num_updates)
        metrics = self.make_update()
        self.update_number += 1
        seconds = time.perf_counter() - started
        return progress_metrics(self, self.batch_size, seconds, rate) | metrics

    def add_observations(self, observation: Tensor) -> None:
        """Add observations to the running moments that scale the inputs of the next update. Shape: (B, D)."""
        if self.config.normalise_observations:
            self.observation_moments.update(self.network.samples(observation))
            self.take_moments()

    def take_moments(self) -> None:
        """Scale the inputs of the next update by the running moments."""
        self.moments[0].copy_(self.observation_moments.mean)
        self.moments[1].copy_(self.observation_moments.deviation())


AnyLearner = TypeVar("AnyLearner", bound=NetworkLearner[Any])


@dataclass(frozen=True)
class Trained(Generic[AnyLearner]):
    """A learner of a tensor policy after `run`, and the metrics of every update of that call."""

    learner: AnyLearner
    metrics: list[Metrics]

    def policy(self, deterministic: bool = True) -> ActorPolicy:
        """Return the trained actor for a `FusedCollector`."""
        return ActorPolicy(self.learner.network, self.learner.moments, self.learner.actor, deterministic)
