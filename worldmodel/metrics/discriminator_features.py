"""Features of the discriminators, computed and scaled equally for real and generated windows."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, VOLUME
from vecenv.worldmodel.metrics.bar_statistics import VOLUME_DAYS, log_volume_ratio
from vecenv.worldmodel.metrics.windows import Windows, stock_moments

LAGGED_DAYS = 20
"""Days of a window of the row classifiers: a day and its 19 lags."""

LAGGED_STRIDE = 5
"""Stride in days between such windows after an origin."""

PANEL_STOCKS = 25
"""Stocks per panel of the joint classifiers."""


class Feature(IntEnum):
    """Positions of the numbers of a stock's day, all but the last in units of log-price.

    Attributes:
        GAP: log(open / close before).
        BODY: log(close / open).
        UPPER: log(high / max(open, close)).
        LOWER: log(min(open, close) / low).
        RETURN: log(close / close before).
        RANGE: log(high / low).
        VOLUME: log-volume less its mean over the `VOLUME_DAYS` before.
    """

    GAP = 0
    BODY = 1
    UPPER = 2
    LOWER = 3
    RETURN = 4
    RANGE = 5
    VOLUME = 6


BAR = [Feature.GAP, Feature.BODY, Feature.UPPER, Feature.LOWER, Feature.VOLUME]
"""Non-redundant features: return and range follow from the first four."""


def bar_features(windows: Windows) -> Tensor:
    """Return the features of each day, in the order of `Feature`.

    Real bars are rounded to the float32 of generated ones, so that precision does not reveal the class. Windows are of
    one path. Shape: (O, H, N, 7), float32, NaN where a bar or its reference is missing.

    Raises:
        ValueError: the windows have no bars, or too few days of context.
    """
    days, context = windows.bars_and_context(VOLUME_DAYS)
    bars = days[:, 0].float()
    opened, high, low, close = bars[..., :VOLUME].unbind(-1)
    before = torch.cat([context[:, -1:, :, CLOSE].float(), close[:, :-1]], dim=1)
    ratios = [
        opened / before,
        close / opened,
        high / opened.maximum(close),
        opened.minimum(close) / low,
        close / before,
        high / low,
    ]
    return torch.stack([*(ratio.log() for ratio in ratios), log_volume_ratio(windows)[:, 0].float()], dim=-1)


def scale_together(real: Tensor, synthetic: Tensor, fit: Tensor) -> tuple[Tensor, Tensor]:
    """Divide features (O, H, N, F) by their stock's deviation over training windows, of equal weight by class."""
    learned = torch.cat([real[fit], synthetic[fit]]).transpose(-1, -2)
    spread = stock_moments(learned.flatten(2))[1].unflatten(0, (real.shape[-1], real.shape[-2])).T.float()
    spread = spread.where(spread > 0, 1.0)
    return real / spread, synthetic / spread


def stock_rows(features: Tensor) -> Tensor:
    """Return each stock's windows of `LAGGED_DAYS` days as rows: return, its size, range and volume, day by day.

    Shape: (O, H, N, 7) -> (O, windows * N, 4 * LAGGED_DAYS).
    """
    returns = features[..., Feature.RETURN]
    series = torch.stack([returns, returns.abs(), features[..., Feature.RANGE], features[..., Feature.VOLUME]], dim=-1)
    return lagged(series).flatten(-2).flatten(1, 2)


def stock_sequences(features: Tensor) -> Tensor:
    """Return each stock's bars day by day, 0 where missing. Shape: (O, H, N, 7) -> (O, N, H, 5)."""
    return features[..., BAR].nan_to_num().transpose(1, 2)


def draw_panels(num_stocks: int, generator: torch.Generator) -> Tensor:
    """Draw as many disjoint panels of `PANEL_STOCKS` positions as possible, or one of all stocks if there are fewer."""
    size = min(PANEL_STOCKS, num_stocks)
    sets = num_stocks // size
    return torch.randperm(num_stocks, generator=generator)[: sets * size].reshape(sets, size)


def panel_sequences(features: Tensor, panels: Tensor) -> Tensor:
    """Return mean and standard deviation of a panel's bars over its stocks, day by day.

    The mean of correlated stocks varies; that of independent ones is nearly constant. Shapes: (O, H, N, 7), (G, S) ->
    (O, G, H, 10), 0 where missing.
    """
    bars = features[..., BAR].nan_to_num()[:, :, panels]
    return torch.cat([bars.mean(3), bars.std(3, correction=0)], dim=-1).transpose(1, 2)


def panel_rows(features: Tensor, panels: Tensor) -> Tensor:
    """Return statistics over the stocks of a panel, of windows of `LAGGED_DAYS` days.

    Of returns and of volume: mean pairwise correlation, share of the first eigenvalue, standard deviation of the mean
    stock, mean standard deviation between stocks. Of the mean stock's return r besides: sum, lowest and highest r, mean
    |r|, and correlation of |r| with the mean volume. Autocorrelations of mean return, range and volume at lag 1. Of all
    stocks: mean |return|, largest |return|, mean range. Shapes: (O, H, N, 7), (G, S) -> (O, windows * G, 19).
    """
    # (O, windows, G, S, F, days)
    windows = lagged(features.nan_to_num()[:, :, panels])
    returns, ranges, volume = (windows[..., kind, :] for kind in (Feature.RETURN, Feature.RANGE, Feature.VOLUME))
    market, traded = returns.mean(-2), volume.mean(-2)
    columns = [
        *co_movement(returns),
        *co_movement(volume),
        market.sum(-1),
        market.amin(-1),
        market.amax(-1),
        market.abs().mean(-1),
        series_correlation(market.abs(), traded),
        *(series_correlation(mean[..., :-1], mean[..., 1:]) for mean in (market, ranges.mean(-2), traded)),
        returns.abs().mean((-1, -2)),
        returns.abs().amax((-1, -2)),
        ranges.mean((-1, -2)),
    ]
    return torch.stack(columns, dim=-1).flatten(1, 2)


def lagged(values: Tensor, stride: int = LAGGED_STRIDE) -> Tensor:
    """Cut windows of `LAGGED_DAYS` days. Shape: (O, H, ...) -> (O, windows, ..., LAGGED_DAYS)."""
    return values.unfold(1, LAGGED_DAYS, stride)


def co_movement(values: Tensor) -> list[Tensor]:
    """Return statistics of the co-movement of a window's stocks. Shape: (..., S, days) -> (...) each."""
    centred = values - values.mean(-1, keepdim=True)
    unit = centred / centred.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    correlation = unit @ unit.transpose(-1, -2)
    stocks = values.shape[-2]
    pairwise = (correlation.sum((-1, -2)) - stocks) / (stocks * (stocks - 1))
    first = torch.linalg.eigvalsh(correlation)[..., -1] / stocks
    return [pairwise, first, values.mean(-2).std(-1), values.std(-2).mean(-1)]


def series_correlation(left: Tensor, right: Tensor) -> Tensor:
    """Return the correlation of two series over their days. Shape: (..., days) -> (...)."""
    return torch.cosine_similarity(left - left.mean(-1, keepdim=True), right - right.mean(-1, keepdim=True), dim=-1)
