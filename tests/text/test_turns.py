"""Rows played by text: any of them at a time, each as if it were alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vecenv
from vecenv.text.door import TextDoor
from vecenv.text.turns import TextRows, TextRules

OPTIONS = {"market": "planted", "market_options": {"num_paths": 3, "num_days": 330}, "context": ("signal",), "days": 3}
TAPE = vecenv.make("single_stock_costs", **OPTIONS).scenario.tape
CALL = '{"name": "position"}'
ANSWERS = (
    "BUY 0.5",
    "SELL",
    "HOLD",
    "nonsense",
    CALL,
    '{"name": "what_if", "arguments": {}}',
    None,
    3,
)
ROWS = 5


def text_rows(count: int, rules: TextRules) -> TextRows:
    env = vecenv.make("single_stock_costs", count, **OPTIONS | {"market": TAPE}, action="orders", compile=False)
    return TextRows(env, rules)


def begun(rows: TextRows, ids: list[int], seeds: list[int], indices: list[int]) -> list:
    rows.env.begin_rows(ids, torch.tensor(seeds), torch.tensor(indices))
    return rows.begin(ids)


@pytest.mark.nightly
@settings(deadline=None, max_examples=40)
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
        chosen = {row: answer for row, answer in batch if not bool(together.env.rows.done[row])}
        if not chosen:
            continue
        turns = together.answer(list(chosen), list(chosen.values()))
        for (row, answer), turn in zip(chosen.items(), turns, strict=True):
            assert alone[row].answer([0], [answer]) == [turn]
            assert (turn.grade is not None) == turn.done == bool(together.env.rows.done[row])


def test_what_a_turn_pays():
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
    assert turn.outcomes["total_return"] == pytest.approx(turn.outcomes["portfolio_value"] / 1e5 - 1.0)


@pytest.mark.nightly
def test_compiled_rows_are_told_the_same():
    rules = TextRules(grade=1.0, steps=1.0, tools=("all",))
    eager = text_rows(ROWS, rules)
    env = vecenv.make("single_stock_costs", ROWS, **OPTIONS | {"market": TAPE}, action="orders", compile=True)
    compiled, ids = TextRows(env, rules), list(range(ROWS))
    first = [begun(rows, ids, [4] * ROWS, ids) for rows in (eager, compiled)]
    assert first[0] == first[1]
    for day in range(3):
        # Other rows every day, so that some end before others.
        chosen = [row for row in ids if (row + day) % 3]
        told = [
            rows.answer(chosen, ["BUY 0.4", "SELL", "what?", "HOLD", CALL][: len(chosen)]) for rows in (eager, compiled)
        ]
        assert told[0] == told[1]
    begun(compiled, [1], [9], [9])
    begun(eager, [1], [9], [9])
    assert compiled.answer([1, 2], ["BUY", "HOLD"]) == eager.answer([1, 2], ["BUY", "HOLD"])


def test_every_day_has_its_own_turns():
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


def test_begun_rows_leave_the_others_alone():
    rows = text_rows(4, TextRules())
    rows.answer([0, 1, 2, 3], ["BUY"] * 4)
    kept = TextDoor(rows.env).render([0, 3])
    begun(rows, [1, 2], [5, 6], [0, 0])
    assert TextDoor(rows.env).render([0, 3]) == kept
    assert rows.env.rows.elapsed.tolist() == [1, 0, 0, 1]
    assert TextDoor(rows.env).render([1]) != TextDoor(rows.env).render([2])
    with pytest.raises(IndexError, match="not all in"):
        rows.env.begin_rows([4], torch.tensor([0]), torch.tensor([0]))


@pytest.mark.assembly
def test_what_cannot_be_played_is_refused():
    with pytest.raises(ValueError, match="has no text"):
        TextRows(vecenv.make("stock_trading", compile=False), TextRules())
    with pytest.raises(ValueError, match="tool"):
        text_rows(1, TextRules(tools=("moon",)))
    with pytest.raises(ValueError, match="must not be positive"):
        TextRules(format_penalty=0.1)
    with pytest.raises(ValueError, match="turns must be"):
        TextRules(turns=0)
