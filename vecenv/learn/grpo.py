"""Group-relative policy optimisation (GRPO) of tensor policies: advantages within groups of episodes, no critic.

A group is a set of rows that share path, start and length, so that its members differ by their actions alone. One
rollout of the collector is one episode of every row. An episode is a sequence and a day's action a token of the
objective that is also used for language models (`vecenv.learn.group_objective`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn import Algorithm
from vecenv.learn.group_episodes import GroupEpisodes, audit, group_episodes, refilled, rollout_seed, step_credit
from vecenv.learn.group_objective import GroupConfig, group_losses
from vecenv.learn.learner import Learner, LearnerConfig
from vecenv.learn.runs import Frames, Metrics


@dataclass(frozen=True)
class GRPOConfig(GroupConfig, LearnerConfig):
    """Settings of GRPO for tensor policies."""

    total_frames: Frames = 2_500_000
    """Total environment steps over all sub-environments; rounded up to whole rollouts."""


def check_groups(num_envs: int, group_size: int, config: GroupConfig) -> None:
    """Raise ValueError unless the rows split into whole groups and equal minibatches."""
    if group_size < 2 or num_envs % group_size:
        raise ValueError(f"group_size must be at least 2 and divide the {num_envs} sub-environments, got {group_size}")
    if num_envs % config.minibatches:
        raise ValueError(f"{num_envs} episodes cannot be split into {config.minibatches} equal minibatches")


def check_whole_worlds(env: VecEnv, group_size: int) -> None:
    """Raise ValueError unless groups consist of whole worlds."""
    agents = env.traits.num_agents
    if group_size % agents:
        raise ValueError(f"group_size must be a multiple of {agents}, the agents of a world, got {group_size}")


def check_same_rules(env: VecEnv) -> int:
    """Return the steps of the longest episode; ValueError if there is none, or parameters differ between rows."""
    scenario = env.scenario
    if scenario.longest is None:
        raise ValueError(f"{scenario.name} does not say how long an episode may be")
    if scenario.varied:
        raise ValueError(
            f"{scenario.name}: the members of a group would be compared although they differ in their "
            f"{', '.join(sorted(scenario.varied))}"
        )
    return scenario.longest


class GRPO(Learner[GRPOConfig]):
    """GRPO learner. Every rollout resets all rows of ``env``; ``group_size`` divides their number.

    Raises:
        ValueError: the rows do not split into whole groups or equal minibatches, groups divide worlds, parameters
            differ between sub-environments, or the task sets no longest episode.
        TypeError: there is no head for the environment's actions.
    """

    loss_metrics = ("policy_loss", "entropy", "reference_kl", "approx_kl", "clip_fraction")

    def __init__(self, env: VecEnv, config: GRPOConfig, group_size: int) -> None:
        check_groups(env.num_envs, group_size, config)
        check_whole_worlds(env, group_size)
        super().__init__(env, config, check_same_rules(env), with_critic=False, units=env.num_envs)
        # Again: a curriculum sets per-row parameters in the line above.
        check_same_rules(env)
        self.group_size = group_size
        self.first_seed, self.rollouts = int(env.seed_tensor), 0
        self.reference = [parameter.clone() for parameter in self.actor]

    @property
    def num_groups(self) -> int:
        return self.env.num_envs // self.group_size

    def start_from(
        self, actor: list[Tensor], critic: list[Tensor], moments: list[Tensor], running: Mapping[str, Tensor]
    ) -> None:
        """Extend `Learner.start_from` by the reference policy, which is the initial one."""
        super().start_from(actor, critic, moments, running)
        for own, initial in zip(self.reference, actor, strict=True):
            own.copy_(initial)

    def state_dict(self) -> dict[str, Any]:
        own = {"group_size": self.group_size, "first_seed": self.first_seed, "rollouts": self.rollouts}
        return super().state_dict() | own | {"reference": [tensor.clone() for tensor in self.reference]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("group_size") != self.group_size:
            raise ValueError(f"the checkpoint was trained with groups of {state.get('group_size')}")
        super().load_state_dict(state)
        self.first_seed, self.rollouts = state["first_seed"], state["rollouts"]
        for own, saved in zip(self.reference, state["reference"], strict=True):
            own.copy_(saved)

    def collect(self) -> None:
        self.env.reset_groups(self.num_groups, self.group_size, rollout_seed(self.first_seed, self.rollouts))
        super().collect()
        self.rollouts += 1

    def learn(self) -> Metrics:
        episodes, with_spread, refills = self._episodes()
        if not bool(episodes.log_prob.isfinite().all()):
            # Members that are no numbers are alike, and what is alike may count for nothing.
            raise FloatingPointError(f"update {self.update_number + 1}: log-probabilities are not finite")
        credit = step_credit(episodes, self.config, self.group_size, self.update_number / self.num_updates)
        batch = [episodes.observation, episodes.action, episodes.log_prob, credit, episodes.mask]
        if self.config.kl_coef:
            batch.append(self._reference_log_prob(episodes))
        metrics = self.minimise(batch)
        return metrics | audit(episodes, with_spread) | {"refills": refills}

    def _episodes(self) -> tuple[GroupEpisodes, Tensor, int]:
        """Return the update's episodes, which groups of the first rollout have variance, and the number of refills."""
        episodes = group_episodes(self.collector, self.config.reward)
        if self.config.rules.refill:
            episodes = episodes.owned()
        return episodes, *refilled(episodes, self._again, self.config, self.group_size)

    def _again(self) -> GroupEpisodes:
        self.collect()
        return group_episodes(self.collector, self.config.reward)

    def _reference_log_prob(self, episodes: GroupEpisodes) -> Tensor:
        """Return the log-probabilities of the actions under the reference policy. Shape: (T, N)."""
        return torch.stack(
            [
                self._evaluated(self.reference, *day)[0]
                for day in zip(episodes.observation, episodes.action, strict=True)
            ]
        )

    def _evaluated(self, actor: list[Tensor], observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy. Shapes: (B, D), (B, *spec.shape) -> (B,) each."""
        allowed = self.network.mask(observation)
        outputs, own = self.network.outputs(actor, self.network.normalised(observation, *self.moments), allowed)
        log_prob, entropy = self.network.head.evaluate(outputs, own, action)
        return log_prob, entropy

    def pick(self, tensor: Tensor, index: Tensor) -> Tensor:
        """Return whole episodes. Shape: (T, N, ...)."""
        return tensor[:, index]

    def objective(
        self,
        parameters: list[Tensor],
        observation: Tensor,
        allowed: Tensor | None,
        action: Tensor,
        old_log_prob: Tensor,
        advantage: Tensor,
        mask: Tensor,
        *reference_log_prob: Tensor,
    ) -> tuple[Tensor, Tensor]:
        config, days = self.config, len(mask)
        outputs, own = self.network.outputs(parameters, observation, allowed)
        log_prob, entropy = self.network.head.evaluate(outputs, own, action.flatten(0, 1))
        losses = group_losses(
            log_prob.view(days, -1).T,
            old_log_prob.T,
            advantage.T,
            mask.T,
            config.rules.objective,
            days,
            reference_log_prob[0].T if reference_log_prob else None,
        )
        entropy = entropy.view(days, -1).where(mask, 0.0).sum() / mask.sum().clamp(min=1)
        loss = losses.policy + config.kl_coef * losses.reference_kl - config.entropy_coef * entropy
        metrics = (losses.policy, entropy, losses.reference_kl, losses.approx_kl, losses.clip_fraction)
        return loss, torch.stack(metrics).detach()


ALGORITHM = Algorithm(
    name="grpo",
    summary="comparison of episodes with the same start, without a critic, and its variants",
    learner=GRPO,
    config=GRPOConfig,
    groups=True,
)
