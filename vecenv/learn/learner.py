"""The base class of learners: networks, optimiser, moments and state; rollouts, and optimiser steps on minibatches."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from vecenv.core.capabilities import Schedule, schedule_of
from vecenv.core.collector import FusedCollector, Policy
from vecenv.core.compiling import FirstCallCompiled
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves, with_leaves
from vecenv.learn.checkpoints import check_optimiser, check_same_form
from vecenv.learn.outcomes import ended_episodes, episode_metrics
from vecenv.learn.policies import ActorPolicy, make_network
from vecenv.learn.returns import RunningMoments, batch_moments, table_moments, times_of
from vecenv.learn.runs import (
    ORIGIN,
    Metrics,
    check_resumable,
    checked_losses,
    origin,
    progress_metrics,
    set_learning_rate,
    update_seed,
)
from vecenv.learn.settings.run import NetworkConfig, check_shards
from vecenv.learn.shards import Shards, in_order

Config = TypeVar("Config", bound=NetworkConfig)


def check_minibatches(units: int, minibatches: int, shards: int = 1) -> None:
    """Raise ValueError unless the steps or episodes of each of some shards split into equal minibatches."""
    each, of = units // shards, "" if shards == 1 else f" of a shard, of {shards},"
    if each % minibatches:
        raise ValueError(f"a batch of {each}{of} cannot be split into {minibatches} equal minibatches")


class Learner(ABC, Generic[Config]):
    """A learner with an actor network, and its state; `run` runs it, which advances the rows of ``env``.

    An update collects a rollout, learns from it, and adds what was seen to the running moments that scale the inputs of
    the next one. An algorithm writes `collect`, `learn` and what it remembers beside (`state_dict`). Most make some
    epochs of minibatch steps (`minimise`) along the gradient of an `objective`.

    Args:
        env: whose rows advance.
        config: settings.
        num_steps: of a rollout, T.
        with_critic: train the network's critic too.
        units: number of steps or episodes by which a batch of the own rows is shuffled and split, those of each shard
            a multiple of the minibatches; 0 for a learner that plays by itself, without a collector.

    Attributes:
        shards: those of the run that this process holds, whose rows are those of ``env``, one after the other. What is
            of one policy is made of the results of all shards by its methods. Frames are those of all shards.

    Raises:
        TypeError: there is no head for the environment's actions.
        ValueError: the network does not fit the task, or the batch does not split into equal minibatches.
    """

    num_members = 1
    """Policies that are trained as one batch, S; each has its own rows."""

    adam_epsilon = 1e-5
    """Added to the root of Adam's second moments: small beside gradients of advantages, whose deviation is 1."""

    corrects_lag: ClassVar[bool] = False
    """Whether it learns as well from what a slightly older policy has played, whose probabilities are kept."""

    loss_metrics: Sequence[str] = ()
    """Names of the metrics that `objective` returns with the loss; early stopping needs ``approx_kl`` among them."""

    of_rows: tuple[str, ...] = ()
    """Names of the parts of a state, beside the environment's, whose tensors have the rows as first dimension."""

    def __init__(self, env: VecEnv, config: Config, num_steps: int, with_critic: bool, units: int = 0) -> None:
        self.shards = shards = Shards(config.shards)
        check_shards(shards.count, shards.ranks.count, env.num_envs * shards.ranks.count, "sub-environments")
        check_minibatches(units * shards.ranks.count, config.minibatches, shards.count)
        self.env, self.config, self.units = env, config, units
        self.batch_size = num_steps * env.num_envs * shards.ranks.count // self.num_members
        self.num_updates = -(-config.total_frames // self.batch_size)
        self.update_number = 0
        device = env.device
        self.network = make_network(env, config)
        self.actor, critic = self.seeded_parameters()
        self.critic = critic if with_critic else []
        self.parameters = [*self.actor, *self.critic]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self._sizes = [parameter.numel() for parameter in self.parameters]
        # Of each own shard, side by side, as they are exchanged; of a single one those of the parameters.
        self._found = torch.zeros(shards.own if shards.count > 1 else 0, sum(self._sizes), device=env.device)
        self._of_shards = [self._as_parameters(found) for found in self._found] or [self.gradients]
        self.optimiser = torch.optim.Adam(self.parameters, config.learning_rate, eps=self.adam_epsilon, fused=True)
        shape = self.moments_shape()
        self.observation_moments = RunningMoments(shape, device)
        # The moments at the start of the update, in float32 for the fused step.
        self.moments = [torch.zeros(shape, device=device), torch.ones(shape, device=device)]
        self._sums = FirstCallCompiled(self._sums_of, lambda: self.env.compiled)
        # Before the collector, which binds the parameter tensors.
        self.schedule = schedule_of(env.scenario, env.num_envs * shards.ranks.count) if units else None
        if self.schedule is not None:
            env.follow(self._scheduled(self.schedule))
        if units:
            parts = None if shards.count == 1 else shards.own
            self.collector = FusedCollector(env, self.collecting_policy(), num_steps, parts=parts)
            self.generators = [torch.Generator(device) for _ in range(shards.own)]
            self._gradients = FirstCallCompiled(self._minibatch_gradients, lambda: self.env.compiled)
            self._together = FirstCallCompiled(self._gradients_together, lambda: self.env.compiled)

    def seeded_parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        return self.initial_parameters(torch.Generator().manual_seed(self.config.seed))

    def moments_shape(self) -> tuple[int, ...]:
        return (self.network.moments_size,)

    def initial_parameters(self, generator: torch.Generator) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters of actor and critic of one policy: by default those of the network."""
        return self.network.initial_parameters(generator, self.env.device)

    def actor_and_critic(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return those of the actor and those of the critic of `parameters`, or of tensors like them."""
        return [*parameters[: len(self.actor)]], [*parameters[len(self.actor) :]]

    def collecting_policy(self) -> Policy:
        return ActorPolicy(self.network, self.moments, self.actor)

    def collect(self) -> None:
        """Play what one update learns from: by default a rollout of the collector."""
        self.collector.rollout()

    @abstractmethod
    def learn(self) -> Metrics:
        """Make all optimiser steps of one update on what was collected, and return metrics."""

    def _scheduled(self, schedule: Schedule) -> dict[str, Tensor]:
        """Return the parameters that a schedule of all rows has chosen for the own ones."""
        first = self.shards.first_row(self.env.num_envs)
        return {name: value[first : first + self.env.num_envs] for name, value in schedule.params().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run needed to resume, of types that `torch.load` with ``weights_only`` accepts.

        Of several ranks all call it, and the first has the whole.
        """
        state = self.own_state()
        return state | {name: self.shards.whole(state[name]) for name in ("environment", *self.of_rows)}

    def own_state(self) -> dict[str, Any]:
        """Return copies of what `state_dict` returns, with the own rows alone."""
        state = {
            **origin(self.config, self.env),
            "update": self.update_number,
            "actor": [parameter.clone() for parameter in self.actor],
            "critic": [parameter.clone() for parameter in self.critic],
            "moments": [moment.clone() for moment in self.moments],
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "observation_moments": self.observation_moments.state_dict(),
            "environment": self.env.state_dict(),
        }
        if self.units:
            state |= self.collector.state_dict()
            state["schedule"] = None if self.schedule is None else self.schedule.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, bit for bit.

        Raises:
            ValueError: it is of another task, market or number of sub-environments, its settings differ in more than
                `vecenv.learn.runs.MAY_CHANGE`, or its tensors in shape or type.
        """
        check_resumable(state, self.config, self.env)
        of_rows = ("environment", *self.of_rows)
        state = {**state, **{name: self.shards.own_part(state[name]) for name in of_rows if name in state}}
        # What a subclass adds to the state of all is not of rows, and is not made together to be compared.
        own = self.state_dict() if self.shards.ranks.count == 1 else {**state, **self.own_state()}
        # Before anything is loaded; without entries that are checked elsewhere or may differ.
        apart = (*ORIGIN, "optimiser")
        saved, own = ({name: one[name] for name in one if name not in apart} for one in (state, own))
        check_same_form(saved, own, "state")
        self.load_own_state(state)

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Resume from what `own_state` returned, which fits."""
        check_optimiser(state.get("optimiser"), self.optimiser)
        if self.schedule is not None:
            # It refuses a curriculum with other settings.
            self.schedule.load_state_dict(state["schedule"])
        self.env.load_state_dict(state["environment"])
        self.update_number = state["update"]
        for name in ("actor", "critic", "moments"):
            for own_tensor, saved in zip(getattr(self, name), state[name], strict=True):
                own_tensor.copy_(saved)
        # It would go on in the memory of the state that it is given.
        self.optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
        self.observation_moments.load_state_dict(state["observation_moments"])
        if self.schedule is not None:
            self.env.write_params(self._scheduled(self.schedule))
        if self.units:
            self.collector.load_state_dict(state)

    def start_from(
        self, actor: list[Tensor], critic: list[Tensor], moments: list[Tensor], running: Mapping[str, Tensor]
    ) -> None:
        """Copy an initial policy, of the forms of one's own; `vecenv.learn.policies.start_from` checks them.

        The first rollout is added to the running moments.
        """
        own, given = [*self.parameters, *self.moments], [*actor, *critic, *moments]
        for tensor, initial in zip(own, given, strict=True):
            tensor.copy_(initial)
        self.observation_moments.load_state_dict(running)

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

    def prepare(self) -> None:
        """Add observations to the moments before the first update, so that its policy sees scaled inputs too."""
        self.collect()
        self.update_moments()

    def make_update(self) -> Metrics:
        """Collect, learn, tell of the episodes that ended, and add what was seen to the moments of the next update."""
        self.collect()
        if self.units:
            self.seed_shuffles()
        metrics = self.learn()
        metrics |= self.episode_metrics()
        if self.units:
            metrics |= self.collector.metrics()
        if self.schedule is not None:
            metrics |= self._follow(self.schedule)
        self.update_moments()
        return metrics

    def _follow(self, schedule: Schedule) -> Metrics:
        """Tell the schedule of the episodes that ended in the rollout, and take the parameters of the next ones."""
        ended, ids = ended_episodes(self.collector.rows(), self.shards)
        bound = self.env.engine.bound().of_rows(ids)
        joined = [self.shards.joined([leaf]) for leaf in leaves(ended)]
        numbers = self.shards.joined([ids + self.shards.first_row(self.env.num_envs)])
        every = with_leaves(ended, joined, [len(numbers)])

        def grade() -> Tensor:
            # Of this rank no episode may have ended.
            own = bound.grade(ended).float() if len(ids) else torch.zeros(0, device=ids.device)
            return self.shards.joined([own])

        metrics = schedule.update(every, numbers, grade)
        self.env.write_params(self._scheduled(schedule))
        return metrics

    def episode_metrics(self) -> Metrics:
        return episode_metrics(self.collector, self.shards)

    def seen_by_shard(self) -> Iterator[list[Tensor]]:
        """Yield what each own shard has seen in the rollout, parts of whole observations. Shape: (T * N, ...)."""
        # One after the other: memory for copies of all would be new at each update.
        for rows in self.shards.slices(self.env.num_envs):
            parts = [part[:, rows].flatten(0, 1) for part in self.collector.seen]
            yield parts if self.shards.count == 1 else [part.contiguous() for part in parts]

    def update_moments(self) -> None:
        """Add the rollout's observations to the running moments that scale the next rollout."""
        references = self.collector.references
        if references is None:
            self.add_observations(self.collector.whole(seen) for seen in self.seen_by_shard())
        elif self.config.normalise_observations:
            table, each, counted = references.table(self.env.engine.bound()), [], []
            for shard, (own, rows) in enumerate(self.seen_by_shard(), self.shards.first):
                each.append(batch_moments(own))
                # The sum of the second is that of the first shard.
                counted.append([times_of(rows, len(table)), rows[:1] * (shard == 0)])
            number, *of_own = self.shards.moments(len(rows), each)
            times, first = self.shards.total(counted)
            of_table = table_moments(table, times, number, first)
            mean, squares = (references.joined(*pair) for pair in zip(of_own, of_table, strict=True))
            self.observation_moments.merge(number, mean, squares)
            self.take_moments()

    def add_observations(self, parts: Iterable[Tensor]) -> None:
        """Add each own shard's observations to the moments that scale the next update's inputs. Shape: (T * N, D)."""
        if self.config.normalise_observations:
            number, means, squares = zip(*map(self._moments_of, parts), strict=True)
            each = list(zip(means, squares, strict=True))
            self.observation_moments.merge(*self.shards.moments(number[0], each))
            self.take_moments()

    def _moments_of(self, observation: Tensor) -> tuple[int, Tensor, Tensor]:
        """Return the number of samples of a shard's observations, and their `batch_moments`. Shape: (T * N, D)."""
        first = self.network.samples(observation[:1])
        sums = torch.zeros(2, *first[0].shape, dtype=torch.float64, device=self.env.device)
        found = torch.empty_like(sums)
        # Step by step: compiled for the rows of one.
        for rows in observation.split(self.env.num_envs // self.shards.own):
            self._sums([first[0], rows], [*found])
            sums += found
        number, (total, squares) = len(first) * len(observation), sums
        return number, first[0] + total / number, squares - total.square() / number

    def _sums_of(self, origin: Tensor, observation: Tensor) -> list[Tensor]:
        """Return the sums over all samples' distances from one of them, and over their squares, float64."""
        shifted = (self.network.samples(observation) - origin).double()
        return [shifted.sum(0), shifted.square().sum(0)]

    def take_moments(self) -> None:
        """Scale the inputs of the next update by the running moments."""
        self.moments[0].copy_(self.observation_moments.mean)
        self.moments[1].copy_(self.observation_moments.deviation())

    def objective(self, *arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Return the loss to minimise and `loss_metrics` for a minibatch.

        Its arguments are the parameters of actor and critic; normalised observations, of shape (B, D); the action mask,
        None to allow all; the minibatch of the tensors that follow what was seen in the batch of `minimise`; and the
        constants of `minimise`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no objective to minimise")

    def pick(self, tensor: Tensor, index: Tensor) -> Tensor:
        """Return the units ``index`` of one of the batch's tensors."""
        return tensor[index]

    def observed(self, picked: list[Tensor], market: list[Tensor]) -> tuple[Any, list[Tensor]]:
        """Return the flat observations of a minibatch, or their parts, and its tensors after what was seen."""
        return picked[0], picked[1:]

    def inputs_of(self, observation: Any, mean: Tensor, deviation: Tensor) -> tuple[Any, Tensor | None]:  # noqa: ANN401
        """Return the network's scaled inputs of what `observed` returns, and the action mask, None to allow all."""
        observation = observation.flatten(0, -2)
        return self.network.normalised(observation, mean, deviation), self.network.mask(observation)

    def minimise(self, batch: list[Tensor], **how: Any) -> Metrics:  # noqa: ANN401
        """Make the optimiser steps of one update, as `optimise`, and return the means of the loss metrics.

        A loss that is not finite raises a FloatingPointError.
        """
        return self.named(self.loss_metrics, self.optimise(batch, **how), len(self.loss_metrics))

    def named(self, names: Sequence[str], values: Tensor, losses: int = 0) -> Metrics:
        """Return metrics by name, of which so many first ones are losses, which are finite. Shape: (names,)."""
        told = values.tolist()
        checked_losses(self, told[:losses])
        return dict(zip(names, told, strict=True))

    def optimise(
        self,
        batch: list[Tensor],
        *,
        constants: Sequence[Tensor] = (),
        clipped: Sequence[int] = (),
        largest_kl: float | None = None,
        before: Callable[[int], object] | None = None,
        after: Callable[[int], object] | None = None,
    ) -> Tensor:
        """Make the optimiser steps of one update, and return the means of the metrics. Shape: `losses_shape`.

        Args:
            batch: what was seen (see `observed`), then the further tensors of `objective`.
            constants: tensors that `objective` reads whole after those, as they are at each step.
            clipped: sizes of the groups of parameters, in their order, whose gradients have one norm; by default one.
            largest_kl: no further epoch is made once the mean ``approx_kl`` of one exceeds it.
            before: called before each optimiser step, after its gradients, with its number in the run, from 1. A
                parameter whose ``grad`` it takes away keeps its value and the optimiser's moments of it.
            after: called after each optimiser step with that number.
        """
        config = self.config
        self._counts = len(constants), [*clipped] or [len(self.parameters)]
        shared = [*self.parameters, *self.moments, *self.market(), *constants, *batch]
        own, shape = self.shards.own, (config.epochs, config.minibatches, *self.losses_shape())
        # Each in memory of its own, whose alignment does not depend on how many there are.
        steps = [torch.zeros(shape, device=self.env.device) for _ in range(own)]
        first = self.update_number * config.epochs * config.minibatches
        for epoch in range(config.epochs):
            for minibatch, indices in enumerate(zip(*self.shuffled(), strict=True)):
                number = first + epoch * config.minibatches + minibatch + 1
                for shard, index in enumerate(indices):
                    self._gradients([*shared, index], [*self._of_shards[shard], steps[shard][epoch, minibatch]])
                if self.shards.count > 1:
                    self._together([self.shards.ranks.gathered(self._found)], self.gradients)
                if before is not None:
                    before(number)
                self.optimiser.step()
                if after is not None:
                    after(number)
            if largest_kl is not None:
                place = self.loss_metrics.index("approx_kl")
                kl = self.shards.mean([one[epoch, :, place].mean() for one in steps])
                if kl > largest_kl:
                    break
        return self.shards.mean([one[: epoch + 1].mean((0, 1)) for one in steps])

    def _as_parameters(self, flat: Tensor) -> list[Tensor]:
        """Return views of the numbers of all parameters with their shapes. Shape: (parameters,)."""
        parts = zip(flat.split(self._sizes), self.parameters, strict=True)
        return [part.view_as(parameter) for part, parameter in parts]

    def _gradients_together(self, found: Tensor) -> list[Tensor]:
        """Return the clipped mean of the gradients of all shards. Shape: (S, parameters)."""
        return self.clipped(self._as_parameters((in_order(found) / len(found)).float()))

    def losses_shape(self) -> tuple[int, ...]:
        return (len(self.loss_metrics),)

    def seed_shuffles(self) -> None:
        for number, generator in enumerate(self.generators, self.shards.first):
            generator.manual_seed(update_seed(self.config.seed, self.update_number, number))

    def shuffled(self) -> list[Tensor]:
        """Return each own shard's units in random order. Shape of each: (minibatches, units of one)."""
        each, device = self.units // self.shards.own, self.env.device
        orders = [torch.randperm(each, generator=generator, device=device) for generator in self.generators]
        if self.shards.own > 1:
            orders = [self.places(order, number) for number, order in enumerate(orders)]
        return [order.view(self.config.minibatches, -1) for order in orders]

    def places(self, order: Tensor, shard: int) -> Tensor:
        """Return where the units of an own shard lie in the batch of all own rows, time by time. Shape: (units,)."""
        rows = self.env.num_envs
        each = rows // self.shards.own
        return (order // each) * rows + shard * each + order % each

    def market(self) -> list[Tensor]:
        """Return the tensors that observations of a minibatch are put together from, beside what was seen."""
        return []

    def _minibatch_gradients(self, *tensors: Tensor) -> list[Tensor]:
        """Return gradients and metrics of a minibatch; the last tensor is the index of its units.

        The gradients are clipped, unless those of other shards are added before.
        """
        remaining = list(tensors)

        def take(count: int) -> list[Tensor]:
            taken = remaining[:count]
            del remaining[:count]
            return taken

        parameters, (mean, deviation), market = take(len(self.parameters)), take(2), take(len(self.market()))
        constants = take(self._counts[0])
        *batch, index = remaining
        picked = [self.pick(tensor, index) for tensor in batch]
        observation, others = self.observed(picked, market)
        gradients, metrics = self.gradients_of(parameters, mean, deviation, observation, others, constants)
        if self.shards.count == 1:
            gradients = self.clipped(gradients)
        return [*gradients, metrics]

    def gradients_of(
        self,
        parameters: list[Tensor],
        mean: Tensor,
        deviation: Tensor,
        observation: Any,  # noqa: ANN401
        others: list[Tensor],
        constants: list[Tensor],
        /,
    ) -> tuple[list[Tensor], Tensor]:
        """Return the gradients and the metrics of a minibatch; ``others`` are what `objective` takes of it."""
        inputs, allowed = self.inputs_of(observation, mean, deviation)
        return torch.func.grad(self.objective, has_aux=True)(parameters, inputs, allowed, *others, *constants)

    def clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return gradients of the largest norm that is allowed, or less, in each group of parameters."""
        clipped: list[Tensor] = []
        for count in self._counts[1]:
            group = gradients[len(clipped) : len(clipped) + count]
            norm = torch.stack([gradient.square().sum() for gradient in group]).sum().sqrt()
            factor = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            clipped += [gradient * factor for gradient in group]
        return clipped
