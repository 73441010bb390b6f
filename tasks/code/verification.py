"""The ladder of verification: programs are run on tests in a sandbox, and what they answer is compared outside of it.

Expected values never enter the process of a program. ``stdio``: input goes in, output is compared here. ``function``: a
harness calls the function and writes plain values. ``assertions``: the test runs in a jail of its own with a stand-in
of the function; calls whose answers are not known are collected, the program's jail answers them, and the test runs
again, until no call is new. So there is nothing in a program's reach that knows an answer, and no object of a program
in a test's. See rules.md.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.sandbox import Job, Limits, Result, Sandbox, Status
from vecenv.tasks.code import inside
from vecenv.tasks.code.answers import Answer, clean, cut, read_answer, read_call, read_lines
from vecenv.tasks.code.problems import RUNGS, Problem, Rung, Test
from vecenv.tasks.code.values import equal, literal, parsed, same_output

INSIDE = Path(inside.__file__).read_text()
ANSWER, CHECK = (f"{INSIDE}\n\n{name}()\n" for name in ("answer_calls", "check"))

MOST_ASKED = 1 << 20
"""Characters of the calls that one process is asked, or one call."""
MOST_DEATHS = 3
"""Calls of a test that end the process, after which its others are not made; and processes that the clock ends, after
which no call is made."""
MOST_ROUNDS = 8
"""Rounds of a test whose calls depend on answers."""
MOST_KEPT = 4096
"""Tests whose calls are remembered."""


class SandboxFailure(Exception):
    """The sandbox failed, which says nothing of the program."""


class Verdict(NamedTuple):
    """What a program came to in a test.

    Attributes:
        rung: of the test.
        passed: None where the sandbox failed.
        expected: as text; empty for assertions.
        got: as text.
        error: why there is no answer, or why an assertion failed.
    """

    rung: Rung
    passed: bool | None
    expected: str = ""
    got: str = ""
    error: str = ""


class Score(NamedTuple):
    """What verdicts on all tests of a problem come to.

    Attributes:
        grade: share of the hidden tests passed, in [0, 1]; those of a rung count if the one before was reached.
        rungs: rungs reached, with ``runs`` as the first.
        shown: share of the shown tests passed.
        hidden: share of the hidden tests passed, without gates.
    """

    grade: float
    rungs: int
    shown: float
    hidden: float


def score(problem: Problem, verdicts: Sequence[Verdict], ran: bool) -> Score:
    """Return the score of verdicts on `Problem.tests`, of a program that `Verifier.runs` or does not.

    A rung is reached if all its shown tests and something of its hidden ones is passed. Where one constant answer
    passes k of n hidden tests of a rung (`Problem.guessed`), p passed ones count n (p - k) / (n - k), at least 0.
    """
    passed = {test.asked: bool(verdict.passed) for test, verdict in zip(problem.tests, verdicts, strict=True)}

    def many(tests: Iterable[Test]) -> int:
        return sum(passed[test.asked] for test in tests)

    counted, reached, going_on = 0.0, int(ran), ran
    for rung in problem.rungs:
        shown, hidden = problem.of(rung, shown=True), problem.of(rung, shown=False)
        free = problem.guessed(rung)
        worth = len(hidden) * max(0, many(hidden) - free) / (len(hidden) - free)
        counted += worth if going_on else 0.0
        going_on = going_on and worth > 0 and many(shown) == len(shown)
        reached += going_on
    shares = []
    for is_shown in (True, False):
        tests = [test for test in problem.tests if test.shown == is_shown]
        shares.append(many(tests) / len(tests))
    hidden_tests = sum(not test.shown for test in problem.tests)
    return Score(counted / hidden_tests, reached, *shares)


def caught(problem: Problem, verdicts: Sequence[Verdict], ran: bool) -> Rung | None:
    """Return the first rung that rejects a program, None if it passes all tests."""
    failed = {verdict.rung for verdict in verdicts if not verdict.passed} | (set() if ran else {"runs"})
    return next((rung for rung in RUNGS if rung in failed), None)


class Verifier:
    """Runs programs on tests.

    Args:
        sandbox: in which all that is not ours runs.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        # Of tests, by what they depend on: all programs are asked the same.
        self._calls: dict[tuple[str, Limits, str], list[str]] = {}

    async def runs(self, problem: Problem, program: str) -> Verdict:
        """Return whether a program runs on the input of the first shown test, or is imported if there is none."""
        return (await self._started(problem, program))[0]

    async def ladder(self, problem: Problem, program: str) -> tuple[Verdict, list[Verdict]]:
        """Return whether a program `runs`, and its `verdicts` on all tests of its problem."""
        ran, known = await self._started(problem, program)
        return ran, await self._verdicts(problem, program, problem.tests, ran, known)

    async def verdicts(self, problem: Problem, program: str, tests: Sequence[Test]) -> list[Verdict]:
        """Return the verdict of each test; all fail if the program does not run."""
        return await self._verdicts(problem, program, tests, *await self._started(problem, program))

    async def _verdicts(
        self, problem: Problem, program: str, tests: Sequence[Test], ran: Verdict, known: Mapping[int, Verdict]
    ) -> list[Verdict]:
        if not ran.passed:
            return [Verdict(test.rung, ran.passed, error=ran.error) for test in tests]
        left = [test for test in tests if id(test) not in known]
        ((*found,),) = await self._all(problem, [program], left)
        new = iter(found)
        return [known[id(test)] if id(test) in known else next(new) for test in tests]

    async def _started(self, problem: Problem, program: str) -> tuple[Verdict, dict[int, Verdict]]:
        """Return whether a program runs, and what it came to in the test by which that is found out, by `id`."""
        if fault := problem.fault(program):
            return Verdict("runs", False, error=fault), {}
        if first := problem.of("stdio", shown=True):
            verdict = await self._stdio(problem, program, first[0])
            passed = None if verdict.passed is None else not verdict.error
            return Verdict("runs", passed, error=verdict.error), {id(first[0]): verdict}
        try:
            error = (await self._loaded(problem, program, []))[1]
        except SandboxFailure as failure:
            return Verdict("runs", None, error=str(failure)), {}
        return Verdict("runs", not error, error=error), {}

    async def matrix(self, problem: Problem, programs: Sequence[str], tests: Sequence[Test]) -> tuple[Tensor, Tensor]:
        """Return which of n programs pass which of m tests, and where that is known: the sandbox did not fail.

        Shape of both: (n, m), bool. All is queued at once.
        """
        found = await self._all(problem, programs, tests)
        shape = len(programs), len(tests)
        passed = torch.tensor([bool(each.passed) for row in found for each in row], dtype=torch.bool).view(shape)
        known = torch.tensor([each.passed is not None for row in found for each in row], dtype=torch.bool).view(shape)
        return passed, known

    async def _all(self, problem: Problem, programs: Sequence[str], tests: Sequence[Test]) -> list[list[Verdict]]:
        # What a program returns in a shown test is told, and its process knows all that it was asked: so shown and
        # hidden tests are asked in processes of their own.
        shown, hidden = (
            [test for test in tests if test.rung != "stdio" and test.shown == kind] for kind in (True, False)
        )
        printing = [test for test in tests if test.rung == "stdio"]
        printed, (of_shown, of_hidden) = await asyncio.gather(
            asyncio.gather(*(self._stdio(problem, program, test) for program in programs for test in printing)),
            asyncio.gather(self._called(problem, programs, shown), self._called(problem, programs, hidden)),
        )
        verdicts = []
        for row in range(len(programs)):
            own = iter(printed[row * len(printing) : (row + 1) * len(printing)])
            told = {True: iter(of_shown[row]), False: iter(of_hidden[row])}
            verdicts.append([next(own if test.rung == "stdio" else told[test.shown]) for test in tests])
        return verdicts

    async def _run(self, job: Job) -> Result:
        result = await self.sandbox.answer(job)
        if result.masked:
            raise SandboxFailure(result.message)
        return result

    async def _stdio(self, problem: Problem, program: str, test: Test) -> Verdict:
        try:
            result = await self._run(_stdio_job(problem, program, test))
        except SandboxFailure as failure:
            return Verdict("stdio", None, error=str(failure))
        error = _ended(result, problem)
        passed = not error and same_output(test.stdout, result.text, problem.blanks, problem.floats)
        return Verdict("stdio", passed, cut(test.stdout), cut(result.text), error)

    async def _called(self, problem: Problem, programs: Sequence[str], tests: Sequence[Test]) -> list[list[Verdict]]:
        """Return the verdicts of each program on tests that call its function."""
        if not tests:
            return [[] for _ in programs]
        collected = await asyncio.gather(*(self._collected(problem, test) for test in tests))
        rows = (self._of_program(problem, program, tests, collected) for program in programs)
        return list(await asyncio.gather(*rows))

    async def _collected(self, problem: Problem, test: Test) -> list[str] | None:
        """Return the calls of a test as far as they depend on no answer; None where the sandbox failed."""
        if test.rung == "function":
            return [json.dumps([list(test.args), []])]
        asked = problem.entry, problem.limits, test.code
        if asked not in self._calls:
            try:
                calls = (await self._checked(problem, test, {}))[0]
            except SandboxFailure:
                return None
            if len(self._calls) == MOST_KEPT:
                self._calls.clear()
            self._calls[asked] = calls
        return self._calls[asked]

    async def _of_program(
        self, problem: Problem, program: str, tests: Sequence[Test], collected: Sequence[list[str] | None]
    ) -> list[Verdict]:
        try:
            # The problem's own calls are one group; each test of assertions is one, since anyone may have written it.
            pairs = [*zip(tests, collected, strict=True)]
            own = [call for test, calls in pairs if test.rung == "function" for call in calls or ()]
            groups = [own, *(calls or [] for test, calls in pairs if test.rung != "function")]
            answers = await self._answers(problem, program, groups)
        except SandboxFailure as failure:
            return [Verdict(test.rung, None, error=str(failure)) for test in tests]
        judged = (
            self._judged(problem, program, test, calls, answers) for test, calls in zip(tests, collected, strict=True)
        )
        return list(await asyncio.gather(*judged))

    async def _judged(
        self, problem: Problem, program: str, test: Test, calls: list[str] | None, answers: Mapping[str, Answer]
    ) -> Verdict:
        if calls is None:
            return Verdict(test.rung, None, error="the sandbox failed at the test")
        known = {call: answers[call] for call in calls}
        if test.rung == "function":
            (answer,) = known.values()
            passed = "value" in answer and equal(test.returns, answer["value"], problem.floats)
            got = cut(literal(answer["value"])) if "value" in answer else ""
            return Verdict(test.rung, passed, cut(literal(test.returns)), got, answer.get("told", ""))
        error = f"its calls are new in each of {MOST_ROUNDS} rounds"
        try:
            for _ in range(MOST_ROUNDS):
                new, failure = await self._checked(problem, test, known)
                if not new:
                    error = failure
                    break
                known |= await self._answers(problem, program, [new])
        except SandboxFailure as failed:
            return Verdict(test.rung, None, error=str(failed))
        return Verdict(test.rung, not error, "", cut(_told_calls(problem.entry, known)), error)

    async def _checked(self, problem: Problem, test: Test, known: Mapping[str, Answer]) -> tuple[list[str], str]:
        """Run a test of assertions on known answers; return new calls, or if there are none, why it failed."""
        asked = {"entry": problem.entry, "code": test.code, "answers": [[parsed(call), known[call]] for call in known]}
        result = await self._run(Job(CHECK, stdin=json.dumps(asked), limits=problem.limits))
        new, failure = [], f"the test did not come to its end: {_ended(result, problem) or 'it left its process'}"
        for line in read_lines(result):
            if "call" in line:
                call = read_call(line["call"])
                if call is None:
                    return [], "the test writes what is no call"
                new.append(call)
            elif isinstance(line.get("end"), str):
                failure = clean(line["end"])
            elif isinstance(line.get("refused"), str):
                return [], clean(line["refused"])
        return list(dict.fromkeys(new)), failure

    async def _answers(self, problem: Problem, program: str, asked: Sequence[Sequence[str]]) -> dict[str, Answer]:
        """Return what a program answers to groups of calls; each call has the limits for itself.

        Of a group whose calls end the process `MOST_DEATHS` times the others are not made; other groups are, unless it
        is the clock that ends so many processes: of a program that sleeps in each call.
        """
        groups = {call: number for number, calls in reversed([*enumerate(asked)]) for call in calls}
        left, answers, deaths = list(dict.fromkeys(chain(*asked))), dict[str, Answer](), Counter[int]()
        clocks = 0
        while left:
            sizes = accumulate(map(len, left))
            some = left[: max(1, sum(size <= MOST_ASKED for size in sizes))]
            found, error, late = await self._loaded(problem, program, some)
            answers |= zip(some, found, strict=False)
            left, clocks = left[len(found) :], clocks + late
            if clocks == MOST_DEATHS:
                return answers | {call: {"died": error, "told": error} for call in left}
            # The call at which a process ended is asked again, as the first one of the next.
            if found or not left:
                continue
            group = groups[left[0]]
            deaths[group] += 1
            hopeless = deaths[group] == MOST_DEATHS
            died = [each for each in left if hopeless and groups[each] == group] or left[:1]
            answers |= {call: {"died": error, "told": error} for call in (left if "(import)" in error else died)}
            left = [call for call in left if call not in answers]
        return answers

    async def _loaded(self, problem: Problem, program: str, calls: Sequence[str]) -> tuple[list[Answer], str, bool]:
        """Let a process answer calls; return answers until it ended, how, empty if all, and whether by the clock."""
        asked = {"entry": problem.entry, "calls": [parsed(call) for call in calls]}
        job = Job(ANSWER, stdin=json.dumps(asked), files={"solution.py": program}, limits=problem.limits)
        result = await self._run(job)
        lines = read_lines(result)
        loaded = lines[0].get("loaded") if lines else None
        if loaded != "":
            told = loaded if isinstance(loaded, str) else _ended(result, problem) or "it left its process"
            return [], f"{clean(told)} (import)", result.status is Status.WALL
        answers: list[Answer] = []
        for line in lines[1 : 1 + len(calls)]:
            answer = read_answer(line, len(answers))
            if answer is None:
                break
            answers.append(answer)
        whole = len(answers) == len(calls)
        error = "" if whole else _ended(result, problem) or "the program left its process in the call"
        return answers, error, not whole and result.status is Status.WALL


