"""Discriminative scores: accuracy of classifiers of generated and real windows.

Each classifier is trained on the windows of the first half of the test origins and tested on those of the second; no
day is in both. Both classes have the same origins and stocks: one generated path per origin, a different one per seed.
The discriminative score is |accuracy - 0.5|, 0 for indistinguishable windows (Yoon, Jarrett and van der Schaar,
"Time-series generative adversarial networks", 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.metrics.bar_statistics import VOLUME_DAYS
from vecenv.worldmodel.metrics.discriminator_classifiers import Classifier, boosting, gru, lstm
from vecenv.worldmodel.metrics.discriminator_features import (
    LAGGED_DAYS,
    bar_features,
    draw_panels,
    panel_rows,
    panel_sequences,
    scale_together,
    stock_rows,
    stock_sequences,
)
from vecenv.worldmodel.metrics.intervals import block_bootstrap
from vecenv.worldmodel.metrics.windows import Windows

FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Classifier]] = {
    "boosting": (lambda features, _: stock_rows(features), boosting),
    "gru": (lambda features, _: stock_sequences(features), gru),
    "panel_boosting": (panel_rows, boosting),
    "panel_gru": (panel_sequences, gru),
    "lstm": (lambda features, _: stock_sequences(features), lstm),
}
"""Inputs, from features and panels of stocks, and classifier, by name."""

REAL_LEAST = 2
"""Minimum origins per half for two real classes."""


def halves(origins: Sequence[int], horizon: int, least: int = 1) -> tuple[Tensor, Tensor]:
    """Return the positions of training and of test origins, whose windows of `horizon` days have no common day.

    The days are split in the middle; origins with windows on both sides are dropped.

    Raises:
        ValueError: there are fewer than `least` before the middle or after it.
    """
    days = torch.tensor(origins)
    middle = (origins[0] + origins[-1] + horizon) / 2
    before, after = (days + horizon <= middle).nonzero()[:, 0], (days >= middle).nonzero()[:, 0]
    if min(len(before), len(after)) < least:
        raise ValueError(
            f"discriminators need {least} origins in each half of the days, whose {horizon}-day windows have no day in "
            f"common, got {len(before)} and {len(after)} of {len(origins)}"
        )
    return before, after


def discriminate(
    real: Windows, synthetic: Windows, origins: Sequence[int], seeds: int, forms: Sequence[str] = tuple(FORMS)
) -> dict[str, Interval]:
    """Return each classifier's accuracy on test windows, with the 95% interval of a bootstrap over seeds and origins.

    Windows have bars and 20 days of context; origins are ascending days. Each of the averaged seeds has other paths,
    panels of stocks and initial classifiers. There are no bounds if the second half has fewer than nine origins.

    Raises:
        ValueError: windows are too short or too few, have no bars or different origins; or there is no seed.
        ImportError: scikit-learn is not installed.
    """
    if len(real.returns) != len(synthetic.returns):
        raise ValueError(f"{len(real.returns)} origins of real windows, {len(synthetic.returns)} of generated ones")
    fit, test = checked_halves(real, origins)
    both = torch.cat([fit, test])
    known = bar_features(real.select(both))

    def sides(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        path = torch.randint(synthetic.returns.shape[1], (len(both),), generator=generator)
        return known, bar_features(_one_path(synthetic, both, path))

    return _accuracies(sides, len(fit), seeds, forms)


def discriminate_real(
    real: Windows, origins: Sequence[int], seeds: int, forms: Sequence[str] = tuple(FORMS)
) -> dict[str, Interval]:
    """Return the accuracies with two real classes: those of a perfect model in `discriminate`, 0.5 plus noise.

    Each seed assigns the origins before and after the middle to the classes at random, in equal numbers. With twice as
    many origins the classes are as large as those of a model.

    Raises:
        ValueError: as `discriminate`, or a half has fewer than two origins.
    """
    fit, test = checked_halves(real, origins, REAL_LEAST)
    return _accuracies(dealt_sides(bar_features(real), fit, test), len(fit) // 2, seeds, forms)


def dealt_sides(values: Tensor, fit: Tensor, test: Tensor) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Return the draw of two real classes, each of half of the training origins and half of the test origins."""

    def sides(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        dealt = [deal(half, generator) for half in (fit, test)]
        first, second = (torch.cat(parts) for parts in zip(*dealt, strict=True))
        return values[first], values[second]

    return sides


def checked_halves(real: Windows, origins: Sequence[int], least: int = 1) -> tuple[Tensor, Tensor]:
    """Return the `halves` of windows; raise ValueError if discriminators cannot use these."""
    if len(origins) != len(real.returns):
        raise ValueError(f"{len(origins)} days of origins for windows of {len(real.returns)}")
    if real.horizon < LAGGED_DAYS:
        raise ValueError(f"discriminators need windows of at least {LAGGED_DAYS} days, got {real.horizon}")
    return halves(origins, real.horizon, least)


def _one_path(windows: Windows, origins: Tensor, path: Tensor) -> Windows:
    """Return one path of some origins as windows with M = 1."""
    bars, context = windows.bars_and_context(VOLUME_DAYS)
    returns, chosen = windows.returns[origins, path], bars[origins, path]
    return Windows(returns[:, None], windows.scale, chosen[:, None], context[origins])


def deal(origins: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Assign origins to two equally large classes at random, each in the order of days; an odd one is dropped."""
    size = len(origins) // 2
    shuffled = origins[torch.randperm(len(origins), generator=generator)]
    return shuffled[:size].sort().values, shuffled[size : 2 * size].sort().values


def _accuracies(
    sides: Callable[[torch.Generator], tuple[Tensor, Tensor]], fit: int, seeds: int, forms: Sequence[str]
) -> dict[str, Interval]:
    """Return the accuracy of each classifier; of the drawn `sides`, (O, H, N, 7), the first `fit` origins train it."""
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    right: dict[str, list[Tensor]] = {name: [] for name in forms}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        scaled = scale_together(*sides(generator), torch.arange(fit))
        panels = draw_panels(scaled[0].shape[2], generator)
        for name in forms:
            see, classify = FORMS[name]
            real, synthetic = (see(side, panels) for side in scaled)
            right[name].append(_right(real, synthetic, fit, classify, seed))
    return {name: over_seeds(torch.stack(rows)) for name, rows in right.items()}


def _right(real: Tensor, synthetic: Tensor, fit: int, classify: Classifier, seed: int) -> Tensor:
    """Return the share of correctly classified windows of each test origin. Shape: (O, windows, ...)."""
    seen = torch.stack([real, synthetic], dim=1)
    generated = torch.tensor([False, True])[:, None].expand(seen.shape[:3])
    told = classify(seen[:fit].flatten(0, 2), generated[:fit].flatten(), seen[fit:].flatten(0, 2), seed)
    return (told == generated[fit:].flatten()).double().reshape(len(seen) - fit, -1).mean(1)


def over_seeds(values: Tensor) -> Interval:
    """Return the mean with a bootstrap over seeds and origins, or their pairs. Shape: (seeds, O) or (seeds, O, O)."""
    generator = torch.Generator().manual_seed(0)

    def drawn(origins: Tensor) -> float:
        chosen = values[torch.randint(len(values), (len(values),), generator=generator)][:, origins]
        return float((chosen if values.ndim == 2 else chosen[:, :, origins]).mean())

    return block_bootstrap(drawn, values.shape[1])._replace(mean=float(values.mean()))
