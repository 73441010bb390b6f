"""Trade an episode yourself, in the terminal, from the text that language models read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table

import vecenv
from vecenv.core.env import VecEnv
from vecenv.registry import task_named
from vecenv.tasks.commands.comparison import config_of, wide_console
from vecenv.tasks.commands.market_settings import MarketSettings, market_origin
from vecenv.tasks.commands.options import early_options, with_preset
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.config import TIERS
from vecenv.tasks.tiers.recorder import EpisodeRecorder, record_episodes
from vecenv.tasks.tiers.records import RecordedDay, RecordedEpisode, write_jsonl
from vecenv.tasks.tiers.text.prompt import order_grammar
from vecenv.text.door import TextDoor
from vecenv.text.money import exact_money

TaskConfig = TypeVar("TaskConfig")

REFERENCES = ("buy_and_hold", "oracle")
"""Agents that are compared with the player."""

HELP, QUIT = "?", ("quit", "exit", "q")

HELP_LINE = "? shows this, quit ends the episode."


@dataclass(frozen=True)
class PlayOptions:
    """Options that determine the defaults of the other settings."""

    task: str = "single_stock"
    """Tier to play: single_stock, single_stock_costs, multi_stock_3, portfolio or full_autonomous."""
    task_preset: str | None = None
    """Preset of the rules."""


@dataclass(frozen=True)
class PlaySettings(MarketSettings, PlayOptions, Generic[TaskConfig]):
    """Settings of ``vecenv play``. The episode is drawn from all days used."""

    seed: int = 0
    """Seed of the episode."""
    record: Path | None = None
    """JSONL file for the record of the episode."""
    env: TaskConfig = field(kw_only=True)
    """Rules of the task."""

    def inapplicable(self) -> dict[str, str]:
        """Return the settings without effect: see `commands.applicable`."""
        split = ("train_end", "test_start", "test_fraction", "embargo")
        return super().inapplicable() | dict.fromkeys(split, "commands that split the days")

    @classmethod
    def defaults(cls, args: Sequence[str]) -> PlaySettings:
        """Return the defaults of the command line.

        Raises:
            ValueError: there is no such tier or preset.
        """
        options = early_options(PlayOptions, args)
        if options.task not in TIERS:
            raise ValueError(f"{options.task!r} is not a tier that can be played; there are {', '.join(TIERS)}")
        return cls(task=options.task, env=with_preset(config_of(options.task), "task", options.task_preset))


def main(settings: PlaySettings) -> dict[str, Any]:
    """Trade an episode yourself, in the terminal, from the text that language models read."""
    if settings.record is not None and not settings.record.absolute().parent.is_dir():
        raise ValueError(f"{settings.record}: there is no folder {settings.record.parent}")
    config = task_named(settings.task).spoken(settings.with_symbols(settings.env))
    console = wide_console()
    with console.status(f"Making the market {settings.market} …"):
        tape = settings.tape(config)
    env = vecenv.make(
        settings.task, 1, market=tape, seed=settings.seed, device=tape.device, compile=False, config=config
    )
    played = play(env, console, market_origin(settings))
    references = {name: record_episodes(env, AGENTS[name](), [0], settings.seed)[0] for name in REFERENCES}
    console.print(outcome_table({"you": played, **references}))
    if settings.record is not None:
        write_jsonl(settings.record, [played])
        console.print(f"Recorded in {settings.record}", soft_wrap=True)
    return {
        **{name: getattr(played, name) for name in ("task", "seed", "dates", "finished", "total_return", "grades")},
        "days": len(played.days),
        "references": {name: record.grades for name, record in references.items()},
    }


def play(env: VecEnv, console: Console, market: dict[str, Any] | None = None) -> RecordedEpisode:
    """Let a person trade the first row's episode until it ends, the person quits, or the input is closed.

    Args:
        env: an environment of the trading tiers.
        console: for texts; the answers are read from the standard input.
        market: market and `MarketOptions` by name that reproduce it, for the record.
    """
    recorder = EpisodeRecorder(env, [0], market)
    scenario = recorder.scenario
    door = TextDoor(env)
    grammar = f"{order_grammar(scenario.text.symbols(env.state)[0])}\n{HELP_LINE}"
    while not bool(env.rows.done[0]):
        console.rule(style="dim")
        console.print(door.render([0])[0], markup=False, highlight=False, soft_wrap=True)
        text = _answer(door, console, grammar)
        if text is None:
            break
        actions, _ = door.parse([text], [0])
        recorder.step(actions.expand(env.num_envs, -1, -1), [text])
        show_day(console, recorder.days[0][-1], scenario.text.money_sign)
    record = recorder.episodes()[0]
    console.rule(style="dim")
    if not record.finished:
        console.print(
            f"Left after {len(record.days)} days: your grades cover these, the other agents' the whole episode."
        )
    return record


def _answer(door: TextDoor, console: Console, grammar: str) -> str | None:
    """Return a valid text from the input, None at its end."""
    while True:
        try:
            text = console.input("[bold]> [/]").strip()
        except EOFError:
            console.print()
            return None
        if text.lower() in QUIT:
            return None
        if text != HELP and bool(door.parse([text], [0])[1]):
            return text
        if text != HELP:
            console.print("These are no valid orders.", style="yellow")
        console.print(grammar, markup=False, highlight=False)


def show_day(console: Console, day: RecordedDay, sign: str) -> None:
    """Print the fills of a day, and its reward by component."""
    for order in day.orders:
        name, shares = order["symbol"], order["shares"]
        done = "Bought" if shares > 0 else "Sold"
        line = f"{done} {abs(shares):,} {name}" if shares else f"{order['side']} {name}: nothing was traded"
        console.print(line, style="green" if shares > 0 else "magenta" if shares < 0 else "yellow", highlight=False)
    mistakes = [f"{name.replace('_', ' ')} x{count}" for name, count in day.mistakes.items() if count]
    if mistakes:
        console.print(f"Mistakes: {', '.join(mistakes)}", style="red", highlight=False)
    parts = [f"{name.replace('_', ' ')} {value:+.3f}" for name, value in day.weighted.items() if value]
    console.print(
        f"Portfolio {exact_money(sign, day.portfolio_value)} | costs {exact_money(sign, day.costs)} | "
        f"reward {day.reward:+.3f}{': ' if parts else ''}{', '.join(parts)}",
        highlight=False,
        soft_wrap=True,
    )


def outcome_table(records: dict[str, RecordedEpisode]) -> Table:
    """Return a table of the agents' returns, grades, trades and mistakes in one episode."""
    first = next(iter(records.values()))
    table = Table(title=f"{first.task}, {first.dates[0]} to {first.dates[1]}")
    table.add_column("Agent")
    for header in ("Return", *(name.capitalize() for name in first.grades), "Trades", "Mistakes"):
        table.add_column(header, justify="right")
    for name, record in records.items():
        trades = sum(order["shares"] != 0 for day in record.days for order in day.orders)
        grades = [f"{grade:.3f}" for grade in record.grades.values()]
        table.add_row(name, f"{record.total_return:+.2%}", *grades, str(trades), str(sum(record.mistakes.values())))
    return table
