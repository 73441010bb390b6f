"""Walk-forward: trainings on days before each span of the test, and one account that trades the spans."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vecenv.tasks.walk_forward.report import WalkForward
    from vecenv.tasks.walk_forward.run import walk_forward

__all__ = ["WalkForward", "walk_forward"]

_MODULES = {"WalkForward": "report", "walk_forward": "run"}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # Settings of the command line are read from here without torch.
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
