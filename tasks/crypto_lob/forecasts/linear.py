"""Linear regressions on factors of the row: the baselines of the network, and its start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
