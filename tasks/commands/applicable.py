"""Conditional settings: those without effect under the other settings are rejected and hidden from the help.

Settings say so by `vecenv.system.settings.When`, nested settings of theirs. Such fields have defaults. A preset may set
them without effect, so that one preset serves several modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, TypeVar

Settings = TypeVar("Settings")


def inapplicable(settings: object) -> dict[str, str]:
    """Return the required setting of each field without effect, by field name; nested names are ``a.b``."""
    own: dict[str, str] = settings.inapplicable() if hasattr(settings, "inapplicable") else {}
    found = dict(own)
    for name, value in _nested(settings).items():
        if name not in own:
            found |= {f"{name}.{inner}": owner for inner, owner in inapplicable(value).items()}
    return found


def refuse_inapplicable(settings: object, args: Sequence[str]) -> None:
    """Raise a ValueError that names the options without effect on a command line, by their requirement."""
    owners = {
        leaf: owner for name, owner in inapplicable(settings).items() for leaf in _leaves(settings, name.split("."))
    }
    given = named_settings(owners, args)
    if given:
        owner = owners[given[0]]
        together = [_option(name) for name in given if owners[name] == owner]
        belong = "belongs" if len(together) == 1 else "belong"
        raise ValueError(f"{', '.join(together)} {belong} to {owner}: no effect with these settings")


def named_settings(names: Mapping[str, object], args: Sequence[str]) -> list[str]:
    """Return the settings named on a command line, regardless of their values, in the order of the names."""
    given = {word.partition("=")[0].replace("_", "-") for word in args if word.startswith("--")}
    return [name for name in names if not given.isdisjoint((_option(name), _option(name, "no_")))]


def in_effect(settings: Settings) -> Settings:
    """Return settings with inapplicable fields reset to their defaults, except nested settings."""
    assert is_dataclass(settings) and not isinstance(settings, type)
    names = inapplicable(settings).keys() - _nested(settings).keys()
    changed = {item.name: _default(item) for item in fields(settings) if item.name in names}
    return replace(settings, **changed) if changed else settings


def _nested(settings: object) -> dict[str, object]:
    if not is_dataclass(settings):
        return {}
    values = {item.name: getattr(settings, item.name, None) for item in fields(settings)}
    return {name: value for name, value in values.items() if is_dataclass(value)}


def _leaves(settings: object, place: Sequence[str]) -> list[str]:
    value: Any = settings
    for name in place:
        value = getattr(value, name)
    if not is_dataclass(value):
        return [".".join(place)]
    return [leaf for item in fields(value) for leaf in _leaves(settings, (*place, item.name))]


def _option(name: str, before: str = "") -> str:
    """Return a field's option name, with ``before`` inserted before its last part."""
    *outer, own = name.split(".")
    return "--" + ".".join((*outer, before + own)).replace("_", "-")


def _default(item: Field[Any]) -> Any:  # noqa: ANN401
    return item.default if item.default_factory is MISSING else item.default_factory()
