"""Conversations with another grade: that of a rubric, the weighted mean of the scores of its criteria."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from statistics import fmean
from typing import Any

from vecenv.text.interaction import AsyncInteraction, Episode, Interaction, Turn
from vecenv.text.rubric import Move, Weights


class Rubric(Interaction):
    """A conversation whose grade is that of a rubric; see `graded_by`."""

    def __init__(self, world: Interaction, weights: Weights, move: Move | None = None, every: int = 1) -> None:
        self.world, self.weights, self.move, self.every, self.rollouts = world, weights, move, every, 0
        self.num_rows, self.longest, self.currency = world.num_rows, world.longest, world.currency
        self.description, self.called = world.description, world.called
        self.outcomes = {**world.outcomes, **{f"score_{name}": "share" for name in weights.values}}
        self._begun: list[tuple[Episode, int, dict[str, float]]] = [(Episode(0, 0), 0, dict(weights.values))]
        self._begun *= world.num_rows
        for name in ("heard", "faults", "examples", "random_answer", "tools", "call"):
            setattr(self, name, getattr(world, name))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return what the world has beside an `Interaction`, which its agents and pictures read."""
        if name == "world":
            raise AttributeError(name)
        return getattr(self.world, name)

    def begin(self, ids: Sequence[int], episodes: Sequence[Episode]) -> Sequence[Turn]:
        begun: Sequence[Turn] = self.world.begin(ids, episodes)  # type: ignore[assignment]
        return [self._first(*each) for each in zip(ids, episodes, begun, strict=True)]

    def answer(self, ids: Sequence[int], messages: Sequence[str]) -> Sequence[Turn]:
        turns: Sequence[Turn] = self.world.answer(ids, messages)  # type: ignore[assignment]
        return [self._paid(*each) for each in zip(ids, messages, turns, strict=True)]

    def _first(self, row: int, episode: Episode, turn: Turn) -> Turn:
        self._begun[row] = (episode, self.weights.version, dict(self.weights.values))
        return self._paid(row, "", turn)

    def _paid(self, row: int, message: str, turn: Turn) -> Turn:
        """Return a turn of the world with the scores, unknown before the end, and the rubric's grade."""
        scores = dict.fromkeys(self.weights.values, math.nan)
        if turn.done and not turn.failed:
            scores = self.weights.scores(turn, message)
            turn = turn._replace(grade=self.weights.paid(*self._begun[row], scores))
        told = {f"score_{name}": score for name, score in scores.items()}
        return turn if turn.outcomes is None else turn._replace(outcomes={**turn.outcomes, **told})

    def settled(self, ids: Sequence[int], turns: Sequence[Turn]) -> Sequence[Turn] | Awaitable[Sequence[Turn]]:
        self.rollouts += bool(turns)
        if self.move is not None and turns and self.rollouts % self.every == 0:
            self.move(self.weights, {name: _mean(f"score_{name}", turns) for name in self.weights.values})
        return self.world.settled(ids, turns)

    def measures(self) -> dict[str, float]:
        return {**self.world.measures(), **{f"weight_{name}": value for name, value in self.weights.values.items()}}

    def state_dict(self) -> dict[str, Any]:
        own = {"weights": self.weights.values, "version": self.weights.version, "rollouts": self.rollouts}
        return {**own, "world": self.world.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weights.resume(state["weights"], state["version"])
        self.rollouts = state.get("rollouts", 0)
        self.world.load_state_dict(state["world"])

    def instructions(self, ids: Sequence[int]) -> list[str]:
        return [
            f"{text}\n{self._told(row)}".lstrip() for row, text in zip(ids, self.world.instructions(ids), strict=True)
        ]

    def grammar(self, ids: Sequence[int]) -> list[str]:
        return [f"{text}\n{self._told(row)}".lstrip() for row, text in zip(ids, self.world.grammar(ids), strict=True)]

    def _told(self, row: int) -> str:
        weights = self._begun[row][2]
        parts = [
            f"{one.name} {weights[one.name]:.3g}" + (f" (as far as {one.needs})" if one.needs else "")
            for one in self.weights.criteria
        ]
        return f"The grade is the mean of these scores in [0, 1], weighted: {', '.join(parts)}."

    def recorded(self) -> dict[str, Any]:
        """Return what identifies the world, with the weights of now in the config: a record is replayed under them."""
        about = self.metadata()
        return {**about, "config": {**about["config"], "weights": list(self.weights.values.values())}}


def _mean(outcome: str, turns: Sequence[Turn]) -> float:
    """Return the mean of an outcome over the turns in which it is known: of an episode cut short none is."""
    known = [value for turn in turns if not math.isnan(value := (turn.outcomes or {}).get(outcome, math.nan))]
    return fmean(known) if known else math.nan


class AsyncRubric(Rubric, AsyncInteraction):
    """`Rubric` of a world that takes its time; deadline and clock are the world's."""

    world: AsyncInteraction
    begin, answer = AsyncInteraction.begin, AsyncInteraction.answer  # type: ignore[assignment]

    def __init__(self, world: AsyncInteraction, weights: Weights, move: Move | None = None, every: int = 1) -> None:
        super().__init__(world, weights, move, every)
        self.deadline, self.sleep = world.deadline, world.sleep

    async def begin_row(self, row: int, episode: Episode) -> Turn:
        return self._first(row, episode, await self.world.begin_row(row, episode))

    async def answer_row(self, row: int, message: str) -> Turn:
        return self._paid(row, message, await self.world.answer_row(row, message))


def graded_by(weights: Weights, world: Interaction, move: Move | None = None, every: int = 1) -> Interaction:
    """Return a conversation with another grade: the mean of the scores of criteria, under the weights at its beginning.

    Rewards of turns stay the world's; its own grade is the score `grade`. Outcomes have each score, once the episode is
    over. An episode that the loop ends for its length has the grade 0, as everywhere. In a training, ``move`` is called
    after ``every`` rollouts (`Interaction.settled`); the weights are in its metrics and checkpoints.
    """
    kind: Any = AsyncRubric if isinstance(world, AsyncInteraction) else Rubric
    return kind(world, weights, move, every)
