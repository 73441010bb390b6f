"""Bootstrap intervals: what is drawn, and that they cover what they should where neighbouring origins hang together."""

from __future__ import annotations

import math

import pytest
import torch
from simulated_windows import normal

from vecenv.worldmodel.metrics.intervals import block_bootstrap, drawn_origins


def test_runs_of_neighbours_are_drawn_and_each_origin_equally_often():
    again = drawn_origins(10, block=3, draws=4000)
    assert again.shape == (4000, 10)
    within = again[:, :9].reshape(-1, 3, 3)
    assert torch.equal(within[..., 1:], (within[..., :-1] + 1) % 10)
    assert (again.flatten().bincount(minlength=10) / again.numel()).tolist() == pytest.approx([0.1] * 10, abs=0.005)


def test_the_interval_holds_95_percent_of_the_draws_of_any_function():
    found, values = [], normal(30, seed=1)

    def spread(at: torch.Tensor) -> float:
        found.append(float(values[at].std()))
        return found[-1]

    interval = block_bootstrap(spread, 30, block=2, draws=999)
    assert interval.mean == found[0] == pytest.approx(float(values.std()))
    ordered = sorted(found[1:])
    assert (interval.low, interval.high) == pytest.approx((ordered[24] * 0.05 + ordered[25] * 0.95, ordered[973] * 0.95
                                                           + ordered[974] * 0.05), abs=1e-3)  # fmt: skip
    assert interval == block_bootstrap(spread, 30, block=2, draws=999)
    assert interval != block_bootstrap(spread, 30, block=2, draws=999, seed=1)


def test_two_blocks_are_too_few_and_counts_must_be_positive():
    interval = block_bootstrap(lambda at: 1.0, 8)
    assert interval.mean == 1.0 and math.isnan(interval.low) and math.isnan(interval.high)
    assert block_bootstrap(lambda at: 1.0, 9) == (1.0, 1.0, 1.0)
    for count in ("num_origins", "block", "draws"):
        with pytest.raises(ValueError, match="must be at least 1"):
            block_bootstrap(lambda at: 1.0, **(dict(num_origins=9, block=1, draws=5) | {count: 0}))
