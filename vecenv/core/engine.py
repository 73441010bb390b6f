"""Many sub-environments as rows of tensors: vmap, keys, and resets by selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.random import EpisodeKey, episode_key, random_bits
from vecenv.core.scenario import Scenario

TERMINATED, TRUNCATED = 1, 2

_COPIES_OF_A_STEP = 3
"""Copies of what a row holds that an eager step takes at least: 3.2 to 5.8 were measured."""

ACTION_STREAM = 1 << 16
"""Random stream of actions; scenarios use lower ones."""


class Rows(TensorClass):
    """What the engine knows of every sub-environment.

    Attributes:
        state: the scenario's state, a tensorclass. Batch: (N,).
        episode: number of the episode. Shape: (N,), int64.
        elapsed: steps taken in the episode. Shape: (N,), int64.
        ended: `TERMINATED` or `TRUNCATED` or both once the episode has ended, so that the next fused step starts
            another; 0 before. One integer, because compiled booleans are handled one by one on a CPU and cost an eighth
            of the step. Shape: (N,), int32.
    """

    state: TensorClass
    episode: Tensor
    elapsed: Tensor
    ended: Tensor

    @property
    def terminated(self) -> Tensor:
        """Whether the rules have ended the episode. Shape: (N,), bool."""
        return (self.ended & TERMINATED) != 0

    @property
    def truncated(self) -> Tensor:
        """Whether the episode has been cut off. Shape: (N,), bool."""
        return (self.ended & TRUNCATED) != 0

    @property
    def done(self) -> Tensor:
        """Whether the episode has ended. Shape: (N,), bool."""
        return self.ended != 0


class Outcome(NamedTuple):
    """Results of one step for all rows.

    Attributes:
        rows: rows after the step, not reset.
        reward: Shape: (N,), float32.
    """

    rows: Rows
    reward: Tensor

    @property
    def terminated(self) -> Tensor:
        """Whether the rules have ended each episode. Shape: (N,), bool."""
        return self.rows.terminated

    @property
    def truncated(self) -> Tensor:
        """Whether each episode has been cut off. Shape: (N,), bool."""
        return self.rows.truncated


class Engine:
    """Batches a scenario over N sub-environments.

    Every method is pure: rows in, rows out. `env.py` and `collector.py` hold the rows and call the same methods.

    Args:
        scenario: the rules, on the device.
        num_envs: number of sub-environments, N.

    Raises:
        ValueError: there is no sub-environment.
    """

    def __init__(self, scenario: Scenario, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.scenario = scenario
        self.num_envs = num_envs

    @property
    def inputs(self) -> list[Tensor]:
        """Parameters and market in the order that `bind` takes them, as inputs of a compiled function."""
        return [*self.scenario.params.values(), *self.scenario.market.values()]

    def named_inputs(self) -> dict[str, Tensor]:
        """Return parameters and market in the order of `inputs`, by names for messages."""
        params = {f"parameter {name!r}": tensor for name, tensor in self.scenario.params.items()}
        return params | {f"the market's {name!r}": tensor for name, tensor in self.scenario.market.items()}

    def least_bytes_per_row(self, device: torch.device) -> int:
        """Return the bytes that a sub-environment takes at least while it is stepped, from those of one."""
        first = torch.zeros(1, dtype=torch.int64, device=device)
        one = self.bound().of_rows(first)
        rows = one.start(first[0], first, first)
        shown = [*one.observe(rows), self.scenario.action_spec.zero()]
        # The rows before and after the step.
        return _COPIES_OF_A_STEP * sum(tensor.nbytes for tensor in (*leaves(rows), *leaves(rows), *shown))

    def bind(self, tensors: list[Tensor]) -> BoundEngine:
        """Return the batched functions over given parameter and market tensors, in the order of `inputs`."""
        count = len(self.scenario.params)
        params = dict(zip(self.scenario.params, tensors[:count], strict=True))
        market = dict(zip(self.scenario.market, tensors[count:], strict=True))
        return BoundEngine(self.scenario, params, market)

    def bound(self) -> BoundEngine:
        """Return the batched functions over the engine's own tensors."""
        return self.bind(self.inputs)


