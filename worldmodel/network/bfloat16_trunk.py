"""A trunk that multiplies and remembers in bfloat16.

Half the bytes of weights and cache, and products for which CPUs with AVX512-BF16 or AMX, and GPUs, have instructions.
Heads, draws and states stay float32 and float64.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from vecenv.worldmodel.network.trunk import Trunk


class Bfloat16Trunk(Trunk[Any]):
    """A copy of a trunk in bfloat16, with inputs and outputs in float32.

    Args:
        trunk: in evaluation mode; it is not changed.
    """

    def __init__(self, trunk: Trunk[Any]) -> None:
        super().__init__()
        self.inner = deepcopy(trunk).to(torch.bfloat16).eval()

    def forward(self, features: Tensor) -> Tensor:
        """Read whole sequences. Shape: (B, T, F) -> (B, T, width)."""
        read: Tensor = self.inner(features.bfloat16())
        return read.float()

    def prefill(self, features: Tensor) -> tuple[Tensor, Any]:
        """Read a history; return the output of its last day, and the cache. Shape: (B, T, F) -> (B, width)."""
        known, cache = self.inner.prefill(features.bfloat16())
        return known.float(), cache

    def day_weights(self, cache: Any) -> Any:  # noqa: ANN401, the inner trunk's own
        """Return the weights of the next day's `step`."""
        return self.inner.day_weights(cache)

    def step(self, features: Tensor, cache: Any, day_weights: Any = None) -> tuple[Tensor, Any]:  # noqa: ANN401
        """Read one more day; the cache given may be written to. Shape: (B, F) -> (B, width)."""
        known, after = self.inner.step(features.bfloat16(), cache, day_weights)
        return known.float(), after
