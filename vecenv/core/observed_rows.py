"""Observations of a large rollout on a CPU, put together from their parts and stored past the caches.

A plain store reads a line before it writes it, so that an observation that nobody reads soon costs twice its bytes.
What rows at one reference see is read from a table; only a row's own blocks are computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vecenv.core.capabilities import Referencing
from vecenv.core.collector_inputs import References
from vecenv.core.engine import Engine
from vecenv.core.env import VecEnv
from vecenv.core.recording import Recording
from vecenv.system.native_library import built_library

SOURCE = Path(__file__).with_name("observed_rows.cpp")

LARGEST_CACHED = 2**24
"""Bytes of the observations of a rollout that may be read from the caches: above them they are stored past those."""

LINE = 16
"""Numbers of a cache line."""

MOST_LINES = 256
"""Of one observation that is put together."""

FLAGS = (f"-DMOST_LINES={MOST_LINES}",)


class ObservedRows:
    """The observations of T steps of N rows, whose own blocks and references are written by the steps.

    Attributes:
        written: what a step writes, its blocks and the references. Shape of each: (N, size), and (N,), int64.

    Args:
        engine: of the environment.
        references: how its observations are split.
        observed: the buffer of a rollout, whose rows are whole lines. Shape: (T, N, D).
        library: the built `SOURCE`.
    """

    def __init__(self, engine: Engine, references: References, observed: Tensor, library: ctypes.CDLL) -> None:
        num_envs = observed.shape[1]
        self._engine, self.references = engine, references
        self._table = torch.zeros(references.count, references.referenced_size)
        self.written = [torch.zeros(num_envs, width) for width in references.own_widths]
        self.written.append(torch.zeros(num_envs, dtype=torch.int64))
        self._known: list[Tensor] = []
        lines, lead = observed.stride(1) // LINE, observed.storage_offset()
        parts = references.places(self.written[:-1], self._table)
        self._parts = torch.tensor(
            [[tensor.data_ptr(), tensor.stride(0), tensor.shape[1], shared] for tensor, shared in parts]
        )
        whole = observed.as_strided((*observed.shape[:2], lines * LINE), observed.stride(), 0)
        self._sizes = num_envs, lines, int(lead), len(parts)
        self._steps = [[self._parts, self.written[-1], step] for step in whole]
        self._kernel, self._same_bytes = library.vecenv_put_rows, library.vecenv_same_bytes

    @staticmethod
    def of(env: VecEnv, seen: Sequence[Tensor]) -> ObservedRows | None:
        """Return those of a rollout's buffers where it pays: it is larger than caches and market, and on one thread."""
        if not (isinstance(env.scenario, Referencing) and env.observation_form.flat and torch.get_num_threads() == 1):
            return None
        references = References(env.scenario, env.block_widths)
        table = 4 * references.count * references.referenced_size
        for observed in seen:
            if observed.nbytes > max(LARGEST_CACHED, table) and observed.stride(1) <= MOST_LINES * LINE:
                library = built_library(SOURCE, *FLAGS)
                return None if library is None else ObservedRows(env.engine, references, observed, library)
        return None

    def refresh(self) -> None:
        """Make the table anew if the market has been written since.

        All of it is compared with a copy, 0.5 ms for 4,000 days of 30 stocks: PyTorch does not count what is written
        through a NumPy view or `Tensor.data`.
        """
        shared = [tensor.contiguous() for tensor in self._engine.scenario.shared.values()]
        if not (self._known and all(map(self._same, shared, self._known))):
            self._table.copy_(self.references.table(self._engine.bound()))
            self._known = [tensor.clone() for tensor in shared]

    def _same(self, one: Tensor, other: Tensor) -> bool:
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (one, other))
        return one.shape == other.shape and bool(self._same_bytes(*pointers, ctypes.c_int64(one.nbytes)))

    def put(self, step: int) -> None:
        """Put the observations of a step together from what it has written."""
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in self._steps[step])
        self._kernel(*map(ctypes.c_int64, self._sizes), *pointers)

    def record(self, step: int, recording: Recording) -> None:
        """Append `put` to a recording."""
        address = ctypes.cast(self._kernel, ctypes.c_void_p).value
        assert address is not None
        recording.add(address, [*self._sizes, *self._steps[step]])