class BoundEngine:
    """The scenario's functions, batched over rows with `torch.vmap`."""

    def __init__(self, scenario: Scenario, params: Mapping[str, Tensor], market: Mapping[str, Tensor]) -> None:
        self.scenario = scenario
        self.params = dict(params)
        self.market = market
        # A shared tensor mapped along a dimension, or the reverse, would broadcast to N x N.
        self._param_dims = {name: 0 if name in scenario.varied else None for name in params}

    def _vmap(self, function: Callable, *batched: object) -> Any:  # noqa: ANN401
        """Map ``function(*batched, params, market)`` over the rows; the market is shared by closure."""
        dims = (*(0 for _ in batched), self._param_dims)
        return torch.vmap(lambda *arguments: function(*arguments, self.market), in_dims=dims)(*batched, self.params)

    def start(self, seed: Tensor, start_ids: Tensor, episode: Tensor) -> Rows:
        """Return rows at the start of the episodes that (seed, start_id, episode) name. Shapes: (), (N,), (N,)."""
        key = episode_key(seed, start_ids, episode)
        state = self._vmap(self.scenario.reset, key)
        zero = torch.zeros_like(episode)
        return Rows(state=state, episode=episode, elapsed=zero, ended=zero.to(torch.int32), batch_size=episode.shape)

    def restart_done(self, rows: Rows, seed: Tensor, start_ids: Tensor) -> Rows:
        """Return the rows with every row that is done at the start of its next episode."""
        return select_rows(rows.done, self.start(seed, start_ids, rows.episode + 1), rows)

    def observe(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return the observation's blocks. Shape of each: (N, size of block)."""
        return self._vmap(self.scenario.observation, rows.state)

    def step(self, rows: Rows, action: Tensor) -> Outcome:
        """Advance every row by one step, without resetting any."""

        def one(state: TensorClass, action: Tensor, params: Mapping, market: Mapping) -> tuple:
            following = self.scenario.step(state, action, params, market)
            reward = self.scenario.reward(state, action, following, params, market)
            terminated = self.scenario.terminated(following, params, market)
            truncated = self.scenario.truncated(following, params, market)
            return following, reward, torch.where(terminated, TERMINATED, 0) + torch.where(truncated, TRUNCATED, 0)

        state, reward, ended = self._vmap(one, rows.state, action)
        following = Rows(
            state=state,
            episode=rows.episode,
            elapsed=rows.elapsed + 1,
            ended=ended.to(torch.int32),
            batch_size=rows.batch_size,
        )
        return Outcome(following, reward)

    def info(self, rows: Rows) -> dict[str, Tensor]:
        """Return what a person wants to know of each episode. Shape of each: (N, ...)."""
        return self._vmap(self.scenario.info, rows.state)

    def of_rows(self, env: Tensor) -> BoundEngine:
        """Return the functions for a selection of rows, with their parameters. Shape: (M,)."""
        varied = self.scenario.varied
        params = {name: value[env] if name in varied else value for name, value in self.params.items()}
        return BoundEngine(self.scenario, params, self.market)

    def grade(self, rows: Rows) -> Tensor:
        """Return the outcome of each episode so far in [0, 1]. Shape: (N,)."""
        return self._vmap(self.scenario.grade, rows.state)

    def grades(self, rows: Rows) -> dict[str, Tensor]:
        """Return the outcome of each episode under each grader. Shape of each: (N,)."""
        return self._vmap(self.scenario.grades, rows.state)


Tree = TypeVar("Tree", bound=TensorClass)


def leaves(tree: TensorClass) -> list[Tensor]:
    """Return the tensors of a (nested) tensorclass in a fixed order."""
    flat: list[Tensor] = []
    for name in sorted(tree.keys()):
        value = tree.get(name)
        flat += [value] if isinstance(value, Tensor) else leaves(value)
    return flat


def leaf_names(tree: TensorClass, before: str = "") -> list[str]:
    """Return the names of the tensors that `leaves` lists, those of a nested one behind its own and a dot."""
    names: list[str] = []
    for name in sorted(tree.keys()):
        value = tree.get(name)
        names += [before + name] if isinstance(value, Tensor) else leaf_names(value, f"{before}{name}.")
    return names


def with_leaves(tree: Tree, tensors: Sequence[Tensor], batch: Sequence[int] | None = None) -> Tree:
    """Return a tensorclass like ``tree`` made of the tensors that `leaves` would list, with another batch if given."""
    remaining = iter(tensors)

    def build(node: TensorClass) -> TensorClass:
        made = {}
        for name in sorted(node.keys()):
            value = node.get(name)
            made[name] = next(remaining) if isinstance(value, Tensor) else build(value)
        return type(node)(**made, batch_size=node.batch_size if batch is None else batch)

    return build(tree)


def owned(tree: Tree) -> Tree:
    """Return a tensorclass whose tensors are contiguous and share memory with no other."""
    return with_leaves(tree, [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves(tree)])


def select_rows(mask: Tensor, chosen: Tree, other: Tree) -> Tree:
    """Return row by row ``chosen`` where ``mask`` holds and ``other`` elsewhere. Shape of the mask: (N,)."""
    pairs = zip(leaves(chosen), leaves(other), strict=True)
    return with_leaves(other, [torch.where(mask.view(-1, *(1,) * (new.ndim - 1)), new, old) for new, old in pairs])


def random_action(spec: TensorSpec, key: EpisodeKey, elapsed: Tensor) -> Tensor:
    """Draw uniform actions that depend on the episode and the step alone.

    Args:
        spec: of one agent's action; bounded, categorical or multi-categorical.
        key: of the episodes. Shape of each word: (N,).
        elapsed: steps taken in the episode. Shape: (N,).

    Returns:
        Shape: (N, *spec.shape).

    Raises:
        TypeError: the spec is of another kind.
    """
    size = spec.shape.numel()
    words = -(-size // 4)
    wide = EpisodeKey(*(word.unsqueeze(-1) for word in key))
    index = elapsed.unsqueeze(-1) * words + torch.arange(words, device=elapsed.device)
    bits = torch.cat(random_bits(wide, ACTION_STREAM, index), dim=-1)[:, :size]
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        unit = (bits >> 8).to(torch.float32) * 2.0**-24
        low, high = spec.space.low.flatten(), spec.space.high.flatten()
        return (low + unit * (high - low)).to(spec.dtype).reshape(-1, *spec.shape)
    if isinstance(spec, MultiCategorical):
        choices: Tensor | int = spec.nvec.flatten()
    elif isinstance(spec, Categorical):
        choices = int(spec.n)
    else:
        raise TypeError(f"cannot draw random actions for {type(spec).__name__}")
    return ((bits * choices) >> 32).to(spec.dtype).reshape(-1, *spec.shape)
