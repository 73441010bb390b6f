"""Reports of the train-on-synthetic benchmark: Markdown, and tables on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vecenv.learn.metrics import Interval

METRICS = ("cumulative_return", "sharpe", "max_drawdown")
"""Compared metrics of an episode."""

LEAST_TAU = 0.7
"""Minimum Kendall's τ for a simulator to rank policies like the real days."""

LEGEND = (
    "Means over episodes and seeds, costs included. Brackets: 95% interval, with the variance of the seeds and of "
    "the market's days. At home: on paths of the training simulator that were not trained on; of replay, on the "
    "training days. Optimism: return at home less return on real days. τ: Kendall's rank correlation of the fixed "
    "policies' mean returns at home and on real days."
)


class Sheet(NamedTuple):
    """A table as text."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


def interval_json(interval: Interval) -> dict[str, float | None]:
    """Return an interval for JSON, which has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in interval._asdict().items()}


def verdicts(result: Mapping[str, Any]) -> list[tuple[str, str, bool | None]]:
    """Return the acceptance criteria of the judged simulator, the results, and whether met; None if undecidable.

    Args:
        result: of the benchmark.
    """
    judged = result["judged"]
    found: list[tuple[str, str, bool | None]] = []
    for other, difference in result["differences"].items():
        change = difference["cumulative_return"]
        known = change["low"] is not None
        shown = _percent(change)
        met = change["high"] >= 0 if known else None
        found.append((f"{judged} not below {other} by more than the interval", shown, met))
        found.append((f"{judged} above {other}", shown, change["low"] > 0 if known else None))
    tau = result["simulators"][judged]["kendall_tau"]
    found.append((f"Kendall τ of {judged} at least {LEAST_TAU}", _number(tau), _at_least(tau["mean"], LEAST_TAU)))
    return found


def sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """Return the tables of a result."""
    simulators, judged = result["simulators"], result["judged"]
    scores = [
        [
            name,
            _percent(found["real"]["cumulative_return"]),
            _number(found["real"]["sharpe"]),
            _percent(found["real"]["max_drawdown"]),
            _percent(found["home"]["cumulative_return"]),
            _percent(found["optimism"]["cumulative_return"]),
            _number(found["kendall_tau"]),
        ]
        for name, found in simulators.items()
    ]
    differences = [
        [other, _percent(found["cumulative_return"]), _number(found["sharpe"]), _percent(found["max_drawdown"])]
        for other, found in result["differences"].items()
    ]
    answers = {True: "yes", False: "no", None: "cannot tell"}
    asked = [[words, shown, answers[met]] for words, shown, met in verdicts(result)]
    policies = [
        [name, *(f"{100 * scores[market]['cumulative_return']:.2f}" for market in ("real", *simulators))]
        for name, scores in sorted(result["policies"].items(), key=lambda item: -item[1]["real"]["cumulative_return"])
    ]
    metrics = ["return %", "Sharpe", "max. drawdown %"]
    return [
        Sheet(
            "PPO trained on each simulator",
            ["trained on", *(f"real {name}" for name in metrics), "return at home %", "optimism %", "τ"],
            scores,
        ),
        Sheet(f"On real days: {judged} less the others", ["less", *metrics], differences),
        Sheet("What counts as good", ["bar", "found", "met"], asked),
        Sheet("Mean return of fixed policies, %", ["policy", "real", *simulators], policies),
    ]


def to_markdown(result: Mapping[str, Any]) -> str:
    """Return the comparison as Markdown."""
    config = result["config"]
    seconds = [run["training_seconds"] for found in result["simulators"].values() for run in found["runs"]]
    head = (
        f"{len(result['symbols'])} symbols; simulators of the days {result['train'][0]} to {result['train'][1]}, test "
        f"days {result['test'][0]} to {result['test'][1]}. PPO: {config['ppo']['total_frames']:,} steps, "
        f"{config['seeds']} seed(s), {sum(seconds) / len(seconds):.0f} s a run on {result['device']}. "
        f"{config['paths']} paths of {config['days']} days after {config['starts']} training days. "
        f"{config['episodes']} episodes of {config['env']['episode_length']} days, commission "
        f"{config['env']['commission']}, slippage {config['env']['slippage']}."
    )
    parts = [f"# Train on synthetic, test on real: {result['market']}", head, LEGEND]
    for sheet in sheets(result):
        if sheet.lines:
            rule = ["---", *("---:" for _ in sheet.headings[1:])]
            lines = [f"| {' | '.join(line)} |" for line in (sheet.headings, rule, *sheet.lines)]
            parts += [f"## {sheet.title}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def print_report(result: Mapping[str, Any], console: Console) -> None:
    """Print the tables."""
    for sheet in sheets(result):
        table = Table(title=sheet.title, box=SIMPLE)
        for index, heading in enumerate(sheet.headings):
            table.add_column(heading, justify="right" if index else "left")
        for line in sheet.lines:
            table.add_row(*map(escape, line))
        if sheet.lines:
            console.print(table)


def _at_least(value: float | None, bar: float) -> bool | None:
    return None if value is None else value >= bar


def _percent(interval: Mapping[str, float | None]) -> str:
    return _number(interval, 100.0)


def _number(interval: Mapping[str, float | None], scale: float = 1.0) -> str:
    """Return a mean and its interval."""
    mean, low, high = (interval[name] for name in ("mean", "low", "high"))
    shown = "–" if mean is None else f"{scale * mean:.2f}"
    return shown if low is None or high is None else f"{shown} [{scale * low:.2f}, {scale * high:.2f}]"
