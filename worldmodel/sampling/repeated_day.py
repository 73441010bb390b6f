"""CUDA-graph capture and replay of one generated day of a block.

On a GPU a day has hundreds of small operations, most of which take less time than their launch from Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vecenv.worldmodel.network.trunk import Trunk
from vecenv.worldmodel.sampling.block_paths import BlockPaths


class RepeatedDay:
    """Draws one day per call, by the same operations on the same memory.

    Args:
        paths: of a block, in one trunk call.
        trunk: of the network.
        cache: of the paths' rows, from `Trunk.repeatable`.
        num_days: number of calls.

    Attributes:
        bars: of the days so far. Shape: (paths, num_days, K, 5), float64.
    """

    def __init__(self, paths: BlockPaths, trunk: Trunk[Any], cache: Any, num_days: int) -> None:  # noqa: ANN401
        self._paths, self._trunk, self._cache = paths, trunk, cache
        self._day = torch.zeros((), dtype=torch.int64, device=paths.known.device)
        shape = paths.shape
        self.bars = torch.empty(shape[0], num_days, shape[1], 5, dtype=torch.float64, device=paths.known.device)

    @torch.no_grad()
    def __call__(self) -> None:
        """Draw a day, and run the trunk on it."""
        move, bars = self._paths.draw(self._day)
        self.bars.index_copy_(1, self._day.unsqueeze(0), bars.unsqueeze(1))
        known, after = self._trunk.step(self._paths.observe(move), self._cache)
        self._paths.known.copy_(known)
        for old, new in zip(self._cache, after, strict=True):
            if new is not old:
                old.copy_(new)
        self._day += 1


def captured(day: RepeatedDay, num_days: int) -> Tensor:
    """Draw days on a GPU: the first eagerly, the others by graph replay. Shape: (paths, num_days, K, 5), float64."""
    with torch.cuda.device(day.bars.device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        # The eager first day also allocates resources required before a capture, such as matrix-product workspaces.
        with torch.cuda.stream(aside):
            day()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            day()
        for _ in range(num_days - 1):
            graph.replay()
    return day.bars
