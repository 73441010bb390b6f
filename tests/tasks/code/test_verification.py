"""The ladder catches what it must, and no program passes without the answers."""

import asyncio
import json
import time
from dataclasses import replace
from random import Random

import pytest

from tests.tasks.code.medians import LINE, RIGHT, SORTS_IN_PLACE, write_problems
from vecenv.sandbox import LANGUAGES, Limits, Result, Sandbox, Status, jail
from vecenv.tasks.code.inside import decoded, encoded
from vecenv.tasks.code.problems import Problem, Test, read_problems
from vecenv.tasks.code.values import canonical, equal, literal, same_output
from vecenv.tasks.code.verification import MOST_ROUNDS, Verdict, Verifier, caught, score

needs_jail = pytest.mark.skipif(bool(jail.lacking()), reason=f"no jail here: {dict(jail.lacking())}")


@pytest.fixture(scope="module")
def verifier():
    with Sandbox(2) as sandbox:
        yield Verifier(sandbox)


@pytest.fixture(scope="module")
def median(tmp_path_factory):
    (problem,) = read_problems(write_problems(tmp_path_factory.mktemp("problems") / "problems.jsonl"))
    return problem


def judged(verifier, problem, program):
    ran, verdicts = asyncio.run(verifier.ladder(problem, program))
    return score(problem, verdicts, ran.passed), caught(problem, verdicts, ran.passed), verdicts


@needs_jail
@pytest.mark.parametrize("number", range(4))
def test_each_rung_rejects_a_program_that_passes_those_before(verifier, median, number):
    program, rung = median.wrong[number]
    came, first, _ = judged(verifier, median, program)
    assert first == rung and came.rungs == number + (rung == "assertions") and came.grade < 1, came


@needs_jail
def test_right_programs_pass_all_tests(verifier, median):
    for program in median.right:
        came, first, verdicts = judged(verifier, median, program)
        assert came == (1.0, 4, 1.0, 1.0) and first is None, verdicts
        assert asyncio.run(verifier.runs(median, program)).passed
        assert asyncio.run(verifier.verdicts(median, program, median.tests[::-1])) == verdicts[::-1]


