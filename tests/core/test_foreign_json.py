"""JSON of strangers: as Python reads it, but no deeper than a bound, whatever stands in its texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from vecenv.core.foreign_json import DEEPEST, check_depth, read_json

LEAVES = some.none() | some.booleans() | some.integers() | some.text('[]{}"\\a', max_size=8)
VALUES = some.recursive(LEAVES, lambda inner: some.lists(inner) | some.dictionaries(some.text('[{"\\'), inner))


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES, some.sampled_from(["", " \n", "]}"]), some.booleans())
def test_the_bound_is_that_of_the_values(value, before, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert read_json(text) == read_json(text.encode()) == value
    if depth(value):
        # What follows an object or a list is not judged.
        told = before + text + "[" * 99
        check_depth(told, len(before), depth(value))
        with pytest.raises(ValueError, match=f"deeper than {depth(value) - 1} levels"):
            check_depth(told, len(before), depth(value) - 1)


@pytest.mark.parametrize("form", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
def test_bytes_are_read_in_every_form_of_unicode(form):
    told = '["é", "\ud800"]'.encode(form, "surrogatepass")
    assert read_json(told) == json.loads(told) == ["é", "\ud800"]


def test_no_parser_goes_deeper():
    deepest = "[" * DEEPEST + "]" * DEEPEST
    assert depth(read_json(deepest)) == DEEPEST
    for text in (f"[{deepest}]", "[" * 70_000, '{"a":' * 70_000, '{"a":[' * 70_000, b"[" * 70_000):
        with pytest.raises(ValueError, match=f"deeper than {DEEPEST} levels"):
            read_json(text)


@pytest.mark.parametrize(
    "text", ["", "{", '"', '"\\', '["', '["\\"' * 50_000, "]" * 70_000, '"' * 70_001, "[" + "x[" * 9, b"\xff"]
)
def test_what_is_no_json_is_refused_in_time(text):
    with pytest.raises(ValueError):
        read_json(text)
