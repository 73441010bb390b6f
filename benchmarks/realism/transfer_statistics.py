"""Confidence intervals of differences and rank correlations, over training seeds and market days."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vecenv.learn.metrics import Interval, Summary, student_quantile
from vecenv.learn.significance import DRAWS


def difference_over_seeds(
    first: Sequence[Summary], second: Sequence[Summary] | None, metric: str, paired: bool = True
) -> Interval:
    """Return the mean of a metric, or of a difference, over training seeds with a 95% interval.

    Training and market days are random. The variance is the sum of that of the mean over seeds, and of the
    delete-a-group jackknife over days of the mean of all seeds (as `vecenv.learn.metrics.Summary`). Both contain the
    variance of the seed-day interaction, so the interval is conservative (Cameron, Gelbach and Miller, "Robust
    inference with multiway clustering", Journal of Business and Economic Statistics 29(2), 2011, subtract it once).
    The margin is of Student's t with the degrees of freedom of Satterthwaite, Biometrics Bulletin 2(6), 1946.

    Args:
        first: of each seed, on the same episodes.
        second: subtracted from it, seed by seed; None for the metric itself.
        metric: its name.
        paired: both have the same days, else days of independent markets.

    Returns:
        NaN bounds with fewer than three groups of days. With one seed, the interval lacks the training variance.
    """
    seeds, without = _values(first, metric)
    markets = [without]
    if second is not None:
        other_seeds, other_without = _values(second, metric)
        seeds = seeds - other_seeds
        markets = [without - other_without] if paired else [without, other_without]
    mean = float(seeds.mean())
    if any(len(groups) < 3 for groups in markets):
        return Interval(mean, math.nan, math.nan)
    parts = [(_jackknife_variance(groups), len(groups) - 1) for groups in markets]
    if len(seeds) > 1:
        parts.append((float(seeds.var()) / len(seeds), len(seeds) - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0.0:
        return Interval(mean, mean, mean)
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    margin = student_quantile(freedom) * math.sqrt(variance)
    return Interval(mean, mean - margin, mean + margin)


def rank_agreement(
    simulated: Tensor, simulated_groups: Tensor, real: Tensor, real_groups: Tensor, seed: int = 0
) -> Interval:
    """Return Kendall's τ-b of policies' mean scores in two markets, with a 95% percentile interval.

    The bootstrap draws whole groups of episodes in both markets, the same ones for all policies. Resampling noise adds
    to the noise of the scores, so the interval may lie below the value.

    Args:
        simulated: score of each of A policies in each of N episodes. Shape: (A, N).
        simulated_groups: episodes of a group share market days. Shape: (N,), int64.
        real: Shape: (A, M).
        real_groups: Shape: (M,), int64.
        seed: of the draws.

    Returns:
        NaN bounds with fewer than three groups in one of the markets.
    """
    value = float(kendall_tau(simulated.mean(1), real.mean(1)))
    generator = torch.Generator().manual_seed(seed)
    ours, theirs = (_drawn_means(*side, generator) for side in ((simulated, simulated_groups), (real, real_groups)))
    if ours is None or theirs is None:
        return Interval(value, math.nan, math.nan)
    quantiles = kendall_tau(ours, theirs).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return Interval(value, *quantiles.tolist())


def kendall_tau(first: Tensor, second: Tensor) -> Tensor:
    """Return Kendall's τ-b (Kendall, "The treatment of ties in ranking problems", Biometrika 33(3), 1945).

    Args:
        first: Shape: (..., A).
        second: Shape: (..., A).

    Returns:
        NaN where all numbers of one are equal. Shape: (...), float64.
    """
    signs = [(scores.unsqueeze(-1) - scores.unsqueeze(-2)).sign().double() for scores in (first, second)]
    untied = [sign.abs().sum((-2, -1)) for sign in signs]
    return (signs[0] * signs[1]).sum((-2, -1)) / (untied[0] * untied[1]).sqrt()


def _values(summaries: Sequence[Summary], metric: str) -> tuple[Tensor, Tensor]:
    """Return means by seed (S,), and leave-one-group-out means of all seeds (G,)."""
    seeds = torch.tensor([summary.mean[metric] for summary in summaries], dtype=torch.float64)
    return seeds, torch.stack([summary.without[metric] for summary in summaries]).mean(0)


def _jackknife_variance(without: Tensor) -> float:
    count = len(without)
    return (count - 1) / count * float((without - without.mean()).square().sum())


def _drawn_means(scores: Tensor, groups: Tensor, generator: torch.Generator) -> Tensor | None:
    """Return the means of policies over drawn groups, None with fewer than three groups. Shape: (DRAWS, A)."""
    numbered = groups.unique(return_inverse=True)[1]
    count = int(numbered.max()) + 1
    if count < 3:
        return None
    sums = torch.zeros(count, len(scores), dtype=torch.float64).index_add(0, numbered, scores.double().mT)
    sizes = torch.bincount(numbered, minlength=count).double()
    drawn = torch.randint(count, (DRAWS, count), generator=generator)
    return sums[drawn].sum(1) / sizes[drawn].sum(1, keepdim=True)
