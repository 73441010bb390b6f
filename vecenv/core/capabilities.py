"""What a scenario may do beside the seven functions of its rules: small classes before `Scenario` among its bases.

    class Game(Masked, Drawing[Board]): ...

`traits` asks once for what concerns the engine; learners ask for what concerns them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torchrl.data import TensorSpec

from vecenv.core.rows import Rows
from vecenv.core.scenario import Drawing, Observation, Scenario

Tensors = Mapping[str, Tensor]


class BoundedObservations:
    """Its observations have bounds, which specs and spaces give; planes are divided by theirs.

    Attributes:
        bounds: least and largest value of blocks of the observation, by name, those of a tuple by number; of others
            nothing is known. Learners need those of wide integers (`vecenv.core.scenario.ObservationForm.check_exact`).
    """

    bounds: Mapping[str, tuple[float, float]]


class Column(NamedTuple):
    """Name and unit of a number of an observation, such as ``rsi_14 AAPL`` and ``value x 0.015625``."""

    name: str
    unit: str


class NamedColumns(ABC):
    """The numbers of its flat observations have names and units, for those who make observations elsewhere."""

    @abstractmethod
    def columns(self) -> list[Column]:
        """Return the D columns in their order."""


class Masked(ABC):
    """Not all choices of its categorical actions are valid in every state."""

    @abstractmethod
    def action_mask(self, observation: Observation) -> Tensor | None:
        """Return the valid choices given the observations; None if all are valid.

        It takes a batch; every component of a row must have at least one valid choice.

        Args:
            observation: as collected. Shape: (B, D), float32, or of each block by name (B, ...).

        Returns:
            The components' masks, concatenated as their logits. Shape: (B, sum of the choices), bool.
        """


def mask_of(scenario: Scenario[Any]) -> Callable[[Any], Tensor | None]:
    """Return the scenario's `Masked.action_mask`, or one that allows all."""
    return scenario.action_mask if isinstance(scenario, Masked) else _all_allowed


def _all_allowed(_: Observation) -> None:
    return None


class Items(NamedTuple):
    """Observations split into interchangeable items, such as the symbols of a market.

    Attributes:
        features: of each item, free of scale. Shape: (B, K, F).
        shared: features of the whole. Shape: (B, C).
    """

    features: Tensor
    shared: Tensor


class Itemised(ABC):
    """Its observations are of K interchangeable items and of the whole.

    The actions are then one per item in the same order, or one more for the whole.

    Attributes:
        item_features: names of the features that `items` returns for each item.
    """

    item_features: Sequence[str]

    @abstractmethod
    def items(self, observation: Observation) -> Items:
        """Split the observations of B rows. Shape: (B, D), float32, or of each block by name (B, ...)."""


class Referencing(ABC):
    """Parts of its observations are rows of shared tensors, such as days of a market, and can be kept by reference.

    Attributes:
        referenced_blocks: places of the blocks of the observation that depend on nothing but `reference`.
        num_references: number of values of `reference`, R.
    """

    referenced_blocks: Sequence[int]
    num_references: int

    @abstractmethod
    def reference(self, state: Any) -> Tensor:  # noqa: ANN401
        """Return the row of shared tensors that `referenced_blocks` show, below `num_references`. Shape: (), int64."""

    @abstractmethod
    def referenced(self, reference: Tensor, shared: Tensors) -> tuple[Tensor, ...]:
        """Return the `referenced_blocks` of a row of shared tensors, in order. Shape of each: (size of block,)."""


class WarmUp(ABC):
    """Its world has to run before any agent takes part.

    A collector starts episodes between its compiled steps, and only those that are due. To find them it reads the flags
    of every step: on a GPU this waits for the device, and no CUDA graph can contain it. Where a start is cheap, `reset`
    alone is faster.

    Attributes:
        warm_up: number of ticks by `warmed` that a fresh state passes before its episode starts.
    """

    warm_up: int

    @abstractmethod
    def warmed(self, state: Any, params: Tensors, shared: Tensors) -> Any:  # noqa: ANN401
        """Return the state after one tick of the warm-up, all of which come before the first step."""


class Donating:
    """Its steps overwrite parts of the state in place: for states of many kilobytes, such as an order book.

    A collector keeps one copy of them instead of one for every step, so they are empty in the rows of a rollout. An
    operator of `torch.library` may overwrite them (``mutates_args``, with ``register_fake`` and ``register_vmap``).
    `VecEnv` copies them before each step, so its callers see pure functions.

    Attributes:
        donated: names of fields of the state whose memory `step` and `warmed` may overwrite, by operators in place, and
            which no other function reads; a field may be a tensorclass. The term is JAX's.
    """

    donated: frozenset[str] = frozenset()


