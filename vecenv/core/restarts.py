"""Starts of the next episodes of a collector's rows where episodes have a warm-up, outside of the compiled steps.

Without a warm-up a step computes the starts of all rows and selects, which is cheap and stays on the device. With one,
that would be a warm-up of all rows at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.row_buffers import RowBuffers
from vecenv.core.rows import Rows, leaf_names, leaves, with_leaves


class Restarts:
    """Starts of rows that are done, put where the next step finds them.

    Args:
        env: of the rows.
        buffers: of the rows.

    Attributes:
        prepared: the starts, valid for rows that are done, of the leaves that are not donated. Donated ones are written
            in place. Shape of each: (N, ...).
    """

    def __init__(self, env: VecEnv, buffers: RowBuffers) -> None:
        self._env, self._buffers = env, buffers
        own = zip(leaves(env.rows), buffers.donated, strict=True)
        self.prepared = [torch.zeros_like(leaf) for leaf, donated in own if not donated]
        names = leaf_names(env.rows)
        self._ended, self._episode = names.index("ended"), names.index("episode")

    def prepare(self, step: int) -> None:
        """Compute the starts of the rows that are done before a step. It waits for the device."""
        before, env = self._buffers.steps[step], self._env
        ids = before[self._ended].nonzero()[:, 0]
        if not len(ids):
            return
        episode = before[self._episode][ids] + 1
        start = env.engine.bound().of_rows(ids).start(env.seeds_of(ids), env.start_ids[ids], episode)
        prepared = iter(self.prepared)
        for buffer, donated, fresh in zip(before, self._buffers.donated, leaves(start), strict=True):
            (buffer if donated else next(prepared)).index_copy_(0, ids, fresh)

    def taken(self, rows: Rows, prepared: Sequence[Tensor]) -> Rows:
        """Return the rows with every done row at its start, as `BoundEngine.restart_done`.

        Args:
            rows: before the step.
            prepared: the attribute, as arguments of a compiled step.
        """
        starts, done = iter(prepared), rows.done
        tensors = [
            leaf if donated else torch.where(done.view(-1, *(1,) * (leaf.ndim - 1)), next(starts), leaf)
            for leaf, donated in zip(leaves(rows), self._buffers.donated, strict=True)
        ]
        return with_leaves(rows, tensors)
