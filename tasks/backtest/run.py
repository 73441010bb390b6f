"""Opening of what is backtested, and what becomes of it: a table in the terminal, files and a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent
from vecenv.learn.verdict import verdict_text
from vecenv.market.tape import MarketTape
from vecenv.registry import Task, task_named
from vecenv.system.files import WriteLock, replacing
from vecenv.system.preset_files import with_values
from vecenv.tasks.backtest.report import report_page, summary_table
from vecenv.tasks.backtest.result import Backtest, backtested
from vecenv.tasks.backtest.settings import BacktestSettings, is_policy
from vecenv.tasks.experiment.checkpoints import check_fits, read_checkpoint
from vecenv.tasks.experiment.comparison import ENSEMBLE, baseline_agents, trained_agents
from vecenv.tasks.experiment.known_before import tell_known_before, trained_on
from vecenv.tasks.experiment.markets import FileMarket
from vecenv.tasks.experiment.programs import read_program
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.seeds import policy_files
from vecenv.tasks.stock_trading.scenario import StockTrading

BENCHMARKS = ("buy_and_hold", "equal_weight")
"""Rules beside the agent, under the same rules and costs."""

REPORT, SUMMARY = "report.html", "summary.json"

CPU = torch.device("cpu")
"""One account has nothing to compute side by side."""


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
    given = {name: value for name, value in {"market": market, **options}.items() if value is not None}
    words = [f"--checkpoint={checkpoint}"]
    words += [f"--{name}={given[name]}" for name in ("task", "task_preset", "market") if name in given]
    # What decides the defaults of the others.
    values = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    settings = with_values(BacktestSettings.defaults(words), {**values, "checkpoint": str(checkpoint)}, "backtest")
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
    return _told(found)


def _written(settings: BacktestSettings, console: Console) -> Backtest:
    record = task_named(settings.task)
    _refuse(settings, record)
    with nullcontext() if settings.out is None else WriteLock(settings.out):
        found = _played(settings, record, console)
        if settings.out is not None:
            write(found, settings.out)
    return found


def _refuse(settings: BacktestSettings, record: Task) -> None:
    """Reject what can be known to be wrong before a file is read."""
    scenario = None if record.talks else record.scenario
    if not (isinstance(scenario, type) and issubclass(scenario, StockTrading)):
        raise ValueError(f"task {record.name!r} has no dated backtest: it is not on the account of stock_trading")
    if not isinstance(settings.source, FileMarket) or not settings.source.market:
        other = f", not of {settings.source.market!r}, which is generated" if settings.source.market else ""
        raise ValueError(f"a backtest plays the days of a file{other}: give --market FILE")
    name = settings.checkpoint
    if not is_policy(name) and not Path(name).is_file() and name not in record.agents:
        raise ValueError(
            f"--checkpoint {name or 'is needed'}: it names the folder of a run, a file with a program, or one of the "
            f"rules {', '.join(record.agents)}"
        )
    if settings.out is not None and settings.out.exists() and not settings.out.is_dir():
        raise ValueError(f"{settings.out}: --out names a folder")


def _played(settings: BacktestSettings, record: Task, console: Console) -> Backtest:
    name, config = settings.checkpoint, settings.env
    checkpoints = policy_files(Path(name)) if is_policy(name) else {}
    program = None
    if not checkpoints and Path(name).is_file():
        program, config = read_program(Path(name), record, config)
    if settings.capital is not None:
        config = replace(config, initial_cash=settings.capital)
    with working(console, f"Reading {settings.source.market} …"):
        whole = replace(settings.source, start=None, end=None).tape(config, CPU)
    tape = account_days(whole, settings)
    notes = [_check_policy(path, tape, config) for path in checkpoints.values()]
    length = tape.num_days - tape.first_day - 1
    config = replace(config, random_start=False, min_episode_length=0, episode_length=length)
    env = VecEnv(record.build(tape, config), 1, settings.seed, compiled=False)
    agents: dict[str, Agent] = {}
    if checkpoints:
        made = trained_agents(checkpoints, env)
        if len(checkpoints) > 1 and ENSEMBLE not in made:
            raise ValueError(f"{name}: its policies have no ensemble; choose one of {', '.join(made)} by its folder")
        agents[Path(name).resolve().name if Path(name).is_dir() else Path(name).stem] = made[[*made][-1]]
    elif program is not None:
        agents[Path(name).stem] = record.check_programs().agent([program])
    else:
        agents[name] = record.agents[name]()
    if name not in record.agents and not agents.keys().isdisjoint(BENCHMARKS):
        raise ValueError(f"{name}: a benchmark of the backtest has this name; rename it")
    agents |= {other: agent for other, agent in baseline_agents(env, BENCHMARKS).items() if other in BENCHMARKS}
    until = None
    for path in checkpoints.values():
        told = trained_on(path, settings.source, CPU)
        last = read_checkpoint(path)["scenario"]["market"]["last_day"]
        if f"until {last}" not in told:
            notes.append(told)
        # A training that ended before the account begins has seen none of its days.
        elif last >= str(tape.dates[tape.first_day]) and (until is None or last > until):
            until = last
    if until is not None:
        notes.append(f"The policy was trained on {tape.source} until {until}: what it earned until then is no test.")
    tell_known_before(console, settings.source.market, tape, checkpoints.values())
    origin = {"checkpoint": name, "capital": config.initial_cash, "vecenv_version": vecenv.__version__}
    with working(console, f"Playing {length:,} days of {tape.num_symbols} symbols …"):
        return backtested(env, agents, settings.seed, until, tuple(dict.fromkeys(filter(None, notes))), origin)


def account_days(whole: MarketTape, settings: BacktestSettings) -> MarketTape:
    """Return the days of the account: indicators are computed on the whole file, and the days begin at ``start``.

    Raises:
        ValueError: there are several paths, a date is outside the file, or fewer than two days can be played.
    """
    if whole.num_paths > 1:
        raise ValueError(f"{whole.source}: a backtest plays one history, but there are {whole.num_paths} paths")
    first, last = whole.dates[0].astype("datetime64[D]").item(), whole.dates[-1].astype("datetime64[D]").item()
    span = {"start": settings.source.start, "end": settings.source.end}
    for name, day in span.items():
        if day is not None and not first <= day <= last:
            raise ValueError(f"{whole.source}: {name} {day} is outside the file, whose days run from {first} to {last}")
    days = [None if day is None else day.isoformat() for day in span.values()]
    tape = whole.between(*days) if any(days) else whole
    if tape.num_days - tape.first_day < 2:
        raise ValueError(
            f"{whole.source}: {tape.num_days - tape.first_day} of its {tape.num_days} days come after the warm-up: a "
            "backtest needs two"
        )
    return tape


def _check_policy(path: Path, tape: MarketTape, config: Any) -> str:  # noqa: ANN401
    """Return a note where a policy that plays any symbols plays others; ValueError where it cannot play these."""
    state = read_checkpoint(path)
    try:
        check_fits(state, tape, config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    trained = state["scenario"]["market"]["symbols"]
    if trained == list(tape.symbols):
        return ""
    other = [symbol for symbol in tape.symbols if symbol not in trained]
    if state["config"].get("policy", "flat") == "flat":
        raise ValueError(
            f"{path}: the policy was trained on {_named(trained)}, in this order, but {tape.source} has "
            f"{_named(tape.symbols)}: choose its own by --symbols"
        )
    return f"The policy was not trained on {_named(other)} of the {tape.num_symbols} symbols." if other else ""


def _named(symbols: Sequence[str], most: int = 6) -> str:
    return ", ".join(symbols[:most]) + (f" and {len(symbols) - most} others" if len(symbols) > most else "")


def write(found: Backtest, folder: Path) -> None:
    """Write the report, the tables as Parquet and CSV, and the figures as JSON, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in found.tables().items():
        with replacing(folder / f"{name}.parquet") as partial:
            table.rename(columns=str).to_parquet(partial, index=False)
        with replacing(folder / f"{name}.csv") as partial:
            table.to_csv(partial, index=False)
    with replacing(folder / SUMMARY) as partial:
        partial.write_text(json.dumps(_told(found), indent=2, default=str, allow_nan=False) + "\n")
    with replacing(folder / REPORT) as partial:
        partial.write_text(report_page(found), encoding="utf-8")


def _told(found: Backtest) -> dict[str, Any]:
    """Return the figures of a backtest, JSON-able."""
    days = [str(found.daily.index[place].date()) for place in (0, -1)]
    unseen: Mapping[str, Any] | None = None if found.unseen is None else found.unseen.to_dict()
    kept = {"agent": found.agent, "days": days, "summary": found.summary.to_dict(), "unseen": unseen}
    kept["verdicts"] = [verdict.to_json() for verdict in found.verdicts]
    return {**kept, "trained_until": found.trained_until, "notes": list(found.notes), **found.told}