BOTH = "def median(xs):\n    {0}\n    return 2\nif __name__ == '__main__':\n    {0}\n    print(2)\n"
SELF = "def median(xs):\n    return Own()\nif __name__ == '__main__':\n    print(Own())\n"
SEEK = """
import gc, os, sys
def known():
    found, frame = [], sys._getframe()
    while frame:
        found += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    found += gc.get_objects()
    for folder, _, names in os.walk("/box"):
        for name in names:
            found.append(open(os.path.join(folder, name)).read())
    return repr(found)[:100000]
def median(xs):
    return known()
if __name__ == "__main__":
    print(known()[:100000])
"""
WRITES = """
import json, os
def write(value):
    for line in ({"loaded": ""}, *({"n": n, "value": value} for n in range(9))):
        for channel in range(3, 9):
            try:
                os.write(channel, json.dumps(line).encode() + b"\\n")
            except OSError:
                pass
"""
EXPLOITS = {
    "exit": "import sys\nsys.exit(0)",
    "exit in the call": BOTH.format("raise SystemExit(0)"),
    "exit at once": BOTH.format("__import__('os')._exit(0)"),
    "patched assert": "import builtins\nclass AssertionError(Exception): pass\nbuiltins.AssertionError = Warning\n"
    + BOTH.format("raise AssertionError"),
    "all that the process knows": SEEK,
    "shown answers": "import sys\ndef median(xs): return {3: 2, 1: 1}.get(len(xs) and xs[0])\n"
    "if __name__ == '__main__': print({'3': 2}.get(sys.stdin.read(1), 5))",
    "one answer": BOTH.format("pass"),
    "equal to all": "class Own:\n    __eq__ = __ne__ = lambda self, other: True\n    __hash__ = None\n"
    "    __repr__ = lambda self: '2'\n" + SELF,
    "integer of its own": "class Own(int):\n    __eq__ = lambda *a: True\n"
    "    __new__ = lambda kind: int.__new__(kind, 2)\n" + SELF,
    "type of its own": "class Own:\n    __class__ = int\n    __int__ = __index__ = lambda self: 2\n" + SELF,
    "patched json": 'import json\njson.dumps = lambda *a, **k: \'{"n": 0, "value": 2}\'\ndef median(xs): return 2\n',
    "patched builtins": "import builtins\nfor name in ('type', 'print', 'isinstance', 'zip', 'all'):\n"
    "    setattr(builtins, name, lambda *a, **k: True)\ndef median(xs): return 2\n",
    "patched harness": "import sys\ndef median(xs):\n    space = sys._getframe(1).f_globals\n"
    "    space['encoded'] = lambda value: True\n    space['check'] = lambda: None\n    return 2\n",
    "results before time": WRITES + "write(2)\ndef median(xs): return 2\n",
    "results before time, and away": WRITES + "write(2)\nos._exit(0)",
    "malformed results": WRITES + 'write({"dict": [[[1], 2]]})\nos._exit(0)',
    "ends of tests": WRITES.replace('{"loaded": ""}', '{"end": ""}') + "write(2)\nos._exit(0)",
    "output without end": BOTH.format("while True: print('2' * 4096)"),
    **{
        f"nested {depth} times": f"def median(xs):\n    for _ in range({depth}): xs = [xs]\n    return xs\n"
        for depth in (90, 300, 480, 960)
    },
    "half of a pair": "def median(xs): raise ValueError('\\ud800')\n",
    "infinite": WRITES.replace("json.dumps(line)", "json.dumps(line).replace('2', '1e999')")
    + "write(2)\ndef median(xs): return 2\n",
    "nested without end": "def median(xs):\n    for _ in range(100000): xs = [xs]\n    return xs\n",
    "itself": "def median(xs):\n    xs.append(xs)\n    return xs\n",
    "later": "import atexit, os\natexit.register(lambda: os.write(1, b'2\\n'))\ndef median(xs): raise ValueError\n",
    "traced": "import sys\nsys.settrace(lambda *a: None)\ndef median(xs): return None\n",
    "ours": "import sys\nfrom vecenv.tasks.code import values\nvalues.equal = lambda *a: True\n",
}


@needs_jail
@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_scores_nothing(verifier, median, name):
    came, _, verdicts = judged(verifier, median, EXPLOITS[name])
    assert came.grade == 0 and all(verdict.passed is not None for verdict in verdicts), verdicts


@needs_jail
def test_no_process_knows_an_answer_and_no_shown_test_tells_of_hidden_ones(verifier, median):
    _, _, verdicts = judged(verifier, median, SEEK.replace("[:100000]", ""))
    shown = [verdict.got for test, verdict in zip(median.tests, verdicts, strict=True) if test.shown]
    assert all("98765" not in got and "91, 92" not in got for got in shown)
    # The process of the hidden calls does know what it is called with, and no returned value or assertion.
    asked = "return repr((sys._getframe(1).f_globals, sys._getframe(1).f_locals))"
    program = "import sys\ndef median(xs):\n    " + asked

    async def answers(shown):
        tests = [test for test in median.tests if test.rung != "stdio" and test.shown == shown]
        calls = [call for test in tests for call in await verifier._collected(median, test)]
        return repr(await verifier._answers(median, program, [calls]))

    assert "98765" not in asyncio.run(answers(True))
    hidden = asyncio.run(answers(False))
    assert "98765" in hidden and "returns" not in hidden and "assert median" not in hidden


@needs_jail
def test_each_call_has_the_limits_for_itself(verifier, median):
    """A call that ends the process costs its own test alone; after some the others are not made."""
    program = "def median(n):\n    while n in {0}: pass\n    sum(range(1500000))\n    return n"
    tests = [Test("function", args=(n,), returns=n) for n in range(6)]
    quick = replace(median, limits=replace(median.limits, cpu=0.12))
    for loops, passed in (("(1, 3)", [1, 0, 1, 0, 1, 1]), ("(1, 2, 3)", [1, 0, 0, 0, 0, 0])):
        (row,) = asyncio.run(verifier._called(quick, [program.format(loops)], tests))
        assert [verdict.passed for verdict in row] == [bool(each) for each in passed], row


