"""Base class of learners of their own rollouts: generalised advantages from a critic, and scaled rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vecenv.core.capabilities import Referencing
from vecenv.core.collector import Policy
from vecenv.core.compiling import FirstCallCompiled
from vecenv.core.env import VecEnv
from vecenv.core.scenario import flat_view
from vecenv.learn.learner import Learner
from vecenv.learn.networks import WORTHWHILE, ByReference, scaled
from vecenv.learn.policies import ReferencingActorPolicy, why_not_by_reference
from vecenv.learn.returns import RewardScale, generalised_advantages
from vecenv.learn.runs import Metrics
from vecenv.learn.settings.on_policy import OnPolicyConfig

Config = TypeVar("Config", bound=OnPolicyConfig)


class OnPolicyLearner(Learner[Config], Generic[Config]):
    """A learner of its own rollouts, whose advantages a critic estimates; `run` runs it.

    Observations and rewards are scaled by running moments that are constant from the rollout to the end of the update.

    Raises:
        ValueError: the batch cannot be split into equal minibatches, or ``by_reference`` is given with a policy or a
            task that cannot.
        TypeError: there is no head for the environment's actions.
    """

    of_members: tuple[str, ...] = ()
    """Names of the tensors of a state, beside those of this class, of which each of several members has one."""

    of_rows: tuple[str, ...] = ("discounted_return",)

    def __init__(self, env: VecEnv, config: Config) -> None:
        steps = config.num_steps * env.num_envs // self.num_members
        super().__init__(env, config, config.num_steps, units=steps, with_critic=True)
        self.reward_scale = RewardScale(env.num_envs, config.gamma, env.device, self.num_members)
        self._valued = FirstCallCompiled(self._values_of_part, lambda: self.env.compiled)
        self._tabled = FirstCallCompiled(self._tables, lambda: self.env.compiled)
        policy, device = self.collector.policy, env.device
        # Inputs by reference, and their sums of the critic's first layer, scaled anew in every update.
        self._table = self._sums_of_critic = torch.empty(0, device=device)
        if isinstance(policy, ReferencingActorPolicy):
            self._table = torch.empty(policy.references.count, policy.references.referenced_size, device=device)
            self._sums_of_critic = torch.empty_like(policy.table)

    def collecting_policy(self) -> Policy:
        """Return the policy, by reference where that pays or is asked for; ValueError if it is and cannot be."""
        asked, (env, network) = self.config.by_reference, (self.env, self.network)
        if asked is None:
            scenario, fits = env.scenario, why_not_by_reference(env, network) is None
            pays = isinstance(scenario, Referencing) and WORTHWHILE * scenario.num_references <= self.batch_size
            asked = pays and fits
        return ReferencingActorPolicy(env, network, self.moments, self.actor) if asked else super().collecting_policy()

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | self.reward_scale.state_dict()

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        super().load_own_state(state)
        self.reward_scale.load_state_dict(state)

    def update_moments(self) -> None:
        super().update_moments()
        if self.config.normalise_rewards:
            self.reward_scale.update(self.collector, self.shards)

    def learn(self) -> Metrics:
        values, advantages, targets = self.advantages()
        losses = self.optimise(self.batch_of(advantages, targets), largest_kl=self.largest_kl())
        explained = self.explained_variance(values, targets).unsqueeze(-1)
        names, told = (*self.loss_metrics, "explained_variance"), torch.cat([losses, explained], -1)
        return self.named(names, told, len(self.loss_metrics))

    def explained_variance(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the share of the targets' variance that the critic's values explain. Shapes: (T, N) -> ()."""
        errors, spread = (self.shards.spread(one)[1].square() for one in (targets - values, targets))
        return 1 - errors / spread.clamp(min=1e-12)

    def largest_kl(self) -> float | None:
        """Return the approximate KL divergence that stops the epochs of an update: mostly none does."""
        return None

    def collected(self) -> list[Tensor]:
        """Return what `objective` takes between actions and advantages: mostly nothing. Shape of each: (T, N, ...)."""
        return []

    def market(self) -> list[Tensor]:
        return [] if self.collector.references is None else [self._table]

    def observed(self, picked: list[Tensor], market: list[Tensor]) -> tuple[Tensor | ByReference, list[Tensor]]:
        """Return what the collector has `seen`, with which the batch begins, by reference or put together."""
        count, references = len(self.collector.seen), self.collector.references
        if references is None:
            return self.collector.whole(picked[:count]), picked[count:]
        (own, reference), (table,) = picked[:count], market
        return ByReference(own, table, reference, references), picked[count:]

    def inputs_of(
        self, observation: Tensor | ByReference, mean: Tensor, deviation: Tensor
    ) -> tuple[Any, Tensor | None]:
        if isinstance(observation, Tensor):
            return super().inputs_of(observation, mean, deviation)
        columns = observation.references.own_columns
        own = scaled(observation.own, columns(mean), columns(deviation))
        return replace(observation, own=own).taken(), None

    def _tables(self, *tensors: Tensor) -> list[Tensor]:
        """Return the scaled inputs by reference, and their sums, of moments, the critic's first layer and a market."""
        mean, deviation, weight, bias, *market = tensors
        policy = self.collector.policy
        assert isinstance(policy, ReferencingActorPolicy)
        columns = policy.references.table(self.env.engine.bind(market))
        table = policy.scaled_columns(columns, mean, deviation)
        return [table, policy.sums_of(table, weight, bias)]

    def batch_of(self, advantages: Tensor, targets: Tensor) -> list[Tensor]:
        """Return what `minimise` takes of the rollout, with flat steps. Shape of each: (T * N, ...)."""
        batch = [*self.collector.seen, self.collector.actions, *self.collected(), advantages, targets]
        return [tensor.flatten(0, 1) for tensor in batch]

    def _values(self, observation: Tensor) -> Tensor:
        parts, network = observation.split(self._chunk()), self.network
        return torch.cat([network.value(self.critic, network.normalised(part, *self.moments)) for part in parts])

    def _chunk(self) -> int:
        """Return the steps whose values are computed at once: those of a minibatch of one shard."""
        return self.batch_size // self.shards.count // self.config.minibatches

    def _values_of_part(self, *tensors: Tensor) -> list[Tensor]:
        """Return values, of the critic, the moments, the sums by reference, and what was seen."""
        count = len(self.critic)
        critic, (mean, deviation), rest = tensors[:count], tensors[count : count + 2], list(tensors[count + 2 :])
        if (references := self.collector.references) is None:
            return [self.network.value(critic, self.network.normalised(self.collector.whole(rest), mean, deviation))]
        sums, own, reference = rest
        inputs, _ = self.inputs_of(ByReference(own, sums, reference, references, summed=True), mean, deviation)
        return [self.network.value(critic, inputs)]

    def values_of_rollout(self) -> Tensor:
        """Return the values of what was seen, put together in parts of a minibatch. Shape: (T, N)."""
        columns, chunk = [], self._chunk()
        read = [*self.critic, *self.moments]
        if self.collector.references is not None:
            tables = [self._table, self._sums_of_critic]
            self._tabled([*self.moments, *self.critic[:2], *self.env.engine.inputs], tables)
            read.append(self._sums_of_critic)
        for seen in self.seen_by_shard():
            values = torch.empty(len(seen[0]), device=self.env.device)
            for part, *parts in zip(*(tensor.split(chunk) for tensor in (values, *seen)), strict=True):
                self._valued([*read, *parts], [part])
            columns.append(values.view(self.config.num_steps, -1))
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def final_values(self, step: Tensor, ids: Tensor) -> Tensor:
        """Return values of the observations after given steps of rows, before auto-reset. Shape: (M,)."""
        observation = flat_view(self.collector.final_observations(step, ids))
        # Few sizes, as libraries keep what they have made for each.
        padded = observation.new_zeros(1 << max(len(ids) - 1, 0).bit_length(), observation.shape[-1])
        padded[: len(ids)] = observation
        return self._values(padded)[: len(ids)]

    def standardised(self, advantages: Tensor) -> Tensor:
        """Return the advantages of a batch with mean 0 and standard deviation 1. Shape: (T, N)."""
        mean, deviation = self.shards.spread(advantages)
        return (advantages - mean) / (deviation + 1e-8)

    def advantages(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return values, advantages and the critic's targets. Shape of each: (T, N)."""
        config, collector = self.config, self.collector
        values = self.values_of_rollout()
        # A step's next observation is that of the next step, except at truncations and the end of the rollout.
        next_values = torch.cat([values[1:], torch.zeros_like(values[:1])])
        if config.gamma:
            cut = collector.truncated.clone()
            cut[-1] = True
            for rows in self.shards.slices(self.env.num_envs):
                step, ids = cut[:, rows].nonzero(as_tuple=True)
                ids = ids + rows.start
                next_values[step, ids] = self.final_values(step, ids)
        reward = self.reward_scale.scaled(collector.reward)
        advantages = generalised_advantages(
            reward, values, next_values, collector.terminated, collector.truncated, config.gamma, config.gae_lambda
        )
        targets = values + advantages
        advantages = self.learned_advantages(advantages, values, next_values)
        if config.normalise_advantages:
            advantages = self.standardised(advantages)
        return values, advantages, targets

    def learned_advantages(self, advantages: Tensor, values: Tensor, next_values: Tensor) -> Tensor:
        """Return the advantages that the policy learns from, before they are normalised: those given. Shape: (T, N).

        With a gamma of 0 ``next_values`` are 0 where an episode or the rollout ends.
        """
        return advantages
