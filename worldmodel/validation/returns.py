"""Measures of returns: volatility, shape, tails, dependence over days and between stocks, drawdowns, memorisation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.validation.windows import Windows, deviation, present_values, standardise, stock_moments

TAIL_SHARE, WIDE_TAIL_SHARE = 0.01, 0.025
"""Tail shares of the tail indices."""

ACF_LAGS, LEVERAGE_LAGS, LEVERAGE_MEAN_LAGS = 20, 10, 5
WORST_DAYS = 0.05
"""Share of days with the lowest market return."""

DRAWDOWN_DAYS, MEMORY_DAYS = 40, 20

# Bounds the distances from one block of paths to all training windows to about 200 MB.
_DISTANCES_AT_ONCE = 1 << 25


class Distances(NamedTuple):
    """Distances of two samples: Kolmogorov-Smirnov's, and Wasserstein's of order 1."""

    ks: float
    wasserstein: float


class CrossCorrelation(NamedTuple):
    """Correlations between the stocks' daily returns over common days. Shape of the matrix: (N, N), float64.

    The means of its pairs, also on the days with the lowest market returns, and its first eigenvalue's share of the
    trace.
    """

    matrix: Tensor
    mean: float
    first_eigenvalue: float
    worst_days: float


class Memorisation(NamedTuple):
    """Distance of generated paths to the training data, relative to real test paths.

    Attributes:
        distance_ratio: median distance of a generated path to its nearest training window, over that of a test path.
        share_below: generated paths nearer than the nearest 1% of test paths; about 0.01 without copies.
    """

    distance_ratio: float
    share_below: float


def volatility_ratio(real: Windows, synthetic: Windows) -> float:
    """Return the deviation of generated returns over that of real ones, pooled in units of each stock's scale."""
    return deviation(synthetic.standardised) / deviation(real.standardised)


def market_volatility_ratio(real: Windows, synthetic: Windows) -> float:
    """Return the same of the mean return of all stocks."""
    return deviation(synthetic.market) / deviation(real.market)


def stock_volatility_ratios(real: Windows, synthetic: Windows) -> Interval:
    """Return the median of the stocks' own ratios, and for bounds their 5% and 95% quantiles."""
    ratios = stock_moments(synthetic.returns)[1] / stock_moments(real.returns)[1]
    quantiles = torch.tensor([0.5, 0.05, 0.95], dtype=ratios.dtype, device=ratios.device)
    return Interval(*ratios.nanquantile(quantiles).tolist())


def sample_distances(real: Tensor, synthetic: Tensor) -> Distances:
    """Return the distances of two samples, both exact; NaN is left out.

    Raises:
        ValueError: there is no value, or the number of synthetic values is not a multiple of that of real ones.
    """
    generated, observed = _ascending(synthetic), _ascending(real.to(synthetic.dtype))
    count, total = len(observed), len(generated)
    if count == 0 or total == 0 or total % count:
        raise ValueError(f"distances need a multiple of the {count} real values, got {total} synthetic ones")
    # Between two real values the real distribution function is constant: the largest difference is at an end.
    ks = 0.0
    for right in (False, True):
        ranks = [torch.searchsorted(sample, observed, right=right).double() for sample in (generated, observed)]
        ks = max(ks, float((ranks[0] / total - ranks[1] / count).abs().max()))
    area = (generated.reshape(count, -1) - observed[:, None]).abs().mean(dtype=torch.float64)
    return Distances(ks, float(area))


def horizon_distances(real: Windows, synthetic: Windows, days: int) -> Distances:
    """Return the distances of disjoint sums of standardised returns, Wasserstein's in deviations of the real sums."""
    sums = real.sums(days)
    distances = sample_distances(sums, synthetic.sums(days))
    return Distances(distances.ks, distances.wasserstein / deviation(sums))


def excess_kurtosis(windows: Windows) -> float:
    """Return the median over stocks of the excess kurtosis of daily returns."""
    return _median_moment(windows, 4) - 3.0


def skew(windows: Windows) -> float:
    """Return the median over stocks of the skew of daily returns."""
    return _median_moment(windows, 3)


def tail_index(windows: Windows, share: float, left: bool = False) -> float:
    """Return Hill's index of a share of all standardised returns, largest in magnitude or lowest; lower if heavier.

    1 / mean log(z_j / z_k) over the k largest values (Hill, Annals of Statistics 3(5), 1975).
    """
    z = present_values(standardise(windows.returns))
    largest = (-z if left else z.abs()).topk(max(2, int(share * len(z)))).values
    return float(1.0 / (largest / largest[-1]).log().mean(dtype=torch.float64))