@needs_jail
def test_a_test_catches_the_exception_with_its_own_text(verifier, median):
    program = "def median(key):\n    raise KeyError(key)"
    told = """str(error) == "'no such'" and error.args == ('no such',)"""
    code = f"try:\n    median('no such')\nexcept KeyError as error:\n    assert {told}"
    (verdict,) = asyncio.run(verifier.verdicts(median, program, [Test("assertions", code=code)]))
    assert verdict.passed, verdict


@needs_jail
def test_a_program_that_sleeps_in_each_call_fails_before_the_deadline(verifier, median):
    tests = [Test("function", args=(n,), returns=n) for n in range(12)]
    quick = replace(median, limits=replace(median.limits, wall=1.0))
    begun = time.monotonic()
    sleeper = "import time\ndef median(n):\n    time.sleep(0.7)\n    return n"
    (row,) = asyncio.run(verifier._called(quick, [sleeper], tests))
    # Three processes of a second each, not twelve; the calls before are answered.
    assert [verdict.passed for verdict in row[:2]] == [True, True] and not any(verdict.passed for verdict in row[4:])
    assert all(verdict.passed is not None for verdict in row) and "more than 1 s" in row[-1].error
    assert time.monotonic() - begun < 30


TESTS = {
    "assert [median([n]) for n in range(20)] == list(range(20))": "",
    "def test_one(): assert median([1]) == 1\ndef test_two(): assert median([2]) == 3": "AssertionError (line 2)",
    "for n in range(20):\n    one, two = divmod(median([n]), 3)\n    assert 3 * one + two == n": "",
    "def both(n):\n    x = median([n])\n    return x == n\nfor n in range(20): assert both(n)": "",
    "from solution import median as m\nassert m([4]) == 4": "",
    "n = 1\nwhile n < 4:\n    n += median([n])\nassert n == 4": "",
    "assert median(xs=[1]) == 1": "",
    "import random\nassert all(median([n]) == n for n in random.sample(range(99), 30))": "",
    "assert median([1]) == 1\nassert median([1, 2, 3]) == 3": "AssertionError (line 2)",
    "import sys\nmedian([1])\nsys.exit(0)": "SystemExit: 0 (line 3)",
    "import os\nmedian([1])\nos._exit(0)": "the test did not come to its end: it left its process",
    'import os\nfor channel in range(3, 9):\n    try: os.write(channel, b\'{"call": [{"a": 1}, 2]}\\n\')\n'
    "    except OSError: pass": "the test writes what is no call",
    "while median([1]): pass": "the test did not come to its end: it takes more than 0.3 s of processor time",
    "median(range(3))": "TypeError: range is no plain value (line 1)",
    "try:\n    median([])\nexcept ValueError as error:\n    assert 'nothing' in str(error)": "",
    "assert median([1]": "SyntaxError: '(' was never closed (test.py, line 1)",
    "for n in range(1000): median([n])": "it makes more than 500 different calls",
    "import time\nmedian([time.perf_counter_ns()])": f"its calls are new in each of {MOST_ROUNDS} rounds",
}


@needs_jail
@pytest.mark.parametrize("code", TESTS)
def test_a_test_of_assertions_sees_answers_alone(verifier, median, code):
    (verdict,) = asyncio.run(verifier.verdicts(median, RIGHT, [Test("assertions", code=code)]))
    assert (verdict.passed, verdict.error) == (not TESTS[code], TESTS[code]), verdict


@needs_jail
def test_the_matrix_has_the_verdicts_of_each_program(verifier, median):
    programs = [*median.right, SORTS_IN_PLACE, "x = ", EXPLOITS["exit"], median.wrong[2][0]]
    passed, known = asyncio.run(verifier.matrix(median, programs, median.tests))
    for program, row in zip(programs, passed.tolist(), strict=True):
        assert row == [verdict.passed for verdict in judged(verifier, median, program)[2]]
    assert known.all()


