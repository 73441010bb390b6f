"""Rubrics: a grade made of named criteria, whose weights a schedule or a language model moves within bounds.

The grade of an episode of a conversation (`vecenv.text.graded`) is the weighted mean of the scores of its `Criterion`
list, under the `Weights` that held when the episode began. Every update of the weights and every grade is a line of a
log, from which `Weights` goes on, and `replayed_log` computes all weights and grades again.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

from vecenv.core.foreign_json import read_json
from vecenv.system.settings import Share, check_fields, refuse_unknown
from vecenv.text.chat_address import UNUSABLE, answered, checked_address
from vecenv.text.dress import without_marks
from vecenv.text.interaction import Episode, Turn
from vecenv.text.reasoning import without_reasoning

LOG = logging.getLogger("vecenv.text")

LONGEST_MESSAGE = 10_000
"""Characters of a message about weights; a longer one is refused unread."""

Score = Callable[[Turn, str], float]
"""Of the last turn of an episode and the message that it answers, in [0, 1]; NaN, for unknown, earns nothing."""


@dataclass(frozen=True)
class Criterion:
    """A part of a grade.

    Attributes:
        name: as agents, logs and outcomes (``score_NAME``) have it.
        score: of an episode.
        weight: at the start.
        low: least weight.
        high: greatest weight.
        needs: another criterion, by whose score this one's is multiplied: a short program earns as far as it is right.
    """

    name: str
    score: Score
    weight: Share = 1.0
    low: Share = 0.0
    high: Share = 1.0
    needs: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.low <= self.weight <= self.high:
            raise ValueError(f"the weight of {self.name}, {self.weight:g}, is not in [{self.low:g}, {self.high:g}]")


def grade(turn: Turn, message: str) -> float:
    """Score an episode by the world's own grade."""
    return math.nan if turn.grade is None else turn.grade


def outcome(name: str, none: float = 0.0, full: float = 1.0) -> Score:
    """Return the score that rises linearly from an outcome ``none`` to an outcome ``full``, which may be the lower."""
    return partial(_of_outcome, name, none, full)


def _of_outcome(name: str, none: float, full: float, turn: Turn, message: str) -> float:
    return _between((turn.outcomes or {}).get(name, math.nan), none, full)


def lines(none: int, full: int) -> Score:
    """Return the score of a message's number of lines that are not empty, as `outcome` has it of an outcome."""
    return partial(_of_lines, none, full)


def _of_lines(none: int, full: int, turn: Turn, message: str) -> float:
    return _between(sum(bool(line.strip()) for line in message.splitlines()), none, full)


def _between(value: float, none: float, full: float) -> float:
    return min(1.0, max(0.0, (value - none) / (full - none))) if math.isfinite(value) else math.nan


