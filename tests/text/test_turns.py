"""Rows played by text: any of them at a time, each as if it were alone."""

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vecenv
from tests.reach_zero import REACH_ZERO, WalkText
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.door import TextDoor
from vecenv.text.interaction import Episode
from vecenv.text.interface import TextInterface
from vecenv.text.tensor_interaction import TensorInteraction
from vecenv.text.tool_calls import ToolCall

OPTIONS = {"market": "planted", "market_options": {"num_paths": 3, "num_days": 330}, "context": ("signal",), "days": 3}
TAPE = vecenv.make("single_stock_costs", **OPTIONS).scenario.tape
CALL = '{"name": "position"}'
ANSWERS = ("BUY 0.5", "SELL", "HOLD", "nonsense", CALL, '{"name": "what_if", "arguments": {}}', None, 3)
ROWS = 5


def text_rows(count: int, rules: TextRules) -> Dialogue:
    env = vecenv.make("single_stock_costs", count, **OPTIONS | {"market": TAPE}, action="orders", compile=False)
    return Dialogue(TensorInteraction(env), rules)


def begun(rows: Dialogue, ids: list[int], seeds: list[int], indices: list[int]) -> list:
    return rows.begin(ids, list(map(Episode, seeds, indices)))


@pytest.mark.assembly
@settings(max_examples=6)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, ROWS - 1), st.sampled_from(ANSWERS)), max_size=ROWS), max_size=12),
    st.sampled_from([TextRules(), TextRules(0.5, 2.0, -0.25, ("all",), "json", 2)]),
    st.lists(st.integers(0, 3), min_size=ROWS, max_size=ROWS),
)
def test_any_rows_at_a_time_are_each_as_if_alone(batches, rules, indices):
    together, alone = text_rows(ROWS, rules), [text_rows(1, rules) for _ in range(ROWS)]
    first = begun(together, list(range(ROWS)), [9] * ROWS, indices)
    assert first == [begun(lone, [0], [9], [index])[0] for lone, index in zip(alone, indices, strict=True)]
    assert together.instructions(range(ROWS)) == [lone.instructions([0])[0] for lone in alone]
    for batch in batches:
        chosen = {row: answer for row, answer in batch if not bool(together.interaction.env.rows.done[row])}
        if not chosen:
            continue
        turns = together.answer(list(chosen), list(chosen.values()))
        for (row, answer), turn in zip(chosen.items(), turns, strict=True):
            assert alone[row].answer([0], [answer]) == [turn]
            assert (turn.grade is not None) == turn.done == bool(together.interaction.env.rows.done[row])


def test_what_a_turn_pays_and_every_day_has_its_own():
    rows = text_rows(1, TextRules(grade=2.0, steps=3.0, format_penalty=-0.5))
    other = text_rows(1, TextRules(grade=0.0, steps=1.0))
    for each in (rows, other):
        begun(each, [0], [1], [2])
    for answer in ("BUY 0.5", "what?", "SELL"):
        ((turn,), (plain,)) = (each.answer([0], [answer]) for each in (rows, other))
        expected = 3.0 * plain.reward - (0.5 if answer == "what?" else 0.0)
        assert turn.valid == (answer != "what?") and turn.acted == (answer != "what?")
        if turn.done:
            expected += 2.0 * turn.grade
        assert turn.reward == pytest.approx(expected, rel=1e-6)
    assert turn.truncated and not turn.terminated
    for call in (lambda: rows.answer([0], ["BUY"]), lambda: rows.begin([0])):
        with pytest.raises(ValueError, match="the episode of row 0 is over: begin another"):
            call()
    assert turn.outcomes["total_return"] == pytest.approx(turn.outcomes["portfolio_value"] / 1e5 - 1.0)
    rows = text_rows(1, TextRules(tools=("position",), turns=2))
    begun(rows, [0], [1], [2])
    for day in (1, 2):
        (asked,), (answered,) = (rows.answer([0], [text]) for text in (CALL, "HOLD"))
        assert asked.shown == "RELIANCE: no shares" and asked.outcomes is None
        assert answered.valid and answered.shown.startswith(f"Day {day + 1} of 3")
    # The second turn is the answer, and a call is none.
    rows.answer([0], [CALL])
    (late,) = rows.answer([0], [CALL])
    assert late.done and not late.valid
    begun(rows, [0], [1], [2])
    assert rows.answer([0], [CALL])[0].shown == asked.shown


def test_doors_and_rows_that_there_are():
    env = text_rows(4, TextRules()).interaction.env
    door, every = TextDoor(env), TextDoor(env).render(range(4))
    assert len(set(every)) == 4 and door.render([2, 0]) == [every[2], every[0]] and door.render([]) == []
    actions, valid = door.parse([], [])
    assert actions.shape == (0, 8, 3) and valid.shape == (0,)
    assert (actions.dtype, valid.dtype) == (torch.float32, torch.bool)
    with pytest.raises(IndexError, match=r"rows \[4\] are not all in \[0, 4\)"):
        door.render([4])
    with pytest.raises(ValueError, match="1 texts do not fit 2 rows"):
        door.parse(["HOLD"], [0, 1])
    with pytest.raises(ValueError, match="1 calls do not fit 2 rows"):
        door.tool_results(door.text.tools(["all"]), [ToolCall("position")], [0, 1])
    rows = text_rows(4, TextRules())
    rows.answer([0, 1, 2, 3], ["BUY"] * 4)
    kept = TextDoor(rows.interaction.env).render([0, 3])
    begun(rows, [1, 2], [5, 6], [0, 0])
    assert TextDoor(rows.interaction.env).render([0, 3]) == kept
    assert rows.interaction.env.rows.elapsed.tolist() == [1, 0, 0, 1]
    assert TextDoor(rows.interaction.env).render([1]) != TextDoor(rows.interaction.env).render([2])
    with pytest.raises(IndexError, match="not all in"):
        rows.interaction.env.begin_rows([4], torch.tensor([0]), torch.tensor([0]))
    silent = vecenv.make(replace(REACH_ZERO, name="reach_nothing", text=None), compile=False)
    # A task that has said nothing about answers has none to offer.
    text = WalkText(REACH_ZERO.build())
    assert text.examples() == () and text.acted(None) is None and TextInterface.random_answer(text, Random(0)) == ""
    for call, words in (
        (lambda: TensorInteraction(silent), "'reach_nothing' has no text"),
        (lambda: text_rows(1, TextRules(tools=("moon",))), "unknown tools moon"),
        (lambda: TextRules(format_penalty=0.1), "format_penalty must be at most 0, got 0"),
        (lambda: TextRules(turns=0), "turns must be at least 1, got 0"),
        (lambda: text.tools(["a", "b"]), "there are no tools; a, b cannot be called"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert TextRules().inapplicable() == {"tool_form": "tools", "turns": "tools"}
    assert TextRules(tools=("all",)).inapplicable() == {} and TextRules(turns=1).format_penalty == 0.0
