"""Rows of a vectorised environment: their identities, seeds and states, and the episodes that they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.envs import EnvBase

from vecenv.core.checks import check_same_forms, checked_integers, checked_mask, distinct, row_numbers
from vecenv.core.engine import BoundEngine, Engine, RowCalls
from vecenv.core.random import EpisodeKey, episode_key
from vecenv.core.rows import (
    HeldRows,
    Rows,
    flags_of,
    form_of,
    leaf_names,
    leaves,
    owned,
    select_rows,
    with_leaves,
)
from vecenv.core.scenario import Scenario
from vecenv.core.worker_seeds import forget, warn_of_copies
from vecenv.system.memory import check_memory

_IDENTITY_BITS = {"seed": 63, "env_ids": 32, "start_ids": 32}
"""Seed and ids of a saved state with their widths in bits; all are non-negative integers."""


class EpisodeRows(EnvBase):
    """N rows of one scenario, each in an episode of its own; arguments and errors as of `vecenv.core.env.VecEnv`."""

    compiled: bool
    _calls: RowCalls
    _form: Rows
    _held: HeldRows

    def __init__(
        self,
        scenario: Scenario,
        num_envs: int,
        seed: int | Tensor,
        device: torch.device | str,
        params: Mapping[str, Tensor] | None,
        env_ids: Tensor | None,
    ) -> None:
        super().__init__(device=torch.device(device), batch_size=torch.Size([num_envs]))
        scenario.to(device)
        if params:
            scenario.randomise(params, num_envs)
        self.scenario = scenario
        self.engine = Engine(scenario, num_envs)
        self.traits = self.engine.traits
        check_memory(
            num_envs * self.engine.least_bytes_per_row(self.device), self.device, f"{num_envs:,} sub-environments"
        )
        self.num_envs = num_envs
        ids = torch.arange(num_envs) if env_ids is None else env_ids
        self.env_ids = checked_integers("env_ids", ids, (num_envs,), 32, self.device).clone()
        self.start_ids = self.own_starts()
        self._holder: object = None
        self._fetch: Callable[[], None] | None = None
        if isinstance(seed, Tensor):
            self.seed_tensor = checked_integers("seed", seed, (num_envs,), 63, self.device).clone()
            self._check_worlds(self.seed_tensor, "seeds")
            self._start_first()
        else:
            self.seed_tensor = torch.zeros((), dtype=torch.int64, device=self.device)
            self._set_seed(seed)

    def _check_worlds(self, values: Tensor, what: str) -> None:
        """Reject values that differ between rows of one world. Shape: (N,)."""
        agents = self.traits.num_agents
        if agents == 1:
            return
        by_world = values.unflatten(0, (-1, agents))
        wrong = (by_world != by_world[:, :1]).any(-1).nonzero()[:, 0]
        if len(wrong):
            first = int(wrong[0]) * agents
            raise ValueError(
                f"rows {first} to {first + agents - 1} are agents of one world: {what} must be the same for them"
            )

    def _check_whole_worlds(self, ids: Tensor) -> None:
        """Reject row numbers that are not those of whole worlds, in order. Shape: (B,)."""
        agents = self.traits.num_agents
        first = ids[::agents, None]
        if agents == 1:
            return
        whole = first + torch.arange(agents, device=ids.device)
        if len(ids) % agents or bool((first % agents).any()) or not torch.equal(whole.flatten(), ids):
            raise ValueError(f"rows must be chosen by whole worlds of {agents} agents, got {ids[:8].tolist()}")

    @property
    def _bound(self) -> BoundEngine:
        return self.engine.bound()

    @property
    def rows(self) -> Rows:
        """State, episode number, elapsed steps and end flags of every sub-environment. Batch: [N].

        Raises:
            RuntimeError: they are those of a rollout that did not end.
        """
        return self.held.rows

    @rows.setter
    def rows(self, rows: Rows) -> None:
        """Replace the rows; ValueError for a tensor with another name, shape, type or device."""
        self._check_rows(rows, "rows")
        self.take_leaves(leaves(rows))

    @property
    def held(self) -> HeldRows:
        """The rows as tensors, for those who need no tensorclass; errors as of `rows`."""
        if self._fetch is not None:
            self._fetch()
        return self._held

    @property
    def row_form(self) -> Rows:
        """Rows with the names, shapes and types of `rows`, but not their values, which may be elsewhere."""
        return self._form

    @property
    def holder(self) -> object:
        """With whom the rows were left; None if they are here."""
        return self._holder

    def leave_rows(self, holder: object, fetch: Callable[[], None]) -> None:
        """Leave the rows with another object; their first reader calls ``fetch``, and that `take_leaves`."""
        self._holder, self._fetch = holder, fetch

    def take_leaves(self, tensors: Sequence[Tensor]) -> None:
        """Replace the tensors of the rows, unchecked: checks would cost as much as a small step."""
        self._held.put([tensor.contiguous() for tensor in tensors])
        # TorchRL and PyTorch check each attribute that is set.
        if self._holder is not None:
            self._holder = self._fetch = None

    def flags(self) -> dict[str, Tensor]:
        """Return whether each row is ``done``, ``terminated`` or ``truncated``. Shape of each: (N,), bool."""
        return flags_of(self.ended)

    @property
    def ended(self) -> Tensor:
        """How each row has ended, see `Rows.ended`. Shape: (N,), int32."""
        return self.held.named("ended")

    @property
    def elapsed(self) -> Tensor:
        """Steps that each row has taken in its episode. Shape: (N,), int64."""
        return self.held.named("elapsed")

    def _check_rows(self, rows: Rows, what: str) -> None:
        named = dict(zip(leaf_names(rows), leaves(rows), strict=True))
        check_same_forms(what, named, self._named_rows(), device=True)

    def _named_rows(self) -> dict[str, Tensor]:
        return dict(zip(leaf_names(self._form), leaves(self._form), strict=True))

    @property
    def state(self) -> TensorClass:
        """State of the scenario. Batch: [N]."""
        return self.rows.state

    @property
    def start(self) -> tuple[Tensor, Tensor]:
        """Seed and start ids, by which the rules draw. Shapes: () or (N,), (N,)."""
        return self.seed_tensor, self.start_ids

    def seeds_of(self, ids: Tensor) -> Tensor:
        """Return the seed of given rows: of all if they have one in common. Shapes: (B,) -> () or (B,)."""
        return self.seed_tensor if self.seed_tensor.ndim == 0 else self.seed_tensor[ids]

    @property
    def episode_keys(self) -> EpisodeKey:
        """Random keys of the agents in the current episodes. Shape of each word: (N,)."""
        return episode_key(self.seed_tensor, self.env_ids, self.held.named("episode"))

    def rows_of(self, ids: Tensor | Sequence[int]) -> tuple[Rows, Tensor]:
        """Return copies of the given rows and their indices as a tensor. Shape of both: (B,).

        Raises:
            IndexError: an index is out of range.
        """
        ids = self.row_numbers(ids)
        return with_leaves(self.rows, [leaf.index_select(0, ids) for leaf in leaves(self.rows)], [len(ids)]), ids

    def row_numbers(self, ids: Tensor | Sequence[int]) -> Tensor:
        return row_numbers(ids, self.num_envs, self.env_ids.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is None or not 0 <= seed < 1 << 63:
            raise ValueError(f"seed must be in [0, 2^63), got {seed}")
        self.seed_tensor.fill_(seed)
        forget(self)
        self._start_first()

    def _start_first(self) -> None:
        rows = owned(self._bound.start(self.seed_tensor, self.start_ids, torch.zeros_like(self.env_ids)))
        self._form = form_of(rows)
        self._held = HeldRows(self._form, leaves(rows))
        self._holder = self._fetch = None

    def restart(self, chosen: Tensor, unplayed: bool = False) -> None:
        """Reset masked rows to the start of their next episode; rows at a start stay unless ``unplayed``.

        Args:
            chosen: rows to reset. Shape: (N,), bool.
            unplayed: leave out the episodes that rows are at the start of.

        Raises:
            ValueError: the mask is not one boolean per row, or not the same for the agents of a world.
        """
        warn_of_copies(self)
        chosen = checked_mask(chosen, self.num_envs, self.env_ids.device)
        self._check_worlds(chosen, "whether they are reset")
        # A row without steps is already at the start of its next episode.
        episode = self.rows.episode + ((self.rows.elapsed > 0) | unplayed)
        if self.traits.warm_up:
            # Only the rows that need it: a warm-up may cost more than an episode.
            ids = chosen.nonzero()[:, 0]
            if len(ids):
                fresh = leaves(self._bound.of_rows(ids).start(self.seeds_of(ids), self.start_ids[ids], episode[ids]))
                pairs = zip(leaves(self.rows), fresh, strict=True)
                self.take_leaves([leaf.index_copy(0, ids, new) for leaf, new in pairs])
            return
        start = self._bound.start(self.seed_tensor, self.start_ids, episode)
        self.take_leaves(leaves(select_rows(chosen, start, self.rows)))

    def begin_rows(self, ids: Tensor | Sequence[int], seeds: Tensor, start_ids: Tensor) -> None:
        """Start the first episode of the given seeds and start ids in some rows; the others are unchanged.

        From then on each row has a seed of its own, as of `vecenv.make` with a tensor of seeds: by it these rows draw,
        at their steps and for their next episodes.

        Args:
            ids: distinct row indices. Shape: (B,).
            seeds: in [0, 2^63). Shape: (B,), int64.
            start_ids: in [0, 2^32). Shape: (B,), int64.

        Raises:
            IndexError: an index is out of range.
            ValueError: an index occurs twice, the rows are not whole worlds, or seeds or start ids do not fit.
        """
        ids = self.row_numbers(ids)
        distinct(ids, "rows")
        self._check_whole_worlds(ids)
        seeds = checked_integers("seeds", seeds, ids.shape, 63, ids.device)
        start_ids = checked_integers("start_ids", start_ids, ids.shape, 32, ids.device)
        if self.seed_tensor.ndim == 0:
            self.seed_tensor = self.seed_tensor.repeat(self.num_envs)
        self.seed_tensor[ids], self.start_ids[ids] = seeds, start_ids
        self._calls.beginnings -= 1
        if self.compiled and self._calls.beginnings < 0 and not self.traits.warm_up:
            # Compiled, all rows begin in a tenth of the time of one.
            chosen = torch.zeros(self.num_envs, dtype=torch.bool, device=ids.device).index_fill_(0, ids, True)
            self.take_leaves(list(self._calls.begin(self.held, chosen, *self.start).values()))
            return
        start = self._bound.of_rows(ids).start(seeds, start_ids, torch.zeros_like(start_ids))
        for leaf, fresh in zip(self.held.tensors, leaves(start), strict=True):
            leaf[ids] = fresh

    def own_starts(self) -> Tensor:
        """Return the ids of the starts that belong to the rows by their own numbers, one of a world. Shape: (N,)."""
        agents = self.traits.num_agents
        return (self.env_ids[::agents] // agents).repeat_interleave(agents)

    def copy_rows(self, src: Tensor | Sequence[int], dst: Tensor | Sequence[int]) -> None:
        """Copy rows ``src`` into the distinct rows ``dst``, to branch episodes. Shape of both: (M,).

        Raises:
            IndexError: an index is out of range.
            ValueError: the lengths differ, ``dst`` repeats an index, or the rows are not whole worlds.
        """
        source, target = self.row_numbers(src), self.row_numbers(dst)
        if len(source) != len(target):
            raise ValueError(f"{len(source)} rows cannot be copied to {len(target)}")
        distinct(target, "the rows to write")
        self._check_whole_worlds(source)
        self._check_whole_worlds(target)
        own = [self.start_ids] if self.seed_tensor.ndim == 0 else [self.start_ids, self.seed_tensor]
        for leaf in (*leaves(self.rows), *own):
            leaf[target] = leaf[source]

    @property
    def _origin(self) -> dict[str, str]:
        return {"name": self.scenario.name, "version": self.scenario.version}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the seed, the ids and the rows, from which a run resumes bit for bit."""
        return {
            "scenario": self._origin,
            "seed": self.seed_tensor.clone(),
            "env_ids": self.env_ids.clone(),
            "start_ids": self.start_ids.clone(),
            "rows": [leaf.clone() for leaf in leaves(self.rows)],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, bit for bit.

        A rejected state leaves the environment unchanged.

        Raises:
            ValueError: it is of another scenario, version or number of sub-environments, or a tensor is missing or has
                another shape or type.
        """
        _check_state(state_dict, self._origin, self._named_rows(), self.seed_tensor.shape)
        for name, own in (("seed", self.seed_tensor), ("env_ids", self.env_ids), ("start_ids", self.start_ids)):
            own.copy_(state_dict[name])
        self.take_leaves([leaf.to(self.env_ids.device, copy=True) for leaf in state_dict["rows"]])


def _check_state(
    state: Mapping[str, Any], scenario: Mapping[str, str], rows: Mapping[str, Tensor], seed: Sequence[int]
) -> None:
    if state.get("scenario") != scenario:
        raise ValueError(f"state of {state.get('scenario')} does not fit {scenario}")
    num_envs = len(rows["elapsed"])
    ids, saved = state.get("env_ids"), state.get("rows")
    if isinstance(ids, Tensor) and ids.ndim == 1 and len(ids) != num_envs:
        raise ValueError(f"state of {len(ids)} rows does not fit {num_envs}")
    for name, bits in _IDENTITY_BITS.items():
        checked_integers(f"{name} of the state", state.get(name), seed if name == "seed" else (num_envs,), bits)
    if not isinstance(saved, Sequence) or len(saved) != len(rows):
        raise ValueError(
            f"state with {len(saved) if isinstance(saved, Sequence) else 'no'} tensors of rows does not fit {len(rows)}"
        )
    check_same_forms("state", dict(zip(rows, saved, strict=True)), rows)
