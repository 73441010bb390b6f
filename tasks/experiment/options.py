"""Options parsed first, which determine the defaults of the other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vecenv.market.dates import day_of
from vecenv.system.preset_files import option_names, preset_path, read_values, with_values

Options = TypeVar("Options")
Settings = TypeVar("Settings")

Day = Annotated[
    date,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="YYYY-MM-DD",
        instance_from_str=lambda words: day_of(words[0], "the value").item(),
        is_instance=lambda value: isinstance(value, date),
        str_from_instance=lambda day: [day.isoformat()],
    ),
]
"""A day of the command line and of presets, read as the dates of files are."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options that decide the task, its default rules and its kind of market."""

    task: str | None = None
    task_preset: str | None = None
    market: str | None = None
    history: str | None = None
    train_end: Day | None = None
    test_start: Day | None = None


def early_options(options: type[Options], args: Sequence[str]) -> Options:
    """Parse the options of one dataclass from a command line and ignore all others."""
    own = [word for word in args if word not in ("-h", "--help")]
    return tyro.cli(options, args=own, return_unknown_args=True)[0]


def chosen_options(options: type[Any], args: Sequence[str]) -> dict[str, Any]:
    """Return those of the options of a dataclass that a command line gives, by name."""
    given = early_options(options, args)
    return {item.name: value for item in fields(given) if (value := getattr(given, item.name)) is not None}


def with_preset(settings: Settings, kind: str, name: str | None, without: Sequence[str] = ("preset",)) -> Settings:
    """Return settings with the values of a preset, shipped in the folder ``kind`` or a path; None changes nothing.

    Raises:
        ValueError: there is no such preset, it does not fit, or it sets one of ``without``.
    """
    if name is None:
        return settings
    path = preset_path(kind, name)
    return with_values(settings, read_values(path), str(path), without)


def refuse_elsewhere(settings: Any, kinds: Sequence[Any], args: Sequence[str]) -> None:  # noqa: ANN401
    """Raise ValueError of options on a command line that belong to other kinds of settings than the chosen ones."""
    given = dict.fromkeys(word.partition("=")[0].replace("_", "-") for word in args if word.startswith("--"))
    asked = {option: option[2:].partition(".")[0].replace("-", "_") for option in given}
    own = option_names(settings)
    for kind in kinds:
        names = set(option_names(kind)).difference(own)
        if foreign := [option for option, name in asked.items() if name in names]:
            told = ", ".join(foreign)
            raise ValueError(f"{told} belong{'s' * (len(foreign) == 1)} to {kind.owner}: no effect with these settings")
