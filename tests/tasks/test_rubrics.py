"""Tasks that are graded by rubrics: the grade is the weighted mean by hand, agents play, and records replay."""

import pytest

from tests.tasks.code.one_problem import NEGATIVE, RIGHT, write_problem
from vecenv import Episode, make_interaction
from vecenv.tasks.rubrics import CODE_RUBRIC, STRATEGY_RUBRIC, documented
from vecenv.testing import check_interaction
from vecenv.text.interaction import Turn
from vecenv.text.transcripts import RecordedDialogue, replayed_conversation

WEIGHTS = (0.5, 0.3, 0.2, 0.0)
SMALL = {"num_paths": 16, "num_days": 64, "days": 4, "paths": 4, "embargo": 2, "features": ("daily_change",)}
SMALL |= {"symbols": ("A", "B"), "tries": 2, "weights": WEIGHTS}


@pytest.fixture
def code(monkeypatch, tmp_path):
    return write_problem(tmp_path / "problems.jsonl", monkeypatch) | {"weights": WEIGHTS}


def played(task, options, *messages):
    """Return the last turn of messages, after holding its record to a replay."""
    dialogue = RecordedDialogue(make_interaction(task, **options))
    dialogue.begin([0], [Episode(1, 1)])
    turns = [dialogue.answer([0], [message])[0] for message in messages]
    (record,) = dialogue.records
    assert record.difference(replayed_conversation(record, make_interaction(task, **options))) is None
    assert record.config["weights"] == list(WEIGHTS)
    return turns[-1]


def test_code_is_graded_by_several_criteria(code):
    check_interaction(CODE_RUBRIC, **code)
    said = f"<final_code>\n{RIGHT}\n</final_code>"
    # Right, in four lines, without comments; a program that is partly right earns as much of its length.
    turn = played(CODE_RUBRIC, code, said)
    assert turn.grade == pytest.approx(0.5 + 0.3) and turn.outcomes["score_correct"] == 1
    (partly,) = (played(CODE_RUBRIC, code, said.replace(RIGHT, NEGATIVE)),)
    share = partly.outcomes["score_correct"]
    assert 0 < share < 1 and partly.grade == pytest.approx(0.8 * share)
    assert played(CODE_RUBRIC, code, f"```\n{RIGHT}\n```", said).outcomes["score_fast"] == 0.75
    assert documented(Turn("end"), "x = 1  # one\n" + "y = 2\n" * 19) == 0.5 and documented(Turn("end"), "") == 0


def test_a_strategy_is_graded_by_several_criteria():
    turn = played(STRATEGY_RUBRIC, SMALL, "weight = 0.5", "<final_code>\nweight = 0.1\n</final_code>")
    told = turn.outcomes
    graded, drawdown, turnover = told["held_out"], told["drawdown"], told["turnover"]
    expected = graded * (0.5 + 0.3 * (1 - drawdown / 0.3) + 0.2 * max(0, 1 - turnover / 50))
    assert turn.grade == pytest.approx(expected) and 0 < drawdown < 0.3
    world = make_interaction(STRATEGY_RUBRIC, **SMALL)
    dialogue = RecordedDialogue(world)
    begun = dialogue.begin([0], [Episode(1, 1)])
    said = STRATEGY_RUBRIC.agents["crossover"]().answer(world, [0], [begun[0].message])
    assert dialogue.answer([0], said)[0].valid
    with pytest.raises(ValueError, match=r"the weight of graded, 0.1, is not in \[0.4, 1\]"):
        make_interaction(STRATEGY_RUBRIC, weights=(0.1, 0.1, 0.1, 0.1))