class Weights:
    """Weights of criteria: they move within their bounds, and by no more than a step at an update.

    Args:
        criteria: in the order in which they are told.
        step: most that an update changes a weight.
        log: file of lines to append to; if it exists, its updates are made again first.

    Attributes:
        values: by name.
        version: number of updates so far, refused ones included.

    Raises:
        ValueError: the criteria are none, not distinct or all of weight 0, one needs what there is not, or the log is
            of other criteria, damaged, or tells of other weights than its updates come to.
    """

    def __init__(self, criteria: Sequence[Criterion], step: float = 0.1, log: Path | str | None = None) -> None:
        self.criteria, self.step, self.version = tuple(criteria), step, 0
        self.log = None if log is None else Path(log)
        self.values = {one.name: one.weight for one in criteria}
        if len(self.values) < len(self.criteria) or not any(self.values.values()):
            raise ValueError("criteria must have different names, and weights that are not all 0")
        if not (0 < step <= 1):
            raise ValueError(f"step must be in (0, 1], got {step!r}")
        for one in criteria:
            if one.needs:
                refuse_unknown(f"criteria that {one.name} needs:", [one.needs], list(self.values))
                if next(other for other in criteria if other.name == one.needs).needs:
                    raise ValueError(f"{one.name} needs {one.needs}, which needs another criterion itself")
        bounds = {one.name: [one.weight, one.low, one.high] for one in criteria}
        self._head = {"rubric": bounds, "step": step, "needs": {one.name: one.needs for one in criteria if one.needs}}
        if self.log is not None and self.log.exists():
            self._go_on(self.log)
        elif self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self._write(self._head)

    def _go_on(self, log: Path) -> None:
        text = log.read_text()
        # The last line of a run that was killed may not be whole.
        whole = text[: text.rfind("\n") + 1]
        os.truncate(log, len(whole.encode()))
        if not whole:
            return self._write(self._head)
        replayed = replayed_log(whole, str(log))
        if replayed.head != self._head:
            raise ValueError(f"{log}: the log of another rubric: {json.dumps(replayed.head)}")
        self.values, self.version = dict(replayed.weights[-1]), len(replayed.weights) - 1

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def update(self, wanted: Mapping[str, float], source: str = "schedule") -> None:
        """Move towards some wanted weights.

        Raises:
            ValueError: a criterion is unknown, a weight is no finite number, or all would be 0; nothing is changed.
        """
        moved = moved_weights(self.values, self._head, wanted)
        if isinstance(moved, str):
            raise ValueError(moved)
        self._moved(moved, {"source": source, "wanted": dict(wanted)})

    def hear(self, message: str, source: str = "model") -> str:
        """Move towards the weights of a message, one JSON object of numbers by name, alone but for reasoning.

        Returns:
            Why it was refused and changed nothing, as the rest of a sentence; empty if it was not.
        """
        moved = moved_weights(self.values, self._head, _wanted(message))
        self._moved(moved, {"source": source, "said": message[: LONGEST_MESSAGE + 1]})
        return moved if isinstance(moved, str) else ""

    def _moved(self, moved: Mapping[str, float] | str, told: Mapping[str, Any]) -> None:
        fault, self.version = "", self.version + 1
        if isinstance(moved, str):
            fault = moved
        else:
            self.values = dict(moved)
        self._write({"update": self.version, **told, "fault": fault, "weights": self.values})

    def resume(self, values: Mapping[str, float], version: int) -> None:
        """Go on from an earlier version, as a training does from its checkpoint."""
        self.values, self.version = dict(values), version
        self._write({"resumed": version, "weights": self.values})

    def scores(self, turn: Turn, message: str) -> dict[str, float]:
        """Return the scores of an episode that ended with a turn; ValueError of one that is not in [0, 1]."""
        own = {one.name: one.score(turn, message) for one in self.criteria}
        for name, value in own.items():
            if not (math.isnan(value) or 0 <= value <= 1):
                raise ValueError(f"the score of criterion {name} is {value!r}, not in [0, 1]")
            own[name] = 0.0 if math.isnan(value) else float(value)
        return {one.name: own[one.name] * own.get(one.needs, 1.0) for one in self.criteria}

    def paid(self, episode: Episode, version: int, weights: Mapping[str, float], scores: Mapping[str, float]) -> float:
        """Return the grade of an episode that began under some weights, and log it."""
        result = weighted_mean(weights, scores)
        self._write({"episode": list(episode), "version": version, "scores": dict(scores), "grade": result})
        return result


def weighted_mean(weights: Mapping[str, float], scores: Mapping[str, float]) -> float:
    """Return the mean of scores under weights that are not all 0."""
    return math.fsum(weights[name] * scores[name] for name in weights) / math.fsum(weights.values())


def moved_weights(
    values: Mapping[str, float], head: Mapping[str, Any], wanted: Mapping[str, float] | str
) -> dict[str, float] | str:
    """Return weights after an update under the bounds and the step of a log's head, or why it is refused."""
    if isinstance(wanted, str):
        return wanted
    try:
        refuse_unknown("criteria", wanted, list(values))
    except ValueError as error:
        return str(error)
    moved = dict(values)
    for name, weight in wanted.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            return f"the weight of {name} must be a finite number, got {short(weight)}"
        (_, low, high), now, step = head["rubric"][name], values[name], head["step"]
        # Clamped last: a sum of steps may pass a bound by a rounding.
        moved[name] = min(max(min(max(float(weight), now - step), now + step), low), high)
    return moved if any(moved.values()) else "all weights would be 0"


def _wanted(message: str) -> dict[str, float] | str:
    """Return the numbers by name that a message has, or why it has none."""
    if len(message) > LONGEST_MESSAGE:
        return f"it has more than {LONGEST_MESSAGE:,} characters"
    try:
        # Whole numbers of any length are read as floats, infinite if they are too large.
        given = read_json(
            without_reasoning(without_marks(message)), parse_int=float, object_pairs_hook=_distinct, parse_constant=_no
        )
    except ValueError as error:
        return f"it is no JSON object of numbers by name: {error}"
    return given if isinstance(given, dict) and given else "it is no JSON object of numbers by name"


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    given = dict(pairs)
    if len(given) < len(pairs):
        raise ValueError("a name stands twice")
    return given


