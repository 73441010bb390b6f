"""Scenario base class: the rules of one sub-environment as pure functions without a batch dimension.

A task subclasses `Scenario` and writes the rules for one agent. The engine batches them with `torch.vmap`,
resets done rows, compiles one step and replays it. The functions must be traceable: `torch.where` and `clamp`
instead of Python branches on tensors, no ``.item()``, no boolean-mask write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import TensorSpec

from vecenv.core.checks import form, keeps_meaning
from vecenv.core.random import EpisodeKey
from vecenv.system.settings import check_parameter

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
        off_scale: why ``"reward"`` or ``"block N"`` of the observation is far from order one on random play, if it is.
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
        """Return the initial state of the episode of ``key``; random numbers come from ``key`` alone."""

    @abstractmethod
    def step(self, state: State, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Return the state after ``action``."""

    @abstractmethod
    def observation(
        self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the blocks of the observation, which are concatenated. Shape of each: (size of block,), float32."""

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
        """Return diagnostics of the episode by name, money in currency."""
        return {}

    def to(self, device: torch.device | str) -> None:
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
