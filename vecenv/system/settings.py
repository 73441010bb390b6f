"""Settings: dataclasses whose values are checked against the annotations of their fields.

``Literal`` lists choices; ``int``, ``float``, ``bool``, ``str``, ``Path``, ``date``, dataclasses, tuples, sequences,
mappings and unions of them are types, of which others are not checked. An integer is a number too, a truth value is
none. Numbers are finite and of at most `LARGEST_COUNT` or `LARGEST`, since results are float32, unless a `Within` of
the annotation says otherwise; `Items` bounds a sequence: ``Annotated[tuple[Share, ...], Items(least=2)]``.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 1e12
"""Largest size of a number without other bounds: a product of three of them is still one in float32."""

LARGEST_COUNT = 2**31 - 1
"""Largest size of a whole number without other bounds."""


@dataclass(frozen=True)
class Within:
    """Bounds of a number, included unless ``above`` or ``below``; infinity is a value only where it is a bound.

    ``limit`` bounds what has no other bound, by default `LARGEST_COUNT` or `LARGEST`.
    """

    low: float | None = None
    high: float | None = None
    above: bool = False
    below: bool = False
    limit: float = 0

    def holds(self, value: Any, limit: float) -> bool:  # noqa: ANN401
        low = -limit if self.low is None else self.low
        high = limit if self.high is None else self.high
        return bool((value > low if self.above else value >= low) and (value < high if self.below else value <= high))

    def told(self, value: Any, limit: float) -> str:  # noqa: ANN401
        """Return what a value outside must be."""
        finite = abs(value) < math.inf
        if self.low is not None and self.high is not None:
            left, right = "(["[not self.above], ")]"[not self.below]
            return f"be in {left}{_shown(self.low)}, {_shown(self.high)}{right}"
        if finite and value > limit and self.high is None:
            return f"be at most {_shown(limit)}"
        if finite and value < -limit and self.low is None:
            return f"be at least {_shown(-limit)}"
        if self.low == 0 and not self.above:
            return "not be negative" + (" or infinite" if not finite else "")
        if self.low is not None:
            text = "positive" if self.low == 0 else f"{'above' if self.above else 'at least'} {_shown(self.low)}"
        elif self.high == math.inf:
            return "be a number"
        elif self.high is not None:
            text = f"{'below' if self.below else 'at most'} {_shown(self.high)}"
        else:
            return "be a finite number"
        return f"be {text}" + (" and finite" if not finite else "")


@dataclass(frozen=True)
class Items:
    """Bounds of the number of items of a sequence, and whether all must be different."""

    least: int = 0
    most: int = 2**20
    distinct: bool = False


class When:
    """Condition on another field, under which a setting has an effect; of several in an annotation any does.

    Args:
        other: the field.
        *among: its values; without any, all but None, false, zero, empty and ``"none"``.
        unlike: a value that it must not have, instead.
        told: what the setting requires, for messages; by default the field and its values.
    """

    def __init__(self, other: str, *among: object, unlike: object = None, told: str = "") -> None:
        self.other, self.among, self.unlike = other, among, unlike
        self.told = told or " ".join([other, " or ".join(map(str, among))]).rstrip()

    def holds(self, settings: object) -> bool:
        value = getattr(settings, self.other)
        if self.unlike is not None:
            return bool(value != self.unlike)
        return value in self.among if self.among else value not in (None, False, 0, (), "", "none")


Positive = Annotated[float, Within(0, above=True)]
Cash = Annotated[float, Within(0, above=True, limit=sys.float_info.max)]
"""Money at the start, which each family bounds by what its account holds exactly."""
NotNegative = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, 1)]
Fraction = Annotated[float, Within(0, 1, below=True)]
PositiveShare = Annotated[float, Within(0, 1, above=True)]
OpenShare = Annotated[float, Within(0, 1, above=True, below=True)]
Count = Annotated[int, Within(1)]
CountFromZero = Annotated[int, Within(0)]
Seed = Annotated[int, Within(0, 2**63, below=True)]


def hints_of(kind: Any, include_extras: bool = True) -> dict[str, Any]:  # noqa: ANN401
    """Return the annotations of a class of settings by name, evaluated once."""
    return _hints(kind, include_extras)


# Apart, as mypy holds a class that is given to a cached function for unhashable.
@cache
def _hints(kind: Any, include_extras: bool) -> dict[str, Any]:  # noqa: ANN401
    return get_type_hints(kind, include_extras=include_extras)


class Settings:
    """Base of dataclasses of settings: raises ValueError of one sentence that names the first field with a wrong value.

    Lists become tuples and NumPy's scalars Python's numbers. A subclass with relations of fields to check extends
    ``__post_init__``.
    """

    unused: ClassVar[dict[str, str]] = {}
    """Inherited settings, or those of parts by their whole names, that have no effect here, with what they require."""

    def __post_init__(self) -> None:
        check_fields(self)

    def inapplicable(self) -> dict[str, str]:
        """Return the settings without effect under the others, by their `When`, with what they require."""
        found: dict[str, str] = {}
        for kind in type(self).__mro__:
            found |= vars(kind).get("unused", {})
        for name, hint in hints_of(type(self)).items():
            conditions = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, When)]
            if conditions and not any(condition.holds(self) for condition in conditions):
                found[name] = " or ".join(condition.told for condition in conditions)
        return found


def check_fields(settings: Any, other: Within = Within()) -> None:  # noqa: ANN401
    """Check and convert the values of a dataclass in place; ValueError of the first that is wrong.

    ``other`` bounds the numbers whose annotations have no bounds.
    """
    kind: Any = type(settings)
    for name, check in _checks(kind, other).items():
        value = getattr(settings, name)
        try:
            kept = check(value)
        except _Wrong as wrong:
            raise ValueError(wrong.sentence(name)) from None
        if kept is not value:
            object.__setattr__(settings, name, kept)


def check_parameter(settings: Any, name: str, shared: Sequence[float], extremes: Sequence[float]) -> None:  # noqa: ANN401
    """Raise ValueError of values of a parameter, given its extremes, that the setting of its name may not have.

    ``shared`` are the values without differences by row: if they are not the setting's, the units are others.
    """
    value = getattr(settings, name, None)
    own = value if isinstance(value, tuple) else [value] * len(shared)
    if any(type(one) not in (int, float) for one in own) or len(own) != len(shared):
        return
    kind: Any = type(settings)
    if all(math.isclose(one, other, rel_tol=1e-6) for one, other in zip(own, shared, strict=True)):
        for extreme in extremes:
            try:
                _checks(kind, Within())[name](int(extreme) if extreme % 1 == 0 else extreme)
            except _Wrong as wrong:
                raise ValueError(wrong.sentence(name)) from None


def with_earlier(values: Mapping[str, Any], settings: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return stored values with those of younger settings, whose metadata ``earlier`` says how it was before them."""
    known = {item.name: item.metadata["earlier"] for item in fields(settings) if "earlier" in item.metadata}
    return known | dict(values)


