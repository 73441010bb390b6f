"""The conversation of ``code``: a problem, some tries with feedback, and the grade of the last program."""

from __future__ import annotations

import atexit
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from vecenv.sandbox import LANGUAGES, Sandbox
from vecenv.sandbox.jail import Layer
from vecenv.tasks.code.config import CodeConfig
from vecenv.tasks.code.problems import SHIPPED, Problem, read_problems
from vecenv.tasks.code.text import feedback, instructions, left, opening, read_program
from vecenv.tasks.code.verification import Score, Verifier, score
from vecenv.text.interaction import AsyncInteraction, Episode, Turn

FAILURE = "The sandbox failed: the episode is over, and says nothing of your program."
NOTHING = Score(0.0, 0, math.nan, math.nan)
EXAMPLE = "```\nprint(input())\n```"


@cache
def shared_verifier(workers: int, without: tuple[Layer, ...]) -> Verifier:
    """Return the verifier, with its sandbox, of all worlds of this process; ValueError where there is no jail."""
    sandbox = Sandbox(workers or None, without)
    atexit.register(sandbox.close)
    return Verifier(sandbox)


def problems_of(config: CodeConfig) -> list[Problem]:
    """Return the problems that a config asks for, in the order of their file.

    Raises:
        ValueError: there are none, the file is wrong, or this machine cannot run one of the languages.
    """
    path = Path(config.problems) if config.problems else SHIPPED
    found = [problem for problem in read_problems(path) if problem.language in config.languages]
    found = [problem for problem in found if config.part in ("all", problem.part)]
    if not found:
        raise ValueError(f"{path} has no problems of part {config.part} in {', '.join(config.languages)}")
    for name in dict.fromkeys(problem.language for problem in found):
        if LANGUAGES[name].command and LANGUAGES[name].executable() is None:
            raise ValueError(f"this machine has no {LANGUAGES[name].command[0]}, which runs {name}")
    return found


@dataclass(frozen=True)
class Talk:
    """Where a row is in its episode; ``score`` is that of the last program."""

    episode: Episode
    problem: Problem
    tries: int = 0
    characters: int = 0
    score: Score = NOTHING

    @property
    def outcomes(self) -> dict[str, float]:
        return {
            "hidden": self.score.hidden,
            "shown": self.score.shown,
            "rungs": float(self.score.rungs),
            "tries": float(self.tries),
        }


class CodeWorld(AsyncInteraction):
    """Problems, drawn by the names of episodes: of equal seeds each is met once before any is met again.

    Attributes:
        problems: those of the config's part.
        rows: where each row is.
    """

    outcomes = {"hidden": "share", "shown": "share", "rungs": "count", "tries": "count"}  # noqa: RUF012
    description = "An agent that writes programs, which are run on tests that it does not see"

    def __init__(self, num_rows: int, config: CodeConfig) -> None:
        self.num_rows, self.config, self.longest, self.deadline = num_rows, config, config.tries, config.deadline
        self.problems = problems_of(config)
        shared_verifier(config.workers, config.without)
        self.rows = [Talk(Episode(0, 0), self.problems[0])] * num_rows

    @property
    def verifier(self) -> Verifier:
        return shared_verifier(self.config.workers, self.config.without)

    def instructions(self, ids: Sequence[int]) -> list[str]:
        return [instructions(self.rows[row].problem.language, self.config.tries) for row in ids]

    def examples(self) -> Sequence[str]:
        return (EXAMPLE,)

    async def begin_row(self, row: int, episode: Episode) -> Turn:
        place = episode.index % len(self.problems)
        order = Random(f"problems {episode.seed}").sample(range(len(self.problems)), len(self.problems))
        talk = self.rows[row] = Talk(episode, self.problems[order[place]])
        return Turn(opening(talk.problem, self.config.tries, self.config.characters), outcomes=talk.outcomes)

    async def answer_row(self, row: int, message: str) -> Turn:
        talk, config = self.rows[row], self.config
        problem, room = talk.problem, config.characters - talk.characters
        said = read_program(message, problem.language)
        fault = said.fault
        if len(message) > room:
            fault = f"it has {len(message):,} characters, and {room:,} were left"
        elif not fault:
            fault = problem.fault(said.program)
        talk = replace(talk, tries=talk.tries + 1, characters=talk.characters + (0 if fault else len(message)))
        over = talk.tries == config.tries or (said.final and not fault)
        told = ["No program was run."]
        if not fault:
            ran, verdicts = await self.verifier.ladder(problem, said.program)
            if any(verdict.passed is None for verdict in verdicts):
                return Turn(FAILURE, truncated=True, outcomes=talk.outcomes, failed=True)
            talk = replace(talk, score=score(problem, verdicts, bool(ran.passed)))
            told = [feedback(problem, verdicts, ran.error, config.feedback)]
            if config.count_hidden or over:
                hidden = sum(not test.shown for test in problem.tests)
                told.append(f"It passes {round(talk.score.hidden * hidden)} of {hidden} hidden tests.")
        self.rows[row] = talk
        if not over:
            told.append(left(config.tries - talk.tries, config.characters - talk.characters))
            return Turn("\n".join(told), fault=fault, acted=not fault, outcomes=talk.outcomes)
        grade = talk.score.grade
        told.append(f"The grade of your last program is {grade:.2f}.")
        return Turn("\n".join(told), grade, True, False, fault, not fault, talk.outcomes, grade)
