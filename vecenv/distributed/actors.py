"""Actors on Ray that play the rows of a run, and the learner's collector, which is filled by them.

Each actor has the rows of some of a run's shards. A rollout starts from what the learner sends: rows, identities,
parameters and weights. So an actor knows nothing that the learner does not, its place can be taken by another, which
makes the same rollout again, and which actor plays a shard is no part of the result.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vecenv.core.collector_inputs import Policy, ReferencingPolicy
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves
from vecenv.distributed.arrays import Sealed, arrays_of, fill, opened, sealed
from vecenv.distributed.ray_session import (
    START_SECONDS,
    ActorError,
    RayLostError,
    RaySession,
    cause_of,
    check_versions,
    ray_module,
    versions,
)
from vecenv.distributed.settings import ActorSettings
from vecenv.distributed.shares import ShareCollector, empty_share, shares_of

if TYPE_CHECKING:
    from vecenv.learn.learner import Learner

BEHAVIOUR = "behaviour"
"""Entry of a learner's state: the weights of the rollout that is under way."""

DEATHS = 5
"""Deaths of an actor in one rollout after which the run ends: what kills it will do so again."""

LOST = "Ray has died on this machine, and all actors with it: resume the run from its checkpoint"


class RowActor:
    """Plays a share of the rows, in a process of its own; Ray makes it of what `_made` sends."""

    def __init__(self, initial: Sealed) -> None:
        # Sums may round otherwise over more threads.
        torch.set_num_threads(1)
        env, policy, num_steps, parts = opened(initial)
        self._collector = ShareCollector(VecEnv(**env), policy, num_steps, parts=parts)
        self._weights = weights_of(policy)

    def versions(self) -> dict[str, str]:
        return versions()

    def write_shared(self, shared: Mapping[str, np.ndarray]) -> None:
        for name, tensor in self._collector.env.scenario.shared.items():
            fill(tensor, shared[name])

    def play(
        self, name: tuple[int, int], start: Sequence[np.ndarray], weights: Sequence[np.ndarray]
    ) -> tuple[tuple[int, int], list[np.ndarray]]:
        """Play the share, and return the name of the rollout and its `ShareCollector.outcome`.

        The name is the number of the rollout and that of the actor.
        """
        for tensor, array in zip(self._weights, weights, strict=True):
            fill(tensor, array)
        self._collector.begin(start)
        self._collector.rollout()
        return name, arrays_of(self._collector.outcome())


def weights_of(policy: Policy | None) -> list[Tensor]:
    """Return the parameters of a policy that are sent; a table is made where it is read."""
    if policy is None:
        return []
    return policy.parameters[:-1] if isinstance(policy, ReferencingPolicy) else policy.parameters


@dataclass
class _Asked:
    """A rollout that the actors were asked for.

    Attributes:
        number: of the rollout, from 0.
        known: number of rollouts that the weights had learned from.
        starts: of each actor's rows.
        weights: sent, in Ray's store.
        shared: versions of the shared tensors that it is played with.
        answers: of each actor, in Ray's store, once there.
    """

    number: int
    known: int
    starts: list[list[np.ndarray]]
    weights: Any
    shared: list[int]
    answers: list[Any]


