"""What may trade on one account, and the days of a file on which it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent
from vecenv.learn.settings.ensemble import Combination
from vecenv.market.tape import MarketTape
from vecenv.programs.expressions import Program
from vecenv.registry import Task, task_named
from vecenv.tasks.backtest.settings import AccountSettings, is_policy
from vecenv.tasks.experiment.checkpoints import check_fits, read_checkpoint
from vecenv.tasks.experiment.comparison import ENSEMBLE, trained_agents
from vecenv.tasks.experiment.markets import FileMarket, Market
from vecenv.tasks.experiment.programs import read_program
from vecenv.tasks.experiment.progress import working
from vecenv.tasks.experiment.seeds import policy_files
from vecenv.tasks.stock_trading.scenario import StockTrading

CPU = torch.device("cpu")
"""One account has nothing to compute side by side."""


def check_account_market(record: Task, source: Market, command: str, wants: str) -> None:
    """Reject tasks that are not on the account of stock trading, and markets that are no file.

    ``wants`` is what the ``command`` makes from the days of a file, as the start of a sentence.
    """
    scenario = None if record.talks else record.scenario
    if not (isinstance(scenario, type) and issubclass(scenario, StockTrading)):
        raise ValueError(f"{command}: task {record.name!r} is not on the account of stock_trading")
    if not isinstance(source, FileMarket) or not source.market:
        market = getattr(source, "market", "")
        other = f", not of {market!r}, which is generated" if market else ""
        raise ValueError(f"{wants} the days of a file{other}: give --market FILE")


def refuse(settings: AccountSettings) -> None:
    """Reject what can be known to be wrong before a file is read."""
    record = task_named(settings.task)
    check_account_market(record, settings.source, f"vecenv {settings.command}", settings.wants)
    name = settings.checkpoint
    if not is_policy(name) and not Path(name).is_file() and name not in record.agents:
        raise ValueError(
            f"--checkpoint {name or 'is needed'}: it names the folder of a run, a file with a program, or one of the "
            f"rules {', '.join(record.agents)}"
        )
    if settings.out is not None and settings.out.exists() and not settings.out.is_dir():
        raise ValueError(f"{settings.out}: --out names a folder")


@dataclass(frozen=True)
class History:
    """The days of the account, the rules, and what trades: checkpoints, a program, or a rule of the task."""

    settings: AccountSettings
    record: Task
    config: Any
    tape: MarketTape
    checkpoints: Mapping[str, Path]
    program: Program | None
    notes: tuple[str, ...]

    def env(self, config: Any) -> VecEnv:  # noqa: ANN401
        """Return one row whose episode is all days."""
        length = self.tape.num_days - self.tape.first_day - 1
        config = replace(config, random_start=False, min_episode_length=0, episode_length=length)
        return VecEnv(self.record.build(self.tape, config), 1, self.settings.seed, compiled=False)

    def agent(self, env: VecEnv, combination: Combination | None = None) -> tuple[str, Agent]:
        """Return the name of what trades, and its agent; ValueError where several policies have no ensemble."""
        name = self.settings.checkpoint
        if self.checkpoints:
            made = trained_agents(self.checkpoints, env, combination)
            if len(self.checkpoints) > 1 and ENSEMBLE not in made:
                raise ValueError(
                    f"{name}: its policies have no ensemble; choose one of {', '.join(made)} by its folder"
                )
            return Path(name).resolve().name if Path(name).is_dir() else Path(name).stem, made[[*made][-1]]
        if self.program is not None:
            return Path(name).stem, self.record.check_programs().agent([self.program])
        return name, self.record.agents[name]()


def read_history(settings: AccountSettings, console: Console) -> History:
    """Read the file, and what trades on it; ValueError where it cannot."""
    record, name, config = task_named(settings.task), settings.checkpoint, settings.env
    checkpoints = policy_files(Path(name)) if is_policy(name) else {}
    program = None
    if not checkpoints and Path(name).is_file():
        program, config = read_program(Path(name), record, config)
    with working(console, f"Reading {settings.source.market} …"):
        whole = replace(settings.source, start=None, end=None).tape(config, CPU)
    tape = account_days(whole, settings)
    notes = tuple(check_policy(path, tape, config) for path in checkpoints.values())
    return History(settings, record, config, tape, checkpoints, program, notes)


def account_days(whole: MarketTape, settings: AccountSettings) -> MarketTape:
    """Return the days of the account: indicators are computed on the whole file, and the days begin at ``start``.

    Raises:
        ValueError: there are several paths, a date is outside the file, or fewer than two days can be played.
    """
    if whole.num_paths > 1:
        raise ValueError(f"{whole.source}: {settings.wants} one history, but there are {whole.num_paths} paths")
    first, last = whole.dates[0].astype("datetime64[D]").item(), whole.dates[-1].astype("datetime64[D]").item()
    span = {"start": settings.source.start, "end": settings.source.end}
    for name, day in span.items():
        if day is not None and not first <= day <= last:
            raise ValueError(f"{whole.source}: {name} {day} is outside the file, whose days run from {first} to {last}")
    days = [None if day is None else day.isoformat() for day in span.values()]
    tape = whole.between(*days) if any(days) else whole
    if tape.num_days - tape.first_day < 2:
        raise ValueError(
            f"{whole.source}: {tape.num_days - tape.first_day} of its {tape.num_days} days come after the warm-up: "
            "two are needed"
        )
    return tape


def check_policy(path: Path, tape: MarketTape, config: Any) -> str:  # noqa: ANN401
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
            f"{path}: the policy was trained on {named(trained)}, in this order, but {tape.source} has "
            f"{named(tape.symbols)}: choose its own by --symbols"
        )
    return f"The policy was not trained on {named(other)} of the {tape.num_symbols} symbols." if other else ""


def named(symbols: Sequence[str], most: int = 6) -> str:
    """Return the first symbols, and how many others there are."""
    return ", ".join(symbols[:most]) + (f" and {len(symbols) - most} others" if len(symbols) > most else "")
