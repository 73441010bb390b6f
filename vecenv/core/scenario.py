"""Scenario base class: the rules of one sub-environment as pure functions without a batch dimension.

A task subclasses `Scenario` and writes the rules for one agent. The engine batches them with `torch.vmap`,
resets done rows, compiles one step and replays it. The functions must be traceable: `torch.where` and `clamp`
instead of Python branches on tensors, no ``.item()``, no boolean-mask write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import TensorSpec

from vecenv.core.checks import form, keeps_meaning
from vecenv.core.random import EpisodeKey
from vecenv.core.rows import Rows
from vecenv.system.settings import check_parameter

State = TypeVar("State", bound=TensorClass)


class Items(NamedTuple):
    """Observations split into interchangeable items, such as the symbols of a market.

    Attributes:
        features: of each item, free of scale. Shape: (B, K, F).
        shared: features of the whole. Shape: (B, C).
    """

    features: Tensor
    shared: Tensor


class Schedule(Protocol):
    """Curriculum: chooses parameters of sub-environments during training from the episodes that have ended.

    `VecEnv.follow` applies the first parameters, `VecEnv.write_params` all later ones.
    """

    def params(self) -> Mapping[str, Tensor]:
        """Return the current parameters by name, each with a leading dimension of N."""
        ...

    def update(self, ended: Rows, ids: Tensor, grade: Callable[[], Tensor]) -> dict[str, float]:
        """Process E ended episodes and choose the parameters of the next ones.

        Args:
            ended: rows at the ends of episodes, in chronological order within a sub-environment. Batch: (E,).
            ids: row index of each. Shape: (E,), int64.
            grade: returns the grade of each, computed on demand. Shape: (E,).

        Returns:
            Metrics, under the same names every time.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None: ...


