"""Buffers of a collector for the rows of every step; donated fields of the state exist once."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, is_donated, leaf_names, leaves, with_leaves


class RowBuffers:
    """The rows before and after each of T steps, time-major.

    Args:
        env: of the rows.
        num_steps: T.

    Attributes:
        tensors: of each leaf of the rows. Shape of each: (T + 1, N, ...), of a donated one (1, N, ...).
        donated: whether a leaf is donated, of each.
        prepared: starts of the next episodes, of the leaves that are not donated; empty without a warm-up.
    """

    def __init__(self, env: VecEnv, num_steps: int) -> None:
        self._env, self._num_steps = env, num_steps
        self.donated = [is_donated(name, env.scenario.donated) for name in leaf_names(env.rows)]
        own = leaves(env.rows)
        self.tensors = [
            leaf.new_zeros((1 if donated else num_steps + 1, *leaf.shape))
            for leaf, donated in zip(own, self.donated, strict=True)
        ]
        # One object for all steps: a compiled call recognises the input that is an output too.
        self._at = [
            [buffer[0]] * (num_steps + 1) if donated else list(buffer.unbind())
            for buffer, donated in zip(self.tensors, self.donated, strict=True)
        ]
        kept = [leaf for leaf, donated in zip(own, self.donated, strict=True) if not donated]
        self.prepared = [torch.zeros_like(leaf) for leaf in kept] if env.scenario.warm_up else []
        self._ended = leaf_names(env.rows).index("ended")

    @staticmethod
    def least_bytes(env: VecEnv, num_steps: int) -> int:
        """Return the memory that the buffers of an environment take, in bytes."""
        pairs = zip(leaf_names(env.rows), leaves(env.rows), strict=True)
        return sum(leaf.nbytes * (1 if is_donated(name, env.scenario.donated) else num_steps) for name, leaf in pairs)

    def at(self, step: int) -> list[Tensor]:
        """Return the leaves before a step, or after the last. Shape of each: (N, ...)."""
        return [leaf[step] for leaf in self._at]

    def take(self) -> None:
        """Copy the environment's rows to the start of the rollout; what it shares with the buffers stays."""
        for buffer, leaf in zip(self.at(0), leaves(self._env.rows), strict=True):
            if buffer.data_ptr() != leaf.data_ptr():
                buffer.copy_(leaf)

    def give(self) -> None:
        """Give the rows after the last step to the environment: copies, but of donated leaves the buffers themselves.

        The environment may be stepped, saved or collected elsewhere before the next rollout.
        """
        last = zip(self.at(self._num_steps), self.donated, strict=True)
        self._env.take_leaves([leaf if donated else leaf.clone() for leaf, donated in last])

    def rows(self, after: bool) -> Rows:
        """Return the rows after (or before) every step; donated leaves are the first row's now. Batch: (T, N)."""
        part, shape = slice(1, None) if after else slice(None, -1), (self._num_steps, self._env.num_envs)
        tensors = [
            buffer[:, :1].expand(*shape, *buffer.shape[2:]) if donated else buffer[part]
            for buffer, donated in zip(self.tensors, self.donated, strict=True)
        ]
        return with_leaves(self._env.rows, tensors, shape)

    def final(self, step: Tensor, ids: Tensor) -> Rows:
        """Return rows after given steps. Batch: (M,); donated leaves are those of the first row now."""
        tensors = [
            buffer[0, :1].expand(len(step), *buffer.shape[2:]) if donated else buffer[step + 1, ids]
            for buffer, donated in zip(self.tensors, self.donated, strict=True)
        ]
        return with_leaves(self._env.rows, tensors, [len(step)])

    def prepare(self, step: int) -> None:
        """Make the starts of the rows that are done before a step: donated leaves in place, the others to be taken."""
        ended = self._at[self._ended][step]
        if not bool(ended.any()):
            return
        env, ids = self._env, ended.nonzero().flatten()
        own = with_leaves(env.rows, self.at(step))
        fresh = env.engine.bound().of_rows(ids).start(env.seed_tensor, env.start_ids[ids], own.episode[ids] + 1)
        prepared = iter(self.prepared)
        for leaf, donated, start in zip(self.at(step), self.donated, leaves(fresh), strict=True):
            (leaf if donated else next(prepared))[ids] = start

    def restarted(
        self, bound: BoundEngine, own: list[Tensor], prepared: list[Tensor], seed: Tensor, ids: Tensor
    ) -> Rows:
        """Return rows with every done one at the start of its next episode.

        Args:
            bound: engine of the step.
            own: leaves before it.
            prepared: as the attribute.
            seed: of the episodes. Shape: ().
            ids: start ids. Shape: (N,).
        """
        rows = with_leaves(self._env.rows, own)
        if not prepared:
            return bound.restart_done(rows, seed, ids)
        done, starts = rows.done, iter(prepared)
        chosen = [
            leaf if donated else torch.where(done.view(-1, *(1,) * (leaf.ndim - 1)), next(starts), leaf)
            for leaf, donated in zip(own, self.donated, strict=True)
        ]
        return with_leaves(rows, chosen)
