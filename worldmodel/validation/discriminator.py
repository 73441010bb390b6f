"""Discriminators: how well classifiers tell generated windows from real ones.

Each is trained on the windows of the first half of the test origins and asked about those of the second; no day is in
both. The discriminative score is |accuracy - 0.5|, 0 for indistinguishable windows (Yoon, Jarrett and van der Schaar,
"Time-series generative adversarial networks", 2019). The accuracy needs a threshold, which days unlike those learned
from displace; the area under the ROC curve (AUC), the probability that a generated window ranks above a real one, needs
none.

Forms differ in what they see. Those of returns see mostly return, range and volume of one generated path per origin,
another one per seed. Those of whole bars see gap, body, wicks and volume of every generated path: there are more
generated windows than real ones, and both classes have the same weight, in training and in the accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.validation.bar_statistics import VOLUME_DAYS
from vecenv.worldmodel.validation.classifiers import Classifier, balanced_gru, boosting, gru, lstm
from vecenv.worldmodel.validation.discriminator_features import (
    LAGGED_DAYS,
    draw_panels,
    panel_bar_rows,
    panel_bar_sequences,
    panel_rows,
    panel_sequences,
    return_features,
    scale_together,
    stock_bar_rows,
    stock_bar_sequences,
    stock_rows,
    stock_sequences,
    whole_bars,
)
from vecenv.worldmodel.validation.windows import Windows, block_bootstrap


class Form(NamedTuple):
    """A kind of discriminator: what it sees of features and panels of stocks, its classifier, and whose features."""

    see: Callable[[Tensor, Tensor], Tensor]
    classify: Classifier
    whole_bars: bool = False


FORMS = {
    "boosting": Form(stock_rows, boosting),
    "gru": Form(stock_sequences, gru),
    "panel_boosting": Form(panel_rows, boosting),
    "panel_gru": Form(panel_sequences, gru),
    "lstm": Form(stock_sequences, lstm),
    "bars_boosting": Form(stock_bar_rows, boosting, whole_bars=True),
    "bars_gru": Form(stock_bar_sequences, balanced_gru, whole_bars=True),
    "panel_bars_boosting": Form(panel_bar_rows, boosting, whole_bars=True),
    "panel_bars_gru": Form(panel_bar_sequences, balanced_gru, whole_bars=True),
}

REAL_LEAST = 2
"""Minimum origins per half for two real classes."""

Sides = Callable[[torch.Generator], tuple[Tensor, Tensor]]
"""Draws the features of the real and the generated class, the origins to learn from first. Shape of each: (O, ...)."""


class Told(NamedTuple):
    """How well a classifier tells generated windows from real ones: balanced accuracy and AUC, both 0.5 by chance."""

    accuracy: Interval
    auc: Interval


def discriminate(
    real: Windows, synthetic: Windows, origins: Sequence[int], seeds: int, forms: Sequence[str] = tuple(FORMS)
) -> dict[str, Told]:
    """Return how well each form tells a model's windows, with 95% intervals of a bootstrap over seeds and origins.

    Windows have bars and 20 days of context; origins are ascending days. Each of the averaged seeds has other panels of
    stocks and initial classifiers. There are no bounds if the second half has fewer than nine origins.

    Raises:
        ValueError: windows are too short or too few, have no bars or different origins; or there is no seed.
        ImportError: scikit-learn is not installed.
    """
    if len(real.returns) != len(synthetic.returns):
        raise ValueError(f"{len(real.returns)} origins of real windows, {len(synthetic.returns)} of generated ones")
    fit, test = checked_halves(real, origins)
    both = torch.cat([fit, test])

    def sides(bars: bool) -> Sides:
        if bars:
            classes = whole_bars(real.select(both)), whole_bars(synthetic.select(both))
            return lambda _: classes
        known = return_features(real.select(both))

        def drawn(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            path = torch.randint(synthetic.returns.shape[1], (len(both),), generator=generator)
            return known, return_features(_one_path(synthetic, both, path))

        return drawn

    return _told(sides, len(fit), seeds, forms)


def discriminate_real(
    real: Windows, origins: Sequence[int], seeds: int, forms: Sequence[str] = tuple(FORMS)
) -> dict[str, Told]:
    """Return the same with two real classes: chance, and the noise of classes of the real days' size.

    Each seed assigns the origins before and after the middle to the classes at random, in equal numbers. With twice as
    many origins the classes are as large as those of a model.

    Raises:
        ValueError: as `discriminate`, or a half has fewer than two origins.
    """
    halved = checked_halves(real, origins, REAL_LEAST)

    def sides(bars: bool) -> Sides:
        features = whole_bars(real) if bars else return_features(real)

        def dealt(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            hands = [deal(half, generator) for half in halved]
            first, second = (torch.cat(parts) for parts in zip(*hands, strict=True))
            return features[first], features[second]

        return dealt

    return _told(sides, len(halved[0]) // 2, seeds, forms)


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


def checked_halves(real: Windows, origins: Sequence[int], least: int = 1) -> tuple[Tensor, Tensor]:
    """Return the `halves` of windows; raise ValueError if discriminators cannot use these."""
    if len(origins) != len(real.returns):
        raise ValueError(f"{len(origins)} days of origins for windows of {len(real.returns)}")
    if real.horizon < LAGGED_DAYS:
        raise ValueError(f"discriminators need windows of at least {LAGGED_DAYS} days, got {real.horizon}")
    return halves(origins, real.horizon, least)


def deal(origins: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Assign origins to two equally large classes at random, each in the order of days; an odd one is dropped."""
    size = len(origins) // 2
    shuffled = origins[torch.randperm(len(origins), generator=generator)]
    return shuffled[:size].sort().values, shuffled[size : 2 * size].sort().values


