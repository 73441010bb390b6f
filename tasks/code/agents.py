"""Agents of ``code`` with hindsight, which read a problem's solutions: baselines, and teachers of language models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Literal

from vecenv.tasks.code.problems import Problem
from vecenv.tasks.code.scene import CodeWorld
from vecenv.text.interaction import Episode

Kind = Literal["right", "wrong"]


class Writes:
    """Writes a solution of a kind in each try, one of those that there are by the name of the episode."""

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = kinds

    def answer(self, world: CodeWorld, ids: Sequence[int], shown: Sequence[str]) -> list[str]:
        return [self._message(talk.problem, talk.episode, talk.tries) for talk in (world.rows[row] for row in ids)]

    def _message(self, problem: Problem, episode: Episode, tries: int) -> str:
        place = min(tries, len(self.kinds) - 1)
        kind = self.kinds[place]
        programs = problem.right if kind == "right" else [code for code, _ in problem.wrong]
        if not programs:
            raise ValueError(f"problem {problem.name!r} has no {kind} solution")
        program = Random(f"{tuple(episode)} {place}").choice(programs).strip("\n")
        if place + 1 == len(self.kinds):
            return f"<final_code>\n{program}\n</final_code>"
        return f"```{problem.language}\n{program}\n```"


AGENTS = {
    "right": partial(Writes, "right"),
    "repairs": partial(Writes, "wrong", "right"),
    "wrong": partial(Writes, "wrong"),
}
