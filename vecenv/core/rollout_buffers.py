"""Preallocated time-major tensors of a rollout: rows, actions, rewards, what a policy returns beside, observations."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial

import torch
from tensordict import TensorDict
from torch import Tensor

from vecenv.core.collector_inputs import Policy, References
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, flags_of, hollow, leaf_names, leaves, of_fields, with_leaves
from vecenv.system.memory import check_memory

ALIGNMENT = 16
"""Observation rows are padded to whole cache lines of 16 float32. Their last block is aligned to one, unless that makes
them a line longer."""


class RolloutBuffers:
    """Buffers of T steps of an environment.

    Attributes:
        actions: Shape: (T, N, *spec.shape).
        reward: Shape: (T, N).
        extras: what the policy returns beside the action, by name. Shape of each: (T, N, ...).
        seen: observations, flat or by block, or their own blocks and the references. Shape of each: (T, N, ...).
        blocks: the parts of `seen` that a step writes. Shape of each: (T, N, ...).

    Raises:
        ValueError: the memory does not suffice.
    """

    def __init__(
        self, env: VecEnv, policy: object, num_steps: int, store_observations: bool, references: References | None
    ) -> None:
        num_envs, device = env.num_envs, env.device
        widths = env.block_widths if references is None else references.own_widths
        named = not env.observation_form.flat
        seen = num_envs * (env.observation_form.nbytes if named else 4 * sum(widths)) if store_observations else 0
        needed = RowBuffers.least_bytes(env, num_steps) + num_steps * seen
        check_memory(needed, device, f"{num_steps:,} steps of {num_envs:,} sub-environments")

        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(num_steps, num_envs, *shape, dtype=dtype, device=device)

        self.rows = RowBuffers(env, num_steps)
        self.actions = buffer(*env.scenario.action_spec.shape, dtype=env.scenario.action_spec.dtype)
        self.reward = buffer(dtype=env.reward_dtype)
        self.extras: dict[str, Tensor] = {}
        if isinstance(policy, Policy):
            self.extras = {name: buffer(*shape, dtype=kind) for name, (shape, kind) in policy.extras.items()}
        self.seen: list[Tensor] = []
        self.blocks: list[Tensor] = []
        if store_observations and named:
            self.seen = [buffer(*shape, dtype=dtype) for shape, dtype in env.observation_form.buffers.values()]
            self.blocks = self.seen
        elif store_observations:
            width, lines = sum(widths), -(-sum(widths) // ALIGNMENT)
            lead = -sum(widths[:-1]) % ALIGNMENT
            lead = lead if lead + width <= lines * ALIGNMENT else 0
            self.seen = [buffer(lines * ALIGNMENT)[..., lead : lead + width]]
            self.blocks = list(self.seen[0].split(widths, dim=-1))
            if references is not None:
                self.seen.append(buffer(dtype=torch.int64))
                self.blocks.append(self.seen[1])
        self.batch_size = [num_envs, num_steps]
        self._names = list(env.observation_form.buffers)

    @staticmethod
    def of_step(buffers: Sequence[Tensor], step: int) -> list[Tensor]:
        return [buffer[step] for buffer in buffers]

    def batch(self, observed: bool) -> TensorDict:
        """Return the buffers as a tensordict of views, ``observed`` with observations. Batch size: [N, T]."""
        entries = {"action": self.actions, **self.extras}
        if observed:
            entries |= zip(self._names, self.seen, strict=True)
        following = {"reward": self.reward, **flags_of(self.rows.tensors[self.rows.ended][1:])}
        batch = TensorDict({name: entry.transpose(0, 1) for name, entry in entries.items()}, batch_size=self.batch_size)
        batch["next"] = TensorDict(
            {name: entry.transpose(0, 1).unsqueeze(-1) for name, entry in following.items()},
            batch_size=self.batch_size,
        )
        return batch


class RowBuffers:
    """Time-major buffers of the rows before and after every step; of a donated field there is one copy, not T.

    Starts of episodes after a warm-up are put there between the compiled steps.

    Attributes:
        donated: whether each leaf of the rows is donated.
        ended: place of the leaf of the end flags.
        tensors: of each leaf. A donated leaf has the same memory at every step. Shape of each: (T + 1, N, ...).
        steps: the tensors of each step. Shape of each: (N, ...).
    """

    def __init__(self, env: VecEnv, num_steps: int) -> None:
        self._env = env
        own = leaves(env.rows)
        self.donated = of_fields(env.rows, env.traits.donated)
        self.ended = leaf_names(env.rows).index("ended")
        self.tensors, parts = [], []
        for leaf, donated in zip(own, self.donated, strict=True):
            buffer = leaf.new_zeros((1 if donated else num_steps + 1, *leaf.shape))
            self.tensors.append(buffer.expand(num_steps + 1, *leaf.shape))
            # One object at all steps: a compiled call knows by it which output is an input.
            parts.append([buffer[0]] * (num_steps + 1) if donated else list(buffer))
        self.steps = [list(step) for step in zip(*parts, strict=True)]
        self._given: list[tuple[weakref.ref[Tensor], int] | None] = [None] * len(own)

    @staticmethod
    def least_bytes(env: VecEnv, num_steps: int) -> int:
        own = zip(leaves(env.rows), of_fields(env.rows, env.traits.donated), strict=True)
        return sum(leaf.nbytes if donated else num_steps * leaf.nbytes for leaf, donated in own)

    def take(self) -> None:
        """Copy the environment's rows to the first step, except donated leaves that are as they were left."""
        if self._env.holder is self:
            # Nobody has read them since the last rollout: donated leaves are here.
            torch._foreach_copy_(self._kept(self.steps[0]), self._kept(self.steps[-1]))
            # No step writes the first rows.
            self._env.leave_rows(self, _lost if any(self.donated) else partial(self._give, 0))
        else:
            for buffer, leaf, given in zip(self.steps[0], self._env.held.tensors, self._given, strict=True):
                if given is None or given[0]() is not leaf or given[1] != leaf._version:
                    buffer.copy_(leaf)
        # From now on a rollout may overwrite the donated buffers.
        self._given = [None] * len(self._given)

    def leave(self) -> None:
        """Make the rows after the last step those of the environment, when somebody reads them."""
        self._env.leave_rows(self, self._give)

    def _kept(self, step: list[Tensor]) -> list[Tensor]:
        return [leaf for leaf, donated in zip(step, self.donated, strict=True) if not donated]

    def _give(self, step: int = -1) -> None:
        """Replace the environment's rows by copies, because it may be stepped or saved before the next rollout."""
        copies = [buffer.clone() for buffer in self.steps[step]]
        self._env.take_leaves(copies)
        self._given = [
            # Tensors of inference mode do not count their changes.
            (weakref.ref(copy), copy._version) if donated and not copy.is_inference() else None
            for copy, donated in zip(copies, self.donated, strict=True)
        ]

    def rows(self, after: bool) -> Rows:
        """Return the rows after (or before) every step, their donated fields `hollow`. Batch: (T, N)."""
        part = slice(1, None) if after else slice(None, -1)
        return self._told([buffer[part] for buffer in self.tensors], [len(self.steps) - 1, self._env.num_envs])

    def rows_after(self, step: Tensor, ids: Tensor) -> Rows:
        """Return given rows after given steps, their donated fields `hollow`. Shapes: (M,), (M,) -> batch (M,)."""
        tensors = [
            # Shaped as the others, but not gathered.
            buffer[0, :1].expand(len(step), *buffer.shape[2:]) if donated else buffer[step + 1, ids]
            for buffer, donated in zip(self.tensors, self.donated, strict=True)
        ]
        return self._told(tensors, [len(step)])

    def _told(self, tensors: list[Tensor], batch: list[int]) -> Rows:
        return hollow(with_leaves(self._env.row_form, tensors, batch), self._env.traits.donated)


