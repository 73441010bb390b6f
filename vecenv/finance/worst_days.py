"""The worst days of an agent: when it lost most, and what others did on the same days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.finance.metrics import EpisodeCurves
from vecenv.system.figures import empty_figure, entitle, legend_below, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vecenv.finance.evaluation import TradingEvaluation

COUNT = 10
"""Days that are told."""


class WorstDay(NamedTuple):
    """A day of one path of the market, averaged over the episodes that ran on it.

    Log-returns are from the close before, by agent, the one whose days these are first; None if none of its episodes
    ran. The turnover, purchases plus sales between the two closes, is a share of the value before.
    """

    date: str
    path: int
    episodes: int
    log_returns: dict[str, float | None]
    turnover: float


def worst_days(
    evaluation: TradingEvaluation, agent: str, beside: Sequence[str] = (), count: int = COUNT
) -> list[WorstDay]:
    """Return the days on which an agent's mean log-return is lowest, the worst first.

    A day of a path counts once, however many episodes ran on it. Growth of a day counts as at least 1e-6. Agents
    ``beside`` it and the reference that did not play are left out.
    """
    market = evaluation.traded
    names = dict.fromkeys(name for name in (agent, evaluation.reference, *beside) if name in evaluation.records)
    days = len(market.dates)
    curves = {name: evaluation.records[name].curves for name in names}
    place = market.path * days + market.start_day
    means = {name: _mean_by_place(curve, _log_returns(curve), place) for name, curve in curves.items()}
    turnover = _mean_by_place(curves[agent], _turnover(curves[agent]), place)
    own = means[agent]
    worst = sorted(own, key=lambda at: own[at][0])[:count]
    return [
        WorstDay(
            date=str(market.dates[at % days + 1]),
            path=at // days,
            episodes=own[at][1],
            log_returns={name: means[name][at][0] if at in means[name] else None for name in names},
            turnover=turnover[at][0],
        )
        for at in worst
    ]


def _log_returns(curves: EpisodeCurves) -> Tensor:
    return torch.log((1.0 + curves.returns).clamp(min=1e-6))


def _turnover(curves: EpisodeCurves) -> Tensor:
    """Return the traded value of each day as a share of the value before, 0 without value. Shape: (T, N)."""
    before = curves.equity[:-1]
    return torch.where(before > 0, curves.traded / torch.where(before > 0, before, 1.0), 0.0)


def _mean_by_place(curves: EpisodeCurves, values: Tensor, start: Tensor) -> dict[int, tuple[float, int]]:
    """Return mean and number of values (T, N) by place, path times days plus day; ``start`` is that of each episode."""
    place = start + torch.arange(len(values), device=start.device)[:, None]
    lived = curves.lived
    places, rank = place[lived].unique(return_inverse=True)
    number = torch.bincount(rank, minlength=len(places))
    total = torch.zeros(len(places), dtype=torch.float64, device=values.device)
    mean = total.index_add(0, rank, values[lived].double()) / number
    return dict(zip(places.tolist(), zip(mean.tolist(), number.tolist(), strict=True), strict=True))


def worst_days_json(days: Sequence[WorstDay]) -> list[dict[str, Any]]:
    """Return the days as JSON-able dicts."""
    return [day._asdict() for day in days]


def worst_days_figure(days: Sequence[WorstDay], evaluation: TradingEvaluation, agent: str) -> Figure:
    """Plot the log-returns of all agents on the worst days of one, and its turnover."""
    figure, (returns, turnover) = empty_figure(1, 2, 1.8 + 0.4 * len(days), "y")
    grid = returns.get_gridspec()
    assert grid is not None
    grid.set_width_ratios([2.5, 1.0])
    names, shown = list(days[0].log_returns), looks(evaluation.records)
    rows, height = np.arange(len(days)), 0.8 / len(names)
    for index, name in enumerate(names):
        told = [day.log_returns[name] for day in days]
        percent = [math.nan if value is None else 100.0 * value for value in told]
        place = rows + (index - (len(names) - 1) / 2) * height
        returns.barh(place, percent, height, color=shown[name].colour, label=name)
    turnover.barh(rows, [100.0 * day.turnover for day in days], 0.8, color=shown[agent].colour)
    one_path = all(day.path == 0 for day in days)
    market = evaluation.traded
    number = np.searchsorted(market.dates, np.array([day.date for day in days], market.dates.dtype))
    when = [f"day {at}" for at in number] if market.generated else [day.date for day in days]
    labels = [at if one_path else f"{at}, path {day.path}" for at, day in zip(when, days, strict=True)]
    returns.set_yticks(rows, labels)
    returns.invert_yaxis()
    returns.axvline(0.0, color="black", linewidth=1)
    returns.set_xlabel("Log-return of the day, points")
    turnover.set_xlabel("Turnover before,\n% of the value")
    turnover.locator_params("x", nbins=3)
    for axis in (returns, turnover):
        axis.grid(visible=False, axis="y")
    legend_below(figure)
    entitle(figure, f"Worst days of {agent} within {evaluation.episodes()}", evaluation.title())
    return figure
