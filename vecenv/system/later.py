"""Records that name what they need by its place, and import it when it is first asked for.

A command has to know a task's or a learner's settings to tell of them, and not the code that needs PyTorch.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, Self


@cache
def installed() -> Any:  # noqa: ANN401
    """Return all that is installed when a process first asks: a look at all packages takes tens of milliseconds."""
    return metadata.entry_points()


def entry_points(group: str) -> EntryPoints:
    """Return what is installed of a group, as `installed` has it."""
    return installed().select(group=group)


class Later(EntryPoint):
    """Place of an object, ``package.module:name``, as an entry point writes it."""


def later(place: str) -> Any:  # noqa: ANN401
    """Return what stands for an object in a field of a `Record` until it is read."""
    return Later("", place, "")


class Record:
    """Base of dataclasses of which fields may be `later`: reading one imports the object, and keeps it."""

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        value = super().__getattribute__(name)
        if isinstance(value, Later):
            value = vars(self)[name] = value.load()
        return value

    def replaced(self, **changes: Any) -> Self:  # noqa: ANN401
        """Return a copy with changed fields; unlike that of `dataclasses.replace` it imports none of the others."""
        return type(self)(**{**vars(self), **changes})


def loaded(value: Any) -> Any:  # noqa: ANN401
    """Return an object itself, imported if it is one for `later`."""
    return value.load() if isinstance(value, Later) else value
