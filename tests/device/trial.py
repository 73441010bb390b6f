"""What a path does on a device: its results, and the meetings of host and device in each of its parts."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import unwrap
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.device.pretended import DeviceTensor, Meeting, log, pretended_cuda
from tests.small_env import same_bits
from vecenv.core import collector, compiling, engine, products
from vecenv.core.compiling import InPlaceCall, TensorFunction, eager_in_place
from vecenv.learn import exact, learner
from vecenv.worldmodel.sampling.rollout import RepeatedDay

log.apart |= {
    engine.BoundEngine.step.__code__: "a step",
    collector.FusedCollector._replay.__code__: "a rollout",
    unwrap(RepeatedDay.__call__).__code__: "a captured day",
    learner.Learner._minibatch_gradients.__code__: "a minibatch",
    exact.Exact._window.__code__: "a window",
}


class Trial:
    """One run of a path on a device, with results by name and the meetings of each part that has any."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.kept: dict[str, Any] = {}
        self.meetings: dict[str, Counter[Meeting]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the meetings within under the name of a part of the path."""
        with log.open() as met:
            yield
        if met:
            self.meetings[name] = self.meetings.get(name, Counter()) + met

    def keep(self, name: str, value: Any) -> None:
        self.kept[name] = _on_host(value)


Path = Callable[[Trial], None]


def _eager(function: TensorFunction, *_: Any, **__: Any) -> InPlaceCall:
    return eager_in_place(function)


@contextmanager
def device(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        if name == "cuda":
            # To compile for a GPU needs one: eager calls stand for compiled ones.
            own = compiling.compile_in_place
            for module in list(sys.modules.values()):
                if vars(module).get("compile_in_place") is own:
                    stack.enter_context(patch.object(module, "compile_in_place", _eager))
            stack.enter_context(patch.object(torch, "compile", lambda function, **_: function))
            stack.enter_context(pretended_cuda())
        yield


# A GPU has PyTorch's own products.
products.BY_ONEDNN = False


def on_both(path: Path) -> tuple[Trial, Trial]:
    trials = Trial("cpu"), Trial("cuda")
    for trial in trials:
        with device(trial.device):
            path(trial)
    return trials


def differing(one: Trial, other: Trial) -> list[str]:
    names = one.kept.keys() | other.kept.keys()
    return sorted(name for name in names if not _same(one.kept.get(name), other.kept.get(name)))


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.host if isinstance(value, DeviceTensor) else value.detach()).clone()
    if isinstance(value, dict):
        return {name: _on_host(part) for name, part in value.items()}
    return [_on_host(part) for part in value] if isinstance(value, list | tuple) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same_bits(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(part, other[name]) for name, part in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    # NaN is the same as NaN.
    return type(one) is type(other) and repr(one) == repr(other)
