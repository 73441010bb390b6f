"""Dependence of returns over days and between stocks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.worldmodel.metrics.windows import Compared, Windows, standardise

ACF_LAGS, LEVERAGE_LAGS, LEVERAGE_MEAN_LAGS = 20, 10, 5
WORST_DAYS = 0.05
"""Share of days with the lowest market return."""


class LagCurves(NamedTuple):
    """A statistic by lag from 1. Shape of both: (lags,), float64."""

    real: Tensor
    synthetic: Tensor

    @property
    def error(self) -> float:
        """Mean absolute difference."""
        return float((self.synthetic - self.real).abs().mean())

    def means(self, lags: int) -> Compared:
        return Compared(float(self.real[:lags].mean()), float(self.synthetic[:lags].mean()))


class CrossCorrelation(NamedTuple):
    """Correlations between the stocks' daily returns over common days. Shape of the matrix: (N, N), float64.

    The means of its pairs, also on the days with the lowest market returns, and its first eigenvalue's share of the
    trace.
    """

    matrix: Tensor
    mean: float
    first_eigenvalue: float
    worst_days: float


def autocorrelation(values: Tensor, lags: int = ACF_LAGS) -> Tensor:
    """Return the pooled autocorrelation of all stocks, each with its mean and variance.

    Mean and variance are over all windows of a stock: those of a short window would bias the result down. Values are
    NaN where missing, at the same places on all paths. Shape: (O, M, H, N) -> (lags,), float64.

    Raises:
        ValueError: windows have no two days so far apart.
    """
    z = standardise(values)
    return _lagged_sums(z.nan_to_num(), z.nan_to_num(), lags) / _lagged_pairs(values, lags)


def return_autocorrelation(real: Windows, synthetic: Windows, lags: int = ACF_LAGS) -> LagCurves:
    """Compare the autocorrelation of daily returns."""
    return LagCurves(*(autocorrelation(windows.returns, lags) for windows in (real, synthetic)))


def magnitude_autocorrelation(real: Windows, synthetic: Windows, lags: int = ACF_LAGS) -> LagCurves:
    """Compare the autocorrelation of absolute daily returns: volatility clustering."""
    return LagCurves(*(autocorrelation(windows.returns.abs(), lags) for windows in (real, synthetic)))


def leverage(returns: Tensor, lags: int = LEVERAGE_LAGS) -> Tensor:
    """Return the pooled corr(z_t, z_{t+k}^2) of all stocks: negative where losses raise volatility.

    Lags, shapes and errors are those of `autocorrelation`.
    """
    pairs = _lagged_pairs(returns, lags)
    present = _present(returns)
    z = standardise(returns).nan_to_num()
    # The first and the second days of pairs are different sets, so each has separate moments.
    first, first_square = (_lagged_sums(_over_paths(z.pow(p)), present, lags) / pairs for p in (1, 2))
    second, second_square = (_lagged_sums(present, _over_paths(z.pow(p)), lags) / pairs for p in (2, 4))
    covariance = _lagged_sums(z, z.square(), lags) / pairs - first * second
    return covariance / ((first_square - first.square()) * (second_square - second.square())).sqrt()


def leverage_curves(real: Windows, synthetic: Windows, lags: int = LEVERAGE_LAGS) -> LagCurves:
    """Compare the leverage effect; its size is the mean of the first `LEVERAGE_MEAN_LAGS`."""
    return LagCurves(*(leverage(windows.returns, lags) for windows in (real, synthetic)))


def cross_correlation(windows: Windows) -> CrossCorrelation:
    """Return the stocks' cross-correlation over all windows and paths; raise ValueError for fewer than two stocks."""
    if windows.returns.shape[-1] < 2:
        raise ValueError("correlations between stocks need at least 2 stocks, got 1")
    z = standardise(windows.returns).flatten(0, -2)
    market = windows.market.flatten()
    worst = max(2, int(WORST_DAYS * int((~market.isnan()).sum())))
    lowest = market.nan_to_num(nan=math.inf).topk(worst, largest=False).indices
    matrix = correlation_matrix(z)
    return CrossCorrelation(
        matrix, _mean_of_pairs(matrix), _first_eigenvalue_share(matrix), _mean_of_pairs(correlation_matrix(z[lowest]))
    )


