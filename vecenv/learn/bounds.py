"""Bounds of actions: their unit, and a clamp that gradients can leave."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchrl.data import Bounded, TensorSpec


class _InwardClamp(torch.autograd.Function):
    """Clamp whose gradient descent can leave a bound."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return values.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ANN401
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        values, low, high = ctx.saved_tensors
        (gradient,) = gradients
        outward = ((values > high) & (gradient < 0)) | ((values < low) & (gradient > 0))
        return torch.where(outward, 0.0, gradient), None, None


def clamp_inward(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return clamped values whose gradient is zero only where a step of descent would lead further out of the bounds.

    The gradient of a plain clamp is zero outside of the bounds altogether: an action that has left them stays there,
    whatever it costs. See the inverting gradients of Hausknecht and Stone, arXiv 1511.04143, 2016.
    """
    return _InwardClamp.apply(values, low, high)


class Bounds:
    """Finite bounds of an action, and its unit: half their width, from the centre. Others raise a ValueError."""

    def __init__(self, spec: TensorSpec) -> None:
        numbers = isinstance(spec, Bounded) and spec.dtype.is_floating_point
        if not numbers or not (spec.space.low.isfinite() & spec.space.high.isfinite()).all():
            raise ValueError(
                f"actions must be numbers within finite bounds, those here are {type(spec).__name__} of shape "
                f"{tuple(spec.shape)} with dtype {spec.dtype}"
            )
        self.shape, self.size = spec.shape, spec.shape.numel()
        low, high = spec.space.low.flatten(), spec.space.high.flatten()
        self.centre, self.half = (high + low) / 2, (high - low) / 2

    def units(self, action: Tensor) -> Tensor:
        """Return actions within the bounds, as the environment takes them. Shapes: (*, *spec.shape) -> (*, size)."""
        flat = action.flatten(-len(self.shape)) if self.shape else action.unsqueeze(-1)
        return ((flat - self.centre) / self.half).clamp(-1.0, 1.0)

    def action(self, units: Tensor) -> Tensor:
        """Return actions. Shapes: (B, size) -> (B, *spec.shape)."""
        return (self.centre + self.half * units).reshape(-1, *self.shape)