def autocorrelation(values: Tensor, lags: int = ACF_LAGS) -> Tensor:
    """Return the pooled autocorrelation of all stocks, each with its mean and variance.

    Mean and variance are over all windows of a stock: those of a short window would bias the result down. Values are
    NaN where missing, at the same places on all paths. Shape: (O, M, H, N) -> (lags,), float64.

    Raises:
        ValueError: windows have no two days so far apart.
    """
    z = standardise(values)
    return _lagged_sums(z.nan_to_num(), z.nan_to_num(), lags) / _lagged_pairs(values, lags)


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


def max_drawdowns(windows: Windows, days: int = DRAWDOWN_DAYS) -> Tensor:
    """Return each stock's maximum drawdown from its highest close since the origin, the origin's close included.

    Percentage points, not negative; NaN where a day is missing. Shape: (O, M, N).
    """
    falls = []
    for returns in windows.days(1, days).returns:
        level = returns.cumsum(1)
        falls.append((level.cummax(1).values.clamp(min=0.0) - level).amax(1))
    return -100.0 * torch.expm1(-torch.stack(falls))


def memorisation(
    train_returns: Tensor,
    real: Windows,
    synthetic: Windows,
    days: int = MEMORY_DAYS,
    max_paths: int = 20_000,
    seed: int = 0,
) -> Memorisation:
    """Measure the nearest-neighbour distances of single-stock paths to training windows, which start on every day.

    Paths and windows are standardised individually, so that low volatility does not reduce distances, and rescaled
    copies are found. Distances are Euclidean. Of more than `max_paths` generated paths some are drawn. Shape of the
    training days' log-returns: (T, N').

    Raises:
        ValueError: training data or windows are shorter than a path.
    """
    if len(train_returns) < days:
        raise ValueError(f"paths of {days} days need as many days of training data, got {len(train_returns)}")
    train = _standard_paths(train_returns.unfold(0, days, 1).flatten(0, 1))
    test, generated = (_cut_paths(windows, days) for windows in (real, synthetic))
    chosen = torch.randperm(len(generated), generator=torch.Generator().manual_seed(seed))[:max_paths]
    test_distance = _nearest(_standard_paths(test), train)
    distance = _nearest(_standard_paths(generated[chosen.to(generated.device)]), train)
    return Memorisation(
        float(distance.median() / test_distance.median()),
        float((distance < test_distance.quantile(0.01)).double().mean()),
    )


def _median_moment(windows: Windows, power: int) -> float:
    """Return the median over stocks of a standardised moment about each stock's mean."""
    z = standardise(windows.returns).flatten(0, -2)
    return float(z.pow(power).nanmean(0, dtype=torch.float64).nanmedian())


def _ascending(values: Tensor) -> Tensor:
    """Sort non-NaN values; NumPy's sort of float32 is twenty times as fast as torch's."""
    return torch.from_numpy(np.sort(present_values(values).numpy()))


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


def _cut_paths(windows: Windows, days: int) -> Tensor:
    """Return non-overlapping paths of single stocks, gaps included. Shape: (paths, days)."""
    blocks = windows.horizon // windows.days(1, days).horizon
    cut = windows.returns[:, :, : blocks * days].unflatten(2, (blocks, days))
    return cut.transpose(-1, -2).flatten(0, -2)


def _standard_paths(paths: Tensor) -> Tensor:
    """Drop paths with gaps or without a move, and scale the rest to mean 0 and length 1. Shape: (paths, days)."""
    centred = paths.float() - paths.float().mean(-1, keepdim=True)
    length = centred.norm(dim=-1, keepdim=True)
    return (centred / length)[(length > 0).squeeze(-1)]


def _nearest(paths: Tensor, train: Tensor) -> Tensor:
    """Return each path's distance to the nearest training window, in units of `_standard_paths`. Shape: (paths,)."""
    # For unit vectors the nearest has the largest inner product.
    blocks = paths.split(max(1, _DISTANCES_AT_ONCE // len(train)))
    return torch.cat([(2.0 - 2.0 * (block @ train.T).amax(1)).clamp(min=0.0).sqrt() for block in blocks])
