"""How good forecasts are on rows that their models have not seen: information coefficient and R², with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vecenv.learn.metrics import Interval
from vecenv.learn.significance import bootstrap_of_sums, correlation_of_sums

BLOCK_SECONDS = 1800.0
"""Length of the blocks that intervals resample: several times the longest horizon."""


@dataclass(frozen=True)
class Quality:
    """Quality of the forecasts of one horizon.

    Attributes:
        information_coefficient: Spearman's rank correlation of forecast and move, over all rows.
        r_squared: one less the squared error over that of the mean move of the rows that the model learned from.
    """

    information_coefficient: Interval
    r_squared: Interval


def quality(forecast: np.ndarray, move: np.ndarray, mean: np.ndarray, block: np.ndarray) -> Quality:
    """Measure forecasts of one horizon.

    Args:
        forecast: in basis points. Shape: (n,).
        move: what happened. Shape: (n,).
        mean: mean move of the rows that each forecast's model learned from. Shape: (n,).
        block: number of each row's block; blocks are resampled. Shape: (n,), int64.
    """
    ranks = [_ranks(values) for values in (forecast, move)]
    x, y = (torch.from_numpy(rank - rank.mean()) for rank in ranks)
    correlated = torch.stack([torch.ones_like(x), x, y, x * x, y * y, x * y], 1)
    errors = torch.from_numpy(np.stack([(forecast - move) ** 2, (mean - move) ** 2], 1))
    numbered = torch.from_numpy(np.unique(block, return_inverse=True)[1])
    count = int(numbered.max()) + 1
    by_block = [
        torch.zeros(count, rows.shape[1], dtype=torch.float64).index_add(0, numbered, rows)
        for rows in (correlated, errors.double())
    ]
    return Quality(
        information_coefficient=bootstrap_of_sums(by_block[0], correlation_of_sums),
        r_squared=bootstrap_of_sums(by_block[1], lambda sums: 1 - sums[..., 0] / sums[..., 1].clamp(min=1e-12)),
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, equal ones with their mean rank. Shape: (n,), float64."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def quality_by_horizon(
    forecasts: Mapping[str, np.ndarray], moves: np.ndarray, mean: np.ndarray, seconds: np.ndarray
) -> dict[str, list[Quality | None]]:
    """Measure several forecasters on the same rows.

    Args:
        forecasts: by forecaster, NaN where there is none. Shape of each: (T, H).
        moves: NaN where unknown. Shape: (T, H).
        mean: mean moves of the rows learned from. Shape: (T, H).
        seconds: time of each row. Shape: (T,).

    Returns:
        By forecaster, of each horizon; None where fewer than two rows have a forecast and a move.
    """
    known = np.isfinite(moves) & np.all([np.isfinite(part) for part in forecasts.values()], axis=0)
    block = (seconds // BLOCK_SECONDS).astype(np.int64)
    told: dict[str, list[Quality | None]] = {name: [] for name in forecasts}
    for place in range(moves.shape[1]):
        rows = known[:, place]
        for name, forecast in forecasts.items():
            enough = rows.sum() > 1
            told[name].append(
                quality(forecast[rows, place], moves[rows, place], mean[rows, place], block[rows]) if enough else None
            )
    return told


def to_json(told: Mapping[str, list[Quality | None]]) -> dict[str, Any]:
    """Return qualities by forecaster and horizon as JSON-able lists."""
    return {
        name: [
            None
            if item is None
            else {
                "information_coefficient": item.information_coefficient._asdict(),
                "r_squared": item.r_squared._asdict(),
            }
            for item in items
        ]
        for name, items in told.items()
    }