def _no(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def scheduled(points: Mapping[int, Mapping[str, float]], update: int) -> dict[str, float]:
    """Return the weights of a schedule at a number of updates: linear between its points, constant outside of them.

    Raises:
        ValueError: there are no points, or they name different criteria.
    """
    names = [set(weights) for weights in points.values()]
    if not names or any(one != names[0] for one in names):
        raise ValueError("the points of a schedule must all name the same criteria")
    before, after = (
        max((at for at in points if at <= update), default=min(points)),
        min((at for at in points if at >= update), default=max(points)),
    )
    share = (update - before) / (after - before) if after > before else 0.0
    return {name: weight + share * (points[after][name] - weight) for name, weight in points[before].items()}


Move = Callable[["Weights", Mapping[str, float]], object]
"""What moves weights after a rollout of a training, given them and the mean scores of its episodes, NaN if unknown.

Such as `towards` and `by_model`."""


def towards(points: Mapping[int, Mapping[str, float]]) -> Move:
    """Return what moves weights as `scheduled` between points by number of updates."""
    return partial(_towards, points)


def _towards(points: Mapping[int, Mapping[str, float]], weights: Weights, scores: Mapping[str, float]) -> None:
    weights.update(scheduled(points, weights.version + 1))


def by_model(address: str, model: str, deadline: float = 30.0) -> Move:
    """Return what asks a language model behind an OpenAI-compatible address for weights, for `Weights.hear`.

    It is told the weights, their bounds and step, and the mean scores. An answer that does not come changes nothing:
    its update is refused, as that of an answer that is no weights, and logged with why.

    Raises:
        ValueError: the address is none.
    """
    return partial(_by_model, checked_address(address), model, deadline)


def _by_model(address: str, model: str, deadline: float, weights: Weights, scores: Mapping[str, float]) -> None:
    how = (
        "You set the weights of a rubric by which agents are graded in training. You are told the weights, the bounds "
        "and the step within which they move, and the mean scores of the last episodes. Answer with the weights that "
        "you want, one JSON object of numbers by name, and nothing else."
    )
    bounds = {one.name: [one.low, one.high] for one in weights.criteria}
    means = {name: None if math.isnan(mean) else mean for name, mean in scores.items()}
    told = {"weights": weights.values, "bounds": bounds, "step": weights.step, "mean_scores": means}
    messages = [{"role": "system", "content": how}, {"role": "user", "content": json.dumps(told)}]
    try:
        said = answered(address, model, messages, deadline)
    except UNUSABLE as error:
        said = f"(no answer: {type(error).__name__}: {error})"
    if fault := weights.hear(said, source=model):
        LOG.warning("weights are as they were: %s", fault)


class ReplayedLog(NamedTuple):
    """What a log comes to: its first line, the weights by version, and the grades of episodes in their order."""

    head: dict[str, Any]
    weights: list[dict[str, float]]
    grades: list[float]


def replayed_log(text: str, name: str = "log") -> ReplayedLog:
    """Make all updates and grades of a log's text again, from its first line and what was wanted and scored alone.

    Raises:
        ValueError: naming the first line that is none of a log, or tells of other weights or another grade.
    """
    grades: list[float] = []
    weights: list[dict[str, float]] = []
    head: dict[str, Any] = {}
    for number, row in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(row)
            if number == 1:
                head, weights = line, [{criterion: bounds[0] for criterion, bounds in line["rubric"].items()}]
                continue
            if "resumed" in line:
                weights = weights[: line["resumed"] + 1]
                again, told = [weights[-1], len(weights) - 1], [line["weights"], line["resumed"]]
            elif "update" in line:
                wanted = _wanted(line["said"]) if "said" in line else line["wanted"]
                moved = moved_weights(weights[-1], head, wanted)
                fault = moved if isinstance(moved, str) else ""
                weights.append(weights[-1] if isinstance(moved, str) else moved)
                again, told = [len(weights) - 1, weights[-1], fault], [line["update"], line["weights"], line["fault"]]
            else:
                grades.append(weighted_mean(weights[line["version"]], line["scores"]))
                again, told = [grades[-1]], [line["grade"]]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
            raise ValueError(f"{name}: line {number} is none of a rubric's log: {error!r}") from error
        if again != told:
            raise ValueError(f"{name}: line {number} tells {told}, but comes to {again}")
    if not head:
        raise ValueError(f"{name}: there is no rubric in it")
    return ReplayedLog(head, weights, grades)
