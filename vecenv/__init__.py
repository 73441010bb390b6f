"""A GPU-vectorised tensor market for reinforcement learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.core.collector import FusedCollector
    from vecenv.core.env import VecEnv
    from vecenv.market.tape import MarketTape
    from vecenv.registry import make

__version__ = "0.1.0"
__all__ = ["FusedCollector", "MarketTape", "VecEnv", "make"]

_HOMES = {
    "FusedCollector": "vecenv.core.collector",
    "MarketTape": "vecenv.market.tape",
    "VecEnv": "vecenv.core.env",
    "make": "vecenv.registry",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # torch and torchrl take seconds to import; `vecenv --help` should not.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
