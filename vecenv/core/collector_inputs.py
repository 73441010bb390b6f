"""What a collector's compiled steps read, by reference or not, and a policy as they call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vecenv.core.capabilities import Referencing
from vecenv.core.checks import ActionCheck, form, layout
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.core.rows import Rows
from vecenv.core.scenario import Observation, Scenario


@runtime_checkable
class Policy(Protocol):
    """Protocol of a policy: a pure function of tensors, which a `vecenv.FusedCollector` compiles into its steps.

    No base class is needed. `vecenv.learn.evaluation.PolicyAgent` makes an agent of it for evaluations and backtests. A
    collector calls `act` once when it is made, and raises a ValueError that names a tensor which is missing, or has
    another shape or type than declared here.

    Attributes:
        parameters: tensors that may change between rollouts, such as weights, on the environment's device; empty for a
            rule without numbers. Write them in place: compiled steps keep their addresses.
        extras: name to shape, of one row, and dtype of what `act` returns beside the action, such as
            ``{"log_prob": ((), torch.float32)}``; a collector's batch has them. Empty for the action alone.
    """

    parameters: list[Tensor]
    extras: dict[str, tuple[tuple[int, ...], torch.dtype]]

    def act(
        self, parameters: list[Tensor], observation: Observation, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the action of every row, then the extras in their order; compiled, so without branches on values.

        Args:
            parameters: those of the attribute, as the compiled step reads them.
            observation: as `VecEnv.observations` returns it. Shape: (N, D), float32, or of each block by name (N, ...).
            key: seed and number of each row's episode. Shape of each word: (N,), int64.
            elapsed: steps since the episode's start. Shape: (N,), int64.

        Random numbers are to depend on ``key`` and ``elapsed`` alone, such as those of
        `vecenv.core.random.standard_normals`: then a row acts the same alone as among others.

        Returns:
            Actions, of the spec's dtype or one that `vecenv.core.checks` converts to it, shape
            ``(N, *action_spec.shape)``; extras, shape of each ``(N, *declared)``.
        """
        ...


@runtime_checkable
class ReferencingPolicy(Policy, Protocol):
    """Policy that reads observations by reference: a table is made of what they refer to before every rollout.

    Attributes:
        references: how the environment's observations are split.
        table: the last one of the parameters. Shape: (R, any).
    """

    references: References
    table: Tensor

    def table_of(self, parameters: list[Tensor], referenced: Tensor) -> Tensor:
        """Return the table; ``parameters`` are without it. Shapes: (R, columns by reference) -> (R, any)."""
        ...

    def act_by_reference(
        self, parameters: list[Tensor], own: Tensor, reference: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return what `act` returns. Shapes: (N, own columns), (N,)."""
        ...


class CollectorInputs:
    """Input tensors of a collector's steps other than its buffers, as recorded at construction."""

    def __init__(self, env: VecEnv, policy: object) -> None:
        self._env = env
        # Once: the protocol check costs as much as all checks of a rollout.
        self._policy = policy if isinstance(policy, Policy) else None
        self._read = self._now()
        count = 3 + len(env.engine.inputs)
        self.shared, self.parameters = self._read[:count], self._read[count:]
        self._layouts = [layout(tensor) for tensor in self._read]
        self._own_layouts = self._layouts[count:]
        self._addresses = self.addresses()

    def _now(self) -> list[Tensor]:
        env, own = self._env, [] if self._policy is None else self._policy.parameters
        return [env.seed_tensor, env.env_ids, env.start_ids, *env.engine.inputs, *own]

    def addresses(self) -> list[int]:
        """Return where the tensors lie now."""
        return [tensor.data_ptr() for tensor in self._read]

    def check(self, addresses: bool) -> None:
        """Raise ValueError if a tensor was replaced or changed its layout, or its address, which a CUDA graph reads."""
        now = self._now()
        same = len(now) == len(self._read) and all(map(is_, now, self._read))
        same = same and [layout(tensor) for tensor in self.parameters] == self._own_layouts
        if same and not (addresses and [tensor.data_ptr() for tensor in now] != self._addresses):
            return
        raise ValueError(f"{self._replaced(now)} has been replaced since the collector was made: write it in place")

    def _replaced(self, now: list[Tensor]) -> str:
        own = range(len(now) - 3 - len(self._env.engine.inputs))
        names = ["seed_tensor", "env_ids", "start_ids", *self._env.engine.named_inputs()]
        names += [f"parameter {place} of the policy" for place in own]
        read = zip(self._read, self._layouts, self._addresses, strict=True)
        for name, tensor, (before, form_before, address) in zip(names, now, read, strict=False):
            if tensor is not before or layout(tensor) != form_before or tensor.data_ptr() != address:
                return name
        return f"one of {len(self._read)} tensors, now {len(now)},"


def checked_acted(
    name: str, acted: Sequence[Tensor], action: ActionCheck, extras: Mapping[str, tuple[torch.Size, torch.dtype]]
) -> list[Tensor]:
    """Check a policy's results against its declaration, and return them.

    Raises:
        ValueError: a tensor is missing, or has another shape or type.
    """
    if len(acted) != 1 + len(extras):
        declared = ", ".join(["action", *extras])
        raise ValueError(f"{name}.act must return {declared}, but returned {len(acted)} tensors")
    for (extra, (shape, dtype)), tensor in zip(extras.items(), acted[1:], strict=True):
        if not isinstance(tensor, Tensor) or (tensor.shape, tensor.dtype) != (shape, dtype):
            wanted = f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"
            raise ValueError(f"{name}.act must return {extra} as {wanted}, but returned {form(tensor)}")
    try:
        return [action(acted[0]), *acted[1:]]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}.act: {error}") from None


