"""The conversation of ``code``: programs read from messages, feedback, ends, grades, agents, parts and pictures."""

import asyncio
import json
from collections import Counter

import numpy as np
import pytest

from tests.tasks.code.medians import LINE, RIGHT, SORTS_IN_PLACE, write_problems
from vecenv import Dialogue, Episode, make_interaction
from vecenv.learn.conversations import evaluate_conversations
from vecenv.registry import task_named
from vecenv.sandbox import LANGUAGES, Result, Status, jail
from vecenv.tasks.code import figures, scene
from vecenv.tasks.code.problems import SHIPPED, part_of, read_problems
from vecenv.tasks.code.text import read_program
from vecenv.tasks.code.values import literal
from vecenv.tasks.code.verification import Verifier, caught, score
from vecenv.testing import check_interaction
from vecenv.text.transcripts import replayed_conversation

PROBLEMS = read_problems(SHIPPED)
needs_jail = pytest.mark.skipif(bool(jail.lacking()), reason=f"no jail here: {dict(jail.lacking())}")

SAID = [
    ("```python\nx = 1\n```", ("x = 1\n", False)),
    ("first\n```\nx = 1\n```\nor\n```py\nx = 2\n```\n", ("x = 2\n", False)),
    ("```python\nx = 1\n```\nRun it:\n```bash\npython x.py\n```", ("x = 1\n", False)),
    ("~~~~ Python title=a\nx = '''\n~~~\n'''\n~~~~", ("x = '''\n~~~\n'''\n", False)),
    ("<final_code>x = 1</final_code>", ("x = 1", True)),
    ("<final_code>\n```python\nx = 1\n</final_code>", ("x = 1\n", True)),
    ("<final_code>\nx = 0\n```python\n</final_code>", ("x = 0\n```python", True)),
    ("```\nx = 1\n```\n<final_code>\n```python\nx = 2\n```\n</final_code> done", ("x = 2\n", True)),
    ("x = 1", "it has no python program between ``` fences"),
    ("```js\nlet x\n```", "it has no python program between ``` fences"),
    ("```python\nx = 1", "it has no python program between ``` fences"),
    ("```python\n\n```", "it has no python program between ``` fences"),
    ("<final_code>\nx = 1", "<final_code> is not closed by </final_code>"),
    ("<final_code> \n</final_code>", "there is nothing in <final_code>"),
]


@pytest.mark.parametrize(("message", "read"), SAID)
def test_a_program_is_read_from_a_message(message, read):
    said = read_program(message, "python")
    assert (said.fault if isinstance(read, str) else (said.program, said.final)) == read


@pytest.fixture
def own(tmp_path):
    """Return settings of a world with the small problem alone."""
    return {"problems": str(write_problems(tmp_path / "own.jsonl"))}


def fenced(program):
    return f"```python\n{program}\n```"


def final(program):
    return f"<final_code>\n{program}\n</final_code>"


def talk(messages, **settings):
    """Return the turns of an episode, the beginning first."""
    dialogue = Dialogue(make_interaction("code", 1, **settings))
    (begun,) = dialogue.begin([0], [Episode(0, 0)])
    turns = [begun]
    for message in messages:
        turns += dialogue.answer([0], [message])
    return turns


@needs_jail
def test_tries_with_feedback_end_with_the_grade_of_the_last_program(own):
    begun, first, second, last = talk([fenced(RIGHT.replace("sorted(xs)", "xs")), "no code", final(RIGHT)], **own)
    assert begun.shown.startswith(LINE["prompt"]) and begun.shown.endswith(
        "There are 4 shown and 6 hidden tests. 3 tries and 40,000 characters (about 10,000 tokens) are left."
    )
    assert first.shown.startswith(
        "Your program runs, and passes 2 of 4 shown tests.\nTest 1 (stdio) failed.\ninput:\n3\n1\n2\n"
        "expected: 2\ngot: 1\n"
    ), first.shown
    assert "Test 3 (function) failed.\ncall: median([3, 1, 2])\nexpected: 2\ngot: 1\n" in first.shown
    assert "hidden tests." in first.shown and first.outcomes["tries"] == 1 and not first.done
    assert second.fault == "it has no python program between ``` fences" and second.outcomes["rungs"] == 1
    assert last.done and (last.grade, last.reward, last.fault) == (1.0, 1.0, "")
    assert last.outcomes == {"hidden": 1.0, "shown": 1.0, "rungs": 4.0, "tries": 3.0}


