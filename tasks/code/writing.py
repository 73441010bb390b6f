"""The task ``code_tests``: a conversation in which a row writes a test, or a program that meets tests of a pool.

Each row is scored as if it were alone, so that equal episodes are equal and records replay: a test by the problem's
shipped right and wrong solutions, a program by the problem's tests and those of a pool that the config names. In a
training all programs and tests of a problem are paid by what they make of each other (`own_tests.score_group`), and
the best tests are kept in a pool that later rollouts meet (`OwnTestsWorld.settled`).
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch

from vecenv.tasks.code.agents import Kind, Writes
from vecenv.tasks.code.config import OwnTestsConfig
from vecenv.tasks.code.own_tests import Pool, PooledTest, score_group, separation
from vecenv.tasks.code.problems import Problem, Test
from vecenv.tasks.code.scene import FAILURE, CodeWorld
from vecenv.tasks.code.text import left, read_program
from vecenv.tasks.code.values import literal
from vecenv.text.dialogue import Dialogue
from vecenv.text.interaction import Episode, Turn
from vecenv.text.recording import recorded_config
from vecenv.text.transcripts import ConversationRecord

INSTRUCTIONS = (
    "Write a test of the problem's function, not the function: Python code with assertions that call it, between ``` "
    "fences. It is run on right and wrong programs that you do not see.{more} It earns the share of wrong "
    "programs that fail it, if all right ones pass; if a right one fails, it costs the share of wrong ones that pass."
)


MORE = (
    " You are told how many pass it, and may then write a better one. Put your last one between <final_code> and "
    "</final_code>."
)


class Written(NamedTuple):
    """What the last test of a row came to: `separation`, shares of right and wrong programs, whether all pass it."""

    separation: float = 0.0
    accepted: float = math.nan
    rejected: float = math.nan
    passes_all: float = math.nan


def references(problem: Problem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the right and the wrong solutions that tests are scored by: wrong ones whose function can be called."""
    return problem.right, tuple(code for code, caught in problem.wrong if caught in ("function", "assertions"))