class PolicyCall:
    """Calls a policy for rows of an environment, of which there are so many."""

    def __init__(self, env: VecEnv, policy: Policy, rows: int) -> None:
        self._env, self._policy, self._rows = env, policy, rows
        # Once: the protocol check costs as much as all checks of a rollout.
        self._referencing = policy if isinstance(policy, ReferencingPolicy) else None
        self.references = None if self._referencing is None else self._referencing.references
        self._action = ActionCheck([env.scenario.action_spec], rows, env.seed_tensor.device)
        self._extras = {name: (torch.Size((rows, *shape)), kind) for name, (shape, kind) in policy.extras.items()}

    def act(self, remaining: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> list[Tensor]:
        """Return action and extras, given the policy's parameters and what was seen."""
        if self._referencing is not None:
            *parameters, own, reference = remaining
            acted = self._referencing.act_by_reference(parameters, own, reference, key, elapsed)
        else:
            count = len(self._policy.parameters)
            parameters, seen = list(remaining[:count]), remaining[count:]
            acted = self._policy.act(parameters, self._env.observation_form.whole(seen), key, elapsed)
        return checked_acted(type(self._policy).__name__, acted, self._action, self._extras)

    def table_inputs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the inputs and the output of `table`: the market and the weights, and the policy's own table."""
        assert self._referencing is not None
        *parameters, table = self._referencing.parameters
        return [*self._env.engine.inputs, *parameters], [table]

    def table(self, *tensors: Tensor) -> list[Tensor]:
        assert self._referencing is not None and self.references is not None
        count = len(self._env.engine.inputs)
        bound = self._env.engine.bind(list(tensors[:count]))
        return [self._referencing.table_of(list(tensors[count:]), self.references.table(bound))]

    @torch.no_grad()
    def attempt(self, seen: Sequence[Tensor]) -> None:
        """Act once and discard the result, to reject an unfit policy before compilation."""
        key, elapsed = self._env.episode_keys, self._env.rows.elapsed
        own = [tensor[: self._rows] for tensor in (*seen, *key, elapsed)]
        seen, (*words, elapsed) = own[: len(seen)], own[len(seen) :]
        self.act([*self._policy.parameters, *seen], EpisodeKey(*words), elapsed)


class References:
    """The split of a scenario's observations into blocks of a sub-environment's own and blocks by reference.

    The widths are those of all blocks, ``own_widths`` of the own ones, ``referenced_size`` the sum of the others;
    ``count`` is the number of rows that can be referred to, R.

    Raises:
        ValueError: the scenario has no such blocks.
    """

    def __init__(self, scenario: Scenario[Any], widths: Sequence[int]) -> None:
        if not isinstance(scenario, Referencing):
            raise ValueError(f"{scenario.name} has no observations by reference")
        self._widths, self._referenced = list(widths), list(scenario.referenced_blocks)
        self._own = [place for place in range(len(widths)) if place not in self._referenced]
        self.own_widths = [widths[place] for place in self._own]
        self.referenced_size = sum(widths[place] for place in self._referenced)
        self.count = scenario.num_references

    def parts(self, bound: BoundEngine, rows: Rows) -> list[Tensor]:
        """Return the own blocks and the references. Shape of each: (N, width); (N,), int64."""
        blocks, reference = list(bound.observe(rows).values()), bound.reference(rows)
        return [*(blocks[place] for place in self._own), reference]

    def whole(self, bound: BoundEngine, own: Tensor, reference: Tensor) -> Tensor:
        """Return observations from their parts. Shapes: (M, own), (M,) -> (M, D)."""
        return self.joined(own, torch.cat(bound.referenced(reference), dim=-1))

    def table(self, bound: BoundEngine) -> Tensor:
        """Return the columns by reference of all rows. Shape: (R, referenced)."""
        device = next(iter(bound.shared.values())).device
        return torch.cat(bound.referenced(torch.arange(self.count, device=device)), dim=-1)

    def own_columns(self, values: Tensor) -> Tensor:
        """Return the columns of the own blocks, in their order. Shapes: (..., D) -> (..., own)."""
        blocks = values.split(self._widths, dim=-1)
        # A task may have no block of its own.
        return torch.cat([values[..., :0], *(blocks[place] for place in self._own)], dim=-1)

    def referenced_columns(self, values: Tensor) -> Tensor:
        """Return the columns of the blocks by reference, in their order. Shapes: (..., D) -> (..., referenced)."""
        blocks = values.split(self._widths, dim=-1)
        return torch.cat([blocks[place] for place in self._referenced], dim=-1)

    def places(self, own: Sequence[Tensor], table: Tensor) -> list[tuple[Tensor, bool]]:
        """Return where the blocks of an observation lie, in their order, and whether by reference: parts of a `table`.

        Shapes: (N, width) each, (R, referenced) -> (N or R, width) each.
        """
        widths = [self._widths[place] for place in self._referenced]
        blocks = {place: (block, False) for place, block in zip(self._own, own, strict=True)}
        blocks |= {place: (part, True) for place, part in zip(self._referenced, table.split(widths, -1), strict=True)}
        return [blocks[place] for place in range(len(blocks))]

    def joined(self, own: Tensor, referenced: Tensor) -> Tensor:
        """Return columns in the order of the observation: the inverse of the two above."""
        blocks = dict(zip(self._own, own.split(self.own_widths, dim=-1), strict=True))
        widths = [self._widths[place] for place in self._referenced]
        blocks |= dict(zip(self._referenced, referenced.split(widths, dim=-1), strict=True))
        return torch.cat([blocks[place] for place in range(len(blocks))], dim=-1)
