"""Rewards of a step, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from vecenv.kernels.rewards import (
    differential_sharpe,
    log_return,
    risk_penalised,
    risk_weighed,
    simple_return,
    updated_moments,
)

real = torch.float64


def test_returns_of_whole_money():
    """Of a value of 10 to one of 8, of nothing to something, and to ruin."""
    before, after = torch.tensor([10, 0, 10]), torch.tensor([8, 5, -3])
    assert simple_return(before, after, real).tolist() == [-0.2, 0.0, -1.3]
    assert log_return(before, after, real).tolist() == pytest.approx([math.log(0.8), 0.0, math.log(1e-6)])


def test_the_differential_sharpe_ratio_and_its_moments():
    """A = 1 and B = 3: (B (r - A) - A (r^2 - B) / 2) / (B - A^2)^1.5 for r = 2; nothing without a variance."""
    moments, step = torch.tensor([1.0, 3.0], dtype=real), torch.tensor(2.0, dtype=real)
    assert float(differential_sharpe(step, moments)) == pytest.approx((3 * 1 - 0.5 * (4 - 3)) / 2**1.5)
    assert float(differential_sharpe(step, torch.tensor([2.0, 4.0], dtype=real))) == 0.0
    assert updated_moments(step, moments, torch.tensor(0.25)).tolist() == [1.25, 3.25]


def test_risk_is_taken_off():
    step = torch.tensor([0.5, -0.5], dtype=real)
    assert risk_penalised(step, torch.tensor(0.5)).tolist() == [0.375, -0.625]
    assert risk_weighed(step, torch.tensor([2.0, 2.0], dtype=real)).tolist() == [0.25, -1.0]
