"""JSON values held to a schema, and drawn from one: what replies of tools declare, in the words of JSON Schema.

Understood are ``type``, ``enum``, ``const``, ``properties``, ``required``, ``items``, ``minItems``, ``maxItems``,
``minLength``, ``maxLength``, ``minimum``, ``maximum`` and ``anyOf``; an object may have what its schema does not name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from random import Random
from typing import Any

Schema = Mapping[str, Any]

DEEPEST = 16
"""Maximum depth of a schema."""

MOST = 64
"""Maximum items and characters that a schema may ask of what is drawn from it."""

_PYTHON: dict[str, tuple[type, ...]] = {
    **{"object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),)},
    **{"integer": (int,), "number": (int, float)},
}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def canonical(value: Any) -> str:  # noqa: ANN401
    """Return the one text of a JSON value: equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def check_schema(schema: Any, name: str = "the schema", depth: int = 0) -> None:  # noqa: ANN401
    """Raise ValueError, with what is wrong, of a schema that is not understood."""
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        raise ValueError(f"{name} is not an object of at most {DEEPEST} levels")
    if "anyOf" in schema or "enum" in schema:
        key = "anyOf" if "anyOf" in schema else "enum"
        if not isinstance(schema[key], list) or not schema[key]:
            raise ValueError(f"{name}: {key} is no list of something")
        for one in schema[key] if key == "anyOf" else ():
            check_schema(one, name, depth + 1)
        return
    if "const" in schema:
        return
    if schema.get("type") not in _PYTHON:
        raise ValueError(f"{name}: there is no type {schema.get('type')!r}; there are {', '.join(_PYTHON)}")
    for of, most in (("imum", math.inf), ("Items", MOST), ("Length", MOST)):
        low, high = f"min{of}", f"max{of}"
        bounds = [schema[key] for key in (low, high) if key in schema]
        if not all(type(bound) in (int, float) for bound in bounds) or bounds != sorted(bounds):
            raise ValueError(f"{name}: {low} and {high} are no bounds")
        if schema.get(low, 0) > most:
            raise ValueError(f"{name}: {low} may be at most {most}")
    properties, needed = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(needed, list) or not set(needed) <= set(properties):
        raise ValueError(f"{name}: what is required must be among its properties")
    for each, inner in properties.items():
        check_schema(inner, f"{name}.{each}", depth + 1)
    if "items" in schema:
        check_schema(schema["items"], f"{name}[]", depth + 1)


def misfit(value: Any, schema: Schema, name: str = "it") -> str:  # noqa: ANN401
    """Return where a value does not fit a schema that `check_schema` passes, in words; empty if it fits."""
    if "anyOf" in schema:
        return "" if any(not misfit(value, one, name) for one in schema["anyOf"]) else f"{name} is none of its forms"
    if "enum" in schema or "const" in schema:
        known = [canonical(one) for one in schema.get("enum", [schema.get("const")])]
        return "" if canonical(value) in known else f"{name} is none of {', '.join(known)[:80]}"
    kind = schema["type"]
    # A truth value is an int to Python.
    if not isinstance(value, _PYTHON[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return f"{name} is no {kind}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} is not finite"
    size, low, high = value, "minimum", "maximum"
    if isinstance(value, str | list):
        size, low, high = len(value), *(("minLength", "maxLength") if kind == "string" else ("minItems", "maxItems"))
    if kind in ("integer", "number", "string", "array") and not (
        schema.get(low, -math.inf) <= size <= schema.get(high, math.inf)
    ):
        return f"{name} is beyond its {low} or {high}"
    if isinstance(value, dict):
        for each in schema.get("required", ()):
            if each not in value:
                return f"{name} lacks {each}"
        inner = {each: (value[each], form) for each, form in schema.get("properties", {}).items() if each in value}
        return next((told for each, (one, form) in inner.items() if (told := misfit(one, form, f"{name}.{each}"))), "")
    if isinstance(value, list) and "items" in schema:
        return next((told for one in value if (told := misfit(one, schema["items"], f"{name}[]"))), "")
    return ""


def drawn(schema: Schema, draw: Random) -> Any:  # noqa: ANN401
    """Return a value that fits a schema that `check_schema` passes."""
    if "anyOf" in schema:
        return drawn(draw.choice(schema["anyOf"]), draw)
    if "enum" in schema or "const" in schema:
        return draw.choice(schema.get("enum", [schema.get("const")]))
    kind = schema["type"]
    if kind == "object":
        return {each: drawn(form, draw) for each, form in schema.get("properties", {}).items()}
    if kind == "array":
        count = _between(schema, "minItems", "maxItems", 1, 3, draw)
        return [drawn(schema.get("items", {"type": "integer"}), draw) for _ in range(count)]
    if kind == "string":
        return "".join(draw.choices(_LETTERS, k=_between(schema, "minLength", "maxLength", 3, 8, draw)))
    if kind == "integer":
        return _between(schema, "minimum", "maximum", 0, 100, draw)
    if kind == "number":
        low = schema.get("minimum", min(0.0, schema.get("maximum", 100.0) - 100.0))
        return draw.uniform(low, schema.get("maximum", low + 100.0))
    return draw.random() < 0.5 if kind == "boolean" else None


def _between(schema: Schema, least: str, most: str, low: int, high: int, draw: Random) -> int:
    """Return a whole number within the bounds of a schema, and where it has none within other ones."""
    low = math.ceil(schema.get(least, min(low, math.floor(schema.get(most, low)))))
    return draw.randint(low, math.floor(schema.get(most, max(low, high))))
