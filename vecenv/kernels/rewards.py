"""Rewards of one step from the portfolio values before and after it."""

from __future__ import annotations

import torch
from torch import Tensor

VARIANCE_FLOOR = 1e-12


def simple_return(value: Tensor, next_value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return v'/v - 1, 0 for a worthless account. Shape: ()."""
    gain = (next_value - value).to(dtype)
    return torch.where(value > 0, gain / value.to(dtype).clamp(min=1e-30), 0.0)


def log_return(value: Tensor, next_value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return log(v'/v); a ruined account counts as one with a millionth of its value left. Shape: ()."""
    return torch.log1p(simple_return(value, next_value, dtype).clamp(min=-1.0 + 1e-6))


def differential_sharpe(step_return: Tensor, moments: Tensor) -> Tensor:
    """Return the derivative of the exponential Sharpe ratio (Moody and Saffell 1998, eq. 12).

    ``moments`` are exponential means A of the returns and B of their squares before the step. Shapes: (), (2,) -> ().
    """
    mean, square = moments[0], moments[1]
    variance = square - mean * mean
    numerator = square * (step_return - mean) - 0.5 * mean * (step_return * step_return - square)
    known = variance > VARIANCE_FLOOR
    return torch.where(known, numerator / torch.where(known, variance, 1.0) ** 1.5, 0.0)


def updated_moments(step_return: Tensor, moments: Tensor, decay: Tensor) -> Tensor:
    """Return the exponential means after a step. Shape: (2,)."""
    sample = torch.stack([step_return, step_return * step_return], dim=-1)
    return moments + decay.to(moments.dtype) * (sample - moments)


def risk_penalised(step_return: Tensor, risk_aversion: Tensor) -> Tensor:
    """Return r - λ r², the mean-variance utility of one step. Shape: ()."""
    return step_return - risk_aversion.to(step_return.dtype) * step_return * step_return