ENDS = [
    ([fenced(RIGHT), "", "no"], 1.0, ""),
    (["", "", "no"], 0.0, ""),
    ([final("while True: pass")], 0.0, "Your program does not run: it takes more than 0.3 s of processor time."),
    ([final("x = ")], 0.0, "Your program does not run: it ends with exit code 1:"),
    ([final(SORTS_IN_PLACE)], 5 / 6, "It passes 5 of 6 hidden tests."),
    ([fenced(RIGHT), final(RIGHT + RIGHT), fenced("\ud800")], 1.0, ""),
]


@needs_jail
@pytest.mark.parametrize(("messages", "grade", "told"), ENDS)
def test_an_episode_ends_with_the_last_program(own, messages, grade, told):
    turns = talk(messages, **own)
    assert [turn.done for turn in turns] == [False] * len(messages) + [True]
    assert turns[-1].grade == pytest.approx(grade) and told in turns[-1].shown


@needs_jail
def test_hidden_tests_are_told_of_as_a_count_or_not_at_all(own):
    for count in (True, False):
        _, turn = talk([fenced("print(98765)")], count_hidden=count, **own)
        assert ("hidden tests" in turn.shown) is count
        assert not any(secret in turn.shown for secret in ("98765,", "91", "xs == [3, 1, 2]"))


@needs_jail
def test_messages_and_feedback_have_a_length(own):
    print_much = fenced("import sys\nprint('x' * 100000)\ndef median(xs): return 'y' * 100000")
    _, turn, more = talk([print_much, fenced("x" * 960)], feedback=400, characters=1000, **own)
    assert len(turn.shown) < 700 and "got: " + "x" * 50 + "… (" in turn.shown and "more failed" in turn.shown
    room = 1000 - len(print_much)
    assert more.fault == f"it has 974 characters, and {room} were left" and not more.acted


@pytest.mark.assembly
@needs_jail
def test_the_conversation_keeps_its_contract(own):
    check_interaction("code", tries=2, **own)


@needs_jail
def test_a_failure_of_the_sandbox_ends_the_episode_without_a_grade(own, monkeypatch):
    class Fails:
        async def answer(self, job):
            return Result(Status.SANDBOX_FAILURE, message="a worker died")

    monkeypatch.setattr(scene, "shared_verifier", lambda *settings: Verifier(Fails()))
    _, turn = talk([final(RIGHT)], **own)
    assert turn.failed and turn.truncated and turn.grade is None and turn.reward == 0


SMALL = {
    "tests": [LINE["tests"][place] for place in (0, 2, 3, 4, 5, 6)],
    "solutions": LINE["solutions"] | {"wrong": LINE["solutions"]["wrong"][1:3]},
}


@needs_jail
def test_rewards_are_the_same_whatever_the_number_of_workers(tmp_path):
    """Nor do they depend on what other rows do; a seed meets each problem once, and a record of an episode replays."""
    names = ["median", "middle", "centre"]
    settings = {"problems": str(write_problems(tmp_path / "own.jsonl", *({"name": name} | SMALL for name in names)))}
    agents = {name: task_named("code").agents[name] for name in ("wrong", "repairs")}
    episodes, came = [Episode(3, index) for index in range(3)], []
    for workers in (1, 3):
        world = make_interaction("code", len(episodes), workers=workers, **settings)
        evaluation = evaluate_conversations(world, {name: make() for name, make in agents.items()}, episodes)
        assert sorted(talk.problem.name for talk in world.rows) == sorted(names)
        came.append({name: [record.turns for record in evaluation.conversations[name]] for name in agents})
    assert came[0] == came[1]
    assert evaluation.records["repairs"].grades["grade"].tolist() == [1.0] * 3
    assert evaluation.records["wrong"].grades["grade"].max() < 1
    record = evaluation.conversations["repairs"][0]
    assert record.difference(replayed_conversation(record, make_interaction("code", 1, workers=3, **settings))) is None


