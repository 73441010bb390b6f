"""Calls of tools in texts: both forms, what is no call, and that nothing raises."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vecenv.text.reasoning import without_reasoning
from vecenv.text.tool_calls import LONGEST_CALL, ToolCall, read_answer, read_call

CALL = ToolCall("price_history", {"days": 5})
POSITION = ToolCall("position")
FIRST = replace(POSITION, further=1)
NO_OBJECT = ToolCall("", fault="Action Input must be a JSON object")
NO_CALL = ToolCall("", fault="a call must be a JSON object")
LONG = "y" * (LONGEST_CALL - 37)


MARKS = [
    mark * 10**4
    for mark in ("<tool_call>", "<tool_call> a ", "to=functions.", "<arg_key>a", "<|tool_call_begin|>a", "<\uff5cDSML")
]


@pytest.mark.parametrize(
    ("form", "text", "call"),
    [
        ("json", '{"name": "price_history", "arguments": {"days": 5}}', CALL),
        ("json", ' \n{"tool": "price_history", "args": {"days": 5}} ', CALL),
        ("json", 'I look. <tool_call>{"name": "price_history", "parameters": {"days": 5}}</tool_call> done', CALL),
        ("json", '<tool_call>\n{"name": "price_history", "arguments": {"days": 5}}', CALL),
        ("json", '<tool_call>{"name": "position"}</tool_call> <tool_call>{"name": 3}</tool_call>', FIRST),
        ("json", '{"name": "position"}', POSITION),
        ("json", '{"name": "position", "arguments": [1]}', ToolCall("", fault="arguments must be a JSON object")),
        ("json", '{"name": 3}', ToolCall("", fault="a call needs the name of a tool")),
        ("json", '{"name": "position"', NO_CALL),
        ("json", "<answer>BUY 0.5</answer>", None),
        ("react", 'Thought: look\nAction: price_history\nAction Input: {"days": 5}\nObservation: made up', CALL),
        ("react", "Action: position", POSITION),
        ("react", "Action: position\nObservation: 3 shares\nFinal Answer: HOLD", POSITION),
        ("react", "  Action : position \n", POSITION),
        ("react", "Action: position\nAction Input: 5", NO_OBJECT),
        ("react", "Thought: enough\nFinal Answer: BUY 0.5\nAction: position", None),
        # What is thought calls nothing.
        ("json", '<think>or {"name": "moon"}</think> {"name": "price_history", "arguments": {"days": 5}}', CALL),
        ("json", 'what?</think><tool_call>{"name": "position"}</tool_call>', POSITION),
        ("json", '<think>I could say <tool_call>{"name": "position"}</tool_call></think>BUY', None),
        ("json", '<think>{"name": "position"} <answer>HOLD</answer>', None),
        ("json", '<thin\u212a>{"name": "moon"}</thin\u212a>', ToolCall("moon")),
        ("react", '<think>\nAction: moon\n</think>\nAction: price_history\nAction Input: {"days": 5}', CALL),
        ("react", "<think>\nAction: moon\n<answer>HOLD</answer>", None),
        # To the letter.
        ("json", f'{{"name": "a", "arguments": {{"x": "{LONG}"}}}}', ToolCall("a", {"x": LONG})),
        (
            "json",
            f'{{"name": "a", "arguments": {{"x": "{LONG}y"}}}}',
            ToolCall("", fault="a call may have 4096 characters"),
        ),
        ("react", "Action: a\nAction Input: " + " " * 99 + "{}" + " " * 9, ToolCall("a")),
        ("react", "Action: a\nAction Input: {} and more", ToolCall("a")),
    ],
)
def test_what_a_text_calls(form, text, call):
    assert read_call(text, form) == call


def test_the_answer_is_what_follows_its_mark_and_a_megabyte_is_at_worst_a_fault():
    assert read_answer("Thought: enough\nFinal Answer: BUY 0.5", "react") == " BUY 0.5"
    assert read_answer("Final Answer: BUY 0.5", "json") == "Final Answer: BUY 0.5"
    text = "<think>\nFinal Answer: SELL TCS\n</think>\nFinal Answer: BUY INFY 0.5"
    assert read_answer(text, "react") == " BUY INFY 0.5"
    for text in ("BUY 0.5", "Action: a\nFinal Answer: BUY 0.5", "<think>\nFinal Answer: SELL TCS"):
        assert read_answer(text, "react") == text
    for text in (
        "{" * 10**6,
        '{"a":' * 10**5,
        "[" * 10**6,
        '"' + "[" * 9_000 + '"',
        "Action: " + "x" * 10**6,
        "Action:\n" * 10**5,
        *MARKS,
    ):
        for form in ("json", "react"):
            call = read_call(text, form)
            assert call is None or call.fault or len(call.name) <= LONGEST_CALL + 1
            read_call("<tool_call>" + text, form)
            read_call("Action: a\nAction Input: " + text, form)


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "{", "}", '"name"', ":", '"position"', ",", '"arguments"', "[", "]", "1e999"),
        *("Action:", "Action Input:", "Final Answer:", "<answer>", "</answer>", "<think>", "</think>", "{" * 50),
        *("\n", " ", "BUY", "\x00", "é", "\ud800", "NaN"),
        *("<|tool_call_begin|>", "functions.a:0", "<\uff5ctool\u2581sep\uff5c>", "<|message|>", "</invoke>"),
        *("to=functions.a", "<arg_key>a</arg_key>", "<arg_value>", '<invoke name="a">', '<parameter name="b">'),
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=25).map("".join), st.sampled_from(["json", "react"]))
def test_nothing_raises(text, form):
    call = read_call(text, form)
    if call is None:
        assert isinstance(read_answer(text, form), str)
    else:
        assert isinstance(call.name, str) and isinstance(call.arguments, dict)
    assert without_reasoning(without_reasoning(text)) == without_reasoning(text)
    for thought in ("<think>SELL TCS</think>", "<answer>SELL TCS</answer> then\n</think>", "<think>{}</THINK>\n"):
        assert "think>" in text or read_call(thought + text, form) == call


@pytest.mark.filterwarnings("error")
def test_escapes_warn_nobody():
    assert read_call(r"a(x='\d')", "json") == ToolCall("a", {"x": r"\d"})