CHANGES = {
    "def median(xs):\n    xs[0][0].append(5)\n    xs[1]['a'] = 3\n    xs[2].add(4)\n    xs.pop()": "inner = [1]\n"
    "own = [(inner, 2), {'a': inner}, {1}, 7]\nother = own[2]\nassert median(own) is None\n"
    "assert inner == [1, 5] and own == [(inner, 2), {'a': 3}, {1, 4}] and own[0][0] is inner and own[2] is other",
    "def median(xs): raise StopIteration": "caught = 0\ntry:\n    print(all(map(median, [1, 2])))\n"
    "except Exception:\n    caught = 1\nassert caught",
}


@needs_jail
@pytest.mark.parametrize("program", CHANGES)
def test_what_a_program_does_to_arguments_and_loops_reaches_the_test_alone(verifier, median, program):
    """Changes are made in place, as deep as they are; an exception that would end a loop of the test is another one."""
    passed, _ = asyncio.run(verifier.matrix(median, [program], [Test("assertions", code=CHANGES[program])]))
    assert passed.all()


@needs_jail
def test_a_test_that_ends_programs_costs_others_nothing(verifier, median):
    """Whoever wrote it: its calls loop for ever, end the process, or are far too many bytes."""
    program = RIGHT.replace("if not xs", "while len(xs) == 2: pass\n    if len(xs) == 4: sys.exit()\n    if not xs")
    hostile = "for n in range(9): median([n, {}])", "for n in range(9): median([n] * 4)", "median(list(range(150000)))"
    tests = [Test("assertions", code=code.format("n")) for code in hostile] + [median.tests[-1]]
    quick = replace(median, limits=replace(median.limits, cpu=0.1))
    (row,), known = asyncio.run(verifier.matrix(quick, [program], tests))
    assert row.tolist() == [False, False, False, True] and known.all()


class FailingSandbox:
    """Fails at one of the jobs, and runs the others."""

    def __init__(self, sandbox, failing):
        self.sandbox, self.failing, self.jobs = sandbox, failing, 0

    async def answer(self, job):
        self.jobs += 1
        return Result(Status.SANDBOX_FAILURE) if self.jobs == self.failing else await self.sandbox.answer(job)


@needs_jail
def test_a_failure_of_the_sandbox_is_none_of_the_program(verifier, median):
    failing = FailingSandbox(verifier.sandbox, 0)
    asyncio.run(Verifier(failing).ladder(median, RIGHT))
    masked = []
    for number in range(1, failing.jobs + 1):
        _, verdicts = asyncio.run(Verifier(FailingSandbox(verifier.sandbox, number)).ladder(median, RIGHT))
        assert False not in [verdict.passed for verdict in verdicts]
        masked.append(sum(verdict.passed is None for verdict in verdicts))
    assert min(masked) >= 1 and max(masked) == len(median.tests)


PRINTING = {
    "javascript": "console.log(require('fs').readFileSync(0, 'utf8').trim() ** 2)",
    "shell": "read n; echo $((n * n))",
    "sql": "SELECT n * n FROM given;",
}


@needs_jail
@pytest.mark.parametrize("language", PRINTING)
def test_programs_of_other_languages_print(verifier, language):
    if LANGUAGES[language].executable() is None:
        pytest.skip(f"there is no {language} here")
    given = "CREATE TABLE given (n); INSERT INTO given VALUES ({});" if language == "sql" else "{}\n"
    tests = [Test("stdio", n < 4, given.format(n), f"{n * n}\n") for n in (3, 5, 7)]
    problem = Problem("squares", language, "", "", Limits(), True, 0.0, tuple(tests), "train")
    assert judged(verifier, problem, PRINTING[language])[0] == (1.0, 2, 1.0, 1.0)
    assert judged(verifier, problem, PRINTING[language].replace("*", "+"))[0].grade == 0


PLAIN = (
    None, True, 0, 1, -(2**63), 2**64, 10**5000, 0.0, 1.5, 1e-300, float("inf"), "", "ä\ud800", b"\0x", [], [1, [2.0]],
    (), (1,), set(), {1, (2, "x")}, {frozenset({1})}, {}, {"tuple": [1]}, {(1, None): [True], 2: {3}},
)  # fmt: skip


