"""The file of a sweep: the settings of a training, and which of them vary; all is checked before any trial starts."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vecenv.system.preset_files import as_values, read_values
from vecenv.system.settings import refuse_unknown
from vecenv.tasks.experiment.markets import NoMarket
from vecenv.tasks.experiment.planning import check_training
from vecenv.tasks.experiment.settings import TrainSettings, train_settings
from vecenv.tasks.sweep.settings import SweepSettings

VARIES = "varies"
"""Key of a sweep's file: values of options, by their dotted names."""

CORNERS = 32
"""Combinations of ends of which all are checked; of more, each end alone."""


@dataclass(frozen=True)
class Range:
    """Numbers between two, both included; whole ones if these are. They are tried evenly, or so in their logarithm."""

    low: float
    high: float
    log: bool


@dataclass(frozen=True)
class Choices:
    """Values, by what stands for each in the journal: itself, or its JSON if it is a list."""

    by_label: Mapping[Any, Any]


@dataclass(frozen=True)
class Sweep:
    """What is tried.

    Attributes:
        settings: of the sweep.
        values: of the options in the file that do not vary.
        varies: what the file says of those that do.
        training: one of the trials.
        space: of the options that vary, by dotted name.
    """

    settings: SweepSettings
    values: Mapping[str, Any]
    varies: Mapping[str, Any]
    training: TrainSettings
    space: Mapping[str, Range | Choices]

    def chosen(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a trial's options by name, given the journal's."""
        labels = {name: space.by_label for name, space in self.space.items() if isinstance(space, Choices)}
        return {name: labels[name][value] if name in labels else value for name, value in parameters.items()}

    def given(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `train_settings` for a trial, given the journal's values."""
        return _with(self.values, self.chosen(parameters))

    def identity(self) -> dict[str, Any]:
        """Return what decides the trials, JSON-able; how many there are is no part of it."""
        names = ("delay", "random_trials", "prune", "pruned_after", "seed")
        own = {name: getattr(self.settings, name) for name in names}
        told = {"settings": self.values, VARIES: self.varies, "sweep": own}
        kept: dict[str, Any] = json.loads(json.dumps(told, default=str))
        return kept


def read_sweep(settings: SweepSettings) -> Sweep:
    """Read a sweep's file, and check the trainings at the ends of all that varies.

    Raises:
        ValueError: an option does not exist, has no effect or may not vary, or an end makes no valid training.
    """
    values = dict(read_values(settings.file))
    try:
        varies = values.pop(VARIES, None)
        if not isinstance(varies, dict) or not varies:
            raise ValueError(f"{VARIES}: the options that vary are needed, with what they may be, got {varies!r}")
        for name in ("folder", "resume"):
            if name in values or name in varies:
                raise ValueError(f"{name}: trials have folders of their own, in that of the sweep")
        if settings.seeds is not None:
            values["seeds"] = settings.seeds
        ends = {str(name): _ends(f"{VARIES}: {name}", told) for name, told in varies.items()}
        trainings = _checked(values, ends)
        space = {
            name: Choices({_label(value): value for value in ends[name]})
            if "choices" in told
            else _range(f"{VARIES}: {name}", told, *(_typed(trainings, name, end) for end in ends[name]))
            for name, told in varies.items()
        }
        return Sweep(settings, values, varies, trainings[0][1], space)
    except ValueError as error:
        raise ValueError(f"{settings.file}: {error}") from error


Corner = dict[str, Any]
"""A value of each option that varies, by name."""


def _ends(place: str, told: object) -> list[Any]:
    """Return what must make valid trainings: both ends of a range, or all choices."""
    if not isinstance(told, dict):
        raise ValueError(f"{place}: low and high, or choices, are needed by name, got {told!r}")
    refuse_unknown("entries", told, ("choices",) if "choices" in told else ("low", "high", "log"), f"{place}: ")
    if "choices" not in told:
        if lacking := [name for name in ("low", "high") if name not in told]:
            raise ValueError(f"{place}: {' and '.join(lacking)} of the range, or choices, are needed")
        return [told["low"], told["high"]]
    choices = told["choices"]
    if not isinstance(choices, list) or len({_label(value) for value in choices}) < max(2, len(choices)):
        raise ValueError(f"{place}: two different choices or more are needed in a list, got {choices!r}")
    return choices


def _checked(values: Mapping[str, Any], ends: Mapping[str, Sequence[Any]]) -> list[tuple[Corner, TrainSettings]]:
    """Return the trainings of all combinations of ends, or of many of each end alone, of which the first is a part."""
    found: list[tuple[Corner, TrainSettings]] = []
    first: tuple[Corner, Any] | None = None
    for corner in _corners(ends):
        try:
            training = train_settings(**_with(values, corner))
            measured = _measured(training)
        except ValueError as error:
            raise ValueError(
                f"with {', '.join(f'{name} {value}' for name, value in corner.items())}: {error}"
            ) from error
        first = first or (corner, measured)
        changed = [name for name in ends if corner[name] != first[0][name]]
        if len(changed) == 1 and measured != first[1]:
            raise ValueError(
                f"{VARIES}: {changed[0]}: trials could not be compared, as it changes what they are judged on"
            )
        found.append((corner, training))
    return found


def _corners(ends: Mapping[str, Sequence[Any]]) -> Iterator[Corner]:
    if math.prod(map(len, ends.values())) <= CORNERS:
        for corner in itertools.product(*ends.values()):
            yield dict(zip(ends, corner, strict=True))
        return
    first = {name: values[0] for name, values in ends.items()}
    yield first
    for name, values in ends.items():
        yield from (first | {name: value} for value in values[1:])
    yield {name: values[-1] for name, values in ends.items()}


def _measured(training: TrainSettings) -> tuple[Any, ...]:
    """Return what decides the validations of a training, and the test of its policy; ValueError if it has none."""
    if not training.validation.validation_fraction:
        raise ValueError("trials are pruned and chosen by their validations: set a validation_fraction above 0")
    if training.runs.ensemble is not None:
        raise ValueError("ensemble: a trial is pruned while its seeds train one after the other: set seeds instead")
    rules = check_training(training).rules
    # Validations are on the rules as all agents are compared under them, where these are other ones.
    judged = rules if isinstance(training.source, NoMarket) else training.record.domain.compared(rules)
    runs = (training.seed, training.runs.seeds, training.episodes, training.agents)
    return training.task, training.source, training.validation, judged, runs


def _typed(trainings: Sequence[tuple[Corner, TrainSettings]], name: str, end: object) -> Any:  # noqa: ANN401
    """Return an end as the settings have it, of the type of the option."""
    value: Any = as_values(next(training for corner, training in trainings if corner[name] == end))
    for part in name.split("."):
        value = value[part]
    return value


def _range(place: str, told: Mapping[str, Any], low: Any, high: Any) -> Range:  # noqa: ANN401
    log = told.get("log", False)
    if not (type(low) is type(high) and isinstance(low, int | float) and low < high):
        raise ValueError(f"{place}: low and high must be numbers, the first one smaller, got {low!r} and {high!r}")
    if not isinstance(log, bool) or (log and low <= 0):
        raise ValueError(f"{place}: log must be true or false, and low above 0 if it is true, got {log!r}")
    return Range(low, high, log)


def _label(value: object) -> Any:  # noqa: ANN401
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _with(values: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with others of dotted names in their places."""
    own = copy.deepcopy(dict(values))
    for name, value in chosen.items():
        *parts, last = name.split(".")
        block = own
        for part in parts:
            block[part] = block.get(part) or {}
            if not isinstance(block[part], dict):
                raise ValueError(f"{part}: settings by name are needed, got {block[part]!r}")
            block = block[part]
        block[last] = value
    return own
