"""Causal shrinkage estimates of the correlations of the symbols' scaled returns.

The exponential mean of outer products is shrunk toward constant correlation (Ledoit and Wolf 2004), more for many
symbols and for those with few common days. Its eigenvalues are bounded from below, so that it is positive definite for
any numbers of symbols and days.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.system.memory import check_memory
from vecenv.worldmodel.data.correlation_level import LEVEL_STRIDE, PRIOR_CORRELATION, VALUE_LIMIT, with_level
from vecenv.worldmodel.data.features import NUM_QUANTITIES, ObservedHistory

DECAY = 0.995
"""Decay of the exponential means of a market whose own is not known, two hundred days."""

SHRINKAGE = 0.1
"""Its weight of constant correlation for `SHRINKAGE_SYMBOLS` once the means are full; more before."""

SHRINKAGE_SYMBOLS = 25
"""Symbols for which shrinkages are told; that of others is by the root of their number.

The noise of an estimate spreads its eigenvalues by the root of symbols over days (Marchenko and Pastur 1967).
"""

PRIOR_DAYS = 60.0
"""Weight of the prior in days: all correlations equal to `PRIOR_CORRELATION`."""

LOWEST_EIGENVALUE = 0.02


class CorrelationState(NamedTuple):
    """Exponential sums over days on which both symbols have a return; squares are the first one's. Shape: (K, K)."""

    products: Tensor
    squares: Tensor
    days: Tensor

    @classmethod
    def empty(cls, num_symbols: int, device: torch.device | str = "cpu") -> CorrelationState:
        return cls(*(torch.zeros(num_symbols, num_symbols, dtype=torch.float64, device=device) for _ in range(3)))

    def after(self, scaled: Tensor, valid: Tensor, decay: Tensor | float = DECAY) -> CorrelationState:
        """Return the state after some days' scaled returns. Shapes: (T, K), (T, K), ()."""
        here = valid.double()
        limited = scaled.double().clamp(-VALUE_LIMIT, VALUE_LIMIT) * here
        age = torch.arange(len(here), 0, -1, dtype=torch.float64, device=here.device) - 1.0
        aged = (decay**age).unsqueeze(-1)
        days = ((aged * limited).T @ limited, (aged * limited.square()).T @ here, (aged * here).T @ here)
        return CorrelationState(*(decay ** len(here) * old + new for old, new in zip(self, days, strict=True)))

    def raw(self) -> Tensor:
        """Return the correlations as they are, 0 for pairs without a common day. Shape: (K, K)."""
        return self.products / (self.squares * self.squares.T).clamp(min=1e-12).sqrt()

    def correlation(self, shrinkage: Tensor | float = SHRINKAGE) -> Tensor:
        """Return the positive definite matrix, shrunk by a weight for `SHRINKAGE_SYMBOLS`. Shape: (K, K), float64."""
        raw = self.raw()
        size = len(raw)
        off = ~torch.eye(size, dtype=torch.bool, device=raw.device)
        evidence = self.days / (self.days + PRIOR_DAYS)
        weight = evidence[off].sum().clamp(min=1e-9)
        level = float((raw * evidence)[off].sum() / weight) if size > 1 else 0.0
        known = float(evidence.max())
        constant = max(0.0, known * level + (1.0 - known) * PRIOR_CORRELATION)
        trust = ((1.0 - shrinkage * math.sqrt(size / SHRINKAGE_SYMBOLS)) * evidence).clamp(min=0.0)
        mixed = trust * raw + (1.0 - trust) * constant
        return positive_definite(torch.where(off, mixed, 1.0), LOWEST_EIGENVALUE)


def positive_definite(matrix: Tensor, lowest: float) -> Tensor:
    """Clamp the eigenvalues of a correlation matrix from below and rescale its diagonal to ones.

    A matrix whose eigenvalues are above the bound, as its Cholesky factorisation tells, is returned as it is.

    The spectral decomposition of Rebonato and Jäckel, "The most general methodology to create a valid correlation
    matrix", 2000.
    """
    shifted = matrix - lowest * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    if not torch.linalg.cholesky_ex(shifted).info:
        return matrix
    values, vectors = torch.linalg.eigh(matrix)
    raised = (vectors * values.clamp(min=lowest)) @ vectors.T
    scale = raised.diagonal().rsqrt()
    return raised * scale * scale.unsqueeze(-1)


CORRELATION_STRIDE = 10
"""Days between updates of the correlation matrix of a history, but for its level."""

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


def matrices_before(matrices: Tensor, levels: Tensor, days: Tensor, shares: Tensor) -> Tensor:
    """Return those of `matrices_over` before some days, with the newest fast levels of every `LEVEL_STRIDE`-th day.

    Shapes: (M, Q, K, K), levels before each day (T, 4), days (D,), shares (Q,) -> (D, Q, K, K), of the first Q of the
    quantities.
    """
    fast = levels[days // LEVEL_STRIDE * LEVEL_STRIDE, : matrices.shape[1]]
    return with_level(matrices[days // CORRELATION_STRIDE], fast, shares)


def _estimators(decay: Tensor | float, shrinkage: Tensor | float) -> list[tuple[Tensor | float, Tensor | float]]:
    return [(decay, shrinkage)] + [(DECAY, BAR_SHRINKAGE)] * NUM_QUANTITIES
