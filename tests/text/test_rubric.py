"""Rubrics: weights keep bounds and steps, logs come to the same again, and wrapped worlds keep their contract."""

import json
import math
import pickle
import random
from dataclasses import dataclass, replace

import pytest

from tests.guess_number import GuessNumber
from vecenv import AsyncInteraction, Episode, Turn, make_interaction
from vecenv.registry import Task
from vecenv.testing import check_interaction
from vecenv.text.dialogue import TextRules
from vecenv.text.graded import graded_by
from vecenv.text.rubric import Criterion, Weights, grade, lines, outcome, replayed_log, scheduled
from vecenv.text.transcripts import RecordedDialogue, replayed_conversation

CRITERIA = [
    Criterion("right", grade, 0.6, low=0.2),
    Criterion("quick", outcome("tries", none=6, full=1), 0.4, high=0.5, needs="right"),
]


@dataclass(frozen=True)
class Config:
    weights: tuple[float, ...] = (0.6, 0.4)


class Slow(AsyncInteraction):
    """The same world with a coroutine for each row."""

    def __init__(self, num_rows: int) -> None:
        self.plain, self.num_rows = GuessNumber(num_rows, None), num_rows
        self.longest, self.outcomes = self.plain.longest, self.plain.outcomes

    async def begin_row(self, row: int, episode: Episode) -> Turn:
        return self.plain.begin([row], [episode])[0]

    async def answer_row(self, row: int, message: str) -> Turn:
        return self.plain.answer([row], [message])[0]

    def examples(self):
        return self.plain.examples()


def rubric_task(world, log=None) -> Task:
    def made(rows, config):
        criteria = [replace(one, weight=weight) for one, weight in zip(CRITERIA, config.weights, strict=True)]
        return graded_by(Weights(criteria, log=log), world(rows))

    return Task(name="rubric_guess", version="1", interaction=made, config=Config)


@pytest.mark.parametrize("world", [lambda rows: GuessNumber(rows, None), Slow], ids=["at once", "slow"])
def test_a_wrapped_world_keeps_the_contract_and_its_records_replay_under_their_weights(world, tmp_path):
    task = rubric_task(world)
    check_interaction(task)
    talk = RecordedDialogue(make_interaction(rubric_task(world, tmp_path / "log.jsonl"), 2), TextRules(steps=1.0))
    weights, number = talk.interaction.weights, Slow(1)
    records = []
    for index in range(3):
        episode = Episode(4, index)
        talk.begin([0, 1], [episode] * 2)
        told = talk.instructions([0])[0]
        assert f"right {weights.values['right']:.3g}, quick {weights.values['quick']:.3g} (as far as right)" in told
        held = dict(weights.values)
        # Weights that move in the middle of an episode are those of the next one.
        assert weights.hear(json.dumps({"right": 0.1 * index, "quick": 0.5})) == ""
        number.plain.begin([0], [episode])
        wrong = "20" if number.plain.numbers[0] != 20 else "1"
        middle = talk.answer([0], [wrong])[0]
        assert middle.grade is None and math.isnan(middle.outcomes["score_right"])
        last = talk.answer([0], [str(number.plain.numbers[0])])[0]
        right, quick = 1 - 2 / 10, (6 - 2) / 5
        expected = (held["right"] * right + held["quick"] * quick * right) / (held["right"] + held["quick"])
        assert last.grade == pytest.approx(expected) and last.reward == 1.0 + last.grade
        assert last.outcomes == {"tries": 2.0, "score_right": right, "score_quick": pytest.approx(quick * right)}
        records.append(talk.records[0])
    # A record has the weights under which it was played, whatever they are later.
    assert len({tuple(record.config["weights"]) for record in records}) == 3
    for record in records:
        again = replayed_conversation(record, make_interaction(task, config=Config(tuple(record.config["weights"]))))
        assert record.difference(again) is None
    replayed = replayed_log((tmp_path / "log.jsonl").read_text())
    assert replayed.grades == [record.turns[-1].grade for record in records] and replayed.weights[-1] == weights.values


def test_a_world_that_fails_has_no_grade():
    class Lost(Slow):
        async def answer_row(self, row: int, message: str) -> Turn:
            raise OSError

    talk = RecordedDialogue(make_interaction(rubric_task(Lost)))
    talk.begin([0], [Episode(1, 1)])
    assert talk.answer([0], ["7"])[0].failed and talk.records[0].turns[-1].grade is None
    # Agents and pictures of a world read what it has of its own, also of a copy.
    assert pickle.loads(pickle.dumps(graded_by(Weights(CRITERIA), GuessNumber(2, None)))).numbers == [0, 0]


REFUSED = {
    "": "no JSON object",
    "right: 1": "no JSON object",
    "[1]": "no JSON object of numbers by name",
    "{}": "no JSON object of numbers by name",
    '```json\n{"right": 1}\n```': "no JSON object",
    '{"right": 1} and more': "no JSON object",
    '{"right": 1, "right": 0}': "a name stands twice",
    '{"right": NaN}': "NaN is no number of JSON",
    '{"right": 1e999}': "must be a finite number, got inf",
    '{"right": %s}' % ("9" * 5000): "must be a finite number, got inf",
    '{"right": true}': "must be a finite number, got True",
    '{"right": "1"}': "must be a finite number, got '1'",
    '{"right": [[[1]]]}': "must be a finite number",
    '{"rigth": 1}': "unknown criteria rigth (did you mean right?); there are right, quick",
    "[" * 9_000: "no JSON object",
    '{"right": 1}' + " " * 10_000: "more than 10,000 characters",
}