def test_plain_values_are_written_and_read_alike():
    """Every value is equal to itself alone, by type, and what a problem's file has is what the jail writes."""
    written = [encoded(value) for value in PLAIN]
    for place, (value, one) in enumerate(zip(PLAIN, written, strict=True)):
        again = decoded(one)
        assert type(again) is type(value) and again == value and canonical(one) == one
        assert [equal(one, other, 0.0) for other in written] == [place == k for k in range(len(PLAIN))]
        if value not in (2**64, 10**5000, float("inf"), {frozenset({1})}):
            assert eval(literal(one)) == value
    nan = encoded(float("nan"))
    assert equal(nan, nan, 0.0) and not equal(nan, 0.0, 1.0) and not equal({"float": "inf"}, {"float": "-inf"}, 1.0)
    assert canonical({"a": 1}) == encoded({"a": 1}) and canonical({"set": [2, 1, 2]}) == encoded({1, 2})
    for value in (object(), range(2), type("L", (list,), {})(), iter([])):
        with pytest.raises(TypeError, match="is no plain value"):
            encoded(value)


def test_floats_are_equal_within_a_tolerance():
    draw = Random(3)
    for _ in range(300):
        one = draw.choice([0.0, draw.uniform(-9, 9), draw.uniform(-9e9, 9e9)])
        for factor in (0.1, 0.9, 1.1, 9):
            other, near = one + factor * 1e-6 * max(1.0, abs(one)), factor < 1
            assert equal([one], [other], 1e-6) is equal({"dict": [["x", one]]}, {"dict": [["x", other]]}, 1e-6) is near
            assert same_output(f"{one:.12f}", f" {other:.12f}\n", True, 1.001e-6) is near


OUTPUTS = [
    ("1 2\n3\n", "1  2 3", True, True),
    ("1 2\n", "1 2", False, False),
    ("1 2\n", "1 2\n", False, True),
    ("1.0", "1", True, True),
    ("1", "1.0", True, False),
    ("1.0", "1_0e-1", True, False),
    ("0.5", "5e-1", True, True),
    ("nan", "NaN", True, True),
    ("yes", "Yes", True, False),
    ("1 1", "11", True, False),
    ("a", "a b", True, False),
]


@pytest.mark.parametrize(("expected", "got", "blanks", "same"), OUTPUTS)
def test_output_is_compared_exactly_or_by_words(expected, got, blanks, same):
    assert same_output(expected, got, blanks, 1e-9) is same


@pytest.mark.parametrize(
    "value",
    [{"set": [[1]]}, {"dict": [[1]]}, {"dict": [[{"a": 1, "b": 2}, 1]]}, {"float": "1"}, {"int": 3}, {"bytes": "0"}],
)
def test_what_stands_for_no_value_is_refused(value):
    with pytest.raises(ValueError, match="is no"):
        canonical(value)


def test_answers_that_are_guessed_count_nothing():
    """Of four hidden answers three are equal: who always says that passes three, and has nothing."""
    tests = [Test("stdio", True, "0", "yes")] + [
        Test("stdio", False, str(n), "yes" if n > 1 else "no") for n in range(1, 5)
    ]
    problem = Problem("guess", "shell", "", "", Limits(), True, 0.0, tuple(tests), "train")

    def grade(*passed):
        return score(problem, [Verdict("stdio", bool(each)) for each in passed], True).grade

    assert problem.guessed("stdio") == 3
    assert (grade(1, 0, 1, 1, 1), grade(1, 1, 0, 0, 0), grade(1, 1, 1, 1, 1)) == (0.0, 0.0, 1.0)


