"""Values that functions take and return, as JSON: what is equal to what, and how they are shown.

Numbers, texts, truth values, null and lists are JSON's own; others have a tag: ``{"tuple": […]}``, ``{"set": […]}``,
``{"bytes": "hex"}``, ``{"dict": [[key, value], …]}``, ``{"float": "nan"}`` (or ``inf``, ``-inf``), ``{"int": "0x…"}``.
Any other object is a dictionary with texts as keys. `inside.encoded` writes them in the jail.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from vecenv.core.foreign_json import read_json
from vecenv.tasks.code.inside import WIDE

DEEPEST = 100
"""Lists, tuples and the like inside each other."""
NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE)
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


def parsed(text: str | bytes) -> Any:  # noqa: ANN401
    """Return JSON; ValueError of what is none, of NaN and infinity as numbers, and of what is nested too deeply."""
    return read_json(text, parse_constant=_refused)


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def canonical(value: Any) -> Any:  # noqa: ANN401
    """Return a value of `parsed` JSON in the one form that equal values have; ValueError if it stands for none."""
    return _canonical(value, False, DEEPEST)


def _canonical(value: Any, hashable: bool, depth: int) -> Any:  # noqa: ANN401
    if not depth:
        raise ValueError("it is nested too deeply")
    if type(value) is int and not -WIDE < value < WIDE:
        return {"int": hex(value)}
    if type(value) is list:
        if hashable:
            raise ValueError("a list is no key and no item of a set")
        return [_canonical(item, False, depth - 1) for item in value]
    if type(value) is not dict:
        return value
    tag, inner = next(iter(value.items())) if len(value) == 1 else ("", None)
    match tag, inner:
        case "tuple", list():
            return {tag: [_canonical(item, hashable, depth - 1) for item in inner]}
        case "set", list():
            items = sorted((_canonical(item, True, depth - 1) for item in inner), key=json.dumps)
            return {tag: [item for place, item in enumerate(items) if not place or item != items[place - 1]]}
        case "float", ("nan" | "inf" | "-inf"):
            return value
        case "int", str() if re.fullmatch(r"-?0x[0-9a-f]+", inner):
            return _canonical(int(inner, 16), False, depth)
        case "bytes", str() if re.fullmatch(r"(?:[0-9a-f]{2})*", inner):
            return value
        case "dict", list() if all(type(pair) is list and len(pair) == 2 for pair in inner):
            pairs = inner
        case (("tuple" | "set" | "float" | "int" | "bytes" | "dict"), _):
            raise ValueError(f"{json.dumps(value)[:60]} is no {tag}")
        case _:
            pairs = list(value.items())
    if hashable:
        raise ValueError("a dictionary is no key and no item of a set")
    return {"dict": [[_canonical(key, True, depth - 1), _canonical(item, False, depth - 1)] for key, item in pairs]}


def equal(expected: Any, got: Any, tolerance: float) -> bool:  # noqa: ANN401
    """Whether two canonical values are: of equal types, floats within a tolerance, relative or absolute.

    Items of sets and keys are compared exactly, and the order of keys does not matter.
    """
    if type(expected) is not type(got):
        return False
    if type(expected) is float:
        return math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance)
    if type(expected) is list:
        pairs = zip(expected, got, strict=False)
        return len(expected) == len(got) and all(equal(*pair, tolerance) for pair in pairs)
    if type(expected) is not dict:
        return bool(expected == got)
    ((tag, inner),), ((other, others),) = expected.items(), got.items()
    if tag != other or tag not in ("tuple", "dict"):
        return tag == other and json.dumps(inner) == json.dumps(others)
    if tag == "tuple":
        return equal(inner, others, tolerance)
    found = {json.dumps(key): item for key, item in others}
    keys = [json.dumps(key) for key, _ in inner]
    return found.keys() == set(keys) and all(
        equal(item, found[key], tolerance) for key, (_, item) in zip(keys, inner, strict=True)
    )


def same_output(expected: str, got: str, blanks: bool, tolerance: float) -> bool:
    """Whether a program printed what it was to: exactly, or with ``blanks`` by words, numbers within a tolerance.

    An expected whole number is printed as one; where the expected number has a point or an exponent, any form is right.
    """
    if not blanks:
        return expected == got
    words, others = expected.split(), got.split()
    return len(words) == len(others) and all(
        word == other or _close(word, other, tolerance) for word, other in zip(words, others, strict=True)
    )


def _close(expected: str, got: str, tolerance: float) -> bool:
    if WHOLE.fullmatch(expected) or not (NUMBER.fullmatch(expected) and NUMBER.fullmatch(got)):
        return False
    one, other = float(expected), float(got)
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance) or (one != one and other != other)


def literal(value: Any) -> str:  # noqa: ANN401
    """Return a canonical value as Python writes it."""
    if type(value) is list:
        return f"[{', '.join(map(literal, value))}]"
    if type(value) is not dict:
        return repr(value)
    ((tag, inner),) = value.items()
    if tag == "dict":
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in inner)}}}"
    if tag in ("float", "int"):
        return str(inner)
    if tag == "bytes":
        return repr(bytes.fromhex(inner))
    items = ", ".join(map(literal, inner))
    if tag == "tuple":
        return f"({items},)" if len(inner) == 1 else f"({items})"
    return f"{{{items}}}" if inner else "set()"
