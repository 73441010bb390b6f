"""Scenario: the rules of one sub-environment as pure functions without a batch dimension; what they show.

A task subclasses `Scenario` and writes the rules for one agent. The engine batches them with `torch.vmap`,
resets done rows, compiles one step and replays it. The functions must be traceable: `torch.where` and `clamp`
instead of Python branches on tensors, no ``.item()``, no boolean-mask write.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Binary, Bounded, TensorSpec, Unbounded

from vecenv.core.checks import form, keeps_meaning
from vecenv.core.random import EpisodeKey
from vecenv.system.settings import check_parameter

Seen = TypeVar("Seen")

Observation: TypeAlias = Any
"""One flat tensor where every block is a vector of float32, else the blocks by name."""

FLAT = "observation"
"""Name of the flat tensor in batches and specs."""

LARGEST_EXACT = 2**24
"""Largest magnitude up to which float32 holds every integer."""

TAKEN = frozenset(
    {"action", "log_prob", "next", "reward", "done", "terminated", "truncated", "_reset", "_step", "_flat"}
)
"""Names of a batch that no block may have."""


def named(task: str, blocks: tuple[Tensor, ...] | Mapping[str, Tensor] | TensorClass) -> dict[str, Tensor]:
    """Return what a task observes as blocks by name; those of a tuple are named by their numbers.

    Raises:
        ValueError: a block of a tuple is no vector of float32.
    """
    if isinstance(blocks, tuple | list):
        for number, block in enumerate(blocks):
            if isinstance(block, Tensor) and not block.is_complex() and not _is_vector(block):
                raise ValueError(
                    f"{task}: block {number} of the observation must be one vector of float32, and is "
                    f"{form(block[0])}: return blocks of other kinds by name, in a dict"
                )
        return {str(number): block for number, block in enumerate(blocks)}
    return {name: blocks[name] if isinstance(blocks, Mapping) else blocks.get(name) for name in blocks.keys()}  # noqa: SIM118


def joined(blocks: dict[str, Tensor]) -> Observation:
    """Return the observations of N rows from their blocks. Shape of each: (N, ...)."""
    return torch.cat(list(blocks.values()), dim=-1) if all(map(_is_vector, blocks.values())) else blocks


def _is_vector(block: Tensor) -> bool:
    return block.ndim == 2 and block.dtype == torch.float32


def select(observation: Observation, index: Tensor) -> Observation:
    """Return the observations of some rows, by their numbers or a mask."""
    if isinstance(observation, Tensor):
        return observation[index]
    return {name: block[index] for name, block in observation.items()}


def flat_view(observation: Observation, batch_dims: int = 1) -> Tensor:
    """Return observations as vectors of float32: flat ones as they are, else all numbers of the blocks in their order.

    Integers beyond 2^24 are rounded: see `ObservationForm.check_exact`.

    Shapes: (B, ...) of each block -> (B, D), behind ``batch_dims`` dimensions.
    """
    if isinstance(observation, Tensor):
        return observation
    return torch.cat([_row(block, batch_dims).float() for block in observation.values()], dim=-1)


def _row(block: Tensor, batch_dims: int) -> Tensor:
    return block.reshape(*block.shape[:batch_dims], -1)


State = TypeVar("State", bound=TensorClass)


class Scenario(ABC, Generic[State]):
    """Rules of one sub-environment.

    ``params`` and ``shared`` map names of the scenario's choice to tensors: ``shared`` is the same for all
    sub-environments, ``params`` may differ per sub-environment (domain randomisation). All methods from `reset` to
    `info` are pure functions of one sub-environment: no leading dimension.

    Seven functions are to be written: `reset`, `step`, `observation`, `reward`, `terminated`, `truncated` and `grade`;
    `info` tells more of an episode. What else a task can do is a class of `vecenv.core.capabilities` that it takes on.

    Attributes:
        name: identifier of the task.
        version: changes when, and only when, behaviour does.
        shared: tensors shared by all sub-environments.
        params: parameters of the rules.
        compile_options: Inductor settings for the step.
        varied: names of the parameters that differ per sub-environment and have a leading dimension of N.
        action_spec: TorchRL spec of one agent's action, without batch dimension.
        longest: steps of the longest episode; None if unbounded.
        off_scale: why ``"reward"`` or ``"block NAME"`` of the observation is far from order one on random play, if it
            is; blocks of a tuple are named by their numbers.
        task: the task's record, a `vecenv.Task`; not used by the core, nor are ``outcomes`` and ``text``.
        outcomes: names of the episode outcomes among the entries of `info`, with units, most important first.
        text: renders observations and parses actions as text, a `vecenv.TextInterface`; None without one.
        files: what it was read from, beside the files that its settings name.
    """

    name: str
    version: str
    shared: Mapping[str, Tensor]
    params: Mapping[str, Tensor]
    action_spec: TensorSpec
    compile_options: Mapping[str, Any] = MappingProxyType({})
    varied: frozenset[str] = frozenset()
    longest: int | None = None
    off_scale: Mapping[str, str] = MappingProxyType({})
    task: Any = None
    text: Any = None
    outcomes: Mapping[str, str] = MappingProxyType({})
    files: Sequence[str] = ()

    def randomise(self, params: Mapping[str, Tensor], num_envs: int) -> None:
        """Replace parameters by ones that differ per sub-environment: domain randomisation.

        Args:
            params: by name, each of the parameter's own shape behind a leading dimension of ``num_envs``.
            num_envs: number of sub-environments.

        Raises:
            ValueError: a parameter is unknown, has the wrong shape, or values that its type cannot represent.
        """
        replaced = dict(self.params)
        for name, value in params.items():
            if name not in self.params:
                raise ValueError(f"unknown parameter {name!r}; {self.name} has {', '.join(sorted(self.params))}")
            shared = self.params[name]
            if not isinstance(value, Tensor) or value.shape != (num_envs, *shared.shape):
                got = tuple(value.shape) if isinstance(value, Tensor) else form(value)
                raise ValueError(
                    f"parameter {name!r} must have shape {(num_envs, *shared.shape)}, one row per "
                    f"sub-environment, got {got}"
                )
            replaced[name] = own = _as_parameter(name, value, shared)
            if own.numel():
                check_parameter(
                    getattr(self, "config", None), name, shared.flatten().tolist(), [own.min().item(), own.max().item()]
                )
        self.params, self.varied = replaced, frozenset(params)

    @abstractmethod
    def reset(self, key: EpisodeKey, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Return the initial state of the episode of ``key``, without a batch dimension (``batch_size=[]``).

        Random numbers come from ``key`` alone, by `vecenv.core.random`.
        """

    @abstractmethod
    def step(self, state: State, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Return the state after ``action``, which has the shape of ``action_spec``; ``state`` is not changed."""

    @abstractmethod
    def observation(
        self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...] | Mapping[str, Tensor] | TensorClass:
        """Return the blocks of the observation: in a tuple, or by name in a dict or a TensorClass.

        Blocks that are all vectors of float32, as those of a tuple must be, are concatenated to one vector. Others keep
        their names, shapes and types: numbers (), vectors (D,), sets of K items (K, F), planes or images (C, H, W); of
        floats, integers or booleans.
        """

    @abstractmethod
    def reward(
        self,
        state: State,
        action: Tensor,
        next_state: State,
        params: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the reward of the step from ``state`` to ``next_state``. Shape: (), float32."""

    @abstractmethod
    def terminated(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        """Whether the episode has terminated by the rules. Shape: (), bool."""

    @abstractmethod
    def truncated(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        """Whether the episode has been truncated: horizon or end of data. Shape: (), bool."""

    @abstractmethod
    def grade(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        """Grade of the episode so far in [0, 1], separate from the reward. Shape: (), float32."""

    def info(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return diagnostics of the episode by name, money in currency. Shape of each: any, () of an outcome."""
        return {}

    def to(self, device: torch.device | str) -> None:
        """Move parameters, shared tensors and the action spec to a device, in place of those that the scenario has."""
        self.shared = {name: tensor.to(device) for name, tensor in self.shared.items()}
        self.params = {name: tensor.to(device) for name, tensor in self.params.items()}
        self.action_spec = self.action_spec.to(device)

    def metadata(self) -> dict[str, Any]:
        """Return JSON-able metadata of results: task, version and what subclasses add."""
        return {"task": self.name, "task_version": self.version}


class Drawing(Scenario[State]):
    """A scenario whose steps draw random numbers: it writes `drawn_step` in place of `step`."""

    @abstractmethod
    def drawn_step(
        self,
        state: State,
        action: Tensor,
        key: EpisodeKey,
        params: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
    ) -> State:
        """Return the state after ``action``; ``key`` is the step's own, and all its streams are fresh.

        Episodes of one start, such as those of a group, draw the same.
        """

    def step(self, state: State, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Raise NotImplementedError: a step has a key."""
        raise NotImplementedError(f"a step of {self.name} draws random numbers: it is `drawn_step`")


def _as_parameter(name: str, value: Tensor, shared: Tensor) -> Tensor:
    """Convert values to a parameter's dtype and device, contiguous; integers must be whole."""
    whole = value.is_floating_point() and not shared.is_floating_point() and shared.dtype != torch.bool
    if value.is_floating_point() and bool(value.isnan().any()):
        raise ValueError(f"parameter {name!r} must be numbers, got nan")
    if whole and not bool(((value == value.round()) & (value.abs() < 2**63)).all()):
        raise ValueError(f"parameter {name!r} must be whole numbers, got {value.flatten()[:8].tolist()}")
    if not whole and not keeps_meaning(value.dtype, shared.dtype):
        raise ValueError(f"parameter {name!r} must be {shared.dtype}, and {value.dtype} cannot be turned into it")
    return value.to(shared.device, shared.dtype).contiguous()


@dataclass(frozen=True)
class ObservationForm:
    """Names, shapes and types of the blocks of an observation, as a scenario returns them.

    Attributes:
        blocks: shape and dtype of each block of one row, by name.
        bounds: least and largest value of some of them, by name.
        flat: whether every block is a vector of float32; they are then one flat tensor.
    """

    blocks: Mapping[str, tuple[torch.Size, torch.dtype]]
    bounds: Mapping[str, tuple[float, float]]
    flat: bool

    @classmethod
    def of(cls, task: str, found: Mapping[str, Tensor], bounds: Mapping[str, tuple[float, float]]) -> ObservationForm:
        """Return the form of the `named` blocks of N rows. Shape of each: (N, ...).

        Raises:
            ValueError: there are none, one is no tensor of numbers, a name is taken, or bounds are of no block or do
                not hold.
        """
        if not found:
            raise ValueError(f"{task} observes nothing")
        for name, block in found.items():
            if not isinstance(block, Tensor) or block.is_complex():
                raise ValueError(f"{task}: block {name!r} of the observation must be a tensor of numbers")
        flat = all(map(_is_vector, found.values()))
        if not flat and (taken := sorted(found.keys() & TAKEN)):
            raise ValueError(f"{task}: a block of the observation cannot be named {taken[0]!r}, as a batch has that")
        for name, (low, high) in bounds.items():
            if name not in found:
                raise ValueError(f"{task}: bounds are given of {name!r}; the observation has {', '.join(found)}")
            kind = found[name].dtype
            limits = None if kind.is_floating_point or kind == torch.bool else torch.iinfo(kind)
            if limits is not None and not limits.min <= low <= high <= limits.max:
                raise ValueError(f"{task}: bounds of block {name!r} must be within {kind}, got {low:g} to {high:g}")
            if not bool(((found[name] >= low) & (found[name] <= high)).all()):
                raise ValueError(f"{task}: block {name!r} of the observation leaves its bounds {low:g} to {high:g}")
        return cls({name: (block.shape[1:], block.dtype) for name, block in found.items()}, dict(bounds), flat)

    @property
    def sizes(self) -> list[int]:
        """The numbers of each block."""
        return [shape.numel() for shape, _ in self.blocks.values()]

    @property
    def has_planes(self) -> bool:
        """Whether some blocks are planes or images, (C, H, W)."""
        return any(len(shape) == 3 for shape, _ in self.blocks.values())

    @property
    def buffers(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of what is kept of an observation, by name: one flat tensor, or the blocks."""
        return {FLAT: (torch.Size([sum(self.sizes)]), torch.float32)} if self.flat else dict(self.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of one observation."""
        return sum(shape.numel() * dtype.itemsize for shape, dtype in self.buffers.values())

    def whole(self, parts: Sequence[Tensor]) -> Observation:
        """Return an observation from its `buffers`."""
        return parts[0] if self.flat else dict(zip(self.blocks, parts, strict=True))

    def parts(self, observation: Observation) -> list[Tensor]:
        """Return the `buffers` of an observation."""
        return [observation] if self.flat else [observation[name] for name in self.blocks]

    def split(self, flat: Tensor) -> Observation:
        """Return observations from their `flat_view`. Shapes: (B, D) -> (B, ...) of each block."""
        if self.flat:
            return flat
        parts = zip(self.blocks.items(), flat.split(self.sizes, dim=-1), strict=True)
        return {name: part.reshape(len(flat), *shape).to(dtype) for (name, (shape, dtype)), part in parts}

    def on_flat(self, function: Callable[..., Seen]) -> Callable[[Tensor], Seen]:
        """Return a function of observations as one of their `flat_view`."""
        return function if self.flat else lambda flat: function(self.split(flat))

    def zeros(self, batch: int, device: torch.device) -> Observation:
        made = [torch.zeros(batch, *shape, dtype=dtype, device=device) for shape, dtype in self.buffers.values()]
        return self.whole(made)

    def specs(self, batch: Sequence[int], device: torch.device) -> dict[str, TensorSpec]:
        """Return TorchRL's specs of the `buffers`, by name."""
        bounds: Mapping[str, tuple[float | Tensor, float | Tensor]] = self.bounds
        if self.flat:
            bounds = {FLAT: self.limits()} if bounds else {}
        return {
            name: _spec(torch.Size((*batch, *shape)), dtype, bounds.get(name), device)
            for name, (shape, dtype) in self.buffers.items()
        }

    def limits(self) -> tuple[Tensor, Tensor]:
        """Return least and largest value of each number of a flat observation, by its bounds. Shape: (D,), float32."""
        largest = torch.finfo(torch.float32).max
        given = [self.bounds.get(name, (-largest, largest)) for name in self.blocks]
        parts = [torch.tensor([pair]).expand(size, 2) for pair, size in zip(given, self.sizes, strict=True)]
        low, high = torch.cat(parts).unbind(-1)
        return low, high

    def check_exact(self, task: str) -> None:
        """Raise ValueError of integers that float32, in which learners read them, may not hold."""
        for name, (_, dtype) in self.blocks.items():
            low, high = self.bounds.get(name, (-math.inf, math.inf))
            wide = dtype.itemsize > 2 and not dtype.is_floating_point
            if wide and max(-low, high) > LARGEST_EXACT:
                raise ValueError(
                    f"{task}: integers of block {name!r} may pass 2^24, up to which float32, in which learners read "
                    "them, holds all: declare their bounds (`BoundedObservations`), or return floats"
                )

    def scale(self, name: str) -> float:
        """Return what a block's numbers are divided by to be of order one: its largest magnitude, if that is known."""
        dtype = self.blocks[name][1]
        given = self.bounds.get(name, (0, 255) if dtype == torch.uint8 else (0, 1))
        # A block without a bound on one side would be divided to nothing.
        return max(filter(math.isfinite, map(abs, given)), default=1.0) or 1.0


def _spec(
    shape: torch.Size,
    dtype: torch.dtype,
    bounds: tuple[float | Tensor, float | Tensor] | None,
    device: torch.device,
) -> TensorSpec:
    if dtype == torch.bool:
        return Binary(shape=shape, dtype=dtype, device=device)
    if dtype == torch.uint8 and bounds is None:
        bounds = (0, 255)
    if bounds is None:
        return Unbounded(shape, dtype=dtype, device=device)
    low, high = (bound.expand(shape) if isinstance(bound, Tensor) else bound for bound in bounds)
    return Bounded(low, high, shape=shape, dtype=dtype, device=device)