class OwnTestsWorld(CodeWorld):
    """Problems with solutions, for writers of tests and of programs.

    Raises:
        ValueError: as `CodeWorld`; or the pool is none, or no problem has solutions to score tests by.
    """

    outcomes = {**dict.fromkeys((*Written._fields, "own"), "share"), **CodeWorld.outcomes}  # noqa: RUF012
    description = "An agent that writes tests, or programs that meet them"

    config: OwnTestsConfig

    def __init__(self, num_rows: int, config: OwnTestsConfig) -> None:
        super().__init__(num_rows, config)
        self.pool = Pool.read(config.pool) if config.pool else Pool()
        if config.writes != "programs":
            self.problems = [problem for problem in self.problems if all(references(problem))]
        if not self.problems:
            raise ValueError(
                f"no problem of part {config.part} has right solutions and wrong ones caught by a function"
            )
        self.written = [Written()] * num_rows
        # The last valid program or test of each row.
        self.programs, self.tests = ([""] * num_rows for _ in range(2))
        self.kept, self._collusion = Pool(config.pool_size, self.pool.tests), math.nan

    def writes_test(self, row: int) -> bool:
        """Whether a row writes a test in its episode, by the episode's name."""
        seed, index = self.rows[row].episode
        # By the seed's bits, whose parity changes between the rollouts of a training: a single group writes both too.
        of_test = (seed.bit_count() + index) % 2 == 1
        return self.config.writes == "tests" or (self.config.writes == "both" and of_test)

    def instructions(self, ids: Sequence[int]) -> list[str]:
        told = super().instructions(ids)
        one = INSTRUCTIONS.format(more=MORE if self.config.tries > 1 else "")
        return [one if self.writes_test(row) else text for row, text in zip(ids, told, strict=True)]

    def examples(self) -> Sequence[str]:
        return ("```\nassert True\n```",)

    async def begin_row(self, row: int, episode: Episode) -> Turn:
        index = episode.index // 2 if self.config.writes == "both" else episode.index
        begun = await super().begin_row(row, Episode(episode.seed, index))
        self.rows[row] = replace(self.rows[row], episode=episode)
        self.written[row], self.programs[row], self.tests[row] = Written(), "", ""
        if not self.writes_test(row):
            return self._told(row, begun)
        problem, config = self.rows[row].problem, self.config
        opening = (
            f"The function to test is {problem.entry}, of programs for this problem:\n\n{problem.prompt.strip()}\n\n"
        )
        return self._told(row, Turn(opening + left(config.tries, config.characters)))

    def _told(self, row: int, turn: Turn, own: float = math.nan) -> Turn:
        """Return a turn with the outcomes of a row; those of what it does not write are unknown."""
        talk, unknown = self.rows[row], dict.fromkeys(self.outcomes, math.nan)
        known = self.written[row]._asdict() | {"tries": float(talk.tries)} if self.writes_test(row) else talk.outcomes
        return turn._replace(outcomes=unknown | known | {"own": own})

    async def answer_row(self, row: int, message: str) -> Turn:
        if self.writes_test(row):
            return await self._test_answered(row, message)
        turn = await super().answer_row(row, message)
        if not turn.fault:
            self.programs[row] = read_program(message, self.rows[row].problem.language).program
        problem = self.rows[row].problem
        tests = [Test("assertions", code=test.code) for test in self.pool.tests.get(problem.name, ())]
        if turn.grade is None or not (tests and self.programs[row]):
            return self._told(row, turn)
        passed, known = await self.verifier.matrix(problem, [self.programs[row]], tests)
        if not known.all():
            return self._told(row, Turn(FAILURE, truncated=True, failed=True))
        own, weight = int(passed.sum()) / len(tests), self.config.own_weight
        grade = (1 - weight) * turn.grade + weight * own
        shown = (
            f"{turn.shown}\nIt passes {int(passed.sum())} of {len(tests)} tests of others: the grade is {grade:.2f}."
        )
        return self._told(row, turn._replace(shown=shown, reward=grade, grade=grade), own)

    async def _test_answered(self, row: int, message: str) -> Turn:
        talk, config = self.rows[row], self.config
        problem, room, said = talk.problem, config.characters - talk.characters, read_program(message, "python")
        fault = said.fault or problem.fault(said.program) or no_python(said.program)
        if len(message) > room:
            fault = f"it has {len(message):,} characters, and {room:,} were left"
        used = 0 if fault else len(message)
        talk = self.rows[row] = replace(talk, tries=talk.tries + 1, characters=talk.characters + used)
        told = ["No test was run."]
        if not fault:
            right, wrong = references(problem)
            tests = [Test("assertions", code=said.program)]
            passed, known = await self.verifier.matrix(problem, [*right, *wrong], tests)
            if not known.all():
                return self._told(row, Turn(FAILURE, truncated=True, failed=True))
            of_right = torch.arange(len(passed)) < len(right)
            worth = float(separation(passed, known, of_right, ~of_right))
            accepted, rejected = int(passed[of_right].sum()), int((~passed[~of_right]).sum())
            shares = accepted / len(right), rejected / len(wrong), float(passed.all())
            self.written[row], self.tests[row] = Written(worth, *shares), said.program
            told = [
                f"{accepted} of {len(right)} right programs pass it, {rejected} of {len(wrong)} wrong ones fail it."
            ]
        if not (talk.tries == config.tries or (said.final and not fault)):
            told.append(left(config.tries - talk.tries, config.characters - talk.characters))
            return self._told(row, Turn("\n".join(told), fault=fault, acted=not fault))
        worth = self.written[row].separation
        told.append(f"Your last test is worth {worth:.2f}.")
        return self._told(row, Turn("\n".join(told), worth, True, False, fault, not fault, grade=max(0.0, worth)))

    async def settled(self, ids: Sequence[int], turns: Sequence[Turn]) -> Sequence[Turn]:
        """Return the turns paid by `score_group`, for each problem of a rollout, and offer its tests to the pool.

        The problem's own solutions and the pool's tests stand beside what was written, so that a test always meets a
        right program. What has written nothing valid keeps its turn; what cannot be told, or not within the deadline
        of all, has a world that failed.
        """
        found, of_problem = dict(zip(ids, turns, strict=True)), defaultdict[str, list[int]](list)
        for row in ids:
            if self.programs[row] or self.tests[row]:
                of_problem[self.rows[row].problem.name].append(row)
        scored = await self._in_time([self._scored(*each) for each in of_problem.items()], lambda why: None)
        collusion: list[float] = []
        for rows, told in zip(of_problem.values(), scored, strict=True):
            worth, shares = told or (dict.fromkeys(rows, math.nan), [])
            collusion += shares
            for row, value in worth.items():
                known = found[row]._replace(reward=value, grade=max(0.0, value))
                found[row] = found[row]._replace(failed=True, grade=None) if math.isnan(value) else known
        self._collusion = fmean(collusion) if collusion else math.nan
        return list(found.values())

    async def _scored(self, name: str, rows: Sequence[int]) -> tuple[dict[int, float], list[float]] | None:
        """Return what the rows of a problem are worth and the group's collusion, neither if no test is there."""
        problem = self.rows[rows[0]].problem
        programs = [row for row in rows if self.programs[row]]
        writers = [row for row in rows if self.tests[row]]
        right, wrong = references(problem)
        codes = [self.tests[row] for row in writers] + [test.code for test in self.kept.tests.get(name, ())]
        if not codes:
            return {}, []
        solutions = [*(self.programs[row] for row in programs), *right, *wrong]
        own = await self.verifier.matrix(problem, solutions, [Test("assertions", code=code) for code in codes])
        true = await self.verifier.matrix(problem, solutions, problem.tests)
        scores = score_group(own, true, self.config.own_weight)
        self.kept.offer(name, codes, own, scores.right, scores.wrong, torch.arange(len(solutions)) >= len(programs))
        worth = [
            *zip(programs, scores.programs.tolist(), strict=False),
            *zip(writers, scores.tests.tolist(), strict=False),
        ]
        return dict(worth), [scores.collusion]

    def measures(self) -> dict[str, float]:
        return {"pool_tests": float(sum(map(len, self.kept.tests.values()))), "collusion": self._collusion}

    def state_dict(self) -> dict[str, Any]:
        return {"pool": self.kept.tests}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tests = {name: [PooledTest(*test) for test in kept] for name, kept in state["pool"].items()}
        self.kept = Pool(self.config.pool_size, tests)


