"""List the runs in a folder: what each learns, what differs among them, how far they are, and their verdicts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro import conf

from vecenv.learn.settings.run import METRICS, RESULTS
from vecenv.learn.verdict import STYLES
from vecenv.system.files import WriteLock
from vecenv.system.preset_files import read_values
from vecenv.system.settings import Settings
from vecenv.tasks.experiment.progress import wide_console
from vecenv.tasks.experiment.run_files import SEED_FOLDER, SETTINGS, SPAN_FOLDER, WALK

if TYPE_CHECKING:
    from rich.table import Table

OF_COLUMNS = ("task", "market", "algorithm", "model")
"""Settings that have columns of their own."""

LONGEST = 40
"""Characters of a value that are shown."""

TAIL = 1 << 16
"""Bytes at the end of a log in which its last line lies."""

STATES: Mapping[str, str] = {"finished": "green", "running": "cyan", "stopped": "yellow", "unreadable": "red"}
"""Colours of the states on a terminal."""


@dataclass(frozen=True)
class RunsSettings(Settings):
    """Settings of ``vecenv runs``."""

    folder: conf.Positional[Path] = Path("runs")
    """Folder of runs, or of folders of runs, such as of a sweep."""


@dataclass(frozen=True)
class Run:
    """What lies in the folder of a run.

    Attributes:
        folder: the place.
        settings: by name, those of the rules and the learner as ``env.…`` and ``learner.…``.
        state: ``running`` while a process holds its lock; ``finished`` if it was compared under these settings, so not
            one that was resumed for longer and has stopped again; ``unreadable`` if a file of it is damaged.
        done: share of its steps that is logged, of a walk-forward those of all spans; None where nothing is.
        verdict: the first one of the test; None without one.
        reason: why it is unreadable.
    """

    folder: Path
    settings: Mapping[str, Any]
    state: Literal["running", "finished", "stopped", "unreadable"]
    done: float | None = None
    verdict: Mapping[str, Any] | None = None
    reason: str = ""

    @property
    def learner(self) -> str:
        """The algorithm, the language model that it trains, and whether it walks forward."""
        names = [self.settings.get(name) for name in ("algorithm", "model")]
        names += ["walk-forward"] if "train_window" in self.settings else []
        return " ".join(str(name) for name in names if name is not None)


def main(settings: RunsSettings) -> dict[str, Any]:
    """List the runs in a folder: what each learns, what differs among them, how far they are, and their verdicts."""
    if not settings.folder.is_dir():
        raise ValueError(f"{settings.folder}: there is no such folder")
    found = [read_run(folder) for folder in run_folders(settings.folder)]
    differing = differing_settings(found)
    console = wide_console()
    if found:
        console.print(_table(settings.folder, found, differing))
    else:
        console.print(f"{settings.folder} holds no run", soft_wrap=True)
    return {"folder": str(settings.folder), "runs": list(map(_json, found, differing))}


def run_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs at or below one, in order; those of the seeds or spans of a run are a part of it."""
    for place, inner, files in os.walk(folder):
        inner.sort()
        if SETTINGS in files or (".lock" in files and WriteLock(Path(place)).is_held()):
            inner.clear()
            yield Path(place)


def read_run(folder: Path) -> Run:
    """Return what a folder tells of its run, which may have no settings before its first update."""
    running = WriteLock(folder).is_held()
    settings: dict[str, Any] = {}
    try:
        if (folder / SETTINGS).is_file():
            settings = read_values(folder / SETTINGS)
        file = folder / (WALK if (folder / WALK).is_file() else RESULTS)
        results = json.loads(file.read_text()) if file.is_file() else {}
        if not isinstance(results, dict):
            raise ValueError(f"{file}: not the results of a run")
        done = _done(folder, settings)
        if file.name == WALK:
            spans = [folder / SPAN_FOLDER.format(span["first"][:10]) for span in results["spans"]]
            done = sum(_done(span, settings) or 0.0 for span in spans) / len(spans)
    except (OSError, ValueError, TypeError, LookupError) as error:
        return Run(folder, _flat(settings), "running" if running else "unreadable", reason=str(error))
    finished = bool(results) and results.get("settings") == json.loads(json.dumps(settings, default=str))
    state: Any = "running" if running else "finished" if finished else "stopped"
    told = results.get("verdicts", []) if state == "finished" else []
    tested = [one for one in told if one["part"] != "validation" and {"agent", "word", "told"} <= one.keys()]
    return Run(folder, _flat(settings), state, done, next(iter(tested), None))


def differing_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return of each run those settings that differ among the runs of its task, of learners among those of its own.

    A setting that a run lacks, such as one of another kind of market, is told of none for its sake.
    """
    seen: dict[tuple[Any, ...], set[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            seen.setdefault(_among(run, name), set()).add(_text(value))
    return [
        {
            name: value
            for name, value in run.settings.items()
            if name not in OF_COLUMNS and len(seen[_among(run, name)]) > 1
        }
        for run in runs
    ]


def _among(run: Run, name: str) -> tuple[Any, ...]:
    """Return the key of the runs among which a setting is compared."""
    return name, run.settings.get("task"), run.learner if name.startswith("learner.") else None


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, value in values.items():
        told |= {f"{name}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
    return told


def _done(folder: Path, settings: Mapping[str, Any]) -> float | None:
    """Return the share of all steps that is logged, of all seeds together."""
    seeds = sorted(folder.glob(SEED_FOLDER.format("*") + f"/{METRICS}"))
    own = folder / METRICS
    logs, number = ([own], 1) if own.is_file() else (seeds, settings.get("seeds", 1))
    total = settings.get("learner", {}).get("total_frames")
    if not logs or total is None:
        return None
    return min(1.0, sum(map(_frames, logs)) / (total * number))


def _frames(log: Path) -> float:
    """Return the steps of the last whole line of a log, 0 if there is none yet."""
    with log.open("rb") as file:
        names = file.readline().decode().strip().split(",")
        begin = file.tell()
        file.seek(max(begin, file.seek(0, os.SEEK_END) - TAIL))
        whole = file.read().decode(errors="replace").split("\n")[:-1]
    return float(whole[-1].split(",")[names.index("frames")]) if whole else 0.0


def _json(run: Run, differing: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: run.settings.get(name) for name in OF_COLUMNS}
    state = {"state": run.state, "done": run.done, "reason": run.reason or None}
    return {"folder": str(run.folder), **told, **state, "differing": dict(differing), "verdict": run.verdict}


def _table(folder: Path, runs: Sequence[Run], differing: Sequence[Mapping[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    table = Table(title=f"{number} in {folder}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("Run", "Task", "Market", "Learner", "State", "Settings that differ", "Verdict on the test"):
        table.add_column(header, overflow="fold")
    for run, own in zip(runs, differing, strict=True):
        share = "" if run.done is None or run.state == "finished" else f" at {run.done:.0%}"
        verdict = Text(run.reason)
        if run.verdict is not None:
            verdict = Text(f"{run.verdict['agent']} {run.verdict['told']}", STYLES[run.verdict["word"]])
        market = run.settings.get("market")
        table.add_row(
            str(run.folder.relative_to(folder)),
            _shown(run.settings.get("task")),
            _shown(market and Path(str(market)).name),
            _shown(run.learner or None),
            Text(run.state + share, STATES[run.state]),
            ", ".join(f"{name} {_shown(value)}" for name, value in own.items()),
            verdict,
        )
    return table


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shown(value: object) -> str:
    text = "–" if value is None else _text(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