def test_what_moves_weights_is_told_the_means_of_the_scores_that_are_known():
    means = []
    world = graded_by(Weights(CRITERIA), GuessNumber(3, None), lambda weights, told: means.append(told))
    scores = ({"score_right": 1.0, "score_quick": math.nan}, {"score_right": 0.5, "score_quick": math.nan}, {})
    world.settled([0, 1, 2], [Turn("", outcomes=told) for told in scores])
    assert means[0]["right"] == 0.75 and math.isnan(means[0]["quick"])


def test_weights_move_by_a_step_within_bounds_and_a_log_is_gone_on_with(tmp_path):
    """Against plain arithmetic, for random updates, some of them refused."""
    path, draw = tmp_path / "runs" / "log.jsonl", random.Random(0)
    weights, expected = Weights(CRITERIA, 0.15, path), {"right": 0.6, "quick": 0.4}
    bounds = {"right": (0.2, 1.0), "quick": (0.0, 0.5)}
    for number, (message, why) in enumerate(REFUSED.items(), 1):
        fault = weights.hear(message)
        assert why in fault and not fault.endswith(".")
        assert weights.values == expected and weights.version == number
    for number in range(60):
        names = draw.sample(sorted(bounds), draw.randint(1, 2))
        wanted = {name: draw.uniform(-0.5, 1.5) for name in names}
        for name, weight in wanted.items():
            low, high = bounds[name]
            near = max(expected[name] - 0.15, min(expected[name] + 0.15, weight))
            expected[name] = max(low, min(high, near))
        if number % 2:
            weights.update(wanted)
        else:
            assert weights.hear(f"<think>so {{}}</think> {json.dumps(wanted)}") == ""
        assert weights.values == expected
        weights.paid(Episode(3, number), weights.version, weights.values, {"right": 0.5, "quick": draw.random()})
        if number % 20 == 7:
            # A run that was killed while it wrote a line goes on with the lines that are whole.
            path.write_text(path.read_text() + '{"upd')
            weights = Weights(CRITERIA, 0.15, path)
            assert weights.values == expected and weights.version == number + 1 + len(REFUSED)
    for wanted, why in [({"x": 1.0}, "unknown criteria x"), ({"right": math.nan}, "finite number, got nan")]:
        with pytest.raises(ValueError, match=why):
            weights.update(wanted)
    assert len(replayed_log(path.read_text()).grades) == 60
    with pytest.raises(ValueError, match="the log of another rubric"):
        Weights(CRITERIA, 0.1, path)
    rows = path.read_text().splitlines()
    for place, alter in [(5, lambda row: row.replace("0.6", "0.7")), (19, lambda row: "7"), (40, lambda row: row[:-1])]:
        altered = "\n".join([*rows[:place], alter(rows[place]), *rows[place + 1 :]])
        with pytest.raises(ValueError, match=f"line {place + 1} "):
            replayed_log(altered)
    paid = next(place for place, row in enumerate(rows) if "episode" in row)
    line = json.loads(rows[paid])
    with pytest.raises(ValueError, match=f"line {paid + 1} tells"):
        replayed_log("\n".join([*rows[:paid], json.dumps(line | {"grade": line["grade"] + 1e-9})]))


def test_what_no_rubric_can_be_is_refused():
    for criteria, why in [
        ([], "weights that are not all 0"),
        ([CRITERIA[0]] * 2, "different names"),
        (CRITERIA[1:], "unknown criteria that quick needs: right"),
        ([*CRITERIA, Criterion("x", grade, needs="quick")], "x needs quick, which needs another"),
        ([Criterion("x", grade, 0.0)], "not all 0"),
    ]:
        with pytest.raises(ValueError, match=why):
            Weights(criteria)
    with pytest.raises(ValueError, match=r"step must be in \(0, 1\], got 0"):
        Weights(CRITERIA, step=0)
    with pytest.raises(ValueError, match=r"the weight of x, 0.5, is not in \[0.6, 1\]"):
        Criterion("x", grade, 0.5, low=0.6)
    none = Weights([Criterion("x", grade, 0.1)])
    assert none.hear('{"x": 0}') == "all weights would be 0" and none.values == {"x": 0.1}
    with pytest.raises(ValueError, match=r"the score of criterion x is 2, not in \[0, 1\]"):
        Weights([Criterion("x", lambda turn, message: 2)]).scores(Turn("end"), "")


def test_scores_and_schedules_by_hand():
    turn = Turn("end", outcomes={"drawdown": 0.2, "turnover": math.nan}, grade=0.75)
    message = "a = 1\n\n  \nb = 2\n"
    scores = [grade, outcome("drawdown", 0.5, 0.0), outcome("turnover"), outcome("x"), lines(10, 1), lines(1, 2)]
    told = Weights([Criterion(str(place), score) for place, score in enumerate(scores)]).scores(turn, message)
    assert list(told.values()) == pytest.approx([0.75, 0.6, 0, 0, 8 / 9, 1])
    points = {10: {"a": 0.0, "b": 1.0}, 30: {"a": 1.0, "b": 0.5}, 40: {"a": 0.0, "b": 0.5}}
    expected = {0: (0, 1), 10: (0, 1), 15: (0.25, 0.875), 30: (1, 0.5), 34: (0.6, 0.5), 99: (0, 0.5)}
    for at, weights in expected.items():
        assert tuple(scheduled(points, at).values()) == pytest.approx(weights)
    for wrong in ({}, {0: {"a": 1.0}, 1: {"b": 1.0}}):
        with pytest.raises(ValueError, match="must all name the same criteria"):
            scheduled(wrong, 0)
