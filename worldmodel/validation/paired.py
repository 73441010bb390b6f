"""Differences of two models' scores, paired by day: what is hard for both cancels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.learn.intervals import Interval
from vecenv.worldmodel.metrics.forecast import CRPS_UNIT, ForecastScores, energy_score
from vecenv.worldmodel.metrics.intervals import BLOCK, block_bootstrap
from vecenv.worldmodel.metrics.windows import Windows


class DailyScores(NamedTuple):
    """A score of every forecast day or origin: its sum over the stocks, and their number, (D,); days of a block."""

    total: Tensor
    stocks: Tensor
    block: int


def daily_scores(forecasts: ForecastScores, block: int, real: Windows, synthetic: Windows) -> dict[str, DailyScores]:
    """Return a model's CRPS of each forecast day and its energy score of each origin."""
    energy = energy_score(real, synthetic)
    return {
        "crps": DailyScores(forecasts.crps.nansum(-1) / CRPS_UNIT, (~forecasts.crps.isnan()).sum(-1), block),
        "energy_score": DailyScores(energy, torch.ones_like(energy), BLOCK),
    }


def mean_scores(runs: Sequence[Mapping[str, DailyScores]]) -> dict[str, DailyScores]:
    """Return the mean over runs with different seeds."""
    return {
        name: first._replace(total=torch.stack([run[name].total for run in runs]).mean(0))
        for name, first in runs[0].items()
    }


def paired_difference(model: DailyScores, rival: DailyScores) -> Interval:
    """Return the mean difference of two models' scores with the block bootstrap's interval over common days.

    Each day's Monte-Carlo error is independent of the other days', so that the interval covers it too.
    """
    if len(model.stocks) != len(rival.stocks) or not bool((model.stocks == rival.stocks).all()):
        raise ValueError("paired scores need the same days and stocks")
    less = model.total - rival.total
    return block_bootstrap(lambda days: float(less[days].sum() / model.stocks[days].sum()), len(less), model.block)


def paired_differences(scores: Mapping[str, Mapping[str, DailyScores]], model: str) -> dict[str, dict[str, Interval]]:
    """Return the differences of a model's scores less every other model's, by score and other model."""
    return {
        name: {rival: paired_difference(own, theirs[name]) for rival, theirs in scores.items() if rival != model}
        for name, own in scores[model].items()
    }
