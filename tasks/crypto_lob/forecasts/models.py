"""Linear regressions on factors of the row, and networks that read the rows up to it and correct such a forecast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.tasks.crypto_lob.forecasts.settings import Kind

PENALTIES = (0.0001, 0.001, 0.01, 0.1, 1.0)
"""Penalties of the ridge regression to choose from, as shares of the number of rows."""

LARGEST_DEVIATIONS = 8.0
"""Factors are kept within so many of their standard deviations."""


@dataclass(frozen=True, eq=False)
class Standardised:
    """Means and deviations (1 for a constant) of factors over the rows that a model learns from. Shapes: (F,)."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, factors: np.ndarray) -> Standardised:
        deviation = factors.std(0, dtype=np.float64)
        return cls(factors.mean(0, dtype=np.float64), np.where(deviation > 1e-9, deviation, 1.0))

    def __call__(self, factors: np.ndarray) -> np.ndarray:
        return ((factors - self.mean) / self.deviation).clip(-LARGEST_DEVIATIONS, LARGEST_DEVIATIONS)


@dataclass(frozen=True, eq=False)
class Regression:
    """Linear forecasts of H moves. Shapes: weights (F, H), intercept and mean move of the rows learned from (H,)."""

    scale: Standardised
    weights: np.ndarray
    intercept: np.ndarray
    mean: np.ndarray

    def __call__(self, factors: np.ndarray) -> np.ndarray:
        """Return the forecasts of rows. Shape: (n, H), float64."""
        return self.scale(factors) @ self.weights + self.intercept


def deviations(moves: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each horizon's known moves, 1 where there are none. Shape: (H,), float64."""
    known = np.isfinite(moves)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, moves, 0.0).sum(0) / count
    variance = np.where(known, (moves - mean) ** 2, 0.0).sum(0) / count
    return np.where(variance > 1e-12, np.sqrt(variance), 1.0)


def least_squares(factors: np.ndarray, moves: np.ndarray, penalty: float = 0.0) -> Regression:
    """Fit a ridge regression of each horizon to the rows whose move is known, not NaN. Shapes: (n, F), (n, H).

    ``penalty`` is on squared weights of standardised factors, as a share of the number of rows.
    """
    scale = Standardised.of(factors)
    standard = scale(factors)
    weights = np.zeros((factors.shape[1], moves.shape[1]))
    intercept, mean = np.zeros(moves.shape[1]), np.zeros(moves.shape[1])
    for place in range(moves.shape[1]):
        known = np.isfinite(moves[:, place])
        if not known.any():
            continue
        inputs, outcome = standard[known], moves[known, place]
        centre, mean[place] = inputs.mean(0), outcome.mean()
        inputs = inputs - centre
        # A tiny penalty keeps factors that depend on each other solvable.
        ridge = max(penalty, 1e-9) * len(inputs) * np.eye(inputs.shape[1])
        weights[:, place] = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ (outcome - mean[place]))
        intercept[place] = mean[place] - centre @ weights[:, place]
    return Regression(scale, weights, intercept, mean)


def chosen_ridge(factors: np.ndarray, moves: np.ndarray, fitted: int, judged: slice) -> Regression:
    """Fit with each penalty to rows before ``fitted``; return the one of least squared error on those to judge by."""
    outcome, deviation = moves[judged], deviations(moves[:fitted])
    known = np.isfinite(outcome)

    def error(regression: Regression) -> float:
        return float((((regression(factors[judged]) - outcome) / deviation)[known] ** 2).sum())

    return min((least_squares(factors[:fitted], moves[:fitted], penalty) for penalty in PENALTIES), key=error)


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
