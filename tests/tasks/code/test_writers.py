"""The conversation ``code_tests``: tests and programs by the episode's name, scored as if alone; a pool that is met."""

import json
import math
from asyncio import sleep
from functools import partial

import pytest

from tests.tasks.code.one_problem import NEGATIVE, RIGHT, ZERO, InProcess, write_problem
from vecenv import Dialogue, Episode, make_interaction
from vecenv.learn.group_episodes import rollout_seed
from vecenv.sandbox.jail import lacking
from vecenv.tasks.code.own_tests import Pool, PooledTest, score_group
from vecenv.tasks.code.problems import Test, read_problems
from vecenv.tasks.code.verification import Verifier
from vecenv.tasks.code.writers import CODE_TESTS
from vecenv.tasks.code.writing import pool_of
from vecenv.testing import check_interaction
from vecenv.text.transcripts import RecordedDialogue, replayed_conversation


@pytest.fixture
def options(monkeypatch, tmp_path):
    return write_problem(tmp_path / "problems.jsonl", monkeypatch)


def final(code):
    return f"<final_code>\n{code}\n</final_code>"


@pytest.mark.parametrize("writes", ["tests", "programs", "both"])
def test_it_conforms(options, writes):
    check_interaction(CODE_TESTS, writes=writes, **options)


@pytest.mark.parametrize(
    ("code", "worth", "accepted", "rejected", "passes_all"),
    [
        ("assert double(-5) == -10 and double(0) == 0", 1.0, 1, 1, 0),
        ("assert double(-1) == -2", 0.5, 1, 0.5, 0),
        ("assert True", 0.0, 1, 0, 1),
        ("assert double(0) == 1", -0.5, 0, 0.5, 0),
        ("assert False", 0.0, 0, 1, 0),
        ("assert double(-1) >= 0 or double(0)", -1.0, 0, 0, 0),
    ],
)
def test_a_test_is_scored_by_right_and_wrong_programs(options, code, worth, accepted, rejected, passes_all):
    dialogue = Dialogue(make_interaction(CODE_TESTS, **options))
    assert "Define double(n)." in dialogue.begin([0], [Episode(1, 0)])[0].shown
    assert "Write a test" in dialogue.instructions([0])[0]
    once = make_interaction(CODE_TESTS, **(options | {"tries": 1, "writes": "both"}))
    Dialogue(once).begin([0], [Episode(0, 0)])
    assert "then write" in dialogue.instructions([0])[0] and "final_code" not in once.instructions([0])[0]
    (turn,) = dialogue.answer([0], [final(code)])
    told = turn.outcomes
    assert [told[name] for name in ("separation", "accepted", "rejected", "passes_all")] == [
        worth, accepted, rejected, passes_all,
    ]  # fmt: skip
    assert turn.terminated and turn.grade == max(0, worth) and math.isnan(told["hidden"])
    assert dialogue.interaction.config.writes == "tests"


def test_the_last_valid_test_counts_and_a_sandbox_that_fails_is_no_failure_of_the_agent(options):
    world = make_interaction(CODE_TESTS, characters=60, **options)
    dialogue = RecordedDialogue(world)
    dialogue.begin([0], [Episode(1, 0)])
    first, last = (
        dialogue.answer([0], [said])[0] for said in ("```\nassert double(-1) == -2\n```", "```\nassert (\n```")
    )
    assert "1 of 1 right programs pass it, 1 of 2 wrong ones fail it.\nOne try and" in first.shown and not first.done
    assert "no Python" in last.fault and last.terminated and last.grade == 0.5
    (record,) = dialogue.records
    assert (
        record.difference(replayed_conversation(record, make_interaction(CODE_TESTS, characters=60, **options))) is None
    )
    # What was recorded makes the pool that later episodes meet.
    assert pool_of([record]).tests == {"double": [PooledTest("assert double(-1) == -2\n", 1, 2)]}
    for said, why in [("assert True", "no python program between"), ("```\n" + "#" * 60 + "\n```", "60 were left")]:
        dialogue.begin([0], [Episode(1, 0)])
        assert why in dialogue.answer([0], [said])[0].fault
    world.verifier.fails = True
    (lost,) = dialogue.answer([0], [final("assert True")])
    assert lost.failed and lost.grade is None


