"""Matrices of commands: every combination of some axes runs ``vecenv`` commands, and a table shows figures of each.

A study is a YAML file::

    title: What the table shows
    axes:
      tier: [single_stock, portfolio]             # a name stands for {tier} in the words
      costs: {free: [], dear: [--env.commission, 0.01]}   # a list of words stands where {costs} is a word
      seed: [0, 1, 2]
    together: seed                                 # of this axis the figures stand in one cell
    commands:
      - [train, --task, "{tier}", "{costs}", --seed, "{seed}", --folder, "{folder}"]
    columns:
      trained: {of: evaluation/agents/trained/grade, digits: 3}

``{folder}`` is a folder of the combination's own, ``{study}`` one of all, ``{here}`` that of the study's file, and
``{data}`` the one that ``VECENV_DATA`` names. Equal commands of several combinations run once. A column's path leads
into the JSON of the last command, or with ``command: 0`` of the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from vecenv.benchmarks.result_files import StudyConfig, markdown, spelled

Command = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class MatrixConfig(StudyConfig):
    """Settings of a matrix."""

    folder: Path = Path("runs") / "studies"
    """Folder of what the commands write; a command that has written its result there is not run again."""
    data: Path = Path(os.environ.get("VECENV_DATA", "data"))
    """Folder of market files."""


@dataclass(frozen=True)
class Column:
    """A column of the table: the path, with slashes, of a number or a mean with its interval, and how it is shown."""

    of: str
    scale: float = 1.0
    digits: int = 2
    interval: bool = True
    command: int = -1

    def value(self, results: Sequence[Any]) -> Any:  # noqa: ANN401
        """Return what the path leads to, None if it leads nowhere."""
        value = results[self.command]
        for name in self.of.split("/"):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def text(self, value: Any) -> str:  # noqa: ANN401
        whole = self.interval or not isinstance(value, Mapping)
        return spelled(value if whole else value["mean"], self.scale, self.digits)


@dataclass(frozen=True)
class Study:
    """A matrix of commands, as its file has it."""

    title: str
    axes: Mapping[str, Mapping[str, str | Sequence[str]]]
    together: str | None
    commands: Sequence[Sequence[str]]
    columns: Mapping[str, Column]

    def cells(self) -> Iterator[dict[str, str]]:
        for names in product(*self.axes.values()):
            yield dict(zip(self.axes, names, strict=True))

    def words(self, command: Sequence[str], cell: Mapping[str, str], places: Mapping[str, str]) -> list[str]:
        values = {axis: self.axes[axis][name] for axis, name in cell.items()}
        spoken = {**{axis: value for axis, value in values.items() if isinstance(value, str)}, **places}
        words = list[str]()
        for word in command:
            value = values.get(word[1:-1]) if word.startswith("{") and word.endswith("}") else None
            given = [word] if value is None or isinstance(value, str) else value
            words += [each.format_map(spoken) for each in given]
        return words


def read_study(path: Path) -> Study:
    """Read a study; raise ValueError if a field is missing or unknown, or an axis is not a list or a mapping."""
    told = yaml.safe_load(path.read_text())
    fields = {"title", "axes", "commands", "columns"}
    if not isinstance(told, dict) or not fields <= told.keys() <= fields | {"together"}:
        raise ValueError(f"{path}: a study has {', '.join(sorted(fields))} and together")
    axes = {}
    for name, values in told["axes"].items():
        if not isinstance(values, list | dict):
            raise ValueError(f"{path}: axis {name} is neither a list of names nor lists of words by name")
        spoken = values if isinstance(values, dict) else {str(value): str(value) for value in values}
        axes[name] = {
            str(key): [str(word) for word in value] if isinstance(value, list) else str(value)
            for key, value in spoken.items()
        }
    together = told.get("together")
    if together is not None and together not in axes:
        raise ValueError(f"{path}: together is {together}, the axes are {', '.join(axes)}")
    commands = [[str(word) for word in command] for command in told["commands"]]
    columns = {name: Column(**({"of": of} if isinstance(of, str) else of)) for name, of in told["columns"].items()}
    return Study(told["title"], axes, together, commands, columns)


def run_vecenv(words: Sequence[str]) -> int:
    """Run a ``vecenv`` command in a process of its own and return its exit code."""
    return subprocess.run([sys.executable, "-m", "vecenv.tasks.commands.cli", *words]).returncode


def run_matrix(path: Path, config: MatrixConfig, command: Command = run_vecenv) -> int:
    """Run all combinations of a study, write and print its table, and return 1 if a command failed, else 0.

    A combination that fails is told in the table, and the others go on.
    """
    study, name = read_study(path), path.stem
    found = []
    for cell in study.cells():
        places = {"study": str(config.folder / name), "data": str(config.data), "here": str(path.parent)}
        results, error = _run_cell(study, cell, places, command)
        values = {} if error else {column: own.value(results) for column, own in study.columns.items()}
        found.append({**cell, "error": error} if error else {**cell, **values})
        told = error or ", ".join(f"{column} {own.text(values[column])}" for column, own in study.columns.items())
        print(f"{' '.join(cell.values())}: {told}", flush=True)
    stem = f"study-{name.replace('_', '-')}"
    config.written(stem, lambda _: table(study, found), benchmark=name, title=study.title, cells=found)
    return int(any("error" in cell for cell in found))


def _run_cell(
    study: Study, cell: Mapping[str, str], places: Mapping[str, str], command: Command
) -> tuple[list[Any], str]:
    """Run the commands of a combination that have no result yet; return all results, and what failed."""
    folder = Path(places["study"])
    own = "-".join(cell.values()).replace(" ", "_").replace(",", "")
    places = {**places, "folder": str(folder / own)}
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Any] = []
    for template in study.commands:
        words = study.words(template, cell, places)
        file = folder / f"{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]}.json"
        if not file.exists():
            code = command([*words, "--json", str(file)])
            if code != 0:
                return results, f"vecenv {words[0]} ended with code {code}"
        results.append(json.loads(file.read_text()))
    return results, ""


def table(study: Study, cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of a study: a row for every combination, those of the axis ``together`` in one."""
    axes = [axis for axis in study.axes if axis != study.together]
    rows: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        rows.setdefault(tuple(cell[axis] for axis in axes), []).append(cell)
    lines = [f"# {study.title}", ""]
    if study.together is not None:
        lines += [f"Figures of a cell are of {study.together} {', '.join(study.axes[study.together])}.", ""]
    shown = (
        (
            *names,
            *(
                ", ".join(cell.get("error") or column.text(cell[name]) for cell in own)
                for name, column in study.columns.items()
            ),
        )
        for names, own in rows.items()
    )
    return "\n".join([*lines, markdown((*axes, *study.columns), shown)]) + "\n"
