"""Uniform random actions of an action spec, drawn from the episodes' random keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.random import EpisodeKey, step_bits
from vecenv.core.streams import EpisodeStream


def random_action(spec: TensorSpec, key: EpisodeKey, elapsed: Tensor) -> Tensor:
    """Draw uniform actions of one agent's spec by episode key and step. Shapes: (N,), (N,) -> (N, *spec.shape).

    Raises:
        TypeError: the spec is neither bounded, nor categorical, nor multi-categorical.
    """
    size = spec.shape.numel()
    bits = torch.cat(step_bits(key, EpisodeStream.ACTION, elapsed, -(-size // 4)), dim=-1)[:, :size]
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        unit = (bits >> 8).to(torch.float32) * 2.0**-24
        low, high = spec.space.low.flatten(), spec.space.high.flatten()
        return (low + unit * (high - low)).to(spec.dtype).reshape(-1, *spec.shape)
    if isinstance(spec, MultiCategorical):
        choices: Tensor | int = spec.nvec.flatten()
    elif isinstance(spec, Categorical):
        choices = int(spec.n)
    else:
        raise TypeError(f"cannot draw random actions for {type(spec).__name__}")
    return ((bits * choices) >> 32).to(spec.dtype).reshape(-1, *spec.shape)
