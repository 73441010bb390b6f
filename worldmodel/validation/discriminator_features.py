"""What discriminators see: features of returns and of whole bars, computed equally for real and generated windows."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, VOLUME
from vecenv.worldmodel.validation.bar_statistics import VOLUME_DAYS, ZERO_GAP, log_volume_ratio
from vecenv.worldmodel.validation.windows import Windows, stock_moments

LAGGED_DAYS = 20
"""Days of a window of the row classifiers: a day and its 19 lags."""

LAGGED_STRIDE = 5
"""Stride in days between such windows after an origin."""

PANEL_STOCKS = 25
"""Stocks per panel of the joint classifiers."""


class Feature(IntEnum):
    """Positions of the numbers of a stock's day. Whole bars are the first five: return and range follow from these.

    Attributes:
        GAP: log(open / close before).
        BODY: log(close / open).
        UPPER: log(high / max(open, close)).
        LOWER: log(min(open, close) / low).
        VOLUME: log-volume less its mean over the `VOLUME_DAYS` before.
        RETURN: log(close / close before).
        RANGE: log(high / low).
    """

    GAP = 0
    BODY = 1
    UPPER = 2
    LOWER = 3
    VOLUME = 4
    RETURN = 5
    RANGE = 6


BAR = slice(Feature.GAP, Feature.VOLUME + 1)


def return_features(windows: Windows) -> Tensor:
    """Return all features of each day of windows of one path.

    Real bars are rounded to the float32 of generated ones, so that precision does not reveal the class. Shape: (O, H,
    N, 7), float32, NaN where a bar or its reference is missing.

    Raises:
        ValueError: the windows have no bars, or too few days of context.
    """
    days, context = windows.bars_and_context(VOLUME_DAYS)
    moves = _moves(days, context[:, None, -1:, :, CLOSE])[:, 0]
    volume = log_volume_ratio(windows)[:, 0, ..., None].float()
    return torch.cat([moves[..., : Feature.VOLUME], volume, moves[..., Feature.VOLUME :]], dim=-1)


def scale_together(real: Tensor, synthetic: Tensor, fit: Tensor) -> tuple[Tensor, Tensor]:
    """Divide features (O, H, N, F) by their stock's deviation over training windows, of equal weight by class."""
    learned = torch.cat([real[fit], synthetic[fit]]).transpose(-1, -2)
    spread = stock_moments(learned.flatten(2))[1].unflatten(0, (real.shape[-1], real.shape[-2])).T.float()
    spread = spread.where(spread > 0, 1.0)
    return real / spread, synthetic / spread


def whole_bars(windows: Windows) -> Tensor:
    """Return the features of the bars of each day on all paths, those but volume over the volatility at the origin.

    The volatility is the root mean square of the stock's returns over the context, which is the same for real and
    generated days, uses no later day, and belongs to no model. Bars are rounded to float32, and moves below `ZERO_GAP`
    to zero, so that precision does not reveal the class. Shape: (O, M, H, N, 5), float32, 0 where a bar or its
    reference is missing.

    Raises:
        ValueError: the windows have no bars, or too few days of context.
    """
    bars, _ = windows.bars_and_context(VOLUME_DAYS)
    assert windows.context is not None
    closes = windows.context[..., CLOSE]
    # A stock that did not move in the context has the scale of the test.
    volatility = (closes[:, 1:] / closes[:, :-1]).log().square().nanmean(1).sqrt()
    volatility = volatility.where(volatility > 0, windows.scale.to(volatility.dtype)).float()
    parts = torch.empty(*bars.shape[:-1], BAR.stop)
    ratios = log_volume_ratio(windows)
    for part, days, before, scale, ratio in zip(parts, bars, closes[:, -1:], volatility, ratios, strict=True):
        moves = _moves(days, before)[..., : Feature.VOLUME]
        moves = moves.masked_fill(moves.abs() < ZERO_GAP, 0.0) / scale.unsqueeze(-1)
        part.copy_(torch.cat([moves, ratio.unsqueeze(-1).float()], dim=-1).nan_to_num())
    return parts


def draw_panels(num_stocks: int, generator: torch.Generator) -> Tensor:
    """Draw as many disjoint panels of `PANEL_STOCKS` positions as possible, or one of all stocks if there are fewer."""
    size = min(PANEL_STOCKS, num_stocks)
    sets = num_stocks // size
    return torch.randperm(num_stocks, generator=generator)[: sets * size].reshape(sets, size)


def stock_rows(features: Tensor, panels: Tensor) -> Tensor:
    """Return each stock's windows of `LAGGED_DAYS` days as rows: return, its size, range and volume, day by day.

    Rows and sequences of stocks are of all, whatever the panels. Shape: (O, H, N, 7) -> (O, windows * N, 4 *
    LAGGED_DAYS).
    """
    returns = features[..., Feature.RETURN]
    series = torch.stack([returns, returns.abs(), features[..., Feature.RANGE], features[..., Feature.VOLUME]], dim=-1)
    return lagged(series).flatten(-2).flatten(1, 2)


def stock_sequences(features: Tensor, panels: Tensor) -> Tensor:
    """Return each stock's bars day by day, 0 where missing. Shape: (O, H, N, 7) -> (O, N, H, 5)."""
    return features[..., BAR].nan_to_num().transpose(1, 2)


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