def _stdio_job(problem: Problem, program: str, test: Test) -> Job:
    if problem.language != "sql":
        return Job(program, problem.language, test.stdin, limits=problem.limits)
    # What an SQL program is given are tables.
    return Job(f".read given.sql\n{program}", "sql", files={"given.sql": test.stdin}, limits=problem.limits)


def _ended(result: Result, problem: Problem) -> str:
    """Return why a program came to no good end, empty if it did."""
    limits = problem.limits
    match result.status:
        case Status.OK:
            return ""
        case Status.CPU:
            return f"it takes more than {limits.cpu:g} s of processor time"
        case Status.WALL:
            return f"it takes more than {limits.wall:g} s"
        case Status.MEMORY:
            return f"it takes more than {limits.memory >> 20:,} MB of memory"
        case Status.OUTPUT:
            return f"it prints more than {limits.output:,} bytes"
        case Status.REFUSED:
            return result.message
    said = result.stderr.decode(errors="replace").strip()
    return f"it ends with exit code {result.exit_code}{f': {said[-400:]}' if said else ''}"


def _told_calls(entry: str, known: Mapping[str, Answer]) -> str:
    """Return calls and what they came to, one a line."""
    lines = []
    for call, answer in known.items():
        args, named = parsed(call)
        words = [*map(literal, args), *(f"{name}={literal(value)}" for name, value in named)]
        came = f"returned {literal(answer['value'])}" if "value" in answer else f"failed: {answer['told']}"
        lines.append(f"{entry}({', '.join(words)}) {came}")
    return "\n".join(lines)
