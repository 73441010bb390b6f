"""Tasks that are graded by rubrics: the grade is the weighted mean by hand, agents play, and records replay."""

import json
import logging

import pytest

from tests.fake_model import model
from tests.tasks.code.one_problem import NEGATIVE, RIGHT, write_problem
from vecenv import Dialogue, Episode, make_interaction
from vecenv.tasks.rubrics import CODE_RUBRIC, STRATEGY_RUBRIC, documented
from vecenv.testing import check_interaction
from vecenv.text.interaction import Turn
from vecenv.text.rubric import replayed_log
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
    for changes, why in [
        ({"weights_from": "localhost"}, "is no address"),
        ({"weights_from": "http://x", "weights_at_end": WEIGHTS}, "both move the weights"),
    ]:
        with pytest.raises(ValueError, match=why):
            make_interaction(STRATEGY_RUBRIC, **{**SMALL, "weights": (0.5, 0.2, 0.2, 0.1), **changes})
    with pytest.raises(ValueError, match=r"the weight of graded, 0.1, is not in \[0.4, 1\]"):
        make_interaction(STRATEGY_RUBRIC, weights=(0.1, 0.1, 0.1, 0.1))


def test_a_language_model_moves_the_weights_of_a_training_within_bounds_and_its_log_replays(tmp_path, caplog):
    log = tmp_path / "rubric.jsonl"
    said = ["more of the first", '<think>few trades</think>{"turnover": 0.9, "graded": 0}', 500, '{"lines": 0.25}']
    options = {**SMALL, "weights": (0.5, 0.2, 0.1, 0.1), "weights_every": 2, "weights_log": str(log), "part": "train"}

    def rollouts(dialogue, count):
        for index in range(count):
            dialogue.begin([0], [Episode(1, index)])
            dialogue.settled([0], dialogue.answer([0], ["<final_code>weight = 0.5</final_code>"]))
            yield dict(dialogue.interaction.weights.values)

    with model(said) as (address, heard), caplog.at_level(logging.WARNING, "vecenv.text"):
        options |= {"weights_from": address, "weights_model": "judge"}
        world = make_interaction(STRATEGY_RUBRIC, **options)
        first = dict(world.weights.values)
        told = list(rollouts(Dialogue(world), 5))
        # Not a message of weights; then by a step of 0.1, and the first not below its bound.
        moved = first | {"graded": 0.4, "turnover": 0.2}
        assert told == [first, first, first, pytest.approx(moved), pytest.approx(moved)] and len(heard) == 2
        asked = json.loads(heard[1]["messages"][1]["content"])
        assert asked["weights"] == first and asked["bounds"]["graded"] == [0.4, 1.0] and heard[0]["model"] == "judge"
        assert 0 < asked["mean_scores"]["graded"] < 1
        state = json.loads(json.dumps(world.state_dict()))
        assert list(rollouts(Dialogue(world), 1)) == [pytest.approx(moved)] and world.weights.version == 3
        assert "no answer: HTTPError" in log.read_text() and "weights are as they were" in caplog.text
        # Resumed from before the last question, which is asked again.
        again = make_interaction(STRATEGY_RUBRIC, **options)
        again.load_state_dict(state)
        assert list(rollouts(Dialogue(again), 1)) == [pytest.approx(moved | {"lines": 0.2})]
        test = make_interaction(STRATEGY_RUBRIC, **{**options, "part": "test"})
        assert test.weights.values == first and test.weights.log is None
    replayed = replayed_log(log.read_text())
    assert replayed.weights[-1] == again.weights.values and len(replayed.weights) == 4
    assert len(replayed.grades) == 7
