"""Backtests and what becomes of them: a table in the terminal, files and a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent
from vecenv.learn.verdict import verdict_text
from vecenv.system.files import WriteLock, replacing
from vecenv.tasks.backtest.opening import CPU, read_history, refuse
from vecenv.tasks.backtest.report import report_page, summary_table
from vecenv.tasks.backtest.result import Backtest, backtested
from vecenv.tasks.backtest.settings import BacktestSettings
from vecenv.tasks.experiment.checkpoints import read_checkpoint
from vecenv.tasks.experiment.comparison import baseline_agents
from vecenv.tasks.experiment.known_before import tell_known_before, trained_on
from vecenv.tasks.experiment.progress import wide_console, working

BENCHMARKS = ("buy_and_hold", "equal_weight")
"""Rules beside the agent, under the same rules and costs."""

REPORT, SUMMARY = "report.html", "summary.json"


def backtest(checkpoint: str | Path, market: str | Path | None = None, **options: Any) -> Backtest:  # noqa: ANN401
    """Play one account over all days of a file, and return what it did as tables.

    Args:
        checkpoint: folder of a run or its checkpoint, name of a rule of the task, or file of a program.
        market: file of bars, by default that of the run.
        **options: of ``vecenv backtest`` by name, such as ``start="2019-01-01"`` or ``capital=50_000``; those of the
            rules as a mapping ``env``. Files are written where ``out`` names a folder.

    Raises:
        ValueError: an option does not exist, or what is asked for cannot be played.
    """
    settings = BacktestSettings.given(checkpoint, {"market": market, **options})
    return _written(settings, Console(quiet=True))


def run(settings: BacktestSettings) -> dict[str, Any]:
    """Play one account over all days of a file: equity by date, orders, trades, and a report."""
    console = wide_console()
    found = _written(settings, console)
    for note in found.notes:
        console.print(note, soft_wrap=True, highlight=False)
    console.print(summary_table(found))
    if found.verdicts:
        console.print(verdict_text(found.verdicts), soft_wrap=True)
    if settings.out is not None:
        console.print(f"Written to {settings.out}: {REPORT}, and tables as Parquet and CSV", soft_wrap=True)
    return told_of(found)


def _written(settings: BacktestSettings, console: Console) -> Backtest:
    refuse(settings)
    with nullcontext() if settings.out is None else WriteLock(settings.out):
        found = _played(settings, console)
        if settings.out is not None:
            write(found, settings.out)
    return found


def _played(settings: BacktestSettings, console: Console) -> Backtest:
    history = read_history(settings, console)
    record, config, tape = history.record, history.config, history.tape
    if settings.capital is not None:
        config = replace(config, initial_cash=settings.capital)
    env = history.env(config)
    name, agent = history.agent(env)
    agents = {name: agent}
    if settings.checkpoint not in record.agents and name in BENCHMARKS:
        raise ValueError(f"{settings.checkpoint}: a benchmark of the backtest has this name; rename it")
    agents |= benchmark_agents(env)
    until, chosen, notes = None, None, [*history.notes]
    first = str(tape.dates[tape.first_day])
    for path in history.checkpoints.values():
        told = trained_on(path, settings.source, CPU)
        state = read_checkpoint(path)
        last = state["scenario"]["market"]["last_day"]
        if f"until {last}" not in told:
            notes.append(told)
            continue
        validated = state.get("validation", {}).get("scenario", {}).get("market", {}).get("last_day")
        # What ended before the account begins has seen none of its days.
        until, chosen = (
            max((day for day in days if day is not None and day >= first), default=None)
            for days in ((until, last), (chosen, validated))
        )
    seen = [] if until is None else [f"trained on {tape.source} until {until}"]
    seen += [] if chosen is None else [f"chosen by its validation until {chosen}"]
    if seen:
        notes.append(f"The policy was {' and '.join(seen)}: what it earned until then is no test.")
    tell_known_before(console, settings.source.market, tape, history.checkpoints.values())
    origin = {"checkpoint": settings.checkpoint, "capital": config.initial_cash, "vecenv_version": vecenv.__version__}
    length = tape.num_days - tape.first_day - 1
    with working(console, f"Playing {length:,} days of {tape.num_symbols} symbols …"):
        notes = [*dict.fromkeys(filter(None, notes))]
        return backtested(env, agents, settings.seed, until, tuple(notes), origin, chosen)


def benchmark_agents(env: VecEnv) -> dict[str, Agent]:
    """Return the benchmarks of a backtest by name."""
    return {name: agent for name, agent in baseline_agents(env, BENCHMARKS).items() if name in BENCHMARKS}


def write(found: Backtest, folder: Path) -> None:
    """Write the report, the tables as Parquet and CSV, and the figures as JSON, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tables(found.tables(), folder)
    write_json(told_of(found), folder / SUMMARY)
    with replacing(folder / REPORT) as partial:
        partial.write_text(report_page(found), encoding="utf-8")


def write_tables(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write tables as Parquet and CSV by their names."""
    for name, table in tables.items():
        with replacing(folder / f"{name}.parquet") as partial:
            table.rename(columns=str).to_parquet(partial, index=False)
        with replacing(folder / f"{name}.csv") as partial:
            table.to_csv(partial, index=False)


def write_json(told: Mapping[str, Any], path: Path) -> None:
    """Write figures as JSON."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(told, indent=2, default=str, allow_nan=False) + "\n")


def told_of(found: Backtest) -> dict[str, Any]:
    """Return the figures of a backtest, JSON-able."""
    days = [str(found.daily.index[place].date()) for place in (0, -1)]
    kept: dict[str, Any] = {"agent": found.agent, "days": days, "summary": found.summary.to_dict()}
    for name, part in (("unseen", found.unseen), ("test", found.test)):
        kept[name] = None if part is None else part.to_dict()
    kept["verdicts"] = [verdict.to_json() for verdict in found.verdicts]
    kept |= {"trained_until": found.trained_until, "chosen_until": found.chosen_until}
    return {**kept, "notes": list(found.notes), **found.told}