def refuse_unknown(what: str, names: Iterable[str], known: Sequence[str], source: str = "") -> None:
    """Raise ValueError if some names of ``what`` are not known, with the nearest ones."""
    unknown = [str(name) for name in names if name not in known]
    if unknown:
        # Slow to import, and only needed here.
        from difflib import get_close_matches

        near = list(dict.fromkeys(match for name in unknown for match in get_close_matches(name, known, n=1)))
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise ValueError(f"{source}unknown {what} {', '.join(unknown)}{hint}; there are {', '.join(known) or 'none'}")


class _Wrong(Exception):
    """What a value must be; ``typed`` if its type is right."""

    def __init__(self, told: str, value: object, typed: bool = True, place: str = "", choices: bool = False) -> None:
        self.told, self.value, self.typed, self.place, self.choices = told, value, typed, place, choices

    def within(self, place: object) -> _Wrong:
        return _Wrong(self.told, self.value, place=f"[{place!r}]{self.place}", choices=self.choices)

    def sentence(self, name: str) -> str:
        got, name = repr(self.value)[:100], name + self.place
        return f"unknown {name} {got}; there are {self.told}" if self.choices else f"{name} must {self.told}, got {got}"


Check = Callable[[Any], Any]
"""Returns a value as it is kept, or raises `_Wrong`."""


@cache
def _checks(kind: Any, other: Within) -> dict[str, Check]:  # noqa: ANN401
    hints = hints_of(kind)
    return {item.name: _check(hints[item.name], other) for item in fields(kind)}


