"""Presets: YAML files with field values of settings dataclasses."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import tyro
import yaml
from tyro import conf

from vecenv.system.settings import hints_of, refuse_unknown

Settings = TypeVar("Settings")


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C, where PyYAML was built with it, reads all presets in a tenth of the time."""


def preset_path(kind: str, name: str) -> Path:
    """Return the file of a preset: a shipped one of folder ``kind``, or a path that ends in ``.yaml`` or ``.yml``.

    Raises:
        ValueError: there is no such preset.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise ValueError(f"{name}: no such preset file")
        return Path(name)
    known = shipped_presets(kind)
    if name not in known:
        raise ValueError(
            f"unknown {kind} preset {name!r}; there are {', '.join(known) or 'none'}, or give the path of a YAML file"
        )
    return known[name]


def shipped_presets(kind: str) -> dict[str, Path]:
    """Return the files of the shipped presets of a kind, by name."""
    folder = Path(str(files("vecenv.presets")))
    return {path.stem: path for path in sorted((folder / kind).glob("*.yaml"))}


def read_values(path: Path) -> dict[str, Any]:
    """Read a YAML file; ValueError unless its top level is a mapping, or it is empty."""
    try:
        values = yaml.load(path.read_text(), _LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{path}: settings by name are needed, got {type(values).__name__}")
    return values


def with_values(settings: Settings, values: Mapping[str, Any], source: str, without: Collection[str] = ()) -> Settings:
    """Return settings with some values replaced, converted as on the command line; nested dataclasses take mappings.

    Raises:
        ValueError: a key is no field, or one of ``without``, or a value is not of its type or refused by the settings.
    """
    assert is_dataclass(settings) and not isinstance(settings, type)
    hints, plain = (hints_of(type(settings), extras) for extras in (True, False))
    known = [name for name in option_names(settings) if name not in without]
    refuse_unknown("settings", values, known, f"{source}: ")
    changed: dict[str, Any] = {}
    parts = [name for name in hints if is_flat(hints[name])]
    for part in parts:
        current = getattr(settings, part)
        own = {name: values[name] for name in option_names(current) if name in values}
        changed[part] = with_values(current, own, source)
        values = {name: value for name, value in values.items() if name not in own}
    for name, value in values.items():
        current, place = getattr(settings, name), f"{source}: {name}"
        if not is_dataclass(current):
            changed[name] = _converted(value, hints[name], plain[name], place)
        elif value is None or isinstance(value, dict):
            changed[name] = with_values(current, value or {}, place)
        else:
            raise ValueError(f"{place}: settings by name are needed, got {value!r}")
    try:
        return replace(settings, **changed)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def option_names(settings: Any) -> list[str]:  # noqa: ANN401
    """Return the names of settings, or of a class of them, as files and command lines have them.

    A part that is annotated with ``tyro.conf.arg(name="")`` is flat: its settings have no name before theirs. The flat
    parts of a class are not known.
    """
    hints = hints_of(settings if isinstance(settings, type) else type(settings))
    names: list[str] = []
    for item in fields(settings):
        if not is_flat(hints[item.name]):
            names.append(item.name)
        elif not isinstance(settings, type):
            names += option_names(getattr(settings, item.name))
    return names


def is_flat(annotation: Any) -> bool:  # noqa: ANN401
    """Whether the settings of a part, given its annotation, have no name before theirs."""
    return any(getattr(extra, "name", None) == "" for extra in getattr(annotation, "__metadata__", ()))


def as_values(settings: Any, without: Collection[str] = ()) -> dict[str, Any]:  # noqa: ANN401
    """Return the values of settings as YAML and JSON types: the inverse of `with_values`."""

    def plain(value: Any) -> Any:  # noqa: ANN401
        if is_dataclass(value) and not isinstance(value, type):
            return as_values(value)
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return str(value) if isinstance(value, Path | date) else value

    hints = hints_of(type(settings))
    told: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        told |= as_values(value, without) if is_flat(hints[item.name]) else {item.name: plain(value)}
    return {name: value for name, value in told.items() if name not in without}


def _converted(value: Any, kind: Any, plain: Any, place: str) -> Any:  # noqa: ANN401
    """Return a value as the command line reads it into an annotation, which is called ``plain`` without its extras."""
    if type(value) is plain and plain in (bool, int, float):
        # What most are: a command line of one word would be read as the same, after some milliseconds.
        return value
    mapping = get_origin(kind) is dict
    if isinstance(value, dict) and mapping:
        items = [part for pair in value.items() for part in pair]
    else:
        items = list(value) if isinstance(value, list | tuple) and not mapping else [value]
    kinds = (kind, *get_args(kind))
    unquoted = [item for item in items if isinstance(item, bool) or (item is None and type(None) not in kinds)]
    if unquoted and not mapping and any(text in kinds for text in (str, Path)):
        raise ValueError(f"{place}: {unquoted[0]!r} is no text; a name such as ON, NO or null needs quotes in YAML")
    nested = any(isinstance(item, list | tuple | dict) for item in items)
    silent = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(silent), contextlib.redirect_stdout(silent):
        # Other names of an option are none of a value alone.
        alone: Any = Annotated[kind, conf.arg(aliases=())]
        read = tyro.cli(alone, args=[str(item) for item in items])
        # The words of a command line would be the same.
        if not nested and (isinstance(read, list | tuple) or not isinstance(value, list | tuple)):
            return read
    raise ValueError(f"{place}: {value!r} is not of the type {inspect.formatannotation(plain)}")
