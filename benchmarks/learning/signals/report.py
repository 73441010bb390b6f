"""The table of the study of scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = {
    "sharpe": ("Sharpe", 2, True),
    "information": ("IR", 2, False),
    "cvar": ("CVaR, %", 2, False),
    "rachev": ("Rachev", 2, False),
    "drawdown": ("DD, %", 1, False),
    "growth": ("Growth, %", 1, False),
    "excess": ("Excess, % (seeds)", 1, True),
    "excess_over_days": ("(days)", 1, True),
}
"""Heading and decimals of each figure, and whether its interval is shown."""


def show_study(result: Mapping[str, Any]) -> None:
    """Print the table: means over seeds, with 95% intervals over seeds and, of the excess, over blocks of days."""
    market = result["market"]
    table = Table(title=f"{market['source']}, {market['symbols']} symbols, test {' to '.join(market['test'])}")
    table.add_column("Variant")
    for heading, *_ in COLUMNS.values():
        table.add_column(heading, justify="right")
    for name, told in result["variants"].items():
        table.add_row(name, *_cells(told))
    Console(width=160).print(table)


def study_page(result: Mapping[str, Any]) -> str:
    """Return the table as a page of Markdown, with the market, its spans and the size of the training."""
    market, config = result["market"], result["config"]
    learning = (
        f"{config['seeds']} seeds each, {config['total_frames']:,} steps of {config['num_envs']} sub-environments"
    )
    lines = [
        "# What scores are worth on real prices",
        "",
        f"{market['source']}: {market['symbols']} symbols, training {' to '.join(market['training'])}, test",
        f"{' to '.join(market['test'])}, {market['scored']:.0%} of its days and symbols with a score. {learning}.",
        "Means over seeds with 95% intervals by Student's t; of the excess over buy and hold, log-return a year, also",
        "by a bootstrap over months (days). IR is against equal weights. Shuffled controls share one random order.",
        "",
        f"| variant | {' | '.join(heading for heading, *_ in COLUMNS.values())} |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    lines += [f"| {name} | {' | '.join(_cells(told))} |" for name, told in result["variants"].items()]
    return "\n".join(lines) + "\n"


def _cells(told: Mapping[str, Any]) -> list[str]:
    """Return the figures of a variant as text, in the order of `COLUMNS`."""
    return [cell(told[column], decimals, bounds) for column, (_, decimals, bounds) in COLUMNS.items()]


def cell(interval: Mapping[str, float | None], decimals: int, bounds: bool) -> str:
    """Return a mean and, if asked for and there is one, its interval."""
    mean, low, high = (interval[name] for name in ("mean", "low", "high"))
    shown = f"{mean:.{decimals}f}"
    if not bounds or low is None or high is None:
        return shown
    return f"{shown} ({low:.{decimals}f} … {high:.{decimals}f})"
