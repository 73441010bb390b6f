"""Report of a run: ``metrics.json`` and plots of accounts, worst days and the learning curve."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent
from vecenv.learn.evaluation import AccountRecord, Evaluation
from vecenv.learn.figures import COLOURS, empty_figure
from vecenv.learn.learning_curve import History, learning_curve_figure
from vecenv.learn.metrics import drawdowns
from vecenv.learn.worst_days import worst_days, worst_days_figure, worst_days_json
from vecenv.registry import task_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE_STYLES = ("-", "--", ":", "-.")
_LARGEST_POSITIONS = 8

# Ratio of highest to lowest equity above which the axis is logarithmic, so that the oracle does not flatten the others.
_LOG_SCALE_RATIO = 2.0


def write_run_folder(
    folder: Path | str,
    metadata: Mapping[str, Any],
    evaluation: Evaluation,
    histories: Sequence[History] = (),
    agent: str | None = None,
    beside: Sequence[str] = (),
) -> dict[str, Any]:
    """Write ``metrics.json`` and the plots of a run; accounts are plotted for trading tasks.

    Args:
        folder: created if missing; files of an earlier run are replaced.
        metadata: of the run, JSON-able, such as its settings and seed.
        evaluation: of the agents.
        histories: metrics of every update of each run, for the learning curve; if empty, none is plotted.
        agent: whose holdings and worst days are told, the first by default.
        beside: agents shown on those days beside the reference.

    Returns:
        The content of ``metrics.json``.

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
            "worst_days": worst_days_figure(worst, f"Worst days of {shown}\n{_task_title(evaluation)}"),
        }
    else:
        pictures["rewards"] = rewards_figure(evaluation)
    (folder / "metrics.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    if histories:
        pictures["learning_curve"] = learning_curve_figure(histories, _task_title(evaluation))
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
    figure, (axis,) = _figure(height=1.5 + 0.4 * len(evaluation.records))
    for place, record in enumerate(evaluation.records.values()):
        interval = evaluation.interval(record.reward)
        spread = [[interval.mean - interval.low], [interval.high - interval.mean]]
        axis.errorbar([interval.mean], [place], xerr=spread, fmt="o", color=_colour(place), capsize=3)
    axis.set_yticks(range(len(evaluation.records)), list(evaluation.records))
    axis.invert_yaxis()
    axis.set_xlabel("Reward of an episode: mean and 95% interval")
    axis.grid(axis="x", alpha=0.3)
    figure.suptitle(f"Rewards on held-out episodes\n{_task_title(evaluation)}, {evaluation.num_episodes} episodes")
    return figure


def _figure(rows: int = 1, height: float = 5.0) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of rows that share their horizontal axis."""
    return empty_figure(rows, 1, (9.5, height), "x")


def _task_title(evaluation: Evaluation) -> str:
    """Return task, market and number of symbols."""
    if evaluation.traded is None:
        return str(evaluation.metadata["task"])
    source = Path(evaluation.metadata["market"]["source"]).name
    return f"{evaluation.metadata['task']} on {source}, {len(evaluation.traded.symbols)} symbols"


def _title(evaluation: Evaluation, subject: str) -> str:
    """Return two lines: the subject; task, market and dates of the episodes."""
    market = evaluation.market
    first, last = market.dates[int(market.start_day.min())], market.dates[int(_end_day(evaluation).max())]
    return f"{subject}\n{_task_title(evaluation)}, {evaluation.num_episodes} episodes within {first} to {last}"


def _end_day(evaluation: Evaluation) -> torch.Tensor:
    """Return the last day of each episode over all agents. Shape: (N,)."""
    lengths = torch.stack([record.curves.length for record in evaluation.records.values()])
    return evaluation.market.start_day + lengths.max(0).values


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def equity_figure(evaluation: Evaluation) -> Figure:
    """Plot the equity of every agent in % of the start: median and 5-95% of the episodes."""
    curves = {
        name: 100.0 * record.curves.equity / record.curves.equity[0] for name, record in evaluation.records.items()
    }
    figure, axis = _bands(evaluation, curves, "Portfolio value, % of the start")
    axis.axhline(100.0, color="grey", linewidth=0.8)
    figure.suptitle(_title(evaluation, "Equity: median and 5-95% of the episodes"))
    lowest = min(float(curve.min()) for curve in curves.values())
    highest = max(float(curve.max()) for curve in curves.values())
    if lowest > 0 and highest > _LOG_SCALE_RATIO * lowest:
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        axis.set_yscale("log")
        marks = (1.0,) if highest > 30.0 * lowest else (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
        axis.yaxis.set_major_locator(LogLocator(subs=marks))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    return figure


def drawdown_figure(evaluation: Evaluation) -> Figure:
    """Plot the drawdown of every agent: median and 5-95% of the episodes."""
    curves = {name: -100.0 * drawdowns(record.curves.equity) for name, record in evaluation.records.items()}
    figure, _ = _bands(evaluation, curves, "Loss since the peak %")
    figure.suptitle(_title(evaluation, "Drawdown: median and 5-95% of the episodes"))
    return figure


def exposure_figure(evaluation: Evaluation) -> Figure:
    """Plot the invested share of every agent's equity: median and 5-95% of the episodes.

    Without the agent that knows the future, which is all in or all out from day to day and would hide the others.
    """
    shown = {name: record for name, record in evaluation.records.items() if name != evaluation.hindsight}
    curves = {name: 100.0 * record.curves.exposure for name, record in shown.items()}
    figure, _ = _bands(evaluation, curves, "Invested, % of the portfolio value")
    figure.suptitle(_title(evaluation, "Exposure: median and 5-95% of the episodes"))
    return figure


def _bands(evaluation: Evaluation, curves: Mapping[str, torch.Tensor], label: str) -> tuple[Figure, Axes]:
    """Plot median and 5-95% of curves over the days of an episode, without ended episodes."""
    figure, (axis,) = _figure()
    for index, (name, curve) in enumerate(curves.items()):
        length = evaluation.records[name].curves.length
        running = torch.arange(len(curve), device=curve.device)[:, None] <= length
        levels = torch.tensor([0.05, 0.5, 0.95], dtype=curve.dtype, device=curve.device)
        low, middle, high = curve.masked_fill(~running, math.nan).nanquantile(levels, dim=1).cpu().numpy()
        day = np.arange(len(curve))
        axis.fill_between(day, low, high, facecolor=_colour(index), alpha=0.12)
        axis.plot(day, np.stack([low, high], 1), color=_colour(index), linewidth=0.7, alpha=0.6)
        # Where the palette begins anew.
        style = _LINE_STYLES[index // len(COLOURS) % len(_LINE_STYLES)]
        axis.plot(day, middle, color=_colour(index), linewidth=2, linestyle=style, label=name)
    axis.set_xlabel("Day of the episode")
    axis.set_ylabel(label)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure, axis


def holdings_figure(evaluation: Evaluation, agent: str) -> Figure:
    """Plot cash and positions of an agent in its first episode, the smaller positions summed."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    record, market = evaluation.records[agent], evaluation.market
    days = int(record.curves.length[0]) + 1
    start = int(market.start_day[0])
    dates = market.dates[start : start + days]
    assert record.account is not None
    layers, names = _holding_layers(record.account, market.symbols, days)
    figure, (axis,) = _figure()
    # Light grey for cash, a colour for each position that is shown, dark grey for the others.
    colours = ["#DDDDDD", *(colour for colour in COLOURS if colour != "#000000")][: _LARGEST_POSITIONS + 1]
    axis.stackplot(dates, layers / 1e3, labels=names, colors=[*colours, "#888888"], linewidth=0)
    axis.plot(dates, layers.sum(0) / 1e3, color="black", linewidth=1)
    axis.set_ylabel(f"Value, thousands{_of_currency(evaluation)}")
    figure.suptitle(f"Holdings of {agent} in one episode\n{_task_title(evaluation)}, {dates[0]} to {dates[-1]}")
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axis.margins(x=0)
    locator = AutoDateLocator(maxticks=8)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    return figure


def _of_currency(evaluation: Evaluation) -> str:
    """Return " of " and the market's currency, empty if unknown."""
    currency = evaluation.metadata["market"].get("currency")
    return "" if currency is None else f" of {currency}"


def _holding_layers(record: AccountRecord, symbols: Sequence[str], days: int) -> tuple[np.ndarray, list[str]]:
    """Return cash, the positions largest by mean, and the sum of the rest, if any. Shape: (layers, days)."""
    positions = record.positions[:days].cpu().numpy()
    largest = np.argsort(-np.abs(positions).mean(0), kind="stable")
    shown, rest = largest[:_LARGEST_POSITIONS], largest[_LARGEST_POSITIONS:]
    cash = record.curves.cash[:days, 0].cpu().numpy()
    layers, names = [cash, *positions[:, shown].T], ["cash", *(symbols[i] for i in shown)]
    if len(rest):
        layers.append(positions[:, rest].sum(1))
        names.append(f"{len(rest)} others")
    return np.stack(layers), names
