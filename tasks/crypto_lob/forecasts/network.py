"""Networks that read the rows up to each, and correct a linear forecast."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.tasks.crypto_lob.forecasts.linear import LARGEST_DEVIATIONS, Regression

Kind = Literal["gru", "convolution"]

CONTEXT = 256
"""Rows before a forecast that a network has read at least; the convolution reads 255."""

_KERNEL, _DILATIONS = 3, (1, 2, 4, 8, 16, 32, 64)


class CausalConvolution(nn.Module):
    """Residual dilated convolutions over the rows up to each.

    Bai, Kolter and Koltun, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks for Sequence
    Modeling", arXiv:1803.01271, 2018.
    """

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, hidden)
        self.layers = nn.ModuleList(nn.Conv1d(hidden, hidden, _KERNEL, dilation=step) for step in _DILATIONS)

    def forward(self, rows: Tensor) -> Tensor:
        value = self.first(rows).transpose(1, 2)
        for layer, step in zip(self.layers, _DILATIONS, strict=True):
            value = value + functional.gelu(layer(functional.pad(value, ((_KERNEL - 1) * step, 0))))
        return value.transpose(1, 2)


class ForecastNetwork(nn.Module):
    """A linear forecast, which stays as it was fitted, and what a network adds to it, at first nothing.

    ``dropout`` is the share of the factors' and the network's numbers that are dropped in training.
    """

    mean: Tensor
    deviation: Tensor
    weights: Tensor
    intercept: Tensor
    mean_move: Tensor
    move: Tensor

    def __init__(self, kind: Kind, num_factors: int, num_horizons: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_factors))
        self.register_buffer("deviation", torch.ones(num_factors))
        self.register_buffer("weights", torch.zeros(num_factors, num_horizons))
        self.register_buffer("intercept", torch.zeros(num_horizons))
        self.register_buffer("mean_move", torch.zeros(num_horizons))
        self.register_buffer("move", torch.ones(num_horizons))
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(num_factors, hidden, batch_first=True) if kind == "gru" else None
        self.convolution = CausalConvolution(num_factors, hidden) if kind == "convolution" else None
        self.head = nn.Linear(hidden, num_horizons)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def start_from(self, regression: Regression, move: np.ndarray) -> None:
        """Set the linear part, and the deviation of each horizon's moves. Shape of ``move``: (H,)."""
        parts = {
            "mean": regression.scale.mean,
            "deviation": regression.scale.deviation,
            "weights": regression.weights,
            "intercept": regression.intercept,
            "mean_move": regression.mean,
            "move": move,
        }
        for name, value in parts.items():
            getattr(self, name).copy_(torch.from_numpy(value))

    def forward(self, factors: Tensor) -> Tensor:
        """Return forecasts in basis points, each from its row and those before. Shapes: (B, T, F) -> (B, T, H)."""
        bound = LARGEST_DEVIATIONS
        standard = ((factors - self.mean) / self.deviation).clamp(-bound, bound)
        linear = standard @ self.weights + self.intercept
        if self.gru is not None:
            read = self.gru(self.dropout(standard))[0]
        else:
            assert self.convolution is not None
            read = self.convolution(self.dropout(standard))
        return linear + self.head(self.dropout(read)) * self.move
