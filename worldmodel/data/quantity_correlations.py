"""Correlation matrices over a history of the symbols' returns, gaps, wicks and volumes."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.core.checks import check_memory
from vecenv.worldmodel.data.bar_scales import NUM_QUANTITIES
from vecenv.worldmodel.data.correlation import DECAY, SHRINKAGE, CorrelationState
from vecenv.worldmodel.data.features import ObservedHistory

CORRELATION_STRIDE = 10
"""Days between updates of the correlation matrix of a history."""

BAR_SHRINKAGE = 0.05
"""Shrinkage of gaps, wicks and volumes, whose copulas learn a further one."""


def correlations(
    values: Tensor, valid: Tensor, decay: Tensor | float = DECAY, shrinkage: Tensor | float = SHRINKAGE
) -> Tensor:
    """Return one quantity's matrices before each `CORRELATION_STRIDE`-th day. Shapes: (T, K) -> (M, K, K), float64."""
    state = CorrelationState.empty(values.shape[1], values.device)
    matrices = []
    for few, here in zip(values.split(CORRELATION_STRIDE), valid.split(CORRELATION_STRIDE), strict=True):
        matrices.append(state.correlation(shrinkage))
        state = state.after(few, here, decay)
    return torch.stack(matrices)


def matrices_over(
    observed: ObservedHistory, decay: Tensor | float = DECAY, shrinkage: Tensor | float = SHRINKAGE
) -> Tensor:
    """Return the matrices of all quantities before each `CORRELATION_STRIDE`-th day of one path.

    Decay and shrinkage are those of the returns. Raises TooLittleMemoryError if they do not fit in memory. Shape:
    (M, 4, K, K), float64.
    """
    quantities, valid = observed.quantities[0].unbind(-1), observed.valid[0]
    days, symbols = valid.shape
    needed = 2 * 8 * len(quantities) * -(-days // CORRELATION_STRIDE) * symbols**2
    check_memory(needed, valid.device, f"the correlations of {symbols:,} symbols over {days:,} days")
    estimators = _estimators(decay, shrinkage)
    parts = [correlations(values, valid, *each) for values, each in zip(quantities, estimators, strict=True)]
    return torch.stack(parts, dim=1)


def matrices_after(
    observed: ObservedHistory, decay: Tensor | float = DECAY, shrinkage: Tensor | float = SHRINKAGE
) -> Tensor:
    """Return the matrices of `matrices_over` after the last day of each path. Shape: (P, 4, K, K), float64."""
    quantities, valid = observed.quantities.movedim(-1, 1), observed.valid
    nothing = CorrelationState.empty(valid.shape[-1], valid.device)

    def last(values: Tensor, here: Tensor, decay: Tensor | float, shrinkage: Tensor | float) -> Tensor:
        return nothing.after(values, here, decay).correlation(shrinkage)

    estimators = _estimators(decay, shrinkage)
    return torch.stack(
        [
            torch.stack([last(values, here, *each) for values, each in zip(path, estimators, strict=True)])
            for path, here in zip(quantities, valid, strict=True)
        ]
    )


def _estimators(decay: Tensor | float, shrinkage: Tensor | float) -> list[tuple[Tensor | float, Tensor | float]]:
    return [(decay, shrinkage)] + [(DECAY, BAR_SHRINKAGE)] * NUM_QUANTITIES