class Scenario(ABC, Generic[State]):
    """Rules of one sub-environment.

    ``params`` and ``shared`` map names of the scenario's choice to tensors: ``shared`` is the same for all
    sub-environments, ``params`` may differ per sub-environment (domain randomisation). All methods from `reset` to
    `info` are pure functions of one sub-environment: no leading dimension.

    Attributes:
        name: identifier of the task.
        version: changes when, and only when, behaviour does.
        shared: tensors shared by all sub-environments.
        params: parameters of the rules.
        compile_options: Inductor settings for the step.
        varied: names of the parameters that differ per sub-environment and have a leading dimension of N.
        action_spec: TorchRL spec of one agent's action, without batch dimension.
        longest: steps of the longest episode; None if unbounded.
        item_features: names of the features that `items` returns for each item.
        smooth: whether rewards are differentiable functions of continuous actions, without rounding.
        target_weights: whether an action is a weight of each item in [0, 1], of which a sum up to 1 can be had in full.
        referenced_blocks: places of the blocks of `observation` that depend on nothing but `reference`.
        num_references: number of values of `reference`, R.
        warm_up: number of ticks by `warmed` that a fresh state passes before its episode starts.
        donated: names of fields of the state whose memory `step` and `warmed` may overwrite, by operators in place,
            and which no other function reads; a field may be a tensorclass. The term is JAX's. The engine hands out
            copies to whoever keeps the state.
        num_agents: agents of one world, S: as many consecutive rows share the donated fields of their states. With more
            than one, `reset`, `warmed` and `step` are those of a world: the state, also that which `reset` returns, and
            the action have a leading dimension of S, each row holds a part of the donated fields, and the key and the
            parameters are those of the world's first row. All other functions are of one row. The episodes of a world
            end together: where one agent's ends, those of the others are truncated.
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
    item_features: Sequence[str] = ()
    smooth: bool = False
    target_weights: bool = False
    referenced_blocks: Sequence[int] = ()
    num_references: int = 0
    warm_up: int = 0
    donated: frozenset[str] = frozenset()
    num_agents: int = 1
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

    def understood_actions(self) -> Sequence[TensorSpec]:
        """Return the specs of all actions that `step` accepts, `action_spec` first, each of another shape."""
        return [self.action_spec]

    @abstractmethod
    def reset(self, key: EpisodeKey, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Return the initial state of the episode of ``key``; random numbers come from ``key`` alone."""

    def warmed(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Return the state after one tick of the warm-up, of which there are `warm_up`, all before the first step."""
        raise NotImplementedError(f"{self.name} has no warm-up")

    @abstractmethod
    def step(self, state: State, action: Tensor, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> State:
        """Return the state after ``action``."""

    @abstractmethod
    def observation(
        self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the blocks of the observation, which are concatenated. Shape of each: (size of block,), float32."""

    def reference(self, state: State) -> Tensor:
        """Return the row of shared tensors, such as a day of a market, that `referenced_blocks` show. Shape: (), int64.

        It is below `num_references`.
        """
        raise NotImplementedError(f"{self.name} has no observations by reference")

    def referenced(self, reference: Tensor, shared: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the `referenced_blocks` of a row of shared tensors, in order. Shape of each: (size of block,)."""
        raise NotImplementedError(f"{self.name} has no observations by reference")

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

    def risk_level(
        self, state: State, next_state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the risk level of what was held over the step from ``state`` to ``next_state``. Shape: ().

        It is positive: 1 is neutral, above 1 riskier. Learners that weigh risk (`vecenv.learn.cppo`) divide the gains
        of the step by it and multiply the losses. Optional.
        """
        raise NotImplementedError(f"{self.name} has no risk levels")

    @property
    def has_risk_level(self) -> bool:
        """Whether `risk_level` is defined and not in the rewards already; a task overrides this where that depends."""
        return type(self).risk_level is not Scenario.risk_level

    @abstractmethod
    def terminated(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        """Whether the episode has terminated by the rules. Shape: (), bool."""

    @abstractmethod
    def truncated(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        """Whether the episode has been truncated: horizon or end of data. Shape: (), bool."""

    @abstractmethod
    def grade(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Tensor:
        """Grade of the episode so far in [0, 1], separate from the reward. Shape: (), float32."""

    def grades(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the grade by each grader of the task, by name. Shape of each: (), float32."""
        return {"grade": self.grade(state, params, shared)}

    def grade_parts(
        self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what the grade is the product or sum of, by name, for tables; mostly nothing. Shape of each: ()."""
        return {}

    def info(self, state: State, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return diagnostics of the episode by name, money in currency."""
        return {}

    def action_mask(self, observation: Tensor) -> Tensor | None:
        """Return the valid choices of categorical actions given the observations; None if all are valid.

        It takes a batch; every component of a row must have at least one valid choice.

        Args:
            observation: as collected. Shape: (B, D), float32.

        Returns:
            The components' masks, concatenated as their logits. Shape: (B, sum of the choices), bool.
        """
        return None

    def items(self, observation: Tensor) -> Items | None:
        """Split observations into K interchangeable items and the whole; None for a task without such items.

        The actions are then one per item in the same order, or one more for the whole.

        Args:
            observation: as collected. Shape: (B, D), float32.
        """
        return None

    def unscaled(self, observation: Tensor) -> Tensor:
        """Return observations without the powers of two of ``shared["column_scale"]``, exactly. Shape: (B, D)."""
        scale = self.shared.get("column_scale")
        return observation if scale is None else observation / scale

    def schedule(self, num_envs: int) -> Schedule | None:
        """Return the curriculum of the parameters of N sub-environments during training; None without one."""
        return None

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


def scaled_blocks(blocks: Sequence[Tensor], shared: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return blocks of an observation times their parts of ``shared["column_scale"]``, as they are if there is none."""
    scale = shared.get("column_scale")
    if scale is None:
        return tuple(blocks)
    parts = scale.split([block.shape[-1] for block in blocks])
    return tuple(block * part for block, part in zip(blocks, parts, strict=True))


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
