"""Several members that learn as one batch: stacked parameters, one collector, one optimiser step for all of them.

Member s has the rows [s N, (s + 1) N) of the environment, and its own initial weights, shuffles, moments of the inputs,
scale of the rewards, advantages and gradient norm. So it learns what a single run of its seed learns, up to rounding,
and nothing of the others reaches it. Networks here are pure functions of lists of parameters, so those lists are
stacked, and `torch.vmap` maps the same functions over them; `torch.func.stack_module_state` does that for modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vecenv.core.capabilities import schedule_of
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.core.scenario import Observation, flat_view
from vecenv.learn.networks import Network
from vecenv.learn.on_policy import OnPolicyConfig, OnPolicyLearner
from vecenv.learn.outcomes import members_metrics
from vecenv.learn.policies import ActorPolicy
from vecenv.learn.runs import Metrics, checked_losses, origin, update_seed


def row_seeds(seeds: Sequence[int], num_envs: int) -> dict[str, Any]:
    """Return ``seed`` and ``env_ids`` for `vecenv.make`: each member has N rows, as an environment of its seed."""
    return {
        "seed": torch.tensor(seeds).repeat_interleave(num_envs),
        "env_ids": torch.arange(num_envs).repeat(len(seeds)),
    }


def member_metric(name: str, seed: int) -> str:
    """Return the name of a member's metric in the log of all."""
    return f"{name}.seed_{seed}"