def test_programs_meet_the_tests_of_the_pool(options, tmp_path):
    """What a group made of each other is offered to the pool; who writes a program later meets what was kept."""
    programs, tests = (
        [RIGHT, NEGATIVE, ZERO],
        ["assert double(-1) == -2", "assert double(2) == 4", "assert double(0) == 1"],
    )
    (problem,) = read_problems(tmp_path / "problems.jsonl")
    verifier, run = InProcess(), lambda waiting: waiting.send(None)

    def matrix(code):
        with pytest.raises(StopIteration) as ended:
            run(verifier.matrix(problem, programs, code))
        return ended.value.value

    own = matrix([Test("assertions", code=code) for code in tests])
    scores = score_group(own, matrix(problem.tests))
    assert scores.tests.tolist() == [0.5, 0, -0.5] and scores.right.tolist() == [True, False, False]
    pool = Pool()
    pool.offer("double", tests, own, scores.right, scores.wrong)
    assert pool.tests == {"double": [PooledTest(tests[0], 1, 2)]}
    world = make_interaction(CODE_TESTS, 3, writes="both", pool=str(pool.write(tmp_path)), own_weight=0.25, **options)
    dialogue = Dialogue(world)
    dialogue.begin([0, 1, 2], [Episode(0, 0), Episode(0, 1), Episode(0, 2)])
    assert [world.writes_test(row) for row in range(3)] == [False, True, False]
    right, test, wrong = dialogue.answer([0, 1, 2], [final(code) for code in (RIGHT, tests[0], NEGATIVE)])
    assert right.grade == 1 == right.outcomes["own"] and "passes 1 of 1 tests of others" in right.shown
    assert test.grade == 0.5 and math.isnan(test.outcomes["own"])
    # Without the pool it passes what it does of the hidden tests; the pool's has a quarter of the grade.
    alone = Dialogue(make_interaction(CODE_TESTS, writes="programs", **options))
    alone.begin([0], [Episode(1, 0)])
    assert wrong.grade == 0.75 * alone.answer([0], [final(NEGATIVE)])[0].grade and wrong.outcomes["own"] == 0
    for changes, why in [({"part": "test"}, "no problem"), ({"pool": options["problems"]}, "no pool of tests")]:
        with pytest.raises(ValueError, match=why):
            make_interaction(CODE_TESTS, **{**options, **changes})


def test_programs_and_tests_of_a_rollout_pay_each_other_and_feed_the_pool(options):
    changes = {"writes": "both", "own_weight": 0.5, "tries": 1}
    world = make_interaction(CODE_TESTS, 6, **(options | changes))
    dialogue, ids = Dialogue(world), range(6)

    def settled(*said):
        dialogue.begin(ids, [Episode(0, row % 2) for row in ids])
        return dialogue.settled(ids, dialogue.answer(ids, list(said)))

    # Of one problem: programs in even rows, tests in odd ones.
    said = (RIGHT, "assert double(-1) == -2", NEGATIVE, "assert double(2) == 4", ZERO, "assert double(0) == 1")
    turns = settled(*map(final, said))
    # Wrong are two that were written, and the same two of the problem's own.
    assert [turn.reward for turn in turns[1::2]] == [0.5, 0.0, -0.5]
    assert [turn.grade for turn in turns[1::2]] == [0.5, 0.0, 0.0]
    # The test that separates has all of the own tests' half; the other half are the shares of true tests.
    assert [turn.reward for turn in turns[::2]] == [0.5 + 0.5, 0.5 * 0.8, 0.5 * 0.8 + 0.5]
    assert world.kept.tests == {"double": [PooledTest(said[1], 2, 4)]} and world.measures()["pool_tests"] == 1
    assert world.measures()["collusion"] == pytest.approx(1 / 3)
    # Later programs meet it, where none of the rollout writes a test.
    later = make_interaction(CODE_TESTS, 6, **(options | changes))
    later.load_state_dict(json.loads(json.dumps(world.state_dict())))
    dialogue = Dialogue(later)
    turns = settled(final(NEGATIVE), "", final(RIGHT), "", "", "")
    assert [turn.reward for turn in turns] == [0.5 * 0.8, 0, 1, 0, 0, 0] and turns[1].fault
    # The problem's own wrong programs count once.
    assert later.kept.tests["double"][0].met == 4 + 1


def test_one_group_writes_programs_and_tests_by_turns(options):
    world = make_interaction(CODE_TESTS, 2, writes="both", **options)
    dialogue, kinds = Dialogue(world), []
    for rollout in range(8):
        dialogue.begin([0, 1], [Episode(rollout_seed(5, rollout), 0)] * 2)
        kinds.append(world.writes_test(0))
        assert world.writes_test(1) == kinds[-1]
    assert 3 <= sum(kinds) <= 5


def test_a_rollout_that_is_settled_too_late_is_masked(options):
    world = make_interaction(CODE_TESTS, 2, deadline=0.05, **options)
    dialogue = Dialogue(world)
    dialogue.begin([0, 1], [Episode(1, 0)] * 2)
    turns = dialogue.answer([0, 1], [final("assert double(-1) == -2"), "none"])
    verifier = world.verifier
    world.verifier.matrix = partial(sleep, 60)
    late, invalid = dialogue.settled([0, 1], turns)
    assert late.failed and late.grade is None and invalid == turns[1] and not world.kept.tests
    del verifier.matrix
    assert dialogue.settled([0, 1], turns)[0].grade == 0.5


@pytest.mark.assembly
@pytest.mark.skipif(bool(lacking()), reason="no jail here")
def test_in_the_sandbox_all_tests_of_a_problem_are_worth_more_than_those_shown():
    grades = {}
    for name, made in CODE_TESTS.agents.items():
        world, agent = make_interaction(CODE_TESTS, 2, workers=2), made()
        dialogue = Dialogue(world)
        begun = dialogue.begin([0, 1], [Episode(0, 0), Episode(0, 1)])
        turns = dialogue.answer([0, 1], agent.answer(world, [0, 1], [turn.message for turn in begun]))
        grades[name] = sum(turn.grade for turn in turns)
    assert grades["all_tests"] == 2 > grades["shown_tests"] > grades["calls"] == 0
    assert isinstance(world.verifier, Verifier)
