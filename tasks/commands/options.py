"""Options parsed first, which determine the defaults of the other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, TypeVar

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vecenv.market.dates import day_of
from vecenv.system.preset_files import preset_path, read_values, with_values

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


@dataclass(frozen=True)
class PresetOption:
    """Option of commands with presets."""

    preset: str | None = None
    """Shipped preset, or path of a YAML file; the command line overrides it."""


@dataclass(frozen=True)
class TextTaskOptions:
    """Options of commands with text agents."""

    task: str = "single_stock"
    """Installed task with text."""
    task_preset: str | None = None
    """Preset of the rules."""


def early_options(options: type[Options], args: Sequence[str]) -> Options:
    """Parse the options of one dataclass from a command line and ignore all others."""
    own = [word for word in args if word not in ("-h", "--help")]
    return tyro.cli(options, args=own, return_unknown_args=True)[0]


def with_preset(settings: Settings, kind: str, name: str | None, without: Sequence[str] = ("preset",)) -> Settings:
    """Return settings with the values of a preset, shipped in the folder ``kind`` or a path; None changes nothing.

    Raises:
        ValueError: there is no such preset, it does not fit, or it sets one of ``without``.
    """
    if name is None:
        return settings
    path = preset_path(kind, name)
    return with_values(settings, read_values(path), str(path), without)