class ActorCollector(ShareCollector):
    """A learner's collector whose rollouts are played by actors; buffers and rows are as of one process.

    An actor that dies, or does not answer, is replaced, and the rollout that it was asked for is made again from the
    same rows with the same weights, to the same bits. With a lag of 1 the next rollout is asked for as soon as one is
    there, so the policy that played it is one update older than the one that learns from it; a rollout that was asked
    for from other rows, parameters or shared tensors than those at its turn is discarded, and made anew.

    Args:
        env: the environment of all rows.
        policy: as of `FusedCollector`; its ``parameters`` are sent with every rollout.
        num_steps: steps per rollout and sub-environment, T.
        settings: of the actors.
        shards: equal parts of the rows, on each of which the policy acts by itself, S.

    Raises:
        ImportError: Ray is not installed.
        ValueError: the rows do not split, Ray cannot be joined or has too few CPUs, or a worker has other versions.
        ActorError: an actor cannot start.
    """

    def __init__(
        self, env: VecEnv, policy: Policy | None, num_steps: int, settings: ActorSettings, shards: int
    ) -> None:
        self._shares = shares_of(env.num_envs, shards, settings.actors, env.traits.num_agents)
        ray_module()
        # As a learner's own collector: a single shard acts on all rows at once.
        super().__init__(env, policy, num_steps, parts=shards if shards > 1 else None)
        self._settings = settings
        self._targets = [self.outcome(rows) for rows in self._shares]
        self._rollouts, self.lag, self.replaced = 0, 0, 0
        self._ahead: _Asked | None = None
        self._weights: list[Tensor] = weights_of(policy)
        self._behaviour = [tensor.detach().clone() for tensor in self._weights]
        # Two rollouts, and a copy of what actors are made of.
        sent = sum(target.nbytes for targets in self._targets for target in targets)
        # At most two, as shares differ by one shard.
        sizes = {rows.stop - rows.start: rows for rows in self._shares}
        each = None if shards == 1 else env.num_envs // shards
        initial = {
            size: sealed((empty_share(env, rows), policy, num_steps, each and size // each))
            for size, rows in sizes.items()
        }
        every = [data for one in initial.values() for data in one]
        size = sum(len(data) if isinstance(data, bytes) else data.nbytes for data in every)
        self._session = RaySession(settings.actors, 3 * sent + 2 * size)
        self._ray = ray_module()
        try:
            self._initial = {size: self._ray.put(one) for size, one in initial.items()}
            self._shared: Any = None
            self._known_shared = self._shared_versions()
            self._checked = [False] * settings.actors
            self._actors = [self._made(number) for number in range(settings.actors)]
            for number in range(settings.actors):
                self._check_started(number)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[Any]:
        """Ray's handles of the actors."""
        return self._actors

    def close(self) -> None:
        """End the actors, and Ray if it was started for them."""
        if self._session.closed:
            return
        # Of a Ray that is lost, a call would end this process.
        if not self._session.lost():
            for actor in getattr(self, "_actors", []):
                self._ray.kill(actor)
        self._session.close()

    def _made(self, number: int) -> Any:  # noqa: ANN401
        rows = self._shares[number]
        initial = self._initial[rows.stop - rows.start]
        made = self._ray.remote(RowActor).options(num_cpus=1, max_restarts=0, max_task_retries=0).remote(initial)
        if self._shared is not None:
            made.write_shared.remote(self._shared)
        return made

    def _check_started(self, number: int) -> None:
        """Wait until an actor is there; ValueError if it has other versions, ActorError if it cannot start."""
        try:
            found = self._ray.get(self._actors[number].versions.remote(), timeout=START_SECONDS)
        except self._ray.exceptions.RayError as error:
            self._check_ray(error)
            raise ActorError(f"actor {number} cannot start: {cause_of(error)}") from error
        check_versions(found, f"actor {number}", "the learner")
        self._checked[number] = True

    def _check_ray(self, error: BaseException | None = None) -> None:
        if self._session.lost():
            raise RayLostError(LOST) from error

    def play(self) -> None:
        # Ray would end this process without a word at the next call.
        self._check_ray()
        starts = self._starts(self._buffers.rows.steps[0])
        self._send_shared()
        asked = self._ahead
        if asked is None or asked.shared != self._known_shared or not _same(asked.starts, starts):
            asked = self._ask(starts, self._weights)
        self._ahead = None
        for number in range(len(self._actors)):
            self._take(asked, number)
        self.lag = asked.number - asked.known
        self._rollouts += 1
        # What follows the first rollout of a run would be played without its moments.
        if self._settings.max_lag and self._rollouts > 1:
            self._go_ahead(self._buffers.rows.steps[-1], self._weights)

    def _go_ahead(self, rows: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Ask for the rollout after the one that is there."""
        for kept, tensor in zip(self._behaviour, weights, strict=True):
            kept.copy_(tensor)
        self._ahead = self._ask(self._starts(rows), weights, ahead=1)

    def _starts(self, rows: Sequence[Tensor]) -> list[list[np.ndarray]]:
        return [self.start_of(rows, share) for share in self._shares]

    def _ask(self, starts: list[list[np.ndarray]], weights: Sequence[Tensor], ahead: int = 0) -> _Asked:
        self._check_ray()
        sent = self._ray.put(arrays_of(weights))
        number = self._rollouts
        asked = _Asked(number, number - ahead, starts, sent, list(self._known_shared), [None] * len(starts))
        for actor in range(len(starts)):
            self._send(asked, actor)
        return asked

    def _send(self, asked: _Asked, number: int) -> None:
        """Ask an actor for its share of a rollout."""
        play = self._actors[number].play
        asked.answers[number] = play.remote((asked.number, number), asked.starts[number], asked.weights)

    def _take(self, asked: _Asked, number: int) -> None:
        """Copy an actor's answer into its rows, that of another one if it is gone."""
        failed: Any = self._ray.exceptions
        for _ in range(DEATHS):
            try:
                name, arrays = self._ray.get(asked.answers[number], timeout=self._settings.stall_seconds)
            except failed.RayTaskError as error:
                raise ActorError(f"actor {number} failed in its rollout: {cause_of(error)}") from error
            except (failed.RayActorError, failed.GetTimeoutError, failed.ObjectLostError) as error:
                self._check_ray(error)
                reason, last = cause_of(error), error
                self._replace(number, reason)
                self._send(asked, number)
            else:
                if tuple(name) != (asked.number, number):
                    raise RuntimeError(f"an actor answered with rollout {name}, asked for {(asked.number, number)}")
                for target, array in zip(self._targets[number], arrays, strict=True):
                    fill(target, array)
                # Free in the store.
                asked.answers[number] = None
                if not self._checked[number]:
                    self._check_started(number)
                return
        raise ActorError(f"actor {number} died {DEATHS} times in one rollout: {reason}") from last

    def _replace(self, number: int, reason: str) -> None:
        warnings.warn(
            f"actor {number} is replaced, and makes its rollout again: {reason}", RuntimeWarning, stacklevel=2
        )
        self._ray.kill(self._actors[number])
        # It may die too, before it is there.
        self._actors[number], self._checked[number] = self._made(number), False
        self.replaced += 1

    def _shared_versions(self) -> list[int]:
        return [tensor._version for tensor in self.env.scenario.shared.values()]

    def _send_shared(self) -> None:
        """Send the shared tensors to the actors if they were written, such as with another market."""
        if (now := self._shared_versions()) == self._known_shared:
            return
        names, tensors = self.env.scenario.shared.keys(), self.env.scenario.shared.values()
        self._shared = self._ray.put(dict(zip(names, arrays_of(list(tensors)), strict=True)))
        self._known_shared = now
        for actor in self._actors:
            actor.write_shared.remote(self._shared)

    def metrics(self) -> dict[str, float]:
        """Return ``policy_lag`` in updates, and how many actors have been replaced so far."""
        return {"policy_lag": self.lag, "actors_replaced": self.replaced}

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the rollout that is under way; nothing without a lag."""
        if not self._settings.max_lag:
            return {}
        under_way = torch.tensor(self._ahead is not None)
        return {BEHAVIOUR: [under_way, *(tensor.clone() for tensor in self._behaviour)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Ask again for the rollout that was under way."""
        if not self._settings.max_lag:
            return
        under_way, *weights = state[BEHAVIOUR]
        self._ahead, self._rollouts = None, 1
        if bool(under_way):
            self._send_shared()
            self._go_ahead(leaves(self.env.rows), weights)


def _same(one: Sequence[Sequence[np.ndarray]], other: Sequence[Sequence[np.ndarray]]) -> bool:
    """Whether starts are the same bit for bit: what is no number is itself."""
    pairs = (pair for parts in zip(one, other, strict=True) for pair in zip(*parts, strict=True))
    return all(left.shape == right.shape and left.tobytes() == right.tobytes() for left, right in pairs)


def play_by_actors(learner: Learner[Any], settings: ActorSettings) -> None:
    """Replace a learner's collector, before its first update, by an `ActorCollector`; errors are of that."""
    collector = learner.collector
    policy, num_steps = collector.policy, collector.num_steps
    assert isinstance(policy, Policy)
    # Collectors refer to themselves: the memory of its buffers is free before others are made.
    del collector, learner.collector
    gc.collect()
    learner.collector = ActorCollector(learner.env, policy, num_steps, settings, learner.shards.count)
