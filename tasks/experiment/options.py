"""Options of a command line: those that decide the defaults of the others, and those that have no effect.

An option has no effect where it is another kind of settings that has it, or by a `vecenv.system.settings.When` of its
own. One that is given is refused, even at its default: whoever gives it expects something of it. A preset may set it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vecenv.system.preset_files import is_flat, option_names, preset_path, read_values, with_values
from vecenv.system.settings import hints_of

Options = TypeVar("Options")
Settings = TypeVar("Settings")


def _day(text: str) -> date:
    # The reader of dates imports NumPy, which a command line without one does not need.
    from vecenv.market.dates import day_of

    day: date = day_of(text, "the value").item()  # type: ignore[assignment]
    return day


Day = Annotated[
    date,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="YYYY-MM-DD",
        instance_from_str=lambda words: _day(words[0]),
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
    if not own:
        return options()
    return tyro.cli(options, args=own, return_unknown_args=True)[0]


def chosen_options(options: type[Any], args: Sequence[str]) -> dict[str, Any]:
    """Return those of the options of a dataclass that a command line gives, by name."""
    given = early_options(options, args)
    return {item.name: value for item in fields(given) if (value := getattr(given, item.name)) is not None}


def with_preset(settings: Settings, kind: str, name: str | None, without: Collection[str] = ("preset",)) -> Settings:
    """Return settings with the values of a preset, shipped in the folder ``kind`` or a path; None changes nothing.

    Raises:
        ValueError: there is no such preset, it does not fit, or it sets one of ``without``.
    """
    if name is None:
        return settings
    path = preset_path(kind, name)
    return with_values(settings, read_values(path), str(path), without)


def given_options(args: Sequence[str]) -> list[str]:
    """Return the names of the options on a command line: ``a.long_name`` of ``--a.no-long-name``."""
    words = [word[2:].partition("=")[0].replace("-", "_") for word in args if word.startswith("--")]
    parted = [word.rpartition(".") for word in words]
    return list(dict.fromkeys(outer + dot + last.removeprefix("no_") for outer, dot, last in parted))


def named_options(given: Mapping[str, Any]) -> list[str]:
    """Return the names of options of a call from Python, those of parts, which are mappings, as ``part.option``."""
    names: list[str] = []
    for name, value in given.items():
        if isinstance(value, Mapping):
            names += [f"{name}.{inner}" for inner in value]
        elif value is not None:
            names.append(name)
    return names


def inapplicable(settings: Any, prefix: str = "", owner: str = "") -> dict[str, str]:  # noqa: ANN401
    """Return what each option without effect under the others requires, by name; those of a part are ``part.option``.

    ``owner`` is what the whole of the settings requires, if it has no effect.
    """
    own: Mapping[str, str] = settings.inapplicable() if hasattr(settings, "inapplicable") else {}
    hints = hints_of(type(settings))
    found: dict[str, str] = {}
    for item in fields(settings):
        value, told = getattr(settings, item.name), owner or own.get(item.name, "")
        if is_dataclass(value):
            flat = is_flat(hints[item.name])
            found |= inapplicable(value, prefix if flat else f"{prefix}{item.name}.", told)
        elif told:
            found[prefix + item.name] = told
    # Those of parts, by their whole names.
    known = {item.name for item in fields(settings)}
    return found | {prefix + name: told for name, told in own.items() if name not in known}


def refuse_inapplicable(settings: Any, given: Iterable[str]) -> None:  # noqa: ANN401
    """Raise ValueError of options without effect among those ``given`` by name."""
    owners = inapplicable(settings)
    if found := [name for name in given if name in owners]:
        owner = owners[found[0]]
        _refuse([name for name in found if owners[name] == owner], owner)


def refuse_elsewhere(settings: Any, kinds: Sequence[Any], given: Collection[str]) -> None:  # noqa: ANN401
    """Raise ValueError of options ``given`` by name that belong to other kinds of settings than the chosen ones."""
    own = option_names(settings)
    for kind in kinds:
        names = set(option_names(kind)).difference(own)
        if foreign := [name for name in given if name.partition(".")[0] in names]:
            _refuse(foreign, kind.owner)


def _refuse(names: Sequence[str], owner: str) -> None:
    told = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    raise ValueError(f"{told} belong{'s' * (len(names) == 1)} to {owner}: no effect with these settings")
