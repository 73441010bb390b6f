"""Pictures of ``code``: how far programs come on the ladder, the hidden tests by try, and programs against tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenv.system.figures import empty_figure, entitle, legend_below, looks
from vecenv.tasks.code.problems import RUNGS, Problem
from vecenv.tasks.code.scene import CodeWorld
from vecenv.text.transcripts import ConversationRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Talks = Mapping[str, Sequence[ConversationRecord]]
"""Records of the same episodes by agent."""

SHOWN_PROBLEMS = 3
"""Problems whose matrix is drawn, at most."""


def talk_figures(talks: Talks) -> dict[str, Figure]:
    """Draw what agents came to, by file name."""
    return {"rungs": rungs_figure(talks), "tries": tries_figure(talks)}


def rungs_reached(records: Sequence[ConversationRecord]) -> np.ndarray:
    """Return the share of episodes whose last program reached each rung. Shape: (4,)."""
    rungs = [record.result()["outcomes"]["rungs"] for record in records]
    return np.array([np.mean([reached > number for reached in rungs]) for number in range(len(RUNGS))])


def hidden_by_try(records: Sequence[ConversationRecord], tries: int) -> np.ndarray:
    """Return the mean share of hidden tests passed by the last program after each of some tries. Shape: (tries,).

    It is 0 before the first program, and after its end an episode stays where it is.
    """
    shares = [[(turn.outcomes or {}).get("hidden") or 0.0 for turn in record.turns[1:]] for record in records]
    return np.array([[*each, *each[-1:] * (tries - len(each))] for each in shares]).mean(0)


def rungs_figure(talks: Talks) -> Figure:
    """Plot the share of episodes whose last program reached each rung, by agent."""
    figure, (axis,) = empty_figure(1, 1, 4.5)
    width, shown = 0.8 / len(talks), looks(talks)
    for number, (name, records) in enumerate(talks.items()):
        place = np.arange(len(RUNGS)) + (number - (len(talks) - 1) / 2) * width
        axis.bar(place, rungs_reached(records), width, color=shown[name].colour, label=name)
    axis.set_xticks(range(len(RUNGS)), RUNGS)
    axis.set(ylabel="share of episodes that reach it", ylim=(0, 1.02))
    legend_below(figure)
    entitle(figure, f"How far the last program of {len(next(iter(talks.values())))} episodes comes on the ladder")
    return figure


def tries_figure(talks: Talks) -> Figure:
    """Plot the mean share of hidden tests passed after each try, by agent."""
    # As all of matplotlib, only where figures are drawn.
    from matplotlib.ticker import MaxNLocator

    figure, (axis,) = empty_figure(1, 1, 4.5)
    shown = looks(talks)
    tries = max(len(record.turns) - 1 for records in talks.values() for record in records)
    for name, records in talks.items():
        axis.plot(np.arange(1, tries + 1), hidden_by_try(records, tries), marker="o", label=name, **shown[name].line())
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="try", ylabel="share of hidden tests passed", ylim=(-0.02, 1.02))
    legend_below(figure)
    entitle(figure, "Hidden tests that the last program passes, after each try")
    return figure


def matrix_figures(world: CodeWorld, agents: Mapping[str, Any], seed: int) -> dict[str, Figure]:
    """Run the solutions of some problems of a world on all tests, and draw which passes which."""
    solved = [problem for problem in world.problems if problem.right or problem.wrong][:SHOWN_PROBLEMS]
    return {f"programs_and_tests_{problem.name}": matrix_figure(world, problem) for problem in solved}


def matrix_figure(world: CodeWorld, problem: Problem) -> Figure:
    """Draw which of a problem's solutions passes which of its tests."""
    names = [f"right {number}" for number in range(1, len(problem.right) + 1)]
    names += [f"wrong, caught by {rung}" for _, rung in problem.wrong]
    programs = [*problem.right, *(code for code, _ in problem.wrong)]
    passed, known = asyncio.run(world.verifier.matrix(problem, programs, problem.tests))
    figure, (axis,) = empty_figure(1, 1, 1.6 + 0.35 * len(programs))
    axis.imshow(np.where(known, passed, np.nan), cmap="RdBu", vmin=-0.2, vmax=1.2, aspect="auto")
    axis.set_yticks(range(len(names)), names)
    labels = [f"{test.rung}{' (shown)' if test.shown else ''}" for test in problem.tests]
    axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
    axis.grid(False)
    entitle(figure, f"{problem.name}: tests that programs pass (blue) and fail (red)")
    return figure
