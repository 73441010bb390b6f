"""Sets of tools: declarations and their schemas, checked arguments, columns of many rows, and the calculator."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vecenv.text.tool_calls import ToolCall
from vecenv.tools.calculator import calculate
from vecenv.tools.declaration import LONGEST_REPLY, Tool, ToolFault
from vecenv.tools.schemas import declared, mcp_schema, openai_schema
from vecenv.tools.tool_set import ToolSet, each, sound, tool


def no_step(places, action):
    raise AssertionError("no tool here makes a hypothetical step")


ARGUMENTS = {"at": float, "on": bool, "colour": int, "name": str, "mode": ("Warm", "cold"), "to": list, "how": dict}
DEFAULTS = {"at": 0.5, "on": False, "colour": 1, "name": None, "mode": "cold", "to": None, "how": None}


class Lamp(ToolSet):
    def __init__(self, offered=("all",)):
        super().__init__(offered)
        self.called = []

    @tool("lamp", "sets it", ARGUMENTS, DEFAULTS, seconds=0.5, changes="the light")
    def lamp(self, callers, **columns):
        self.called.append(len(callers.state))
        return each(lambda *values: repr(dict(zip(columns, values, strict=True))), *columns.values())

    @tool("lamp", "doubles a number, of odd rows only; x", {"x": int})
    def double(self, callers, x):
        rows = [ToolFault("the row is even") if row % 2 == 0 else row for row in callers.state]
        return sound(
            rows, lambda places, odd: [f"{n} of {row}" for n, row in zip((2 * x[places]).tolist(), odd, strict=True)]
        )

    @tool("size", "as many letters; n", {"n": int})
    def letters(self, callers, n):
        return ["a" * size for size in n.tolist()]


NO_SUMS = (
    ";1 +;1 / 0;a;__import__('os');(1).real;[1];'a';True;1 if 1 else 2;lambda: 1;9 ** 9 ** 9;1e99 * 1e99;sqrt(-1);1j;é;"
    f"log(0);max();round(1, ndigits=2);{'0' * 201};{'(' * 199};2 ** 10000;1e400;min(1);\x00"
)


@pytest.mark.filterwarnings("error")
def test_sums_and_what_is_none():
    for expression, value in (
        ("1 + 2 * 3", 7.0),
        ("-(4 - 6) / 8", 0.25),
        ("2 ** 0.5", 2**0.5),
        ("7 // 2 + 7 % 2", 4.0),
        ("max(1, 2, 3) - min(4, 5)", -1.0),
        ("round(sqrt(2), 3)", 1.414),
        ("exp(log(5))", 5.0),
        (" abs(-1e3) ", 1000.0),
    ):
        assert calculate(expression) == pytest.approx(value)
    for expression in NO_SUMS.split(";"):
        with pytest.raises(ValueError, match=r"value|understood|characters"):
            calculate(expression)


@given(st.text(alphabet="0123456789.+-*/%() maxeqrtlog,_[]'\"", max_size=220))
def test_a_sum_is_finite_or_refused(expression):
    try:
        value = calculate(expression)
    except ValueError:
        return
    assert abs(value) <= 1e100


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"at": 2, "on": True, "colour": 3.0, "name": 5}, {"at": 2.0, "on": True, "colour": 3, "name": "5"}),
        ({"at": "-2.5e1", "on": "False", "colour": " 7 "}, {"at": -25.0, "on": False, "colour": 7}),
        ({"at": ".5", "on": "true", "mode": " WARM"}, {"at": 0.5, "on": True, "mode": "Warm"}),
        ({"to": [1], "how": {"a": None}}, {"to": [1], "how": {"a": None}}),
        ({"at": True}, "Error: at must be a finite number"),
        ({"at": math.nan}, "Error: at must be a finite number"),
        ({"at": "1e999"}, "Error: at must be a finite number"),
        ({"at": 10**400}, "Error: at must be a finite number"),
        ({"at": "high"}, "Error: at must be a finite number"),
        ({"on": 1}, "Error: on must be true or false"),
        ({"on": "yes"}, "Error: on must be true or false"),
        ({"colour": True}, "Error: colour must be a whole number"),
        ({"colour": 2**63}, "Error: colour must be a whole number of 64 bits"),
        ({"name": 2.5}, "Error: name must be a text"),
        ({"mode": ["warm"]}, "Error: mode must be Warm or cold"),
        ({"to": {}}, "Error: to must be a list"),
        ({"how": 3}, "Error: how must be an object"),
        ({"dark": 3}, "Error: lamp takes no 'dark'; it takes at, on, colour, name, mode, to, how"),
    ],
)
def test_arguments_are_of_their_types(given, told):
    expected = told if isinstance(told, str) else repr(DEFAULTS | told)
    assert Lamp().results([0], [ToolCall("lamp", given)], no_step) == [expected]


def test_a_tool_is_called_once_for_all_rows_that_call_it():
    """Rows get what they would get alone, in any company, and a column of numbers is a tensor."""
    lamp, draw = Lamp(), Random(0)
    calls = [
        draw.choice([ToolCall("double", {"x": n}), ToolCall("lamp", {"colour": n}), ToolCall("?")]) for n in range(300)
    ]
    told = lamp.results(range(300), calls, no_step)
    assert lamp.called == [sum(call.name == "lamp" for call in calls)]
    assert told == [Lamp().results([row], [call], no_step)[0] for row, call in enumerate(calls)]
    for row, (call, text) in enumerate(zip(calls, told, strict=True)):
        doubled = f"{2 * row} of {row}" if row % 2 else "Error: the row is even"
        assert call.name != "double" or text == doubled
    state = torch.arange(300)
    assert Lamp().results(state, [ToolCall("double", {"x": 4})] * 300, no_step)[7] == "8 of 7"
    assert len({text for call, text in zip(calls, told, strict=True) if call.name == "lamp"}) == lamp.called[0]


def test_long_replies_are_cut():
    (text,) = Lamp().results([0], [ToolCall("letters", {"n": 10**7})], no_step)
    assert text == "a" * LONGEST_REPLY + "… (the first 20,000 of 10,000,000 characters)"
    assert Lamp().results([0], [ToolCall("letters", {"n": LONGEST_REPLY})], no_step) == ["a" * LONGEST_REPLY]


def test_schemas_come_from_the_declaration_and_go_back():
    lamp = Lamp.tools["lamp"]
    form = openai_schema(lamp)["function"]["parameters"]
    assert form["properties"]["mode"] == {"type": "string", "enum": ["Warm", "cold"], "default": "cold"}
    assert form["properties"]["colour"] == {"type": "integer", "default": 1} and form["required"] == []
    assert form["properties"]["to"] == {"type": "array"} and not form["additionalProperties"]
    hints = [mcp_schema(Lamp.tools[name])["annotations"]["readOnlyHint"] for name in ("lamp", "double")]
    assert hints == [False, True]
    for known in Lamp.tools.values():
        assert declared(openai_schema(known), known.family, known.seconds) == replace(known, changes="")
        again = declared(mcp_schema(known), known.family, known.seconds)
        assert again == replace(known, changes="what its server does" if known.changes else "")
    nullable = {"name": "a", "inputSchema": {"properties": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}
    assert declared(nullable, "b") == Tool("a", "b", "a", {"x": str}, {"x": None}, changes="what its server does")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Tool("a b", "f", ""), "'a b' is no name"),
        (lambda: Tool("a", "f", "", {"x": complex}), "x has the kind <class 'complex'>"),
        (lambda: Tool("a", "f", "", {"x": ()}), r"x has the kind \(\)"),
        (lambda: Tool("a", "f", "", {"x": ["b", "c"]}), r"x has the kind \['b', 'c'\]"),
        (lambda: Tool("a", "f", "", {"x": int}, {"y": 1}), "y is optional, but no argument"),
        (lambda: Tool("a", "f", "", {"x": int}, {"x": None}), "the default of x is not a whole number"),
        (lambda: Tool("a", "f", "", {"x": int}, {"x": "one"}), "the default of x is not a whole number"),
        (lambda: Tool("a", "f", "", seconds=-1.0), "seconds must be at least 0"),
        (lambda: Lamp(("moon",)), "unknown tools moon; there are lamp, double, letters, the families lamp, size"),
        (
            lambda: declared({"name": "a", "inputSchema": {"properties": {"x": {"type": "null"}}}}, "f"),
            "x has the type",
        ),
        (lambda: declared({"name": "a", "inputSchema": {"properties": {"x": {"enum": [1]}}}}, "f"), "x has the kind"),
        (lambda: declared({"parameters": {}}, "f"), "no schema of a tool"),
        (lambda: declared({"name": "a", "inputSchema": {"properties": ["x"]}}, "f"), "no schema of a tool"),
    ],
)
def test_what_does_not_fit_is_refused(made, told):
    with pytest.raises(ValueError, match=told):
        made()


@pytest.mark.parametrize("name", ["results", "tools", "turn", "offered", "outcomes"])
def test_no_tool_has_the_name_of_what_a_set_has_itself(name):
    def own(self, callers):
        return []

    own.__name__ = name
    with pytest.raises(ValueError, match=f"a tool cannot be called '{name}'"):
        type("Own", (ToolSet,), {name: tool("own", "takes a name")(own)})


def test_a_whole_default_of_a_number_is_one():
    form = {"properties": {"x": {"type": "number", "default": 1}}}
    (default,) = declared({"name": "a", "inputSchema": form}, "f").optional.values()
    assert default == 1 and type(default) is float
