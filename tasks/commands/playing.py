"""An episode that a person plays in the terminal, by `vecenv play`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from vecenv.core.checks import device_named
from vecenv.registry import make_interaction, task_named
from vecenv.tasks.experiment.progress import wide_console
from vecenv.tasks.experiment.splits import splits_of
from vecenv.text.dialogue import Dialogue
from vecenv.text.interaction import Episode, Interaction, Turn
from vecenv.text.recording import Recording
from vecenv.text.records import EpisodeRecord, Record, many, write_jsonl
from vecenv.text.tensor_interaction import TensorInteraction
from vecenv.text.transcripts import RecordedDialogue

if TYPE_CHECKING:
    from vecenv.tasks.commands.play import PlaySettings

HELP, QUIT, FENCE = "?", ("quit", "exit", "q"), "```"

HELP_LINE = "? shows this, quit ends the episode; an answer of several lines stands between two lines of ```."


def played(settings: PlaySettings) -> dict[str, Any]:
    """Play an episode yourself, in the terminal, from the text that language models read."""
    if settings.record is not None and not settings.record.absolute().parent.is_dir():
        raise ValueError(f"{settings.record}: there is no folder {settings.record.parent}")
    console = wide_console()
    by_words = task_named(settings.task).recorded_as_conversations
    played, told = (_conversation if by_words else _episode)(settings, console)
    if settings.record is not None:
        write_jsonl(settings.record, [played])
        console.print(f"Recorded in {settings.record}", soft_wrap=True)
    return told


def _conversation(settings: PlaySettings, console: Console) -> tuple[Record, dict[str, Any]]:
    """Return the record of an episode that is recorded by what is said, and what it came to."""
    device: dict[str, Any] = {} if settings.without_tensors else {"device": device_named(settings.device)}
    dialogue = RecordedDialogue(make_interaction(settings.task, config=settings.env, **device))
    talk(dialogue, console, [Episode(settings.seed, 0)])
    (played,) = dialogue.records
    assert played is not None
    told = played.result()
    known = {"reward": told["reward"], "grade": told["grade"], **told["outcomes"]}
    came = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in known.items() if value is not None]
    _show(console, " | ".join(came), "dim")
    return played, told


def _episode(settings: PlaySettings, console: Console) -> tuple[Record, dict[str, Any]]:
    """Return the record of an episode of a task of tensors, and what it came to, beside its references."""
    record = task_named(settings.task)
    recording = record.check_recording()
    config = record.spoken(settings.source.fitted(record, settings.env))
    splits = splits_of(record, settings.source, config, settings.device, console)
    env = splits.served("all", 1, config, settings.seed, compile=False)
    recorder = recording.recorder(env, [0], settings.source.origin())
    world = TensorInteraction(env, recorder)
    talk(Dialogue(world), console, None, lambda: recording.step_lines(recorder.steps[0][-1], env.scenario))
    (played,) = recorder.episodes()
    console.rule(style="dim")
    if not played.finished:
        left = f"Left after {many(len(played.steps), recording.step_name)}"
        _show(console, f"{left}: your grades cover these, the other agents' the whole episode.")
    names = [name for name in (record.domain.reference, record.domain.hindsight) if name in record.agents]
    references = {name: recording.record(env, record.agents[name](), [0], settings.seed)[0] for name in names}
    console.print(outcome_table(recording, {"you": played, **references}))
    return played, {
        **{name: getattr(played, name) for name in ("task", "seed", "finished", "total_return", "grades")},
        **recording.result(played),
        "references": {name: other.grades for name, other in references.items()},
    }


def talk(
    dialogue: Dialogue,
    console: Console,
    episodes: Sequence[Episode] | None,
    came: Callable[[], Sequence[tuple[str, str]]] = tuple,
) -> Turn:
    """Let a person talk to the first row's world until its episode or the input ends; return the last turn.

    ``episodes`` name the episode, as of `Dialogue.begin`. ``came`` returns lines on what came of an answer, and their
    styles.
    """
    (turn,) = dialogue.begin([0], episodes)
    help_text = f"{dialogue.interaction.grammar([0])[0]}\n{HELP_LINE}"
    _show(console, help_text, "dim")
    while not turn.done:
        console.rule(style="dim")
        _show(console, turn.message)
        text = _answer(dialogue.interaction, console, help_text)
        if text is None:
            break
        (turn,) = dialogue.answer([0], [text])
        for line, style in came():
            _show(console, line, style)
    if turn.done:
        console.rule(style="dim")
        _show(console, turn.message)
    return turn


def _show(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _answer(world: Interaction, console: Console, help_text: str) -> str | None:
    """Return a text from the input that is not known to be invalid, None at its end."""
    while True:
        try:
            text = console.input("[bold]> [/]").strip()
            if text.startswith(FENCE):
                lines = iter(lambda: console.input("[bold]. [/]").rstrip(), FENCE)
                text = "\n".join([text, *lines, FENCE])
        except EOFError:
            console.print()
            return None
        if text.lower() in QUIT:
            return None
        if text != HELP:
            faults = world.faults([0], [world.heard(text)])
            if not faults or not faults[0]:
                return text
            _show(console, f"No valid {world.called}: {faults[0]}; ? tells what may be said.", "yellow")
        else:
            _show(console, help_text)


def outcome_table(recording: Recording[Any, Any], records: dict[str, EpisodeRecord]) -> Table:
    first = next(iter(records.values()))
    table = Table(title=recording.title(first))
    table.add_column("Agent")
    for header in recording.outcome(first):
        table.add_column(header, justify="right")
    for name, record in records.items():
        table.add_row(name, *recording.outcome(record).values())
    return table