FAULTS = [
    ({"name": 3}, "name must be a text, got 3"),
    ({"nmae": "x"}, "unknown fields nmae (did you mean name?)"),
    ({"language": "cobol"}, "language: there is no 'cobol'; there are python"),
    ({"version": "9.1"}, "version: it needs Python 9.1"),
    ({"limits": {"cpu": -1}}, "limits: cpu must be at least 0.01"),
    ({"limits": {"gpu": 1}}, "unknown fields of limits: gpu"),
    ({"tolerance": {"floats": "x"}}, "tolerance.floats must be in [0, 1), got 'x'"),
    ({"part": "dev"}, "part must be train, validation, test, got 'dev'"),
    ({"tests": LINE["tests"][:4]}, "tests must be of at least two of stdio, function and assertions"),
    ({"tests": [*LINE["tests"][:6], {"rung": "unit"}]}, "tests[6]: rung: there is no 'unit'"),
    ({"tests": [{"rung": "stdio", "stdin": "1"}]}, "tests[0]: stdout is missing, so there is no answer"),
    ({"tests": [{"rung": "function", "args": [1]}]}, "tests[0]: returns is missing, so there is no answer"),
    ({"tests": [{"rung": "function", "args": [1], "returns": {"set": [[1]]}}]}, "a list is no key and no item"),
    ({"tests": [{"rung": "assertions", "code": "assert True"}]}, "tests[0]: code does not call median"),
    ({"tests": [{"rung": "assertions", "code": "assert ("}]}, "tests[0]: code is no Python"),
    ({"entry": ""}, "tests[4]: rung: function is for Python with the name of a function as entry"),
    ({"tests": [each for each in LINE["tests"] if not each.get("shown")]}, "tests: there is no shown one of stdio"),
    ({"tests": LINE["tests"] + LINE["tests"][:1]}, "tests[10] asks the same as tests[0]"),
    ({"tests": [each | {"stdout": "5"} if "stdin" in each else each for each in LINE["tests"]]}, "expect one answer"),
    ({"solutions": {"right": [RIGHT + RIGHT]}}, "solutions.right[0]: the function median is defined twice"),
    ({"solutions": {"right": ["#" * 10_000_000]}}, "solutions.right[0]: the program has 10,000,000 bytes"),
    ({"solutions": {"wrong": [{"code": "x", "caught": "luck"}]}}, "solutions.wrong[0].caught must be runs, stdio"),
    ({"prompt": "\ud800"}, "prompt has half of a surrogate pair, which is not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "told"), FAULTS, ids=[told[:30] for _, told in FAULTS])
def test_a_wrong_line_is_named_with_its_field(tmp_path, change, told):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({**LINE, "name": "first"}) + "\n\n" + json.dumps({**LINE, **change}) + "\n")
    with pytest.raises(ValueError) as refused:
        read_problems(path)
    assert str(refused.value).startswith(f"{path}, line 3: ") and told in str(refused.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no problems"),
        (b"\xff\xfe\n", "line 1: byte 0 is not UTF-8"),
        (b"{\n", "line 1: Expecting"),
        (b"[" * 100_000, "line 1: it is nested deeper than 100 levels"),
        (b"[1]", "line 1: it is no JSON object"),
        (b"x" * (16 << 20) + b"x", "line 1: it is longer than 16,777,216 bytes"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path, content, told):
    path = tmp_path / "own.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"own\.jsonl") as refused:
        read_problems(path)
    assert told in str(refused.value)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_problems(tmp_path / "none.jsonl")


def test_programs_of_agents_are_read_without_a_crash_a_warning_or_a_word(median, recwarn):
    """Whatever they are; 60,000 of any character are a depth that a parser must bear."""
    odd = ["-" * 60_000 + "1", "(" * 60_000, "{" * 90 + "x y", "1if 2else 3", "x" + ".y" * 30_000, "\\\n" * 30_000]
    assert {median.fault(program) for program in odd} == {""} and not recwarn.list
    assert median.fault("x" * 70_000).startswith("the program has 70,000 bytes") and median.fault("\ud800")
    assert median.fault("def f(): pass\n" * 2) == "the function f is defined twice"


def test_names_are_unique(tmp_path):
    with pytest.raises(ValueError, match="line 2: name: there is a problem 'median' already"):
        read_problems(write_problems(tmp_path / "own.jsonl", {}, {}))
