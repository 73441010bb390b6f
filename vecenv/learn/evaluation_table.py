"""Evaluation of agents as a `rich` table for the terminal."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vecenv.learn.evaluation import Evaluation
from vecenv.learn.metrics import Interval
from vecenv.registry import BEST_RULE

_COLUMNS = (
    ("Sharpe", "sharpe", 1.0),
    ("Max\nDD %", "max_drawdown", 100.0),
    ("Turn-\nover\n/year", "turnover", 1.0),
    ("Cash\n%", "cash_share", 100.0),
    ("CVaR\n5%, %", "cvar", 100.0),
    ("Return\n/ MDD", "return_over_max_drawdown", 1.0),
)
"""Header, metric and factor of the table's columns."""

MOST_OUTCOMES = 6
"""Outcomes of a task that does not trade bars, at most: the first ones. The others stand in the JSON."""


LARGEST_PERCENT = 1e4
"""Percentages are shown up to this one: those of an account near nothing are divided by nearly nothing."""


def parts_table(evaluation: Evaluation) -> Table | None:
    """Return the mean parts of the agents' grades as a table, None of a task whose grade has none."""
    names = list(next(iter(evaluation.records.values())).grade_parts)
    if not names:
        return None
    table = Table(title="Parts of the grade", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("Agent", *(name.capitalize() for name in names)):
        table.add_column(header, justify="left" if header == "Agent" else "right", no_wrap=True)
    for name, record in evaluation.records.items():
        table.add_row(name, *(f"{float(record.grade_parts[part].double().mean()):.3f}" for part in names))
    return table


def evaluation_table(evaluation: Evaluation) -> Table:
    """Return the comparison as a table, one row per agent."""
    trades = evaluation.traded is not None
    title = f"{evaluation.num_episodes} episodes, the same for every agent"
    table = Table(title=title, caption=_caption(evaluation), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Agent", no_wrap=True)
    first = next(iter(evaluation.records))
    headers = [part for grader in evaluation.grades[first] for part in (grader.capitalize(), "95%\ninterval")]
    if trades:
        headers += [_header(evaluation, name) for name in evaluation.beside_account]
        headers += ["Return\n%", "95%\ninterval", "Excess\n%, 95%\ninterval", "DSR", *(name for name, _, _ in _COLUMNS)]
    else:
        above = [f"Reward above\n{evaluation.reference}"] if evaluation.reward_differences else []
        told = [_header(evaluation, name) for name in list(evaluation.outcomes[first])[:MOST_OUTCOMES]]
        headers += ["Reward", "95%\ninterval", *above, *told]
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for name in evaluation.records:
        cells = []
        for interval in evaluation.grades[name].values():
            cells += [f"{interval.mean:.3f}", _interval_text(interval, 1.0, 2)]
        table.add_row(name, *cells, *(_account_cells(evaluation, name) if trades else _outcome_cells(evaluation, name)))
    return table


def _caption(evaluation: Evaluation) -> str:
    scale = f" Grade: {evaluation.scale}." if evaluation.scale else ""
    if evaluation.traded is None:
        return f"Means over episodes, with 95% bootstrap intervals; differences on the same episodes.{scale}"
    reference = evaluation.reference.replace("_", " ")
    caption = (
        "Means over episodes; 95% intervals from blocks of the market's days, since episodes overlap. Excess: mean "
        f"log-return of an episode less {reference}'s. DSR: deflated Sharpe ratio, the chance of more than luck.{scale}"
    )
    first = next(iter(evaluation.records))
    if first in evaluation.shares_of_best and first != BEST_RULE:
        share = evaluation.shares_of_best[first]
        caption += f" {first}: {100 * share.mean:.1f}% ({_interval_text(share)}) of the best rule's excess."
    bound = evaluation.traded.return_bound
    if bound is not None:
        caption += f" No account could have returned more than {100 * float(bound.mean()):,.0f}%."
    return caption


def _account_cells(evaluation: Evaluation, name: str) -> list[str]:
    summary = evaluation.summaries[name]
    total = summary.interval("cumulative_return")
    excess = evaluation.excess_log_returns.get(name)
    beside = {outcome: evaluation.outcomes[name][outcome].mean for outcome in evaluation.beside_account}
    cells = [_scaled(mean, _factor(evaluation, outcome), 3) for outcome, mean in beside.items()]
    cells += [_scaled(total.mean, 100.0), _interval_text(total)]
    cells += ["" if excess is None else _interval_text(excess), _ratio_text(evaluation.deflated_sharpes[name])]
    return cells + [_scaled(summary.mean[metric], scale) for _, metric, scale in _COLUMNS]


def _outcome_cells(evaluation: Evaluation, name: str) -> list[str]:
    reward, above = evaluation.interval(evaluation.records[name].reward), evaluation.reward_differences
    cells = [_short(reward.mean), _interval_text(reward, 1.0, 2)]
    if above:
        cells.append(_interval_text(above[name], 1.0, 2) if name in above else "")
    told = list(evaluation.outcomes[name].items())[:MOST_OUTCOMES]
    return cells + [_scaled(interval.mean, _factor(evaluation, outcome)) for outcome, interval in told]


def _header(evaluation: Evaluation, outcome: str) -> str:
    """Return the header of an outcome, a word a line; shares are in percent."""
    return "\n".join(outcome.capitalize().split("_")) + ("\n%" if _factor(evaluation, outcome) > 1 else "")


def _factor(evaluation: Evaluation, outcome: str) -> float:
    return 100.0 if evaluation.units[outcome] == "share" else 1.0


def _scaled(value: float, factor: float, decimals: int = 2) -> str:
    """Format a number times 1, or a share in percent."""
    scaled = factor * value
    if factor > 1 and abs(scaled) > LARGEST_PERCENT:
        return f"{'>' if scaled > 0 else '<-'}{LARGEST_PERCENT:,.0f}"
    return _short(scaled, decimals)


def _short(value: float, decimals: int = 2) -> str:
    """Format a number: fixed decimals below 10,000, whole ones below a billion, else two significant digits."""
    if abs(value) < 1e4:
        return f"{value:.{decimals}f}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.2g}"


def _interval_text(interval: Interval, scale: float = 100.0, decimals: int = 1) -> str:
    """Format the bounds of an interval, in percent by default."""
    if math.isnan(interval.low):
        return "too few days"
    return f"{_scaled(interval.low, scale, decimals)} … {_scaled(interval.high, scale, decimals)}"


def _ratio_text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"
