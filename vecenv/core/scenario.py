"""The contract of one sub-environment: pure functions without a batch dimension.

A task subclasses `Scenario` and writes the rules for one agent. The engine batches them with `torch.vmap`,
resets rows that have ended, compiles one step and replays it. The functions see tensors, so they use
`torch.where` and `clamp`: no Python branch on a tensor, no ``.item()``, no boolean-mask write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import TensorSpec

from vecenv.core.random import EpisodeKey
from vecenv.core.rows import Rows
from vecenv.core.tensor_checks import form, keeps_meaning

State = TypeVar("State", bound=TensorClass)


class Schedule(Protocol):
    """Chooses parameters of sub-environments while an agent learns, from the episodes that have ended.

    `VecEnv.follow` applies its first choice, `VecEnv.write_params` every later one.
    """

    def params(self) -> Mapping[str, Tensor]:
        """Return the parameters as chosen now, by name, each with a leading dimension of N."""
        ...

    def update(self, ended: Rows, ids: Tensor, grade: Callable[[], Tensor]) -> dict[str, float]:
        """Take in E ended episodes and choose the parameters of the next ones.

        Args:
            ended: rows at the end of their episodes, those of one sub-environment in their order. Batch: (E,).
            ids: number of the row of each. Shape: (E,), int64.
            grade: returns the grade of each, computed where it is asked for. Shape: (E,).

        Returns:
            Metrics, under the same names every time.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of everything that later choices depend on."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Go on from a `state_dict`."""
        ...


class Scenario(ABC, Generic[State]):
    """Rules of one sub-environment.

    ``params`` and ``shared`` are mappings of names to tensors that the scenario itself chose: ``shared`` is the same
    for all sub-environments, ``params`` may differ per sub-environment (domain randomisation). All methods
    from `reset` to `info` are pure and see one sub-environment: no leading dimension.

    Attributes:
        name: identifier of the task.
        version: changes when, and only when, behaviour does.
        shared: tensors shared by all sub-environments.
        params: numbers of the rules.
        compile_options: settings of Inductor under which the step compiles best.
        varied: names of the parameters that differ per sub-environment and have a leading dimension of N.
        action_spec: TorchRL spec of one agent's action, without batch dimension.
        longest: steps of the longest episode; None if the rules set no bound.
        task: record that the scenario was made from, a `vecenv.Task`. The core looks at neither this nor the next.
        outcomes: unit of each number of `info` that is told of an episode, most important first.
        text: what reads and writes the task's language, a `vecenv.TaskText`; None without one.
    """

    name: str
    version: str
    shared: Mapping[str, Tensor]
    params: Mapping[str, Tensor]
    action_spec: TensorSpec
    compile_options: Mapping[str, Any] = MappingProxyType({})
    varied: frozenset[str] = frozenset()
    longest: int | None = None
    task: Any = None
    text: Any = None
    outcomes: Mapping[str, str] = MappingProxyType({})

    def randomise(self, params: Mapping[str, Tensor], num_envs: int) -> None:
        """Replace parameters by ones that differ per sub-environment: domain randomisation.

        Args:
            params: by name, each of the parameter's own shape behind a leading dimension of ``num_envs``.
            num_envs: number of sub-environments.

        Raises:
            ValueError: a parameter is unknown, has the wrong shape, or numbers that its type does not hold.
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
            replaced[name] = _as_parameter(name, value, shared)
        self.params, self.varied = replaced, frozenset(params)

    def understood_actions(self) -> Sequence[TensorSpec]:
        """Return the specs of all actions that `step` understands, its own first, each of another shape."""
        return [self.action_spec]

    @abstractmethod
    def reset(self, key: EpisodeKey, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Return the first state of the episode that ``key`` names; random numbers come from ``key`` alone."""

    @abstractmethod
    def step(self, state: State, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Return the state after ``action``."""

    @abstractmethod
    def observation(
        self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the blocks that, concatenated, are the observation. Shape of each: (size of block,), float32."""

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
        """Whether the episode has ended by the rules. Shape: (), bool."""

    @abstractmethod
    def truncated(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        """Whether the episode has been cut off: horizon or end of data. Shape: (), bool."""

    @abstractmethod
    def grade(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        """Outcome of the episode so far in [0, 1], separate from the reward. Shape: (), float32."""

    def grades(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outcome under each grader of the task, by name. Shape of each: (), float32."""
        return {"grade": self.grade(state, params, shared)}

    def info(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what a person wants to know of the episode, money in currency."""
        return {}

    def action_mask(self, observation: Tensor) -> Tensor | None:
        """Return which choices of a categorical action can do anything, from what the agent sees; None for all.

        It sees a batch, and every component of a row keeps at least one choice.

        Args:
            observation: as collected. Shape: (B, D), float32.

        Returns:
            Laid out as the components' logits, one after another. Shape: (B, sum of the choices), bool.
        """
        return None

    def schedule(self, num_envs: int) -> Schedule | None:
        """Return what changes the parameters of N sub-environments while an agent learns; None where nothing does."""
        return None

    def to(self, device: torch.device | str) -> None:
        """Move all tensors of the scenario to a device."""
        self.shared = {name: tensor.to(device) for name, tensor in self.shared.items()}
        self.params = {name: tensor.to(device) for name, tensor in self.params.items()}
        self.action_spec = self.action_spec.to(device)

    def metadata(self) -> dict[str, Any]:
        """What results are filed under: task, version and whatever subclasses add. JSON-able."""
        return {"task": self.name, "task_version": self.version}


def _as_parameter(name: str, value: Tensor, shared: Tensor) -> Tensor:
    """Return numbers in the place of a parameter, contiguous and of its type and device.

    Raises:
        ValueError: they are of a type that cannot be turned into it, or not whole where it holds integers.
    """
    whole = value.is_floating_point() and not shared.is_floating_point() and shared.dtype != torch.bool
    if whole and not bool(((value == value.round()) & value.isfinite()).all()):
        raise ValueError(f"parameter {name!r} must be whole numbers, got {value.flatten()[:8].tolist()}")
    if not whole and not keeps_meaning(value.dtype, shared.dtype):
        raise ValueError(f"parameter {name!r} must be {shared.dtype}, and {value.dtype} cannot be turned into it")
    return value.to(shared.device, shared.dtype).contiguous()
