"""What agents think before they answer is no answer and calls no tool, whether it is closed or not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.tiers.action_text import read_action
from vecenv.tasks.tiers.order_list import Kind
from vecenv.tasks.tiers.text.parse import Order, parse_orders, symbol_slots
from vecenv.text.reasoning import without_reasoning
from vecenv.text.tool_calls import ToolCall, read_answer, read_call

NAMES = ("INFY", "TCS")
SLOTS = symbol_slots(NAMES)
BUY, SELL = Order(Kind.BUY, 0, 0.5), Order(Kind.SELL, 1, 1.0)
CALL = '{"name": "position", "arguments": {"symbol": "INFY"}}'
CALLED = ToolCall("position", {"symbol": "INFY"})


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        # Closed, with an answer and without.
        ("<think>RSI is 25, so buy.</think>BUY INFY 0.5", (BUY,)),
        ("<think>\nSELL TCS? No.\n</think>\n\n<answer>BUY INFY 0.5</answer>", (BUY,)),
        ("<THINK>shouting</Think>BUY INFY 0.5", (BUY,)),
        ("<think></think>HOLD", ()),
        ("<think>SELL TCS</think>", None),
        ("<think><answer>SELL TCS</answer></think>", None),
        ("<think><answer>SELL TCS</answer></think>BUY INFY 0.5", (BUY,)),
        # Several, after an answer, and within one.
        ("<think>a</think> BUY INFY 0.5 <think>b</think>; <think>c</think> SELL TCS", (BUY, SELL)),
        ("<answer>BUY INFY 0.5</answer> <think>or <answer>HOLD</answer>?</think>", (BUY,)),
        ("<answer><think>which?</think>BUY INFY 0.5</answer>", (BUY,)),
        ("<answer>BUY<think>the first</think>INFY 0.5</answer>", (BUY,)),
        ("BUY INFY 0.<think>more?</think>5", None),
        ("<think>a</think>b<think>c</think>", None),
        # Never closed: nothing follows, or an answer that ends the text.
        ("<think>", None),
        ("<think>BUY INFY 0.5", None),
        ("<think>RSI is 25.\nBUY INFY 0.5\n", None),
        ("<think>RSI is low. <answer>BUY INFY 0.5</answer>", (BUY,)),
        ("<think>HOLD? <answer>HOLD</answer> no: <answer>BUY INFY 0.5</answer> \r\n\t", (BUY,)),
        ("<think>a</think>HOLD<think>after all <answer>BUY INFY 0.5</answer>", (BUY,)),
        # Cut off: in the answer, after a draft of it, in thoughts after it.
        ("<think>RSI is low. <answer>BUY INFY 0.5", None),
        ("<think>Shall I say <answer>BUY INFY 0.5</answer>? The RSI is", None),
        ("<think>The form is <answer>HOLD</answer>.\nSo <answer>BUY", None),
        ("<answer>BUY INFY 0.5</answer><think>But the RSI", (BUY,)),
        ("BUY INFY 0.5\n<think>But the RSI", (BUY,)),
        ("<answer>SELL TCS<think>or rather BUY INFY 0.5</answer>", None),
        ("<think>a <answer>SELL <think> TCS</answer>", None),
        # The template has opened it.
        ("RSI is 25, so buy.</think>BUY INFY 0.5", (BUY,)),
        ("SELL TCS\n</think>\n<answer>BUY INFY 0.5</answer>", (BUY,)),
        ("<answer>SELL TCS</answer>, I think.</think>", None),
        ("</think>HOLD", ()),
        ("SELL TCS</think>HOLD</think>BUY INFY 0.5", (BUY,)),
        ("They said <think> would open it</think> SELL TCS</think> BUY INFY 0.5", (BUY,)),
        # No tags of this language.
        ("<think >SELL TCS</think >BUY INFY 0.5", None),
        ("<thinking>a</thinking>BUY INFY 0.5", None),
        ("<thin\u212a>a</thin\u212a>BUY INFY 0.5", None),
    ],
)
def test_reasoning_is_passed_over(text, orders):
    assert parse_orders(text, SLOTS) == orders
    assert read_action(text, NAMES) == (None if orders is None else [tuple(order) for order in orders])


PIECES = st.sampled_from(
    [
        *("<think>", "</think>", "<THINK>", "</Think>", "<answer>", "</answer>", "<ANSWER>", "</Answer>"),
        *("BUY INFY 0.5", "SELL TCS", "HOLD", ";", "\n", " ", "\t", "RSI is 25.", "<", "think>", "1,", "é", "BUY"),
    ]
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=14).map("".join), st.booleans())
def test_two_parsers_agree_on_thoughts_and_answers(text, tagged):
    """With and without ``<answer>``."""
    text = text if tagged else text.replace("<answer>", "").replace("</answer>", "")
    orders = parse_orders(text, SLOTS)
    assert read_action(text, NAMES) == (None if orders is None else [tuple(order) for order in orders])


@settings(max_examples=150)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_what_is_thought_changes_nothing(text):
    """An answer is the same whatever was thought before it, and reasoning that is gone is not found again."""
    plain = text.lower().replace("think>", "")
    for thought in ("<think>SELL TCS</think>", "<answer>SELL TCS</answer> then\n</think>", "<think>{}</THINK>\n"):
        assert parse_orders(thought + plain, SLOTS) == parse_orders(plain, SLOTS)
    assert without_reasoning(without_reasoning(text)) == without_reasoning(text)


@pytest.mark.parametrize(
    ("form", "text", "call"),
    [
        ("json", f"<think>what do I hold?</think>\n{CALL}", CALLED),
        ("json", f"what do I hold?</think><tool_call>{CALL}</tool_call>", CALLED),
        ("json", f'<think>or {{"name": "moon"}}</think> <tool_call>{CALL}</tool_call>', CALLED),
        ("json", f"<think>I could say <tool_call>{CALL}</tool_call></think>BUY INFY 0.5", None),
        ("json", f"<think><tool_call>{CALL}</tool_call>", None),
        ("json", f"<think>{CALL}</think>", None),
        ("json", f"<think>{CALL} <answer>HOLD</answer>", None),
        ("json", f"</thin\u212a>{CALL}", None),
        ("react", 'what?</think>\nAction: position\nAction Input: {"symbol": "INFY"}', CALLED),
        ("react", '<think>\nAction: moon\n</think>\nAction: position\nAction Input: {"symbol": "INFY"}', CALLED),
        ("react", "<think>\nAction: moon\n</think>\nFinal Answer: HOLD", None),
        ("react", "<think>\nAction: moon\n", None),
        ("react", "<think>\nAction: moon\n<answer>HOLD</answer>", None),
    ],
)
def test_a_call_in_thoughts_is_none(form, text, call):
    assert read_call(text, form) == call


def test_an_answer_in_thoughts_is_none():
    text = "<think>\nFinal Answer: SELL TCS\n</think>\nFinal Answer: BUY INFY 0.5"
    assert read_answer(text, "react") == " BUY INFY 0.5"
    assert parse_orders(read_answer("<think>\nFinal Answer: SELL TCS", "react"), SLOTS) is None
    assert parse_orders(read_answer("<think>a <answer>BUY INFY 0.5</answer>", "react"), SLOTS) == (BUY,)