def test_parts_are_of_problems(tmp_path):
    path = tmp_path / "own.jsonl"
    lines = [{**LINE, "name": f"problem {number}"} for number in range(300)]
    path.write_text("\n".join(json.dumps({k: v for k, v in line.items() if k != "part"}) for line in lines))
    problems = read_problems(path)
    found = [sum(problem.part == part for problem in problems) for part in ("train", "validation", "test")]
    assert all(problem.part == part_of(problem.name) for problem in problems)
    assert np.allclose(np.array(found) / 300, (0.6, 0.2, 0.2), atol=0.06), found


@needs_jail
def test_what_cannot_be_played_is_named(own, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="has no problems of part test in python"):
        make_interaction("code", part="test", **own)
    with pytest.raises(ValueError, match=r"none\.jsonl cannot be read: No such file"):
        make_interaction("code", problems=str(tmp_path / "none.jsonl"))
    bare = make_interaction("code", problems=str(write_problems(tmp_path / "bare.jsonl", {"solutions": {}})))
    with pytest.raises(ValueError, match="problem 'median' has no right solution"):
        task_named("code").agents["right"]().answer(bare, [0], [""])
    monkeypatch.setattr(type(LANGUAGES["shell"]), "executable", lambda language: None)
    tests = [{"rung": "stdio", "stdin": n, "stdout": n, "shown": n == "1"} for n in "123"]
    shell = write_problems(tmp_path / "sh.jsonl", {"language": "shell", "tests": tests, "solutions": {}})
    with pytest.raises(ValueError, match="this machine has no sh, which runs shell"):
        make_interaction("code", problems=str(shell), languages=("shell",))


def test_without_a_jail_there_is_no_world(own, monkeypatch):
    monkeypatch.setattr(jail, "lacking", lambda: {"namespaces": "there is no bubblewrap"})
    scene.shared_verifier.cache_clear()
    with pytest.raises(ValueError, match="no jail without namespaces: there is no bubblewrap"):
        make_interaction("code", **own)


@needs_jail
def test_pictures_show_rungs_tries_and_the_matrix(tmp_path):
    world = make_interaction("code", 2, problems=str(write_problems(tmp_path / "own.jsonl", SMALL)))
    agents = {name: make() for name, make in task_named("code").agents.items()}
    evaluation = evaluate_conversations(world, agents, [Episode(1, 0), Episode(1, 1)])
    talks = evaluation.conversations
    assert figures.rungs_reached(talks["right"]).tolist() == [1.0] * 3 + [0.0]
    first, *later = figures.hidden_by_try(talks["repairs"], 3)
    assert first < 1 and later == [1.0, 1.0]
    assert figures.talk_figures(talks).keys() == {"rungs", "tries"}
    assert figures.matrix_figures(world, {}, 0).keys() == {"programs_and_tests_median"}


def hard_coded(problem):
    """Return a program that knows all shown answers, and gives one of them to everything else."""
    printed = {test.stdin: test.stdout for test in problem.of("stdio", shown=True)}
    returned = {literal(list(test.args)): literal(test.returns) for test in problem.of("function", shown=True)}
    others = [Counter(known.values()).most_common(1)[0][0] for known in (printed, returned)]
    return (
        f"def {problem.entry}(*args):\n    return eval({returned}.get(repr(list(args)), {others[1]!r}))\n"
        "if __name__ == '__main__':\n    import sys\n"
        f"    print({printed}.get(sys.stdin.read(), {others[0]!r}), end='')\n"
    )


@needs_jail
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.nightly if number % 20 else pytest.mark.assembly)
        for number in range(len(PROBLEMS))
    ],
)
def test_shipped_solutions_come_to_what_is_said_of_them(number):
    """Right ones pass all tests, wrong ones are caught where it says, and known answers are worth nothing."""
    problem = PROBLEMS[number]
    if LANGUAGES[problem.language].command and LANGUAGES[problem.language].executable() is None:
        pytest.skip(f"there is no {problem.language} here")
    verifier = scene.shared_verifier(0, ())

    def come_to(code):
        ran, verdicts = asyncio.run(verifier.ladder(problem, code))
        return caught(problem, verdicts, ran.passed), score(problem, verdicts, ran.passed).grade

    said = {code: None for code in problem.right} | dict(problem.wrong)
    assert {code: come_to(code)[0] for code in said} == said
    if problem.language == "python":
        assert come_to(hard_coded(problem))[1] == 0
