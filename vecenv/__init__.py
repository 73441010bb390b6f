"""A GPU-vectorised tensor market for reinforcement learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.core.capabilities import Masked
    from vecenv.core.collector import FusedCollector
    from vecenv.core.env import VecEnv
    from vecenv.core.scenario import Drawing, Scenario
    from vecenv.learn import Algorithm, algorithm_named, algorithm_names, register_algorithm
    from vecenv.market.tape import MarketTape
    from vecenv.registry import Task, make, make_interaction, register, task_names
    from vecenv.text.dialogue import Dialogue
    from vecenv.text.door import TextDoor
    from vecenv.text.interaction import AsyncInteraction, Episode, Interaction, Turn
    from vecenv.text.interface import TextInterface

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "AsyncInteraction",
    "Dialogue",
    "Drawing",
    "Episode",
    "FusedCollector",
    "Interaction",
    "MarketTape",
    "Masked",
    "Scenario",
    "Task",
    "TextDoor",
    "TextInterface",
    "Turn",
    "VecEnv",
    "algorithm_named",
    "algorithm_names",
    "make",
    "make_interaction",
    "register",
    "register_algorithm",
    "task_names",
]

_HOMES = {
    "Algorithm": "vecenv.learn",
    "AsyncInteraction": "vecenv.text.interaction",
    "Dialogue": "vecenv.text.dialogue",
    "Episode": "vecenv.text.interaction",
    "Interaction": "vecenv.text.interaction",
    "Turn": "vecenv.text.interaction",
    "make_interaction": "vecenv.registry",
    "Drawing": "vecenv.core.scenario",
    "FusedCollector": "vecenv.core.collector",
    "MarketTape": "vecenv.market.tape",
    "Masked": "vecenv.core.capabilities",
    "Scenario": "vecenv.core.scenario",
    "Task": "vecenv.registry",
    "TextInterface": "vecenv.text.interface",
    "TextDoor": "vecenv.text.door",
    "VecEnv": "vecenv.core.env",
    "algorithm_named": "vecenv.learn",
    "algorithm_names": "vecenv.learn",
    "make": "vecenv.registry",
    "register": "vecenv.registry",
    "register_algorithm": "vecenv.learn",
    "task_names": "vecenv.registry",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # torch and torchrl take seconds to import; `vecenv --help` should not.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