def pair_correlations(values: Tensor) -> Tensor:
    """Return the correlation of every pair of stocks, NaN with fewer than two common days. Shape: (N (N - 1) / 2,)."""
    return _pairs(correlation_matrix(standardise(values).flatten(0, -2)))


def correlation_rmse(real: CrossCorrelation, synthetic: CrossCorrelation) -> float:
    """Return the root mean square difference of the N (N - 1) / 2 correlations."""
    return float((_pairs(synthetic.matrix) - _pairs(real.matrix)).square().nanmean().sqrt())


def correlation_matrix(values: Tensor) -> Tensor:
    """Return correlations of columns over common rows, NaN with fewer than two. Shape: (D, N) -> (N, N), float64."""
    sums = torch.zeros(4, values.shape[1], values.shape[1], dtype=torch.float64, device=values.device)
    # In blocks of rows, so that sums in float32 stay short and temporaries small.
    for block in values.split(1 << 13):
        x, present = block.nan_to_num(), (~block.isnan()).to(block.dtype)
        sums += torch.stack([x.T @ x, x.T @ present, x.square().T @ present, present.T @ present]).double()
    product, total, square, shared = sums
    count = shared.where(shared > 1, math.nan)
    mean = total / count
    variance = square / count - mean.square()
    return ((product / count - mean * mean.T) / (variance * variance.T).sqrt()).clamp(-1.0, 1.0)


def _lagged_sums(first: Tensor, second: Tensor, lags: int) -> Tensor:
    """Return the sums of first[t] second[t + k] within windows. Shapes: (O, M, H, N) twice -> (lags,), float64."""
    horizon = first.shape[2]
    if not 1 <= lags < horizon:
        raise ValueError(f"lags must be 1 to {horizon - 1} in windows of {horizon} days, got {lags}")
    products = torch.zeros(horizon, horizon, dtype=torch.float64, device=first.device)
    for one, other in zip(first, second, strict=True):
        products += (one.transpose(0, 1).flatten(1) @ other.transpose(0, 1).flatten(1).T).double()
    return torch.stack([products.diagonal(lag).sum() for lag in range(1, lags + 1)])


def _lagged_pairs(values: Tensor, lags: int) -> Tensor:
    """Return the number of pairs of days with both values, over all paths. Shape: (O, M, H, N) -> (lags,)."""
    present = _present(values)
    return values.shape[1] * _lagged_sums(present, present, lags)


def _present(values: Tensor) -> Tensor:
    """Return 1 for present values, equal on all paths. Shape: (O, M, H, N) -> (O, 1, H, N), float64."""
    return (~values[:, :1].isnan()).double()


def _over_paths(values: Tensor) -> Tensor:
    """Return sums over paths. Shape: (O, M, H, N) -> (O, 1, H, N), float64."""
    return values.sum(1, keepdim=True, dtype=torch.float64)


def _pairs(matrix: Tensor) -> Tensor:
    """Return the entries above the diagonal. Shape: (N, N) -> (N (N - 1) / 2,)."""
    first, second = torch.triu_indices(len(matrix), len(matrix), offset=1, device=matrix.device)
    return matrix[first, second]


def _mean_of_pairs(matrix: Tensor) -> float:
    return float(_pairs(matrix).nanmean())


def _first_eigenvalue_share(matrix: Tensor) -> float:
    """Return the largest eigenvalue over the trace, of stocks with returns; NaN if two of them have no common day."""
    stocks = matrix.diagonal().isfinite()
    kept = matrix[stocks][:, stocks]
    if not bool(kept.isfinite().all()):
        return math.nan
    return float(torch.linalg.eigvalsh(kept)[-1]) / len(kept)
