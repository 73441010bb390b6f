"""The standard door: a TorchRL environment over the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorClass, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

from vecenv.core.engine import BoundEngine, Engine
from vecenv.core.memory import check_memory
from vecenv.core.random import EpisodeKey, episode_key
from vecenv.core.row_calls import RowCalls
from vecenv.core.rows import Outcome, Rows, leaf_names, leaves, owned, select_rows, with_leaves
from vecenv.core.saved_state import check_state
from vecenv.core.scenario import Scenario, Schedule
from vecenv.core.tensor_checks import (
    ActionCheck,
    check_same_forms,
    checked_integers,
    checked_mask,
    distinct,
    row_numbers,
)


class VecEnv(EnvBase):
    """N sub-environments of one scenario, batch size [N].

    A step never resets: a row that is done, or outside TorchRL's ``"_step"`` mask, stays bit for bit as it is with
    reward 0. The fused collector is the fast door; both use the same functions.

    Compiled steps read raw memory, so whatever tensor comes in is checked first. Parameters and shared tensors are
    changed in place, never replaced.

    Args:
        scenario: the rules, with parameters and shared tensors.
        num_envs: number of sub-environments, N.
        seed: names all episodes together with the ids; in [0, 2^63).
        device: where all tensors live.
        compiled: compile steps. (``compile`` is a keyword that TorchRL takes for itself.)
        params: parameters that differ per sub-environment, each with a leading dimension of N.
        env_ids: identity of each row in random draws, in [0, 2^32); row numbers by default. Shape: (N,).

    Attributes:
        checked_action: returns actions of all rows in the type of their spec, or refuses them; see `ActionCheck`.

    Raises:
        ValueError: an argument is out of range, or a tensor has another shape or type.
    """

    _rows: Rows

    def __init__(
        self,
        scenario: Scenario,
        num_envs: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        compiled: bool = True,
        params: Mapping[str, Tensor] | None = None,
        env_ids: Tensor | None = None,
    ) -> None:
        super().__init__(device=torch.device(device), batch_size=torch.Size([num_envs]))
        scenario.to(device)
        if params:
            scenario.randomise(params, num_envs)
        self.scenario, self.compiled = scenario, compiled
        self.engine = Engine(scenario, num_envs)
        check_memory(
            num_envs * self.engine.least_bytes_per_row(self.device), self.device, f"{num_envs:,} sub-environments"
        )
        self.num_envs = num_envs
        ids = torch.arange(num_envs) if env_ids is None else env_ids
        self.env_ids = checked_integers("env_ids", ids, (num_envs,), 32, self.device).clone()
        specs = scenario.understood_actions()
        self.checked_action = ActionCheck(specs, num_envs, self.env_ids.device)
        self.start_ids = self.env_ids.clone()
        self.seed_tensor = torch.zeros((), dtype=torch.int64, device=self.device)
        self._set_seed(seed)
        self._make_specs()
        self._calls = RowCalls(self.engine, self.checked_action.types, lambda: self.compiled)

    @property
    def _bound(self) -> BoundEngine:
        return self.engine.bound()

    def _make_specs(self) -> None:
        """Derive the specs from one eager step."""
        blocks = self._bound.observe(self.rows)
        self.block_widths = [block.shape[-1] for block in blocks]
        shape, flag = self.batch_size, (*self.batch_size, 1)
        self.observation_spec = Composite(
            observation=Unbounded((*shape, sum(self.block_widths)), device=self.device), shape=shape
        )
        self.action_spec = self.scenario.action_spec.expand(*shape, *self.scenario.action_spec.shape)
        outcome = self._bound.step(self.rows, self.action_spec.zero())
        self._check_rows(outcome.rows, f"a step of {self.scenario.name}")
        self.reward_dtype = outcome.reward.dtype
        self.reward_spec = Unbounded(flag, dtype=self.reward_dtype, device=self.device)
        names = ("done", "terminated", "truncated")
        self.done_spec = Composite(
            {name: Binary(1, flag, dtype=torch.bool, device=self.device) for name in names}, shape=shape
        )

    @property
    def rows(self) -> Rows:
        """What is known of every sub-environment. Batch: [N]."""
        return self._rows

    @rows.setter
    def rows(self, rows: Rows) -> None:
        """Go on from other rows.

        Raises:
            ValueError: a tensor of theirs has another name, shape, type or device.
        """
        self._check_rows(rows, "rows")
        self.take_leaves(leaves(rows))

    def take_leaves(self, tensors: Sequence[Tensor]) -> None:
        """Go on from the tensors of rows, which are not checked: that would cost as much as a small step."""
        self._rows = with_leaves(self._rows, [tensor.contiguous() for tensor in tensors])

    def _check_rows(self, rows: Rows, what: str) -> None:
        named = dict(zip(leaf_names(rows), leaves(rows), strict=True))
        check_same_forms(what, named, self._named_rows(), device=True)

    def _named_rows(self) -> dict[str, Tensor]:
        return dict(zip(leaf_names(self._rows), leaves(self._rows), strict=True))

    @property
    def state(self) -> TensorClass:
        """State of the scenario. Batch: [N]."""
        return self.rows.state

    @property
    def episode_keys(self) -> EpisodeKey:
        """Keys of what agents draw in the rows' episodes. Shape of each word: (N,)."""
        return episode_key(self.seed_tensor, self.env_ids, self.rows.episode)

    def grade(self) -> Tensor:
        """Return the outcome of each episode so far in [0, 1], separate from the reward. Shape: (N,)."""
        return self._calls.grade(self.rows)["grade"]

    def grades(self) -> dict[str, Tensor]:
        """Return the outcome of each episode so far under each grader of the task. Shape of each: (N,)."""
        return self._calls.grades(self.rows)

    def info(self) -> dict[str, Tensor]:
        """Return what a person wants to know of each episode, money in currency. Shape of each: (N, ...)."""
        return self._calls.info(self.rows)

    def rows_of(self, ids: Tensor | Sequence[int]) -> tuple[Rows, Tensor]:
        """Return copies of some rows and their numbers as a tensor. Shape of both: (B,).

        Raises:
            IndexError: a number is not one of a row.
        """
        ids = self.row_numbers(ids)
        return with_leaves(self.rows, [leaf.index_select(0, ids) for leaf in leaves(self.rows)], [len(ids)]), ids

    def row_numbers(self, ids: Tensor | Sequence[int]) -> Tensor:
        """Return numbers of rows as a tensor, if all are. Shape: (B,).

        Raises:
            IndexError: a number is not one of a row.
            TypeError: they are no integers.
        """
        return row_numbers(ids, self.num_envs, self.env_ids.device)

    def follow(self, schedule: Schedule) -> None:
        """Give every sub-environment the parameters that a schedule chooses first, and start every row anew.

        Call it before anything is collected or stepped: compiled calls read the tensors that are there by then.
        """
        chosen = schedule.params()
        self.scenario.params = {**self.scenario.params, **chosen}
        self.scenario.varied = self.scenario.varied | chosen.keys()
        self.reset()

    def write_params(self, params: Mapping[str, Tensor]) -> None:
        """Overwrite parameters in place, so that compiled and captured steps see the new ones.

        Raises:
            KeyError: there is no such parameter.
        """
        for name, value in params.items():
            self.scenario.params[name].copy_(value)

    def observe_rows(self, rows: Rows, ids: Tensor) -> Tensor:
        """Return observations of given rows. Shapes: (M,) rows, (M,) their numbers -> (M, D)."""
        return torch.cat(self._bound.of_rows(ids).observe(rows), dim=-1)

    def _set_seed(self, seed: int | None) -> None:
        """Name the episodes anew and start the first of each row."""
        if seed is None or not 0 <= seed < 1 << 63:
            raise ValueError(f"seed must be in [0, 2^63), got {seed}")
        self.seed_tensor.fill_(seed)
        self._rows = owned(self._bound.start(self.seed_tensor, self.start_ids, torch.zeros_like(self.env_ids)))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:  # noqa: ANN401
        """Start the next episode of all rows, or of those that ``"_reset"`` marks."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        fresh = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self.restart(fresh if mask is None else mask.reshape(-1))
        return self._observation().update(self._flags())

    def restart(self, chosen: Tensor) -> None:
        """Start the next episode of some rows; one that has not moved yet stays. Shape: (N,), bool.

        Raises:
            ValueError: the mask is not one boolean for each row.
        """
        chosen = checked_mask(chosen, self.num_envs, self.env_ids.device)
        # A row that has not moved yet is at the start of the episode that a reset would give it.
        episode = self.rows.episode + (self.rows.elapsed > 0)
        start = self._bound.start(self.seed_tensor, self.start_ids, episode)
        self.take_leaves(leaves(select_rows(chosen, start, self.rows)))

    def observations(self) -> Tensor:
        """Return what the agents see now. Shape: (N, D), float32."""
        return self._calls.observe(self.rows)["observation"]

    def _observation(self) -> TensorDict:
        return TensorDict({"observation": self.observations()}, batch_size=self.batch_size, device=self.device)

    def _flags(self) -> dict[str, Tensor]:
        rows = self.rows
        flags = {"done": rows.done, "terminated": rows.terminated, "truncated": rows.truncated}
        return {name: flag.unsqueeze(-1) for name, flag in flags.items()}

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        """Advance the rows that are neither done nor left out by ``"_step"``."""
        mask = tensordict.get("_step", None)
        reward = self.advance(tensordict.get("action"), None if mask is None else mask.reshape(-1))
        return self._observation().update({"reward": reward.unsqueeze(-1), **self._flags()})

    def advance(self, action: Tensor, mask: Tensor | None = None, eager: bool = False) -> Tensor:
        """Step the rows that are not done and return rewards, 0 of those that stay. Shape: (N,).

        Args:
            action: floating numbers of any width, or integers, for a spec of floating numbers; integers for one of
                integers. Shape: (N, *spec.shape).
            mask: rows to step; by default all. Shape: (N,), bool.
            eager: step eagerly even if ``compiled``: a few episodes take less time than compiling.

        Raises:
            TypeError: the action is no tensor.
            ValueError: action or mask has another shape, type or device.
        """
        action, playing = self.checked_action(action), ~self.rows.done
        stepped = playing if mask is None else checked_mask(mask, self.num_envs, self.env_ids.device) & playing
        outcome = self._bound.step(self.rows, action) if eager else self._outcome(action)
        rows = select_rows(stepped, outcome.rows, self.rows)
        if eager:
            self.take_leaves(leaves(rows))
        else:
            self._rows = rows
        return torch.where(stepped, outcome.reward, 0.0)

    def _outcome(self, action: Tensor) -> Outcome:
        """Return the outcome of stepping every row, compiled if asked for."""
        # The compiled call takes one layout; vmap leaves what all rows share expanded.
        *after, reward = self._calls.step[action.shape](self.rows, action.contiguous()).values()
        return Outcome(with_leaves(self.rows, after), reward)

    def reset_groups(self, num_groups: int, group_size: int, seed: int) -> TensorDict:
        """Start episodes in which each group of ``group_size`` rows shares path, start and length.

        Raises:
            ValueError: the groups do not fill the rows exactly.
        """
        if num_groups * group_size != self.num_envs:
            raise ValueError(f"{num_groups} groups of {group_size} do not make {self.num_envs} sub-environments")
        return self.reset_starts(torch.arange(self.num_envs, device=self.device) // group_size, seed)

    def reset_starts(self, start_ids: Tensor, seed: int) -> TensorDict:
        """Start episodes in which rows of equal ids share path, start and length. Shape: (N,), in [0, 2^32).

        Raises:
            ValueError: there is not one id for each row, or one is not in the range.
        """
        self.start_ids.copy_(checked_integers("start_ids", start_ids, (self.num_envs,), 32))
        self._set_seed(seed)
        return self._observation()

    def begin_rows(self, ids: Tensor | Sequence[int], seeds: Tensor, start_ids: Tensor) -> None:
        """Start in some rows the first episodes that seeds and ids name; the other rows stay as they are.

        What `reset` starts in these rows afterwards is named by the environment's own seed again.

        Args:
            ids: numbers of rows, each once. Shape: (B,).
            seeds: in [0, 2^63). Shape: (B,), int64.
            start_ids: in [0, 2^32). Shape: (B,), int64.

        Raises:
            IndexError: a number is not one of a row.
            ValueError: a row is named twice, or seeds or ids do not fit.
        """
        ids = self.row_numbers(ids)
        distinct(ids, "rows")
        seeds = checked_integers("seeds", seeds, ids.shape, 63, ids.device)
        start_ids = checked_integers("start_ids", start_ids, ids.shape, 32, ids.device)
        start = self._bound.of_rows(ids).start(seeds, start_ids, torch.zeros_like(start_ids))
        for leaf, fresh in zip(leaves(self.rows), leaves(start), strict=True):
            leaf[ids] = fresh
        self.start_ids[ids] = start_ids

    def write_shared(self, shared: Mapping[str, Tensor]) -> None:
        """Overwrite shared tensors in place, so that compiled and captured steps see the new ones.

        Episodes continue with the new ones, such as another market; `reset` starts new episodes.

        Args:
            shared: tensors of any strides, from any device.

        Raises:
            ValueError: the tensors have other names, shapes or types.
        """
        own = self.scenario.shared
        check_same_forms("the shared tensors", shared, own)
        for name, tensor in own.items():
            tensor.copy_(shared[name])

    def copy_rows(self, src: Tensor | Sequence[int], dst: Tensor | Sequence[int]) -> None:
        """Make rows ``dst``, each named once, copies of rows ``src``, to branch from them. Shape of both: (M,).

        Raises:
            IndexError: a number is not one of a row.
            ValueError: there are not as many of both, or a row is to become two.
        """
        source, target = self.row_numbers(src), self.row_numbers(dst)
        if len(source) != len(target):
            raise ValueError(f"{len(source)} rows cannot be copied to {len(target)}")
        distinct(target, "the rows to write")
        for leaf in (*leaves(self.rows), self.start_ids):
            leaf[target] = leaf[source]

    @property
    def _origin(self) -> dict[str, str]:
        return {"name": self.scenario.name, "version": self.scenario.version}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the rest of a run depends on."""
        return {
            "scenario": self._origin,
            "seed": self.seed_tensor.clone(),
            "env_ids": self.env_ids.clone(),
            "start_ids": self.start_ids.clone(),
            "rows": [leaf.clone() for leaf in leaves(self.rows)],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, bit for bit.

        A state that is refused leaves everything as it was.

        Raises:
            ValueError: it is of another scenario, version or number of sub-environments, or a tensor of it has another
                shape or type, or is missing.
        """
        check_state(state_dict, self._origin, self._named_rows())
        for name, own in (("seed", self.seed_tensor), ("env_ids", self.env_ids), ("start_ids", self.start_ids)):
            own.copy_(state_dict[name])
        self.take_leaves([leaf.to(self.env_ids.device, copy=True) for leaf in state_dict["rows"]])