def _check(annotation: Any, other: Within, extras: Sequence[object] = ()) -> Check:  # noqa: ANN401
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _check(parts[0], other, (*parts[1:], *extras))
    if origin is Literal:
        return _choice(parts)
    if origin in (Union, types.UnionType):
        return _either([_check(part, other, extras) for part in parts])
    if annotation in (int, float):
        return _number(annotation, next((extra for extra in extras if isinstance(extra, Within)), other))
    if origin in (tuple, list, Sequence) or annotation is tuple:
        items = next((extra for extra in extras if isinstance(extra, Items)), Items())
        return _sequence(
            origin or tuple, [_check(part, other) for part in parts if part is not ...], parts[-1:] != (...,), items
        )
    if origin in (dict, Mapping):
        return _mapping(_check(parts[0], other), _check(parts[1], other))
    if annotation is Path:
        return lambda value: Path(_of(str, "text", value)) if not isinstance(value, Path) else value
    words = {bool: "True or False", str: "text", type(None): "None", date: "a date"}
    if annotation in words or (isinstance(annotation, type) and is_dataclass(annotation)):
        return lambda value: _of(annotation, words.get(annotation, f"a {annotation.__name__}"), value)
    return lambda value: value


def _of(kind: type, words: str, value: Any) -> Any:  # noqa: ANN401
    if kind is bool and type(value).__name__ == "bool" and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, kind):
        raise _Wrong(f"be {words}", value, typed=False)
    return value


def _choice(choices: Sequence[object]) -> Check:
    def check(value: Any) -> Any:  # noqa: ANN401
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise _Wrong(", ".join(map(str, choices)), value, choices=True)
        return value

    return check


def _either(checks: Sequence[Check]) -> Check:
    def check(value: Any) -> Any:  # noqa: ANN401
        wrong: list[_Wrong] = []
        for one in checks:
            try:
                return one(value)
            except _Wrong as error:
                wrong.append(error)
        for one_wrong in wrong:
            if one_wrong.typed:
                raise one_wrong
        told = " or ".join(one_wrong.told.removeprefix("be ") for one_wrong in wrong)
        raise _Wrong(f"be {told}", value, typed=False)

    return check


def _number(kind: type, within: Within) -> Check:
    limit, words = (LARGEST_COUNT, "be a whole number") if kind is int else (LARGEST, "be a number")
    limit = within.limit or limit
    wanted: type = Integral if kind is int else Real

    def check(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise _Wrong(words, value, typed=False)
        if not within.holds(value, limit):
            raise _Wrong(within.told(value, limit), value)
        return value if type(value) in (int, float) else value.item() if hasattr(value, "item") else value

    return check


def _sequence(kind: Any, checks: Sequence[Check], fixed: bool, items: Items) -> Check:  # noqa: ANN401
    fixed = fixed and kind is tuple and bool(checks)

    def check(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, str) or not isinstance(value, Sequence if kind is Sequence else tuple | list):
            raise _Wrong("be a sequence", value, typed=False)
        if fixed and len(value) != len(checks):
            raise _Wrong(f"have {len(checks)} items", value)
        if not items.least <= len(value) <= items.most:
            few = len(value) < items.least
            raise _Wrong(f"have at {f'least {items.least}' if few else f'most {items.most:,}'}", value)
        kept = []
        for place, item in enumerate(value):
            try:
                kept.append((checks[place] if fixed else checks[0])(item) if checks else item)
            except _Wrong as error:
                raise error.within(place) from None
        if items.distinct and len({str(item) for item in kept}) < len(kept):
            raise _Wrong("be different", value)
        same = isinstance(value, kind) and all(map(lambda old, new: old is new, value, kept))
        return value if same else kind(kept) if kind is not Sequence else tuple(kept)

    return check


def _mapping(of_name: Check, of_value: Check) -> Check:
    def check(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, Mapping):
            raise _Wrong("be values by name", value, typed=False)
        kept = {}
        for name, item in value.items():
            try:
                kept[of_name(name)] = of_value(item)
            except _Wrong as error:
                raise error.within(name) from None
        return value if all(kept[name] is item for name, item in value.items()) else kept

    return check


def _shown(number: float) -> str:
    """Return a bound: whole numbers with commas, large powers of two as such."""
    if abs(number) == math.inf or number != int(number):
        return f"{number:g}"
    size = abs(int(number))
    if size >= 2**31 and size & (size - 1) == 0:
        return f"{'-' if number < 0 else ''}2^{size.bit_length() - 1}"
    return f"{number:g}" if isinstance(number, float) else f"{number:,}"
