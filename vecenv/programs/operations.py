"""What the operations of programs compute, in float32: the reference of every other form.

Truth values are 1 and 0. A sum in float64 goes from the oldest bar to the newest, so that it is the same number
everywhere; NaN is one value, whatever its bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def divided(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Return the quotient, and 0 of whatever is divided by 0."""
    torch.div(left, right, out=out)
    return _kept(out, right.abs(), out)


def sign(values: Tensor, out: Tensor) -> Tensor:
    """Return -1, 0 or 1, and NaN of NaN."""
    # What is clamped to 0 is 0 or NaN.
    return torch.sign(values, out=out).add_(values.clamp(0.0, 0.0))


def smaller(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Return the smaller number, NaN if either is, and never -0, which is neither less nor more than 0."""
    return torch.minimum(left, right, out=out).add_(0.0)


def larger(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Return the larger number, as `smaller`."""
    return torch.maximum(left, right, out=out).add_(0.0)


def chosen(condition: Tensor, one: Tensor, other: Tensor, out: Tensor) -> Tensor:
    """Return the one where a condition is true."""
    rest = torch.ops.aten.hardtanh_backward(other, condition, -1.0, 0.5)  # 0 where the condition is not 0
    _kept(one, condition, out).view(torch.int32).bitwise_or_(rest.view(torch.int32))
    return out


def _kept(values: Tensor, condition: Tensor, out: Tensor) -> Tensor:
    """Return the values, with their bits, and 0 where a condition is 0.

    On a CPU this gradient of a threshold and its like are several times as fast as `torch.where`, whose truth values
    are bytes.
    """
    kept: Tensor = torch.ops.aten.threshold_backward.grad_input(values, condition, 0.0, grad_input=out)
    return kept


ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": divided,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": sign,
    "min": smaller,
    "max": larger,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "if": chosen,
}
"""Operations on each lane, into a tensor ``out`` of float32, in the order of the native machine's opcodes."""


def _before(values: Tensor, bars: int) -> Tensor:
    """Return bars with as many of NaN before the first. Shapes: (..., T, K) -> (..., bars + T, K)."""
    return functional.pad(values, (0, 0, bars, 0), value=torch.nan)


def _sum(values: Tensor, window: int) -> Tensor:
    total = torch.zeros_like(values)
    padded = _before(values, window - 1)
    for first in range(window):
        total += padded[..., first : first + values.shape[-2], :]
    return total


def rolling_mean(values: Tensor, window: int) -> Tensor:
    """Return the mean of each window, rounded once."""
    return (_sum(values.double(), window) / window).float()


def rolling_std(values: Tensor, window: int) -> Tensor:
    """Return the standard deviation of samples, with window - 1 as divisor."""
    wide = values.double()
    mean, squares, padded = _sum(wide, window) / window, torch.zeros_like(wide), _before(wide, window - 1)
    for first in range(window):
        difference = padded[..., first : first + values.shape[-2], :] - mean
        squares += difference * difference
    return (squares / (window - 1)).sqrt().float()


def _extreme(values: Tensor, window: int, better: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the best of each window: of the windows of half its length, which may overlap; never -0."""
    found, width = _before(values, window - 1), 1
    while width < window:
        step = min(width, window - width)
        found = better(found[..., :-step, :], found[..., step:, :])
        width += step
    return found + 0.0


def lagged(values: Tensor, bars: int) -> Tensor:
    """Return what was some bars ago."""
    return _before(values, bars)[..., : values.shape[-2], :]


def rank(values: Tensor, _: int) -> Tensor:
    """Return the rank among the symbols that have a number, over their count; equal ones share the mean of theirs."""
    below, equal = torch.zeros_like(values), torch.zeros_like(values)
    for other in values.split(1, dim=-1):
        below += other < values
        equal += other == values
    count = (~values.isnan()).float().sum(-1, keepdim=True)
    return torch.where(values.isnan(), values, (below + (equal + 1.0) * 0.5) / count)


STRUCTURED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": rolling_mean,
    "std": rolling_std,
    "highest": lambda values, window: _extreme(values, window, torch.maximum),
    "lowest": lambda values, window: _extreme(values, window, torch.minimum),
    "lag": lagged,
    "rank": rank,
}
"""Operations on whole paths, (..., T, K) and a window, NaN until it is full."""