def wins(real: Tensor, generated: Tensor) -> Tensor:
    """Return the area under the ROC curve of each pair of origins, ties half. Shapes: (O, A), (O', B) -> (O, O')."""
    asked = generated.contiguous()
    rows = []
    for logits in real.sort(-1).values:
        ranks = sum(torch.searchsorted(logits, asked, right=right).double() for right in (False, True))
        rows.append(torch.as_tensor(ranks).mean(-1) / (2 * len(logits)))
    return torch.stack(rows)


def over_seeds(values: Tensor) -> Interval:
    """Return the mean with a bootstrap over seeds and origins, or their pairs. Shape: (seeds, O) or (seeds, O, O)."""
    generator = torch.Generator().manual_seed(0)

    def drawn(origins: Tensor) -> float:
        chosen = values[torch.randint(len(values), (len(values),), generator=generator)][:, origins]
        return float((chosen if values.ndim == 2 else chosen[:, :, origins]).mean())

    return block_bootstrap(drawn, values.shape[1])._replace(mean=float(values.mean()))


def _one_path(windows: Windows, origins: Tensor, path: Tensor) -> Windows:
    """Return one path of some origins as windows with M = 1."""
    bars, context = windows.bars_and_context(VOLUME_DAYS)
    return Windows(
        windows.returns[origins, path][:, None], windows.scale, bars[origins, path][:, None], context[origins]
    )


def _told(sides: Callable[[bool], Sides], fit: int, seeds: int, forms: Sequence[str]) -> dict[str, Told]:
    """Return how well each form tells; the first `fit` origins of the drawn classes train it."""
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    answers: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in forms}
    for bars in (False, True):
        names = [name for name in forms if FORMS[name].whole_bars == bars]
        if not names:
            continue
        draw = sides(bars)
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)
            classes = draw(generator)
            classes = classes if bars else scale_together(*classes, torch.arange(fit))
            panels = draw_panels(classes[0].shape[-2], generator)
            ask = _ask_apart if bars else _ask_side_by_side
            for name in names:
                real, generated = (FORMS[name].see(side, panels) for side in classes)
                answers[name].append(ask(real, generated, fit, FORMS[name].classify, seed))
    return {
        name: Told(*(over_seeds(torch.stack(parts)) for parts in zip(*given, strict=True)))
        for name, given in answers.items()
    }


def _ask_side_by_side(
    real: Tensor, generated: Tensor, fit: int, classify: Classifier, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the share of correctly classified windows of each test origin, (O,), and the `wins` of pairs of these."""
    seen = torch.stack([real, generated], dim=1)
    label = torch.tensor([False, True])[:, None].expand(seen.shape[:3])
    logits = classify(seen[:fit].flatten(0, 2), label[:fit].flatten(), seen[fit:].flatten(0, 2), seed)
    asked = logits.reshape(len(seen) - fit, 2, -1)
    right = ((asked > 0) == label[fit:]).double().flatten(1).mean(1)
    return right, wins(*asked.unbind(1))


def _ask_apart(real: Tensor, generated: Tensor, fit: int, classify: Classifier, seed: int) -> tuple[Tensor, Tensor]:
    """Return the same of classes that may differ in size, of the same weight."""
    learned, asked = (
        [side[part].flatten(0, 1) for side in (real, generated)] for part in (slice(fit), slice(fit, None))
    )
    inputs = torch.cat(learned)
    logits = classify(inputs, torch.arange(len(inputs)) >= len(learned[0]), torch.cat(asked), seed)
    of_real, of_generated = (side.reshape(len(real) - fit, -1) for side in logits.split([len(side) for side in asked]))
    return ((of_real <= 0).double().mean(1) + (of_generated > 0).double().mean(1)) / 2, wins(of_real, of_generated)
