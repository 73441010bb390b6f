"""A GPU-vectorised tensor market for reinforcement learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.core.capabilities import (
        AlternativeActions,
        BoundedObservations,
        ColumnScaled,
        Differentiable,
        Donating,
        Graded,
        Itemised,
        Items,
        Masked,
        MultiAgent,
        NamedColumns,
        Referencing,
        RiskAware,
        Schedule,
        Scheduled,
        TargetWeights,
        WarmUp,
    )
    from vecenv.core.collector import FusedCollector
    from vecenv.core.env import VecEnv
    from vecenv.core.scenario import Drawing, Scenario
    from vecenv.curriculum import CurriculumSettings, Levelled, set_curriculum
    from vecenv.learn import Algorithm, algorithm_named, algorithm_names, register_algorithm, train
    from vecenv.learn.domain import Domain
    from vecenv.market.indicators import register_indicator
    from vecenv.market.tape import MarketTape
    from vecenv.registry import Task, make, make_interaction, register, task_names
    from vecenv.text.dialogue import Dialogue
    from vecenv.text.door import TextDoor
    from vecenv.text.interaction import AsyncInteraction, Episode, Interaction, Turn
    from vecenv.text.interface import TextInterface

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "AlternativeActions",
    "AsyncInteraction",
    "BoundedObservations",
    "ColumnScaled",
    "CurriculumSettings",
    "Dialogue",
    "Differentiable",
    "Domain",
    "Donating",
    "Drawing",
    "Episode",
    "FusedCollector",
    "Graded",
    "Interaction",
    "Itemised",
    "Items",
    "Levelled",
    "MarketTape",
    "Masked",
    "MultiAgent",
    "NamedColumns",
    "Referencing",
    "RiskAware",
    "Scenario",
    "Schedule",
    "Scheduled",
    "TargetWeights",
    "Task",
    "TextDoor",
    "TextInterface",
    "Turn",
    "VecEnv",
    "WarmUp",
    "algorithm_named",
    "algorithm_names",
    "make",
    "make_interaction",
    "register",
    "register_algorithm",
    "register_indicator",
    "set_curriculum",
    "task_names",
    "train",
]

_OTHERS = {
    "Algorithm": "learn",
    "AsyncInteraction": "text.interaction",
    "CurriculumSettings": "curriculum",
    "Dialogue": "text.dialogue",
    "Domain": "learn.domain",
    "Drawing": "core.scenario",
    "Episode": "text.interaction",
    "FusedCollector": "core.collector",
    "Interaction": "text.interaction",
    "Levelled": "curriculum",
    "MarketTape": "market.tape",
    "Scenario": "core.scenario",
    "Task": "registry",
    "TextDoor": "text.door",
    "TextInterface": "text.interface",
    "Turn": "text.interaction",
    "VecEnv": "core.env",
    "algorithm_named": "learn",
    "algorithm_names": "learn",
    "make": "registry",
    "make_interaction": "registry",
    "register": "registry",
    "register_algorithm": "learn",
    "register_indicator": "market.indicators",
    "set_curriculum": "curriculum",
    "task_names": "registry",
    "train": "learn",
}
"""Modules of the names that are not of `vecenv.core.capabilities`."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # torch and torchrl take seconds to import; `vecenv --help` should not.
    if name in __all__:
        return getattr(import_module(f"vecenv.{_OTHERS.get(name, 'core.capabilities')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
