"""Learning: algorithms by name, one file each, and what they share.

Other packages add algorithms as entry points of the group ``vecenv.learners``; `register_algorithm` adds one in this
process. Nothing is imported before it is asked for by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any, Literal

GROUP = "vecenv.learners"

SHIPPED = tuple(
    metadata.EntryPoint(name, f"vecenv.learn.{home}", GROUP)
    for name, home in {
        "ppo": "ppo:ALGORITHM",
        "cppo": "cppo:ALGORITHM",
        "a2c": "a2c:ALGORITHM",
        "dqn": "dqn:ALGORITHM",
        "sac": "sac:ALGORITHM",
        "td3": "td3:ALGORITHM",
        "ddpg": "td3:DDPG_ALGORITHM",
        "exact": "exact:ALGORITHM",
        "grpo": "grpo:ALGORITHM",
    }.items()
)
"""Algorithms of the package, each in its own file, but that DDPG is in TD3's."""

Learned = Literal["one choice", "numbers", "any"]

NEEDED: dict[Learned, str] = {"one choice": "a single choice", "numbers": "numbers within bounds"}
"""What the actions of a task must be for an algorithm that does not learn all, for messages."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Record of a learning algorithm.

    Attributes:
        name: identifier in `algorithm_named`, in commands and in presets.
        summary: what it is, in half a sentence, for the help of commands.
        learner: makes the learner from an environment and settings; of groups also from their size.
        config: returns the settings with which commands begin, a frozen dataclass over
            `vecenv.learn.networks.NetworkConfig`; mostly the class itself.
        actions: what it learns: a single choice, numbers within bounds, or both.
        groups: rows are groups of several that share path and start, whose sizes are given to ``learner``.
        smooth: tasks are learned in their smooth form, see `vecenv.learn.domain.Domain.smooth`.
        ensemble: several seeds can be trained as one batch, by `vecenv.learn.members.ensemble_of` its learner.
        extends: name of another algorithm, all of whose settings it has: what a preset sets for that one holds for
            this one too, unless the preset sets it for this one.
    """

    name: str
    summary: str
    learner: Callable[..., Any]
    config: Callable[[], Any]
    actions: Learned = "any"
    groups: bool = False
    smooth: bool = False
    ensemble: bool = False
    extends: str | None = None

    def learns(self, actions: str) -> bool:
        """Whether it learns actions of a kind, as `vecenv.registry.Task.actions` names it."""
        return "any" in (self.actions, actions) or self.actions == actions


_registered: dict[str, Algorithm] = {}


@cache
def _installed() -> metadata.EntryPoints:
    return metadata.entry_points(group=GROUP)


def _announced() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in (*SHIPPED, *sorted(_installed(), key=lambda point: point.name))}


def register_algorithm(algorithm: Algorithm) -> Algorithm:
    """Register an algorithm by its name in this process, and return it; ValueError if another one has the name."""
    if _registered.get(algorithm.name, algorithm) != algorithm or algorithm.name in _announced():
        raise ValueError(f"there is an algorithm {algorithm.name!r} already")
    _registered[algorithm.name] = algorithm
    return algorithm


def algorithm_names() -> list[str]:
    """Return the names of all algorithms, those of the package first, without importing them."""
    return [*_announced(), *_registered]


def algorithm_of(config: object) -> Algorithm:
    """Return the algorithm whose settings are given; ValueError if there is none."""
    for name in algorithm_names():
        algorithm = algorithm_named(name)
        if type(algorithm.config()) is type(config):
            return algorithm
    raise ValueError(
        f"{type(config).__name__} are the settings of no algorithm; there are {', '.join(algorithm_names())}"
    )


def algorithm_named(algorithm: str | Algorithm) -> Algorithm:
    """Return the record of an algorithm, given the record or its name; ValueError of an unknown one."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    if algorithm in _registered:
        return _registered[algorithm]
    announced = _announced()
    if algorithm not in announced:
        raise ValueError(f"unknown algorithm {algorithm!r}; there are {', '.join(algorithm_names())}")
    return announced[algorithm].load()
