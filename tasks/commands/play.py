"""Trade an episode yourself, in the terminal, from the text that language models read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro import conf

from vecenv.core.env import VecEnv
from vecenv.registry import Task, make_interaction, task_named, task_names, task_of
from vecenv.system.settings import Seed, Settings
from vecenv.tasks.experiment.markets import MARKETS, SPLITS, NoMarket, market_for
from vecenv.tasks.experiment.options import TaskOptions, chosen_options, refuse_elsewhere, with_preset
from vecenv.tasks.experiment.planning import splits_of
from vecenv.tasks.experiment.progress import wide_console
from vecenv.text.dialogue import Dialogue
from vecenv.text.door import TextDoor
from vecenv.text.interaction import Episode, Turn
from vecenv.text.recording import Recording
from vecenv.text.records import EpisodeRecord, write_jsonl

HELP, QUIT = "?", ("quit", "exit", "q")

HELP_LINE = "? shows this, quit ends the episode."


@dataclass(frozen=True, kw_only=True)
class PlaySettings(Settings):
    """Settings of ``vecenv play``. The episode is drawn from all days used, or simulated."""

    task: str = "single_stock"
    """Installed task with text and records, such as single_stock, portfolio, agent_market or market_making."""
    task_preset: str | None = None
    """Preset of the rules."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=NoMarket)
    """Where the episodes come from."""
    seed: Seed = 0
    """Seed of the episode."""
    device: str = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    record: Path | None = None
    """JSONL file for the record of the episode."""
    env: Any
    """Rules of the task."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> PlaySettings:
        given = chosen_options(TaskOptions, args)
        record = task_named(given.get("task", cls.task))
        if not _playable(record):
            playable = ", ".join(name for name in task_names() if _playable(task_named(name)))
            raise ValueError(f"{record.name!r} has no text or no records, so it cannot be played; there are {playable}")
        config = with_preset(record.default_text_config(), "task", given.get("task_preset"))
        settings = cls(task=record.name, source=market_for(record, config, given, whole=True), env=config)
        refuse_elsewhere(settings, (*MARKETS, *SPLITS), args)
        return settings


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
    config = record.spoken(settings.source.fitted(record, settings.env))
    splits = splits_of(record, settings.source, config, settings.device, console)
    env = splits.served("all", 1, config, settings.seed, compile=False)
    played = play(env, console, settings.source.origin())
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
