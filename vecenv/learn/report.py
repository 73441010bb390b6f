"""Report of a run: ``metrics.json`` and plots of accounts, worst days and the learning curve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.account_figures import drawdown_figure, equity_figure, exposure_figure, holdings_figure
from vecenv.learn.agents import Agent
from vecenv.learn.evaluation import Evaluation
from vecenv.learn.figures import colour_of, empty_figure, episodes_of, task_title
from vecenv.learn.learning_curve import History, learning_curve_figure
from vecenv.learn.worst_days import worst_days, worst_days_figure, worst_days_json
from vecenv.registry import task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


OUTLYING = 100.0
"""Ratio of the largest mean reward of an agent to the median one above which the axis is logarithmic."""


def write_run_folder(
    folder: Path | str,
    metadata: Mapping[str, Any],
    evaluation: Evaluation,
    histories: Sequence[History] = (),
    agent: str | None = None,
    beside: Sequence[str] = (),
) -> dict[str, Any]:
    """Write ``metrics.json`` and the plots of a run, and return the content of the former.

    Files of an earlier run are replaced. Holdings and worst days are those of ``agent``, by default the first; the
    agents ``beside`` are shown on those days too. Without histories there is no learning curve.

    Raises:
        ValueError: the evaluation has no such agent.
    """
    shown = next(iter(evaluation.records)) if agent is None else agent
    if shown not in evaluation.records:
        raise ValueError(f"no agent {shown!r} in the evaluation; it has {', '.join(evaluation.records)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "vecenv_version": vecenv.__version__,
        **metadata,
        "evaluation": evaluation.to_json(),
    }
    pictures = {}
    if evaluation.traded is not None:
        worst = worst_days(evaluation, shown, beside)
        document["worst_days"] = worst_days_json(worst)
        pictures = {
            "equity": equity_figure(evaluation),
            "drawdown": drawdown_figure(evaluation),
            "exposure": exposure_figure(evaluation),
            "holdings": holdings_figure(evaluation, shown),
            "worst_days": worst_days_figure(
                worst,
                f"Worst days of {shown} within {episodes_of(evaluation)}\n{task_title(evaluation)}",
                {name: colour_of(evaluation, name) for name in worst[0].log_returns},
            ),
        }
    else:
        pictures["rewards"] = rewards_figure(evaluation)
    (folder / "metrics.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    if histories:
        pictures["learning_curve"] = learning_curve_figure(histories, task_title(evaluation))
    for name, figure in pictures.items():
        figure.savefig(folder / f"{name}.png", dpi=120)
    return document


def write_task_figures(folder: Path, env: VecEnv, agents: Mapping[str, Agent], seed: int) -> None:
    """Write the pictures of a task's family, if it has any; the rows of ``env`` are overwritten."""
    draw = task_of(env).figures
    for name, figure in ({} if draw is None else draw(env, agents, seed)).items():
        figure.savefig(folder / f"{name}.png", dpi=120)


def rewards_figure(evaluation: Evaluation) -> Figure:
    """Plot the mean reward of an episode by agent, with 95% intervals."""
    figure, (axis,) = empty_figure(1, 1, (9.5, 1.5 + 0.4 * len(evaluation.records)), "x")
    for place, (name, record) in enumerate(evaluation.records.items()):
        interval = evaluation.interval(record.reward)
        spread = [[interval.mean - interval.low], [interval.high - interval.mean]]
        axis.errorbar([interval.mean], [place], xerr=spread, fmt="o", color=colour_of(evaluation, name), capsize=3)
    axis.set_yticks(range(len(evaluation.records)), list(evaluation.records))
    axis.invert_yaxis()
    sizes = sorted(abs(float(record.reward.mean())) for record in evaluation.records.values())
    usual = sizes[len(sizes) // 2]
    if sizes[-1] > OUTLYING * usual > 0:
        axis.set_xscale("symlog", linthresh=usual)
    axis.set_xlabel("Reward of an episode: mean and 95% interval")
    axis.grid(axis="x", alpha=0.3)
    figure.suptitle(f"Rewards\n{task_title(evaluation)}, {episodes_of(evaluation)}")
    return figure
