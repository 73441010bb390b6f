"""A learner of a stranger, of public names alone: REINFORCE (Williams 1992) with a running mean return as baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.learn.learner import Learner
from vecenv.learn.runs import Metrics
from vecenv.learn.settings.run import LearnerConfig
from vecenv.system.settings import Count, Share


@dataclass(frozen=True)
class ReinforceConfig(LearnerConfig):
    """Settings of REINFORCE."""

    epochs: Count = 1
    """Passes over each batch."""
    minibatches: Count = 1
    """Optimiser steps of an update."""
    num_steps: Count = 16
    """Steps per rollout and sub-environment."""
    gamma: Share = 0.9
    """Discount per step."""
    baseline_rate: Share = 0.1
    """Share of the way to the mean return of a rollout that the baseline goes."""


class Reinforce(Learner[ReinforceConfig]):
    """REINFORCE learner; `vecenv.learn.runs.run` runs it."""

    loss_metrics = ("policy_loss", "entropy")

    def __init__(self, env: vecenv.VecEnv, config: ReinforceConfig) -> None:
        units = config.num_steps * env.num_envs
        super().__init__(env, config, config.num_steps, with_critic=False, units=units)
        self.baseline = torch.zeros((), device=env.device)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"baseline": self.baseline.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.baseline.copy_(state["baseline"])

    def learn(self) -> Metrics:
        collector, following = self.collector, torch.zeros(self.env.num_envs, device=self.env.device)
        returns, done = torch.empty_like(collector.reward), collector.terminated | collector.truncated
        for step in reversed(range(len(returns))):
            returns[step] = collector.reward[step] + self.config.gamma * torch.where(done[step], 0.0, following)
            following = returns[step]
        batch = [*collector.seen, collector.actions, returns - self.baseline]
        self.baseline.lerp_(
            self.shards.mean([part.mean() for part in self.shards.parts(returns)]), self.config.baseline_rate
        )
        return self.minimise([tensor.flatten(0, 1) for tensor in batch]) | {"baseline": float(self.baseline)}

    def objective(
        self, parameters: list[Tensor], observation: Tensor, allowed: Tensor | None, action: Tensor, advantage: Tensor
    ) -> tuple[Tensor, Tensor]:
        outputs, own = self.network.outputs(parameters, observation, allowed)
        log_prob, entropy = self.network.head.evaluate(outputs, own, action)
        loss, entropy = -(log_prob * advantage).mean(), entropy.mean()
        return loss - self.config.entropy_coef * entropy, torch.stack([loss, entropy]).detach()


REINFORCE = vecenv.register_algorithm(
    vecenv.Algorithm(
        name="reinforce",
        summary="the plain policy gradient, without a critic",
        learner=Reinforce,
        config=ReinforceConfig,
    )
)
