"""Help of a command: a line for each setting that it has under the options given so far."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

from vecenv.learn import algorithm_named, algorithm_names
from vecenv.system.preset_files import as_values, is_flat, read_values, shipped_presets
from vecenv.system.settings import hints_of
from vecenv.tasks.experiment.options import inapplicable

WIDTH, NAMES, VALUES = 118, 36, 13
"""Columns of a line, of an option and its kind of values in it, and of its value."""


def short_help(settings: object) -> str:
    """Return the lines of all settings, by group, without those that have no effect under the others."""
    lines: list[str] = []
    hidden = inapplicable(settings)
    for title, group in _groups(settings, hidden):
        lines += ["", f"{title}:" if title else "settings:", *group] if group else []
    return "\n".join(lines)


def presets_help(task: str) -> str:
    """Return the lines of the shipped presets that fit a task, by what their first sentence tells."""
    # Loaded with the settings that are shown.
    from vecenv.registry import beside, task_named
    from vecenv.tasks.experiment.settings import DEFAULT_TASK, SHORTENED

    lines, rules = [f"presets of {task} (--preset NAME):"], type(task_named(task).config())
    for name, path in shipped_presets("train").items():
        values = read_values(path)
        own = values.get("task", DEFAULT_TASK)
        if values.get(SHORTENED) or own == task or (beside(own, task) and type(task_named(own).config()) is rules):
            lines.append(_cut(f"  {name:<20}{_sentence(_comment(path))}"))
    return "\n".join(lines)


def algorithms_help() -> str:
    """Return the lines of the learners that there are."""
    known = [algorithm_named(name) for name in algorithm_names()]
    lines = [_cut(f"  {algorithm.name:<20}{algorithm.summary}") for algorithm in known]
    return "\n".join(["learners (--algorithm NAME):", *lines])


def _groups(settings: Any, hidden: Mapping[str, str], prefix: str = "") -> Iterator[tuple[str, list[str]]]:  # noqa: ANN401
    """Yield the title and the lines of a dataclass and of the named ones within it."""
    own, within = _lines(settings, hidden, prefix)
    yield prefix.removesuffix("."), own
    for name, value in within:
        yield from _groups(value, hidden, f"{prefix}{name}.")


def _lines(settings: Any, hidden: Mapping[str, str], prefix: str) -> tuple[list[str], list[tuple[str, Any]]]:  # noqa: ANN401
    kind: Any = type(settings)
    hints, told = hints_of(kind), _told(kind)
    lines: list[str] = []
    shown = as_values(settings)
    within: list[tuple[str, Any]] = []
    for item in fields(settings):
        value, name = getattr(settings, item.name), f"{prefix}{item.name}"
        if name in hidden:
            continue
        if is_flat(hints[item.name]):
            flat, nested = _lines(value, hidden, prefix)
            lines, within = lines + flat, within + nested
        elif is_dataclass(value):
            within.append((item.name, value))
        else:
            option = f"  --{name.replace('_', '-')} {_kind(hints[item.name])}"
            lines.append(_line(option, _value(shown[item.name]), _sentence(told.get(item.name, ""))))
    return lines, within


def _line(option: str, value: str, told: str) -> str:
    start = f"{option:<{NAMES}}" if len(option) < NAMES else f"{option} "
    return _cut(f"{start}{value:<{VALUES}} {told}")


def _cut(text: str) -> str:
    """Return a line that fits, whole words of it."""
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1].rpartition(' ')[0]} …"


def _value(value: object) -> str:
    if value is tyro.MISSING:
        return "(needed)"
    if value is None or isinstance(value, bool):
        return "-" if value is None else ("no", "yes")[value]
    if isinstance(value, list | tuple):
        return f"[{len(value)}]" if len(value) > 1 else " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and abs(value) > 65_536 else str(value)


def _kind(hint: Any) -> str:  # noqa: ANN401
    """Return what values a field takes, for a line: choices, or the name of their type."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kind(parts[0])
    if origin is Literal:
        text = "|".join(map(str, parts))
        return text if len(text) <= NAMES // 2 else "NAME"
    if origin in (Union, UnionType):
        return "|".join(dict.fromkeys(_kind(part) for part in parts if part is not type(None)))
    if origin is not None:
        return f"{_kind(parts[0])} …" if parts else ""
    return "" if hint is bool else getattr(hint, "__name__", str(hint)).replace("str", "text").upper()


@cache
def _told(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields of a dataclass, those that it inherits included."""
    told: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for field, after in pairwise(_body(base)):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
                told[ast.unparse(field.target)] = " ".join(str(text.value).split())
    return told


def _body(kind: type) -> list[ast.stmt]:
    """Return the statements of a class; none of one without a source."""
    parts, within = kind.__qualname__.split("."), _statements(kind.__module__)
    for part in parts:
        within = next((each.body for each in within if isinstance(each, ast.ClassDef) and each.name == part), [])
    return within


@cache
def _statements(module: str) -> list[ast.stmt]:
    """Return the statements of a module, which has several classes of settings."""
    try:
        return ast.parse(inspect.getsource(sys.modules[module])).body
    except (OSError, TypeError, KeyError):
        return []


def _sentence(text: str) -> str:
    return text.partition(". ")[0].removesuffix(".")


def _comment(path: Path) -> str:
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)
