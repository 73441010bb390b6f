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

from vecenv.learn.metrics import Interval
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
    """How well a classifier tells generated windows from real ones.

    Attributes:
        accuracy: mean of the shares of real and of generated windows that are classified correctly; 0.5 by chance.
        auc: share of pairs in which the generated window has the larger logit; 0.5 by chance.
    """

    accuracy: Interval
    auc: Interval


def discriminate_bars(
    real: Windows, synthetic: Windows, origins: Sequence[int], seeds: int, forms: Sequence[str] = tuple(BAR_FORMS)
) -> dict[str, Told]:
    """Return how well classifiers of whole bars tell a model's windows from the real ones.

    Args:
        real: with bars and 20 days of context.
        synthetic: the same of a model.
        origins: day of each origin, ascending.
        seeds: number of averaged runs, each with other panels of stocks and initial classifiers.
        forms: names of classifiers in `BAR_FORMS`.

    Returns:
        By name, with the 95% intervals of a bootstrap over seeds and origins; without bounds if the second half has
        fewer than nine origins.

    Raises:
        ValueError: windows are too short or too few, have no bars or different origins; or there is no seed.
        ImportError: scikit-learn is not installed.
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

    Args:
        real: with bars and 20 days of context.
        origins: day of each origin, ascending.
        seeds: as of `discriminate_bars`.
        forms: names of classifiers in `BAR_FORMS`.

    Raises:
        ValueError: as `discriminate_bars`, or a half has fewer than two origins.
    """
    fit, test = checked_halves(real, origins, REAL_LEAST)
    return _told(dealt_sides(bar_parts(real), fit, test), len(fit) // 2, seeds, forms)


def wins(real: Tensor, generated: Tensor) -> Tensor:
    """Return the share of pairs in which the generated window has the larger logit, ties counted half.

    Args:
        real: logits of each origin's windows. Shape: (O, A).
        generated: Shape: (O', B).

    Returns:
        Of each pair of origins; the mean is the area under the ROC curve. Shape: (O, O'), float64.
    """
    asked = generated.contiguous()
    rows = []
    for logits in real.sort(-1).values:
        ranks = sum(torch.searchsorted(logits, asked, right=right).double() for right in (False, True))
        rows.append(torch.as_tensor(ranks).mean(-1) / (2 * len(logits)))
    return torch.stack(rows)


def _told(
    sides: Callable[[torch.Generator], tuple[Tensor, Tensor]], fit: int, seeds: int, forms: Sequence[str]
) -> dict[str, Told]:
    """Return how well each classifier tells.

    Args:
        sides: parts (O, M, H, N, 5) and (O, M', H, N, 5) of both classes, for the draws of a seed.
        fit: number of training origins, which come first.
        seeds: at least 1.
        forms: names in `BAR_FORMS`.
    """
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
