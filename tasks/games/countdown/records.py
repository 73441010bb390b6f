"""Records of Countdown: expressions, and what was made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar

from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.tasks.games.countdown.agents import tree_of_moves
from vecenv.tasks.games.countdown.scenario import Countdown
from vecenv.tasks.games.countdown.search import count_solutions, written
from vecenv.tasks.games.countdown.text import CountdownText, named_slots
from vecenv.text.recorder import RecordedRows
from vecenv.text.recording import Columns, Figures, Recording, Values
from vecenv.text.records import EpisodeRecord, StepRecord

INVALID = "INVALID"
"""Text of an action that is no expression."""


@dataclass(frozen=True, kw_only=True)
class Try(StepRecord):
    """One answer; ``solved`` and ``formed`` are of the episode so far."""

    solved: bool
    formed: bool


@dataclass(frozen=True, kw_only=True)
class CountdownEpisode(EpisodeRecord):
    """One episode: its puzzle, the expression that the target was made by, and how many solutions there are.

    ``moves`` are those of all tries, of which an expression has as many as it may.
    """

    steps_field = "tries"
    step_type = Try

    numbers: list[int]
    target: int
    proof: str
    solutions: int
    moves: int
    tries: list[Try]


def puzzle_figure(record: CountdownEpisode, reference: CountdownEpisode, other: str, scenario: Countdown) -> str:
    """Return the puzzle and all that was tried, as HTML."""
    numbers = ", ".join(map(str, record.numbers))
    lines = [f"<b>{numbers} → {record.target}</b>, {record.solutions} solutions, such as {escape(record.proof)}"]
    for whose, played in (("this episode", record), (other, reference)):
        said = "; ".join(escape(step.action[:200]) for step in played.tries)
        lines.append(f"{escape(whose)}: <code>{said}</code> {'✓' if played.tries[-1].solved else '✗'}")
    return "".join(f"<p>{line}</p>" for line in lines)


class CountdownRecording(Recording[Try, CountdownEpisode]):
    """Records of Countdown."""

    episode = CountdownEpisode
    scenario = Countdown
    family = "countdown"
    step_name = "attempt"
    unchecked = ("versions.vecenv",)
    columns: ClassVar[Columns] = {"attempt": None, **dict.fromkeys(("solved", "formed", "valid", "reward"))}
    figures: ClassVar[Figures] = {"Puzzle": puzzle_figure}
    metadata = ("versions", "config", "seed", "env_id", "episode")

    def decided(self, env: VecEnv, rows: Rows, ids: Tensor, action: Tensor) -> list[str]:
        """Return the actions as texts."""
        assert isinstance(env.scenario.text, CountdownText)
        slots, numbers = action.shape[-1] + 1, env.scenario.text.numbers(rows.state)
        if slots == 2:
            slots = env.scenario.config.slots  # type: ignore[attr-defined]
        said = []
        for moves, own in zip(action.tolist(), numbers, strict=True):
            tree, names = tree_of_moves(moves, slots), named_slots(own)
            try:
                said.append(INVALID if tree is None else written(tree, names))
            except KeyError:
                said.append(INVALID)
        return said

    def step_columns(self, recorded: RecordedRows, decided: list[str]) -> Values:
        info = recorded.info
        return {
            "answer": decided,
            "valid": [bool(valid) for valid in info["action_is_valid"]],
            "solved": [bool(solved) for solved in info["success"]],
            "formed": [bool(formed) for formed in info["formed"]],
        }

    def episode_columns(self, recorded: RecordedRows, start: Any, steps: Sequence[Sequence[Try]]) -> Values:  # noqa: ANN401
        scenario = recorded.env.scenario
        assert isinstance(scenario, Countdown)
        config = scenario.config
        numbers = [[number for number in row if number] for row in start.given.tolist()]
        trees = [tree_of_moves(moves, config.slots) for moves in start.proof.tolist()]
        targets = start.target.tolist()
        return {
            "numbers": numbers,
            "target": targets,
            "proof": ["" if tree is None else written(tree, own) for tree, own in zip(trees, numbers, strict=True)],
            "solutions": [
                count_solutions(tuple(own), target, config.use_all)
                for own, target in zip(numbers, targets, strict=True)
            ],
            "moves": recorded.state.steps.tolist(),
            "total_return": [sum(step.reward for step in played) for played in steps],
        }

    def title(self, record: CountdownEpisode) -> str:
        return f"Countdown: {', '.join(map(str, record.numbers))} → {record.target}"

    def result(self, record: CountdownEpisode) -> dict[str, Any]:
        return {"solved": bool(record.tries and record.tries[-1].solved), "solutions": record.solutions}

    def origin(self, record: CountdownEpisode) -> dict[str, Any]:
        return {"episode": record.episode}

    def step_lines(self, step: Try, scenario: Scenario) -> list[tuple[str, str]]:
        return [("The target is made" if step.solved else "Not the target", "green" if step.solved else "magenta")]

    def outcome(self, record: CountdownEpisode) -> dict[str, str]:
        return {
            **{name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()},
            "Tries": str(len(record.tries)),
            "Invalid": str(sum(not step.valid for step in record.tries)),
        }

    def subtitle(self, record: CountdownEpisode, length: str) -> Sequence[str]:
        return length, f"{record.solutions} solutions"

    def summary(self, step: Try, record: CountdownEpisode) -> Sequence[str]:
        return ("solved" if step.solved else "not solved",)


RECORDING = CountdownRecording()
