"""Problems: what is asked, tests by rung, limits and solutions, read from a file of JSON lines.

The format is told in rules.md of this folder. Whatever is wrong is named by file, line and field before anything runs.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from vecenv.sandbox import LANGUAGES, Job, Limits
from vecenv.system.settings import refuse_unknown
from vecenv.tasks.code.values import canonical, parsed

Rung = Literal["runs", "stdio", "function", "assertions"]
RUNGS: tuple[Rung, ...] = get_args(Rung)
Part = Literal["train", "validation", "test"]

SHIPPED = Path(__file__).with_name("problems.jsonl")
LIMITS: dict[str, Any] = {"cpu": 2.0, "memory": 256 << 20, "output": 1 << 18, "source": 1 << 16}
"""Limits that a problem does not set; the clock's, a backstop, is `WALL` times the processor's."""
WALL = 10
LONGEST_LINE = 16 << 20

FIELDS = ("name", "language", "version", "prompt", "entry", "limits", "tolerance", "tests", "solutions", "part")
REQUIRED = ("name", "language", "prompt", "tests")
TEST_FIELDS: dict[str, tuple[str, ...]] = {
    "stdio": ("stdin", "stdout"),
    "function": ("args", "returns"),
    "assertions": ("code",),
}


@dataclass(frozen=True)
class Test:
    """A test of a rung: input and output, arguments and returned value (both `canonical`), or code that asserts."""

    rung: Rung
    shown: bool = False
    stdin: str = ""
    stdout: str = ""
    args: tuple[Any, ...] = ()
    returns: Any = None
    code: str = ""

    __test__ = False

    @property
    def asked(self) -> str:
        """What a program is given, as text."""
        return repr((self.rung, self.stdin, self.args, self.code))

    @property
    def expected(self) -> str | None:
        """What is expected, as text that is equal for equal answers; None of assertions."""
        if self.rung == "assertions":
            return None
        return " ".join(self.stdout.split()) if self.rung == "stdio" else repr(self.returns)


@dataclass(frozen=True)
class Problem:
    """A problem; ``blanks`` and ``floats`` are its tolerance, see `values.same_output` and `values.equal`.

    Attributes:
        wrong: wrong solutions, each with the first rung that rejects it.
    """

    name: str
    language: str
    prompt: str
    entry: str
    limits: Limits
    blanks: bool
    floats: float
    tests: tuple[Test, ...]
    part: Part
    right: tuple[str, ...] = ()
    wrong: tuple[tuple[str, Rung], ...] = ()

    def of(self, rung: Rung, shown: bool) -> list[Test]:
        """Return the tests of a rung that are shown, or those that are hidden."""
        return [test for test in self.tests if test.rung == rung and test.shown == shown]

    @property
    def rungs(self) -> list[Rung]:
        """The rungs that the problem has tests of, in order."""
        return [rung for rung in RUNGS if any(test.rung == rung for test in self.tests)]

    def guessed(self, rung: Rung) -> int:
        """Return how many hidden tests of a rung one constant answer passes: a known one, or that of several."""
        answers = Counter(test.expected for test in self.of(rung, shown=False) if test.expected is not None)
        known = {test.expected for test in self.of(rung, shown=True)}
        return max((many for answer, many in answers.items() if many > 1 or answer in known), default=0)

    def fault(self, program: str) -> str:
        """Return why a program cannot be run, empty if it can: too long, no UTF-8, two functions of one name."""
        return Job(program, self.language, limits=self.limits).fault() or (
            twice_defined(program) if self.language == "python" else ""
        )


def twice_defined(program: str) -> str:
    """Return that a Python program defines a function twice, empty if not or if it is none."""
    try:
        with warnings.catch_warnings():
            # What Python thinks of the style of an agent is not for the screen.
            warnings.simplefilter("ignore")
            body = ast.parse(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    names = [each.name for each in body if isinstance(each, ast.FunctionDef) and not each.decorator_list]
    twice = next((name for name, many in Counter(names).items() if many > 1), None)
    return f"the function {twice} is defined twice" if twice else ""


@cache
def read_problems(path: Path) -> tuple[Problem, ...]:
    """Read a file of problems, a JSON object a line; empty lines are none.

    Raises:
        ValueError: the file cannot be read, or a line is wrong: of the first with its number and its field.
    """
    problems: list[Problem] = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                if not line.strip():
                    continue
                try:
                    problems.append(_problem(line, {problem.name for problem in problems}))
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path}, line {number}: byte {error.start} is not UTF-8") from None
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not problems:
        raise ValueError(f"{path} has no problems")
    return tuple(problems)


def _problem(line: bytes, taken: set[str]) -> Problem:
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE:,} bytes")
    given = parsed(line.decode())
    if not isinstance(given, dict):
        raise ValueError("it is no JSON object")
    refuse_unknown("fields", given, FIELDS)
    for name in REQUIRED:
        if name not in given:
            raise ValueError(f"{name} is missing")
    name, language = _text(given, "name"), _text(given, "language")
    if name in taken:
        raise ValueError(f"name: there is a problem {name!r} already")
    if language not in LANGUAGES:
        raise ValueError(f"language: there is no {language!r}; there are {', '.join(LANGUAGES)}")
    _check_version(language, _text(given, "version", ""))
    entry, tolerance = _text(given, "entry", ""), _mapping(given, "tolerance", ("blanks", "floats"))
    blanks, floats = tolerance.get("blanks", True), tolerance.get("floats", 1e-6)
    if not isinstance(blanks, bool):
        raise ValueError(f"tolerance.blanks must be true or false, got {blanks!r}")
    if isinstance(floats, bool) or not isinstance(floats, int | float) or not 0 <= floats < 1:
        raise ValueError(f"tolerance.floats must be in [0, 1), got {floats!r}")
    tests = tuple(_each(given, "tests", lambda test: _test(test, language, entry)))
    part = given.get("part", part_of(name))
    if part not in get_args(Part):
        raise ValueError(f"part must be {', '.join(get_args(Part))}, got {part!r}")
    solutions = _mapping(given, "solutions", ("right", "wrong"))
    problem = Problem(name, language, _text(given, "prompt"), entry, _limits(given), blanks, floats, tests, part)
    _check_tests(problem)
    right, wrong = (
        _each({kind: solutions.get(kind, [])}, kind, _solution, "solutions.") for kind in ("right", "wrong")
    )
    for place, (code, caught) in enumerate(right):
        if caught is not None or (fault := problem.fault(code)):
            raise ValueError(
                f"solutions.right[{place}]: {fault if caught is None else 'a right one is caught nowhere'}"
            )
    for place, (code, caught) in enumerate(wrong):
        if caught not in ("runs", *problem.rungs):
            raise ValueError(
                f"solutions.wrong[{place}].caught must be runs, {', '.join(problem.rungs)}, got {caught!r}"
            )
        if len(code.encode()) > problem.limits.source:
            raise ValueError(f"solutions.wrong[{place}]: {problem.fault(code)}")
    return Problem(**{**vars(problem), "right": tuple(code for code, _ in right), "wrong": tuple(wrong)})


def part_of(name: str) -> Part:
    """Return the part of a problem that names none: of ten about six for training, two each for the others."""
    drawn = hashlib.sha256(name.encode()).digest()[0] % 10
    return "train" if drawn < 6 else "validation" if drawn < 8 else "test"


def _text(given: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ValueError(f"{name} must be a text, got {repr(value)[:60]}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half of a surrogate pair, which is not UTF-8") from None
    return value


def _mapping(given: Mapping[str, Any], name: str, known: Sequence[str]) -> dict[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {repr(value)[:60]}")
    refuse_unknown(f"fields of {name}:", value, known)
    return value


def _each(given: Mapping[str, Any], name: str, read: Any, above: str = "") -> list[Any]:  # noqa: ANN401
    value = given[name]
    if not isinstance(value, list):
        raise ValueError(f"{above}{name} must be a list, got {repr(value)[:60]}")
    items = []
    for place, item in enumerate(value):
        try:
            items.append(read(item))
        except ValueError as error:
            raise ValueError(f"{above}{name}[{place}]: {error}") from None
    return items


def _limits(given: Mapping[str, Any]) -> Limits:
    known = [name for name in Limits.__dataclass_fields__ if name != "processes"]
    values = {**LIMITS, **_mapping(given, "limits", known)}
    try:
        return Limits(**{"wall": WALL * values["cpu"] if isinstance(values["cpu"], float | int) else 0} | values)
    except ValueError as error:
        raise ValueError(f"limits: {error}") from None


def _check_version(language: str, version: str) -> None:
    numbers = version.split(".")
    if version and not all(number.isdecimal() for number in numbers):
        raise ValueError(f"version must be numbers with points, got {version!r}")
    if version and language == "python" and tuple(map(int, numbers[:2])) > sys.version_info[:2]:
        raise ValueError(f"version: it needs Python {version}, and this is {'.'.join(map(str, sys.version_info[:2]))}")


def _test(given: Any, language: str, entry: str) -> Test:  # noqa: ANN401
    if not isinstance(given, dict):
        raise ValueError("a test must be an object")
    rung = given.get("rung")
    if rung not in TEST_FIELDS:
        raise ValueError(f"rung: there is no {rung!r}; tests are of {', '.join(TEST_FIELDS)}")
    if rung != "stdio" and (language != "python" or not entry.isidentifier()):
        raise ValueError(f"rung: {rung} is for Python with the name of a function as entry")
    names = TEST_FIELDS[rung]
    refuse_unknown("fields", given, ("rung", "shown", *names))
    shown = given.get("shown", False)
    if not isinstance(shown, bool):
        raise ValueError(f"shown must be true or false, got {shown!r}")
    for name in names:
        if name not in given:
            raise ValueError(f"{name} is missing{', so there is no answer' if name in ('stdout', 'returns') else ''}")
    if rung == "stdio":
        return Test(rung, shown, stdin=_text(given, "stdin", ""), stdout=_text(given, "stdout", ""))
    if rung == "function":
        if not isinstance(given["args"], list):
            raise ValueError("args must be a list")
        return Test(rung, shown, args=tuple(canonical(given["args"])), returns=canonical(given["returns"]))
    code = _text(given, "code")
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"code is no Python: {error}") from None
    if not any(isinstance(node, ast.Name) and node.id == entry for node in nodes):
        raise ValueError(f"code does not call {entry}, so there is no answer to test")
    if fault := twice_defined(code):
        raise ValueError(f"code: {fault}")
    return Test(rung, shown, code=code)


def _solution(given: Any) -> tuple[str, Any]:  # noqa: ANN401
    if isinstance(given, str):
        return given, None
    if not isinstance(given, dict):
        raise ValueError("a solution must be a text, or an object with code and caught")
    refuse_unknown("fields", given, ("code", "caught"))
    return _text(given, "code"), given.get("caught", "")


def _check_tests(problem: Problem) -> None:
    """Raise ValueError unless every rung has shown and hidden tests, different ones, which no constant passes."""
    if problem.language == "python" and len(problem.rungs) < 2:
        raise ValueError("tests must be of at least two of stdio, function and assertions")
    for rung in problem.rungs or ["stdio"]:
        for shown, kind in ((True, "shown"), (False, "hidden")):
            if not problem.of(rung, shown):
                raise ValueError(f"tests: there is no {kind} one of {rung}")
        if problem.guessed(rung) == len(problem.of(rung, shown=False)):
            raise ValueError(f"tests: all hidden ones of {rung} expect one answer, which a program could print unseen")
    first: dict[str, int] = {}
    for place, test in enumerate(problem.tests):
        if first.setdefault(test.asked, place) != place:
            raise ValueError(f"tests[{place}] asks the same as tests[{first[test.asked]}]")
