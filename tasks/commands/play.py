"""Trade an episode yourself, in the terminal, from the text that language models read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table

import vecenv
from vecenv.core.checks import device_named
from vecenv.core.env import VecEnv
from vecenv.registry import Task, make_interaction, task_named, task_names, task_of
from vecenv.system.settings import Seed
from vecenv.tasks.commands.comparison import wide_console
from vecenv.tasks.commands.market_settings import MarketSettings, default_market, market_origin
from vecenv.tasks.commands.options import early_options, with_preset
from vecenv.tasks.commands.simulated import is_simulated, without_effect
from vecenv.text.dialogue import Dialogue
from vecenv.text.door import TextDoor
from vecenv.text.interaction import Episode, Turn
from vecenv.text.recording import Recording
from vecenv.text.records import EpisodeRecord, write_jsonl

TaskConfig = TypeVar("TaskConfig")

HELP, QUIT = "?", ("quit", "exit", "q")

HELP_LINE = "? shows this, quit ends the episode."


@dataclass(frozen=True)
class PlayOptions:
    """Options that determine the defaults of the other settings."""

    task: str = "single_stock"
    """Installed task with text and records, such as single_stock, portfolio, agent_market or market_making."""
    task_preset: str | None = None
    """Preset of the rules."""


@dataclass(frozen=True)
class PlaySettings(MarketSettings, PlayOptions, Generic[TaskConfig]):
    """Settings of ``vecenv play``. The episode is drawn from all days used, or simulated."""

    seed: Seed = 0
    """Seed of the episode."""
    record: Path | None = None
    """JSONL file for the record of the episode."""
    env: TaskConfig = field(kw_only=True)
    """Rules of the task."""

    def inapplicable(self) -> dict[str, str]:
        if is_simulated(self.task):
            return without_effect()
        split = ("train_end", "test_start", "test_fraction", "embargo")
        return super().inapplicable() | dict.fromkeys(split, "commands that split the days")

    @classmethod
    def defaults(cls, args: Sequence[str]) -> PlaySettings:
        options = early_options(PlayOptions, args)
        record = task_named(options.task)
        if not _playable(record):
            playable = ", ".join(name for name in task_names() if _playable(task_named(name)))
            raise ValueError(
                f"{options.task!r} has no text or no records, so it cannot be played; there are {playable}"
            )
        config = record.default_text_config()
        return cls(
            task=options.task, market=default_market(options.task), env=with_preset(config, "task", options.task_preset)
        )


def _playable(task: Task) -> bool:
    return task.interaction is not None or (task.text is not None and task.recording is not None)


def main(settings: PlaySettings) -> dict[str, Any]:
    """Trade an episode yourself, in the terminal, from the text that language models read."""
    if settings.record is not None and not settings.record.absolute().parent.is_dir():
        raise ValueError(f"{settings.record}: there is no folder {settings.record.parent}")
    record, console = task_named(settings.task), wide_console()
    if record.interaction is not None:
        if settings.record is not None:
            raise ValueError(f"{settings.task} is a conversation, whose episodes are not recorded: leave out --record")
        return {
            "task": settings.task,
            **talk(Dialogue(make_interaction(record, config=settings.env)), console, settings.seed),
        }
    recording = record.check_recording()
    env, market = _environment(settings, record, console)
    played = play(env, console, market)
    names = [name for name in (record.domain.reference, record.domain.hindsight) if name in record.agents]
    references = {name: recording.record(env, record.agents[name](), [0], settings.seed)[0] for name in names}
    console.print(outcome_table(recording, {"you": played, **references}))
    if settings.record is not None:
        write_jsonl(settings.record, [played])
        console.print(f"Recorded in {settings.record}", soft_wrap=True)
    return {
        **{name: getattr(played, name) for name in ("task", "seed", "finished", "total_return", "grades")},
        **recording.result(played),
        "references": {name: other.grades for name, other in references.items()},
    }


def _environment(settings: PlaySettings, record: Task, console: Console) -> tuple[VecEnv, dict[str, Any] | None]:
    """Return an environment of one row, and what reproduces its market, None if the task simulates its own."""
    if is_simulated(settings.task):
        device = device_named(settings.device)
        config = record.spoken(settings.env)
        return vecenv.make(record, 1, seed=settings.seed, device=device, compile=False, config=config), None
    config = record.spoken(settings.with_symbols(settings.env))
    with console.status(f"Making the market {settings.market} …"):
        tape = settings.tape(config)
    env = vecenv.make(record, 1, market=tape, seed=settings.seed, device=tape.device, compile=False, config=config)
    return env, market_origin(settings)


def play(env: VecEnv, console: Console, market: dict[str, Any] | None = None) -> EpisodeRecord:
    """Let a person trade the first row's episode until it ends, the person quits, or the input is closed.

    ``market`` is the market and `MarketOptions` by name that reproduce it, for the record.
    """
    recording = task_of(env).check_recording()
    recorder, door = recording.recorder(env, [0], market), TextDoor(env)
    grammar = f"{door.text.grammar(door.state([0]))[0]}\n{HELP_LINE}"
    while not bool(env.rows.done[0]):
        console.rule(style="dim")
        console.print(door.render([0])[0], markup=False, highlight=False, soft_wrap=True)
        text = _answer(door, console, grammar)
        if text is None:
            break
        action, _ = door.parse([text], [0])
        recorder.step(action.expand(env.num_envs, *action.shape[1:]), [text])
        for line, style in recording.step_lines(recorder.steps[0][-1], env.scenario):
            console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
    record = recorder.episodes()[0]
    console.rule(style="dim")
    if not record.finished:
        console.print(
            f"Left after {len(record.steps)} {recording.step_name}s: your grades cover these, the other agents' the "
            "whole episode.",
            soft_wrap=True,
        )
    return record


def talk(dialogue: Dialogue, console: Console, seed: int) -> dict[str, Any]:
    """Let a person talk to the first row's world until its episode or the input ends; return what it came to."""
    (turn,), reward = dialogue.begin([0], [Episode(seed, 0)]), 0.0
    help_text = f"{dialogue.instructions([0])[0]}\n{HELP_LINE}"
    while not turn.done:
        console.rule(style="dim")
        _show(console, turn)
        while (text := _input(console)) == HELP:
            _show(console, Turn(help_text))
        if text is None:
            break
        (turn,) = dialogue.answer([0], [text])
        reward += turn.reward
    if turn.done:
        _show(console, turn)
    outcomes = dict(turn.outcomes or {})
    return {"seed": seed, "finished": turn.done, "reward": reward, "grade": turn.grade, "outcomes": outcomes}


def _show(console: Console, turn: Turn) -> None:
    console.print(turn.message, markup=False, highlight=False, soft_wrap=True)


def _input(console: Console) -> str | None:
    """Return a text from the input, None at its end."""
    try:
        text = console.input("[bold]> [/]").strip()
    except EOFError:
        console.print()
        return None
    return None if text.lower() in QUIT else text


def _answer(door: TextDoor, console: Console, grammar: str) -> str | None:
    """Return a valid text from the input, None at its end."""
    while True:
        text = _input(console)
        if text is None:
            return None
        if text != HELP:
            _, valid = door.parse([text], [0])
            if bool(valid):
                return text
            (why,) = door.reasons([text], valid, [0])
            console.print(f"These are no valid orders: {why}.", style="yellow", markup=False, soft_wrap=True)
        console.print(grammar, markup=False, highlight=False)


def outcome_table(recording: Recording[Any, Any], records: dict[str, EpisodeRecord]) -> Table:
    first = next(iter(records.values()))
    table = Table(title=recording.title(first))
    table.add_column("Agent")
    for header in recording.outcome(first):
        table.add_column(header, justify="right")
    for name, record in records.items():
        table.add_row(name, *recording.outcome(record).values())
    return table