def stock_bar_rows(parts: Tensor, panels: Tensor) -> Tensor:
    """Return each stock's non-overlapping windows of `LAGGED_DAYS` days as rows.

    The parts day by day, and of each part over the window the mean, mean size and largest size; the share of zero gaps,
    the size of gaps over that of bodies, and the correlations of gap with body, of range with volume, and of volume
    with that of the day before. Shape: (O, M, H, N, 5) -> (O, M * windows * N, 120).
    """
    # (O, M, windows, N, F, days)
    windows = lagged(parts.transpose(1, 2), LAGGED_DAYS).movedim(1, 2)
    gap, body, volume = (windows[..., part, :] for part in (Feature.GAP, Feature.BODY, Feature.VOLUME))
    size = windows.abs()
    columns = [
        windows.flatten(-2),
        windows.mean(-1),
        size.mean(-1),
        size.amax(-1),
        torch.stack(
            [
                (gap == 0).float().mean(-1),
                size[..., Feature.GAP, :].mean(-1) / size[..., Feature.BODY, :].mean(-1).clamp(min=1e-3),
                series_correlation(gap, body),
                series_correlation(_range(windows.movedim(-1, -2)), volume),
                series_correlation(volume[..., :-1], volume[..., 1:]),
            ],
            dim=-1,
        ),
    ]
    return torch.cat(columns, dim=-1).flatten(1, 3)


def stock_bar_sequences(parts: Tensor, panels: Tensor) -> Tensor:
    """Return each stock's parts day by day, and whether the gap is zero. Shape: (O, M, H, N, 5) -> (O, M * N, H, 6)."""
    zero = (parts[..., Feature.GAP : Feature.GAP + 1] == 0).float()
    return torch.cat([parts, zero], dim=-1).transpose(2, 3).flatten(1, 2)


def panel_bar_sequences(parts: Tensor, panels: Tensor) -> Tensor:
    """Return mean and standard deviation over a panel's stocks of parts, range and size of gap, and zero gaps' share.

    Shapes: (O, M, H, N, 5), (G, S) -> (O, M * G, H, 15).
    """
    panel = parts[:, :, :, panels]
    gap = panel[..., Feature.GAP]
    seen = torch.cat([panel, torch.stack([_range(panel), gap.abs()], dim=-1)], dim=-1)
    columns = [seen.mean(4), seen.std(4, correction=0), (gap == 0).float().mean(-1, keepdim=True)]
    return torch.cat(columns, dim=-1).transpose(2, 3).flatten(1, 2)


def panel_bar_rows(parts: Tensor, panels: Tensor) -> Tensor:
    """Return statistics over the stocks of a panel, of windows of `LAGGED_DAYS` days.

    Of gap, body, return, range and volume: mean pairwise correlation, share of the first eigenvalue, standard deviation
    of the mean stock, mean standard deviation between stocks; mean size, largest size, and autocorrelation of the mean
    stock at lag 1. The mean wicks, the share of zero gaps, the size of gaps over that of bodies, and the correlations
    of the mean stock's volume with its range and with the size of its return. Shapes: (O, M, H, N, 5), (G, S) -> (O, M
    * windows * G, 41).
    """
    # (O, M, windows, G, S, F, days)
    windows = lagged(parts[:, :, :, panels].transpose(1, 2), LAGGED_STRIDE).movedim(1, 2)
    gap, body, upper, lower, volume = windows.unbind(-2)
    ranges = _range(windows.movedim(-1, -2))
    columns = []
    for kind in (gap, body, gap + body, ranges, volume):
        mean = kind.mean(-2)
        columns += co_movement(kind)
        columns += [kind.abs().mean((-1, -2)), kind.abs().amax((-1, -2))]
        columns.append(series_correlation(mean[..., :-1], mean[..., 1:]))
    traded = volume.mean(-2)
    columns += [
        upper.mean((-1, -2)),
        lower.mean((-1, -2)),
        (gap == 0).float().mean((-1, -2)),
        gap.abs().mean((-1, -2)) / body.abs().mean((-1, -2)).clamp(min=1e-3),
        series_correlation(ranges.mean(-2), traded),
        series_correlation((gap + body).mean(-2).abs(), traded),
    ]
    return torch.stack(columns, dim=-1).flatten(1, 3)


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


def _range(parts: Tensor) -> Tensor:
    """Return log(high / low) in the units of the parts. Shape: (..., 5) -> (...)."""
    return parts[..., Feature.UPPER] + parts[..., Feature.LOWER] + parts[..., Feature.BODY].abs()


def _moves(bars: Tensor, before: Tensor) -> Tensor:
    """Return the features but volume, from bars (..., M, H, N, 5) and closes before them (..., 1, N), in float32."""
    opened, high, low, close = bars[..., :VOLUME].float().unbind(-1)
    first = before.float().expand(*close.shape[:-2], -1, -1)
    previous = torch.cat([first, close[..., :-1, :]], dim=-2)
    pairs = (
        (opened, previous),
        (close, opened),
        (high, opened.maximum(close)),
        (opened.minimum(close), low),
        (close, previous),
        (high, low),
    )
    return torch.stack([(upper / lower).log() for upper, lower in pairs], dim=-1)