class Restarts:
    """Starts of rows that are done where episodes have a warm-up, put where the next step finds them.

    Without a warm-up a step computes the starts of all rows and selects, which is cheap and stays on the device. With
    one, that would be a warm-up of all rows at every step. The starts in ``prepared`` are valid for rows that are done;
    donated leaves are written in place instead. Shape of each: (N, ...).
    """

    def __init__(self, env: VecEnv, buffers: RowBuffers) -> None:
        self._env, self._buffers = env, buffers
        own = zip(leaves(env.rows), buffers.donated, strict=True)
        self.prepared = [torch.zeros_like(leaf) for leaf, donated in own if not donated]
        self._episode = leaf_names(env.rows).index("episode")

    def prepare(self, step: int) -> None:
        """Compute the starts of the rows that are done before a step. It waits for the device."""
        before, env = self._buffers.steps[step], self._env
        ids = before[self._buffers.ended].nonzero()[:, 0]
        if not len(ids):
            return
        episode = before[self._episode][ids] + 1
        start = env.engine.bound().of_rows(ids).start(env.seeds_of(ids), env.start_ids[ids], episode)
        prepared = iter(self.prepared)
        for buffer, donated, fresh in zip(before, self._buffers.donated, leaves(start), strict=True):
            (buffer if donated else next(prepared)).index_copy_(0, ids, fresh)

    def taken(self, rows: Rows, prepared: Sequence[Tensor]) -> Rows:
        """Return the rows with every done row at its start in ``prepared``, as `BoundEngine.restart_done`."""
        starts, done = iter(prepared), rows.done
        tensors = [
            leaf if donated else torch.where(done.view(-1, *(1,) * (leaf.ndim - 1)), next(starts), leaf)
            for leaf, donated in zip(leaves(rows), self._buffers.donated, strict=True)
        ]
        return with_leaves(rows, tensors)


def _lost() -> None:
    raise RuntimeError("a rollout did not end, and its rows are lost: set a seed, or load a saved state")