class MultiAgent(Donating):
    """Its worlds are shared by several agents, each of which is a row.

    Attributes:
        num_agents: agents of one world, S: as many consecutive rows share the donated fields of their states. With more
            than one, `reset`, `warmed` and `step` are those of a world: the state, also that which `reset` returns, and
            the action have a leading dimension of S, each row holds a part of the donated fields, and the key and the
            parameters are those of the world's first row. All other functions are of one row. The episodes of a world
            end together: where one agent's ends, those of the others are truncated.
    """

    num_agents: int


class RiskAware(ABC):
    """What is held over a step has a risk, by which learners can weigh rewards (`vecenv.learn.cppo`)."""

    @property
    def has_risk_level(self) -> bool:
        """Whether learners may weigh rewards by it: not where they are weighed already."""
        return True

    @abstractmethod
    def risk_level(self, state: Any, next_state: Any, params: Tensors, shared: Tensors) -> Tensor:  # noqa: ANN401
        """Return the risk level of what was held over the step from ``state`` to ``next_state``. Shape: ().

        It is positive: 1 is neutral, above 1 riskier. Learners divide the gains of the step by it and multiply the
        losses.
        """


class Graded(ABC):
    """Its episodes are graded by several graders."""

    @abstractmethod
    def grades(self, state: Any, params: Tensors, shared: Tensors) -> dict[str, Tensor]:  # noqa: ANN401
        """Return the grade by each grader of the task, by name. Shape of each: (), float32."""

    @abstractmethod
    def grade_parts(self, state: Any, params: Tensors, shared: Tensors) -> dict[str, Tensor]:  # noqa: ANN401
        """Return what the grade is the product or sum of, by name, for tables. Shape of each: ()."""


class AlternativeActions(ABC):
    """Its steps accept actions of several shapes."""

    @abstractmethod
    def understood_actions(self) -> Sequence[TensorSpec]:
        """Return the specs of all actions that `step` accepts, `action_spec` first, each of another shape."""


class TargetWeights(ABC):
    """Its actions may be weights.

    Attributes:
        target_weights: whether an action is a weight of each item in [0, 1], of which a sum up to 1 can be had in full.
    """

    target_weights: bool


class Differentiable(ABC):
    """Its rewards may be differentiated (`vecenv.learn.exact`).

    Attributes:
        smooth: whether rewards are differentiable functions of continuous actions, without rounding.
    """

    smooth: bool


class Schedule(Protocol):
    """Curriculum: chooses parameters of sub-environments during training from the episodes that have ended.

    `VecEnv.follow` applies its first parameters, `VecEnv.write_params` all later ones.
    """

    def params(self) -> Tensors:
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

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule goes on from, for checkpoints."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; ValueError if it is of another schedule."""
        ...


class Scheduled(ABC):
    """A curriculum chooses its parameters during training."""

    @abstractmethod
    def schedule(self, num_envs: int) -> Schedule | None:
        """Return the curriculum of N sub-environments; None without one."""


def schedule_of(scenario: Scenario[Any], num_envs: int) -> Schedule | None:
    """Return the scenario's `Scheduled.schedule`; None without one."""
    return scenario.schedule(num_envs) if isinstance(scenario, Scheduled) else None


class ColumnScaled(ABC):
    """Columns of its observations are scaled by the powers of two of ``shared["column_scale"]``, if there are any."""

    shared: Tensors

    @staticmethod
    def scaled(blocks: Sequence[Tensor], shared: Tensors) -> tuple[Tensor, ...]:
        """Return blocks of an observation times their parts of the scale. Shape of each: (..., width)."""
        scale = shared.get("column_scale")
        if scale is None:
            return tuple(blocks)
        parts = scale.split([block.shape[-1] for block in blocks])
        return tuple(block * part for block, part in zip(blocks, parts, strict=True))

    def unscaled(self, observation: Tensor) -> Tensor:
        """Return observations without the scale, exactly. Shape: (B, D)."""
        scale = self.shared.get("column_scale")
        return observation if scale is None else observation / scale


class Traits(NamedTuple):
    """What the engine does for a scenario beside steps: see the classes of the same words above."""

    draws: bool
    num_agents: int
    donated: frozenset[str]
    warm_up: int


CAPABILITIES = (
    BoundedObservations, Masked, Itemised, Referencing, WarmUp, Donating, MultiAgent, RiskAware, Graded,
    AlternativeActions, TargetWeights, Differentiable, Scheduled, ColumnScaled, NamedColumns,
)  # fmt: skip


def traits(scenario: Scenario[Any]) -> Traits:
    """Return what the engine does for a scenario."""
    return Traits(
        draws=isinstance(scenario, Drawing),
        num_agents=scenario.num_agents if isinstance(scenario, MultiAgent) else 1,
        donated=scenario.donated if isinstance(scenario, Donating) else frozenset(),
        warm_up=scenario.warm_up if isinstance(scenario, WarmUp) else 0,
    )
