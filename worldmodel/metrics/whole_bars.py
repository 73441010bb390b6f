"""Whole bars as inputs of discriminators: gap, body, wicks and volume of all paths, in scales known at the origin."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, VOLUME
from vecenv.worldmodel.metrics.bar_statistics import VOLUME_DAYS, ZERO_GAP, log_volume_ratio
from vecenv.worldmodel.metrics.discriminator_features import (
    LAGGED_DAYS,
    LAGGED_STRIDE,
    co_movement,
    lagged,
    series_correlation,
)
from vecenv.worldmodel.metrics.windows import Windows


class Part(IntEnum):
    """Positions of the numbers of a stock's day, as in `Feature`; all but volume over the volatility at the origin."""

    GAP = 0
    BODY = 1
    UPPER = 2
    LOWER = 3
    VOLUME = 4


def bar_parts(windows: Windows) -> Tensor:
    """Return the parts of each day's bar on all paths, in the order of `Part`.

    The scale is the root mean square of the stock's returns over the context, which is the same for real and generated
    days, uses no later day, and belongs to no model. Bars are rounded to float32, and moves below `ZERO_GAP` to zero,
    so that precision does not reveal the class. Shape: (O, M, H, N, 5), float32, 0 where a bar or its reference is
    missing.

    Raises:
        ValueError: the windows have no bars, or too few days of context.
    """
    bars, _ = windows.bars_and_context(VOLUME_DAYS)
    assert windows.context is not None
    closes = windows.context[..., CLOSE]
    # A stock that did not move in the context has the scale of the test.
    volatility = (closes[:, 1:] / closes[:, :-1]).log().square().nanmean(1).sqrt()
    volatility = volatility.where(volatility > 0, windows.scale.to(volatility.dtype)).float()
    parts = torch.empty(*bars.shape[:-1], len(Part))
    ratios = log_volume_ratio(windows)
    for part, days, before, scale, ratio in zip(parts, bars, closes[:, -1:].float(), volatility, ratios, strict=True):
        opened, high, low, close = days[..., :VOLUME].float().unbind(-1)
        previous = torch.cat([before.expand(len(close), -1, -1), close[:, :-1]], dim=1)
        pairs = ((opened, previous), (close, opened), (high, opened.maximum(close)), (opened.minimum(close), low))
        moves = torch.stack([(upper / lower).log() for upper, lower in pairs], dim=-1)
        moves = moves.masked_fill(moves.abs() < ZERO_GAP, 0.0) / scale.unsqueeze(-1)
        part.copy_(torch.cat([moves, ratio.unsqueeze(-1).float()], dim=-1).nan_to_num())
    return parts


def stock_bar_rows(parts: Tensor, panels: Tensor) -> Tensor:
    """Return each stock's non-overlapping windows of `LAGGED_DAYS` days as rows.

    The parts day by day, and of each part over the window the mean, mean size and largest size; the share of zero gaps,
    the size of gaps over that of bodies, and the correlations of gap with body, of range with volume, and of volume
    with that of the day before. Rows are of all stocks, whatever the panels. Shape: (O, M, H, N, 5) -> (O, M * windows
    * N, 120).
    """
    # (O, M, windows, N, F, days)
    windows = lagged(parts.transpose(1, 2), LAGGED_DAYS).movedim(1, 2)
    gap, body, volume = (windows[..., part, :] for part in (Part.GAP, Part.BODY, Part.VOLUME))
    size = windows.abs()
    columns = [
        windows.flatten(-2),
        windows.mean(-1),
        size.mean(-1),
        size.amax(-1),
        torch.stack(
            [
                (gap == 0).float().mean(-1),
                size[..., Part.GAP, :].mean(-1) / size[..., Part.BODY, :].mean(-1).clamp(min=1e-3),
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
    zero = (parts[..., Part.GAP : Part.GAP + 1] == 0).float()
    return torch.cat([parts, zero], dim=-1).transpose(2, 3).flatten(1, 2)


def panel_bar_sequences(parts: Tensor, panels: Tensor) -> Tensor:
    """Return mean and standard deviation over a panel's stocks of parts, range and size of gap, and zero gaps' share.

    Shapes: (O, M, H, N, 5), (G, S) -> (O, M * G, H, 15).
    """
    panel = parts[:, :, :, panels]
    gap = panel[..., Part.GAP]
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


def _range(parts: Tensor) -> Tensor:
    """Return log(high / low) in the units of the parts. Shape: (..., 5) -> (...)."""
    return parts[..., Part.UPPER] + parts[..., Part.LOWER] + parts[..., Part.BODY].abs()