class MembersPolicy(ActorPolicy):
    """Actors of S members as the collector's policy, each for its own rows; all tensors are stacked: (S, ...)."""

    def act(
        self, parameters: list[Tensor], observation: Observation, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        count, observation = len(parameters[0]), flat_view(observation)
        by_member = [tensor.unflatten(0, (count, -1)) for tensor in (observation, *key, elapsed)]

        def one(parameters: list[Tensor], observation: Tensor, *words: Tensor) -> tuple[Tensor, ...]:
            *key, elapsed = words
            return super(MembersPolicy, self).act(parameters, observation, EpisodeKey(*key), elapsed)

        acted = torch.vmap(one)(parameters, *by_member)
        return tuple(tensor.flatten(0, 1) for tensor in acted)


def check_unscheduled(env: VecEnv) -> None:
    """Raise ValueError if the rules of an environment follow a schedule."""
    if schedule_of(env.scenario, env.num_envs) is not None:
        raise ValueError(f"{env.scenario.name} follows a schedule by its results, which members cannot share")


Config = TypeVar("Config", bound=OnPolicyConfig)


class Members(OnPolicyLearner[Config], Generic[Config]):
    """S members, by their seeds, on the rows of `row_seeds`: put before a learner, it learns for all of them.

    Its metrics are the means over the members, and those of each by `member_metric`; ``frames`` and
    ``total_frames`` are those of one member. The seed of its config is that of the first member.

    Raises:
        ValueError: there are fewer than two members, they do not share the rows evenly, the task has a schedule, or a
            setting stops, parts or reads all members alike: ``target_kl``, ``shards``, ``by_reference``.
        TypeError: there is no head for the environment's actions.
    """

    def __init__(self, env: VecEnv, config: Config, seeds: Sequence[int]) -> None:
        self.seeds, self.num_members = tuple(seeds), len(seeds)
        if self.num_members < 2:
            raise ValueError(f"an ensemble needs at least two members, got {self.num_members}")
        if env.num_envs % self.num_members:
            raise ValueError(f"{env.num_envs} sub-environments cannot be shared evenly by {self.num_members} members")
        check_stackable(config)
        check_unscheduled(env)
        super().__init__(env, replace(config, seed=self.seeds[0]))

    def seeded_parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return stacked parameters of actor and critic, each member's by its seed. Shape of each: (S, ...)."""
        drawn = [self.initial_parameters(torch.Generator().manual_seed(seed)) for seed in self.seeds]
        actors, critics = zip(*drawn, strict=True)
        return _stacked(actors), _stacked(critics)

    def moments_shape(self) -> tuple[int, ...]:
        return (self.num_members, *super().moments_shape())

    def losses_shape(self) -> tuple[int, ...]:
        return (self.num_members, *super().losses_shape())

    def collecting_policy(self) -> MembersPolicy:
        return MembersPolicy(self.network, self.moments, self.actor)

    def member_policy(self, number: int, network: Network | None = None) -> ActorPolicy:
        """Return the most probable actions of a member as a policy, with the parameters as they are now."""
        moments, actor = ([tensor[number] for tensor in kept] for kept in (self.moments, self.actor))
        return ActorPolicy(network or self.network, moments, actor, deterministic=True)

    def seed_shuffles(self) -> None:
        self._generators = [
            torch.Generator(self.env.device).manual_seed(update_seed(seed, self.update_number)) for seed in self.seeds
        ]

    def shuffled(self) -> list[Tensor]:
        """Return the members' steps in random orders of their own. Shape of one: (minibatches, S, steps of one)."""
        device, each = self.env.device, self.env.num_envs // self.num_members
        orders = [torch.randperm(self.units, generator=generator, device=device) for generator in self._generators]
        order, first = torch.stack(orders), each * torch.arange(self.num_members, device=device).unsqueeze(-1)
        # Step t of a member's row n lies at t S N + s N + n of the flat batch.
        place = (order // each) * self.env.num_envs + first + order % each
        return [place.view(self.num_members, self.config.minibatches, -1).movedim(1, 0).contiguous()]

    def gradients_of(self, *arguments: Any) -> tuple[list[Tensor], Tensor]:  # noqa: ANN401
        """Return gradients and metrics as `Learner.gradients_of` for every member, stacked."""
        return torch.vmap(super().gradients_of)(*arguments)

    def clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        return torch.vmap(super().clipped)(gradients)

    def explained_variance(self, values: Tensor, targets: Tensor) -> Tensor:
        errors, spread = (self._by_member(tensor).var((0, 2)) for tensor in (targets - values, targets))
        return 1 - errors / spread.clamp(min=1e-12)

    def named(self, names: Sequence[str], values: Tensor, losses: int = 0) -> Metrics:
        """Return the metrics of every member. Shape: (S, names)."""
        metrics: Metrics = {}
        for seed, own in zip(self.seeds, values.tolist(), strict=True):
            checked_losses(self, own[:losses])
            metrics |= _of_member(dict(zip(names, own, strict=True)), seed)
        return metrics

    def episode_metrics(self) -> Metrics:
        metrics: Metrics = {}
        for seed, own in zip(self.seeds, members_metrics(self.collector, self.num_members), strict=True):
            metrics |= _of_member(own, seed)
        return metrics

    def make_update(self) -> Metrics:
        metrics = super().make_update()
        return means_of_members(metrics, self.seeds) | metrics

    def add_observations(self, parts: Iterable[Tensor]) -> None:
        """Add observations to the moments of the member that made them. Shape of the one part: (T S N, D)."""
        if self.config.normalise_observations:
            (observation,) = parts
            samples = self.network.samples(observation)
            by_step = samples.view(self.config.num_steps, self.num_members, -1, samples.shape[-1])
            self.observation_moments.update([by_step.movedim(1, 2).flatten(0, 1)], self.shards)
            self.take_moments()

    def values_of_rollout(self) -> Tensor:
        """Return each member's values of what it saw, in parts of about a minibatch. Shape: (T, S N)."""
        each = self.env.num_envs // self.num_members
        steps = max(1, self.units // self.config.minibatches // each)
        parts, seen = [], self.env.observation_form.whole(self.collector.seen)
        for part in flat_view(seen, batch_dims=2).split(steps):
            by_member = part.unflatten(1, (self.num_members, each)).movedim(1, 0).flatten(1, 2)
            values = torch.vmap(self._value)(self.critic, self.moments, by_member)
            parts.append(values.unflatten(1, (-1, each)).movedim(1, 0).flatten(1, 2))
        return torch.cat(parts)

    def final_values(self, step: Tensor, ids: Tensor) -> Tensor:
        observation = flat_view(self.collector.final_observations(step, ids))
        member = ids // (self.env.num_envs // self.num_members)
        values = observation.new_empty(len(ids))
        # One by one: how many rows one member has must not change how another's products are blocked.
        for number in range(self.num_members):
            chosen = (member == number).nonzero()[:, 0]
            critic, moments = ([tensor[number] for tensor in kept] for kept in (self.critic, self.moments))
            values[chosen] = self._value(critic, moments, observation[chosen])
        return values

    def _value(self, critic: list[Tensor], moments: list[Tensor], observation: Tensor) -> Tensor:
        return self.network.value(critic, self.network.normalised(observation, *moments))

    def standardised(self, advantages: Tensor) -> Tensor:
        own = self._by_member(advantages)
        mean, deviation = self.shards.spread(own, (0, 2))
        return ((own - mean) / (deviation + 1e-8)).flatten(1, 2)

    def _by_member(self, tensor: Tensor) -> Tensor:
        """Return a tensor of rows by member. Shapes: (T, S N) -> (T, S, N)."""
        return tensor.unflatten(1, (self.num_members, -1))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"members": list(self.seeds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("members") != list(self.seeds):
            raise ValueError(f"the checkpoint has the members {state.get('members')}, not {list(self.seeds)}")
        super().load_state_dict(state)

    def member_state(self, number: int) -> dict[str, Any]:
        """Return the state of a member as that of a single run, which may resume from it."""
        state, each = self.state_dict(), self.env.num_envs // self.num_members
        own = slice(number * each, (number + 1) * each)
        environment = state["environment"]
        alone = {name: environment[name][own].clone() for name in ("env_ids", "start_ids")}
        alone |= {
            "seed": environment["seed"][own][0].clone(),
            "rows": [leaf[own].clone() for leaf in environment["rows"]],
        }
        stacked = {name: [tensor[number].clone() for tensor in state[name]] for name in ("actor", "critic", "moments")}
        adam = state["optimiser"]
        moments = {
            place: {name: value if name == "step" else value[number].clone() for name, value in kept.items()}
            for place, kept in adam["state"].items()
        }
        running = {
            name: {key: value if key == "count" else value[number].clone() for key, value in state[name].items()}
            for name in ("observation_moments", "return_moments")
        }
        del state["members"]
        return {
            **state,
            **origin(replace(self.config, seed=self.seeds[number]), self.env),
            **stacked,
            **running,
            "optimiser": adam | {"state": moments},
            **{name: state[name][number].clone() for name in self.of_members},
            **{name: state[name][own].clone() for name in self.of_rows},
            "environment": environment | alone,
        }


@cache
def ensemble_of(learner: type[OnPolicyLearner[Any]]) -> type[Members[Any]]:
    """Return the learner of several seeds as one batch, made from environment, settings and seeds; see `Members`."""
    return type(f"Ensemble{learner.__name__}", (Members, learner), {})


def check_stackable(config: OnPolicyConfig) -> None:
    """Raise ValueError naming a setting that members of one batch cannot have."""
    if getattr(config, "target_kl", None) is not None:
        raise ValueError("target_kl stops one learner's epochs: it must be none for an ensemble in one batch")
    if config.shards > 1:
        raise ValueError("shards part the rows of one policy: there must be 1 for an ensemble in one batch")
    if config.by_reference:
        raise ValueError("by_reference keeps one table for one policy: it cannot be used by an ensemble in one batch")


def means_of_members(metrics: Metrics, seeds: Sequence[int]) -> Metrics:
    """Return the means over the members of the metrics that each has; NaN of no value."""
    ending = member_metric("", seeds[0])
    names = [name.removesuffix(ending) for name in metrics if name.endswith(ending)]
    means = {}
    for name in names:
        values = torch.tensor([metrics[member_metric(name, seed)] for seed in seeds], dtype=torch.float64)
        means[name] = float(values.nanmean())
    return means


def metrics_of_member(metrics: Metrics, seed: int) -> Metrics:
    """Return a row of the log of all as that of a single run: what all have in common, and the member's own."""
    ending = member_metric("", seed)
    own = {name.removesuffix(ending): value for name, value in metrics.items() if name.endswith(ending)}
    return {name: own.get(name, value) for name, value in metrics.items() if "." not in name}


def _of_member(metrics: Mapping[str, float], seed: int) -> Metrics:
    return {member_metric(name, seed): value for name, value in metrics.items()}


def _stacked(lists: Sequence[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(tensors) for tensors in zip(*lists, strict=True)]