def no_python(code: str) -> str:
    """Return why a text is no Python, empty if it is."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"it is no Python: {str(error).rstrip('.')}"
    return ""


def pool_of(records: Sequence[ConversationRecord], size: int = 8) -> Pool:
    """Return the pool of the last tests of recorded episodes, by what they came to."""
    pool = Pool(size)
    for record in records:
        world = OwnTestsWorld(1, recorded_config(OwnTestsConfig(), record.config))
        Dialogue(world).begin([0], [Episode(record.seed, record.index)])
        right, wrong = map(len, references(world.rows[0].problem))
        for turn in record.turns[:0:-1]:
            told = turn.outcomes or {}
            if turn.fault or turn.failed or "separation" not in told:
                continue
            rejected = round((told["rejected"] or 0.0) * wrong) if told["accepted"] == 1 else 0
            passed = torch.tensor([[True]] * right + [[False]] * rejected + [[True]] * (wrong - rejected))
            of_right = torch.arange(right + wrong) < right
            code = read_program(turn.heard, "python").program
            pool.offer(world.rows[0].problem.name, [code], (passed, torch.ones_like(passed)), of_right, ~of_right)
            break
    return pool


class WritesTests(Writes):
    """Writes the problem's own tests as one, or a program where a row writes one.

    Args:
        tests: all of them, those that are shown, or what all of them call without an assertion.
        program: which solution is written.
    """

    def __init__(self, tests: Literal["all", "shown", "calls"], program: Kind) -> None:
        super().__init__(program)
        self.tests = tests

    def answer(self, world: Any, ids: Sequence[int], shown: Sequence[str]) -> list[str]:  # noqa: ANN401
        programs = super().answer(world, ids, shown)
        return [
            f"<final_code>\n{self.test(world.rows[row].problem)}\n</final_code>" if world.writes_test(row) else program
            for row, program in zip(ids, programs, strict=True)
        ]

    def test(self, problem: Problem) -> str:
        parts = []
        for test in problem.tests:
            if self.tests == "shown" and not test.shown:
                continue
            if test.rung == "assertions" and self.tests != "calls":
                parts.append(test.code)
            elif test.rung == "function" and _exact(test.returns):
                call = f"{problem.entry}({', '.join(map(literal, test.args))})"
                parts.append(call if self.tests == "calls" else f"assert {call} == {literal(test.returns)}")
        return "\n".join(parts) or "assert True"


def _exact(value: Any) -> bool:  # noqa: ANN401
    """Whether a canonical value has no floats, which right programs may round differently."""
    if type(value) is dict:
        return "float" not in value and all(map(_exact, value.values()))
    return all(map(_exact, value)) if type(value) is list else type(value) is not float


AGENTS = {
    "all_tests": partial(WritesTests, "all", "right"),
    "shown_tests": partial(WritesTests, "shown", "right"),
    "calls": partial(WritesTests, "calls", "wrong"),
}
"""Agents by name."""
