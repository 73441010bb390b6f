"""Discriminators of whole bars: accuracy and AUC of classifiers that learn from all generated paths.

As in `vecenv.worldmodel.metrics.discriminator` they learn from the windows of the first half of the test origins and
are asked about those of the second, and no day is in both. They differ in what they see: gap, body, wicks and volume
of every generated path, instead of mostly return, range and volume of one path per origin. There are more generated
windows than real ones; both classes have the same weight, in training and in the accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.metrics.discriminator import REAL_LEAST, checked_halves, dealt_sides, over_seeds
from vecenv.worldmodel.metrics.discriminator_classifiers import WeighedClassifier, weighed_boosting, weighed_gru
from vecenv.worldmodel.metrics.discriminator_features import draw_panels
from vecenv.worldmodel.metrics.whole_bars import (
    bar_parts,
    panel_bar_rows,
    panel_bar_sequences,
    stock_bar_rows,
    stock_bar_sequences,
)
from vecenv.worldmodel.metrics.windows import Windows

BAR_FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], WeighedClassifier]] = {
    "bars_boosting": (stock_bar_rows, weighed_boosting),
    "bars_gru": (stock_bar_sequences, weighed_gru),
    "panel_bars_boosting": (panel_bar_rows, weighed_boosting),
    "panel_bars_gru": (panel_bar_sequences, weighed_gru),
}
"""Inputs, from parts of bars and panels of stocks, and classifier, by name."""


class Told(NamedTuple):
    """How well a classifier tells generated windows from real ones: balanced accuracy and AUC, both 0.5 by chance."""

    accuracy: Interval
    auc: Interval


def discriminate_bars(
    real: Windows, synthetic: Windows, origins: Sequence[int], seeds: int, forms: Sequence[str] = tuple(BAR_FORMS)
) -> dict[str, Told]:
    """Return how well classifiers of whole bars tell a model's windows from the real ones.

    Windows, seeds, intervals and errors are those of `vecenv.worldmodel.metrics.discriminator.discriminate`.
    """
    if len(real.returns) != len(synthetic.returns):
        raise ValueError(f"{len(real.returns)} origins of real windows, {len(synthetic.returns)} of generated ones")
    fit, test = checked_halves(real, origins)
    both = torch.cat([fit, test])
    known, drawn = bar_parts(real.select(both)), bar_parts(synthetic.select(both))
    return _told(lambda _: (known, drawn), len(fit), seeds, forms)


def discriminate_real_bars(
    real: Windows, origins: Sequence[int], seeds: int, forms: Sequence[str] = tuple(BAR_FORMS)
) -> dict[str, Told]:
    """Return the same with two real classes: chance, and the noise of classes of the real days' size.

    Each seed assigns the origins before and after the middle to the classes at random, in equal numbers.

    Raises:
        ValueError: as `discriminate_bars`, or a half has fewer than two origins.
    """
    fit, test = checked_halves(real, origins, REAL_LEAST)
    return _told(dealt_sides(bar_parts(real), fit, test), len(fit) // 2, seeds, forms)


def wins(real: Tensor, generated: Tensor) -> Tensor:
    """Return the area under the ROC curve of each pair of origins, ties half. Shapes: (O, A), (O', B) -> (O, O')."""
    asked = generated.contiguous()
    rows = []
    for logits in real.sort(-1).values:
        ranks = sum(torch.searchsorted(logits, asked, right=right).double() for right in (False, True))
        rows.append(torch.as_tensor(ranks).mean(-1) / (2 * len(logits)))
    return torch.stack(rows)


def _told(
    sides: Callable[[torch.Generator], tuple[Tensor, Tensor]], fit: int, seeds: int, forms: Sequence[str]
) -> dict[str, Told]:
    """Return how well each classifier tells; the first `fit` origins of the drawn `sides` (O, M, H, N, 5) train it."""
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    right: dict[str, list[Tensor]] = {name: [] for name in forms}
    won: dict[str, list[Tensor]] = {name: [] for name in forms}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        classes = sides(generator)
        panels = draw_panels(classes[0].shape[3], generator)
        for name in forms:
            see, classify = BAR_FORMS[name]
            learned, generated_learned = (see(parts[:fit], panels).flatten(0, 1) for parts in classes)
            asked = [see(parts[fit:], panels) for parts in classes]
            windows = torch.cat([side.flatten(0, 1) for side in asked])
            logits = classify(learned, generated_learned, windows, seed)
            sizes = [side.shape[0] * side.shape[1] for side in asked]
            real, generated = (side.reshape(len(asked[0]), -1) for side in logits.split(sizes))
            right[name].append(((real <= 0).double().mean(1) + (generated > 0).double().mean(1)) / 2)
            won[name].append(wins(real, generated))
    return {name: Told(over_seeds(torch.stack(right[name])), over_seeds(torch.stack(won[name]))) for name in forms}
