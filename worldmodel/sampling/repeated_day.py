"""A day of a block as one function that is the same every day, which a CUDA graph captures once and repeats.

On a GPU a day is hundreds of small operations, and starting each of them from Python takes longer than most of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vecenv.worldmodel.network.trunk import Trunk
from vecenv.worldmodel.sampling.block_paths import BlockPaths


class RepeatedDay:
    """Draws one more day at every call, by the same operations on the same memory.

    Args:
        paths: of a block, whose rows the trunk reads all together.
        trunk: of the network.
        cache: of the paths' rows, from `Trunk.repeatable`.
        num_days: how many calls there will be.

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
        """Draw a day, and let the trunk read it."""
        move, bars = self._paths.draw(self._day)
        self.bars.index_copy_(1, self._day.unsqueeze(0), bars.unsqueeze(1))
        known, after = self._trunk.step(self._paths.observe(move), self._cache)
        self._paths.known.copy_(known)
        for old, new in zip(self._cache, after, strict=True):
            if new is not old:
                old.copy_(new)
        self._day += 1


def captured(day: RepeatedDay, num_days: int) -> Tensor:
    """Draw days on a GPU: the first as it is, the others by a graph of it. Shape: (paths, num_days, K, 5), float64."""
    with torch.cuda.device(day.bars.device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        # The first day also makes what a capture must find made, such as the workspaces of matrix products.
        with torch.cuda.stream(aside):
            day()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            day()
        for _ in range(num_days - 1):
            graph.replay()
    return day.bars
