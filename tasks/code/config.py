"""Settings of the tasks ``code`` and ``code_tests``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.sandbox.jail import Layer
from vecenv.system.settings import Count, CountFromZero, Items, Positive, Settings, Share, Within


@dataclass(frozen=True)
class CodeConfig(Settings):
    """Problems, tries, and what is told of them; the last four change no reward."""

    problems: str = ""
    """File of problems, a JSON object a line; by default the shipped ones."""
    part: Literal["all", "train", "validation", "test"] = "all"
    """Part of the problems, by their names or as they say."""
    languages: Annotated[tuple[Literal["python", "javascript", "shell", "sql"], ...], Items(least=1, distinct=True)] = (
        "python",
    )
    """Languages of the problems; those in others are left out."""
    tries: Count = 3
    """Messages of an episode; the last program counts."""
    characters: Count = 40_000
    """Characters of all messages of an episode, without reasoning."""
    feedback: Annotated[int, Within(200)] = 2_000
    """Most characters that are told of the tests of a try."""
    count_hidden: bool = True
    """Tell after each try how many hidden tests it passes."""
    workers: CountFromZero = 0
    """Programs that run at a time; 0 for as many as there are processors."""
    without: tuple[Layer, ...] = ()
    """Layers of the jail to do without, on a machine that lacks them."""
    deadline: Positive = 600.0
    """Seconds until a try whose programs still wait counts as a failure of the world; a backstop."""


@dataclass(frozen=True)
class OwnTestsConfig(CodeConfig):
    """Settings of ``code_tests``."""

    writes: Literal["tests", "programs", "both"] = "tests"
    """What a row writes; with both, episodes of one seed are programs and tests by turns, a problem to each two."""
    pool: str = ""
    """File of tests of a pool, which programs meet beside the problem's."""
    own_weight: Share = 0.2
    """Weight of tests that were written, by the pool or the group, in the grade of a program; the problem's have the
    rest."""
    pool_size: Count = 8
    """Most tests of a problem in the pool of a training."""
