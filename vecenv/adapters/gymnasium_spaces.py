"""Conversion of an environment's specs to Gymnasium spaces, and of actions to tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.env import VecEnv

LARGEST = float(np.finfo(np.float32).max)
"""Bound of observations: they are finite, but no smaller bound holds on every market."""


def observation_space(env: VecEnv) -> spaces.Box:
    """Return the space of one sub-environment's observation."""
    return spaces.Box(-LARGEST, LARGEST, (sum(env.block_widths),), np.float32)


def action_space(spec: TensorSpec) -> spaces.Space[Any]:
    """Return the space of one sub-environment's action.

    Raises:
        TypeError: Gymnasium has no space for this kind of spec.
    """
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        low, high = (bound.expand(spec.shape).cpu().numpy() for bound in (spec.space.low, spec.space.high))
        return spaces.Box(low, high, dtype=low.dtype.type)
    if isinstance(spec, MultiCategorical):
        return spaces.MultiDiscrete(spec.nvec.cpu().numpy())
    if isinstance(spec, Categorical) and spec.shape.numel() == 1:
        return spaces.Discrete(int(spec.n))
    if isinstance(spec, Categorical):
        return spaces.MultiDiscrete(np.full(spec.shape, int(spec.n)))
    raise TypeError(f"Gymnasium has no space for actions of {type(spec).__name__} with dtype {spec.dtype}")


def to_actions(env: VecEnv, actions: object) -> Tensor:
    """Return actions as the environment takes them; a tensor of the right type and device is neither copied nor read.

    In tensors the rules count non-finite numbers as invalid actions; NumPy arrays with them are rejected.

    Args:
        env: of N sub-environments.
        actions: tensor or array-like. Shape: (N, *spec.shape).

    Raises:
        ValueError: the shape is wrong, or an array is not finite.
    """
    spec = env.scenario.action_spec
    tensor = actions if isinstance(actions, Tensor) else torch.from_numpy(np.asarray(actions))
    tensor = tensor.to(env.device, spec.dtype)
    if tensor.numel() != env.num_envs * spec.shape.numel() or len(tensor) != env.num_envs:
        expected = (env.num_envs, *spec.shape)
        raise ValueError(f"actions must have shape {expected}, got {tuple(tensor.shape)}")
    if not isinstance(actions, Tensor) and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise ValueError("actions must be finite")
    return tensor.view(env.num_envs, *spec.shape)
