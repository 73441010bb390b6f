"""What comes out of the jail, read as what anyone may have written: answers to calls, calls of tests, texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vecenv.sandbox import Result
from vecenv.tasks.code.values import canonical, parsed

LONGEST = 2000
"""Characters of what is told of a value or an error."""

Answer = dict[str, Any]
"""What came of a call: a value and changed arguments, an exception, or that the process ended (``died``)."""


def read_lines(result: Result) -> list[dict[str, Any]]:
    """Return the objects of the lines of a harness, up to the first line that is none."""
    found = []
    for line in result.stdout.split(b"\n"):
        try:
            told = parsed(line)
        except ValueError:
            break
        if not isinstance(told, dict):
            break
        found.append(told)
    return found


def read_answer(line: Mapping[str, Any], number: int) -> Answer | None:
    """Return the answer of a line, with canonical values; None if it is no answer to the call of a number."""
    if type(line.get("n")) is not int or line["n"] != number:
        return None
    try:
        if "value" in line:
            after = {"after": canonical(line["after"])} if isinstance(line.get("after"), list) else {}
            return {"value": canonical(line["value"])} | after
    except ValueError as error:
        return {"died": str(error), "told": str(error)}
    kinds, texts = line.get("raised"), [line.get("message"), line.get("told")]
    if not isinstance(kinds, list) or not all(isinstance(text, str) for text in (*kinds, *texts)):
        return None
    return {"raised": kinds[:40], "message": texts[0], "told": clean(str(texts[1]))}


def read_call(told: Any) -> str | None:  # noqa: ANN401
    """Return a call that a test's harness tells as it is asked: arguments, and those by name; None if it is none."""
    try:
        args, named = told
        pairs = [[str(name), canonical(value)] for name, value in named]
        return json.dumps([canonical(args), pairs]) if isinstance(args, list) else None
    except (TypeError, ValueError):
        return None


def clean(text: str) -> str:
    """Return what is told of a process, cut, as text that can be encoded."""
    return text[:LONGEST].encode(errors="backslashreplace").decode()


def cut(text: str, longest: int = LONGEST) -> str:
    """Return a text of at most ``longest`` characters, and if it is longer, how long it is."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"
