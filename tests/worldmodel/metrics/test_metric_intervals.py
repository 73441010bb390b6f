"""Bootstrap intervals cover what they should, also where neighbouring origins hang together."""

from __future__ import annotations

import math

import pytest
import torch
from simulated_windows import normal

from vecenv.worldmodel.metrics.intervals import block_bootstrap


def overlapping(seed):
    """Return 60 origins' values of mean 0 that share half of what they see with the next."""
    noise = normal(61, seed=seed)
    return (noise[1:] + noise[:-1]) / math.sqrt(2)


def coverage(block):
    intervals = []
    for seed in range(200):
        values = overlapping(seed)
        intervals.append(block_bootstrap(lambda at, v=values: float(v[at].mean()), 60, block, draws=300, seed=seed))
    return sum(interval.low <= 0.0 <= interval.high for interval in intervals) / len(intervals)


@pytest.mark.assembly
def test_blocks_cover_a_mean_of_overlapping_origins():
    alone, blocks = coverage(1), coverage(5)
    assert blocks >= 0.88
    assert alone < blocks - 0.05


def test_runs_of_neighbours_are_drawn_and_each_origin_equally_often():
    drawn = []
    block_bootstrap(lambda at: float(len(drawn.append(at) or at)), 10, block=3, draws=4000)
    assert torch.equal(drawn[0], torch.arange(10))
    again = torch.stack(drawn[1:])
    assert again.shape == (4000, 10)
    within = again[:, :9].reshape(-1, 3, 3)
    assert torch.equal(within[..., 1:], (within[..., :-1] + 1) % 10)
    counts = again.flatten().bincount(minlength=10) / again.numel()
    assert counts.tolist() == pytest.approx([0.1] * 10, abs=0.005)


def test_any_function_of_the_origins():
    values = normal(30, seed=1)
    interval = block_bootstrap(lambda at: float(values[at].std()), 30)
    assert interval.mean == pytest.approx(float(values.std())) and interval.low < interval.mean < interval.high
    assert interval == block_bootstrap(lambda at: float(values[at].std()), 30)
    assert interval != block_bootstrap(lambda at: float(values[at].std()), 30, seed=1)


def test_the_interval_holds_95_percent_of_the_draws():
    found = []
    interval = block_bootstrap(lambda at: found.append(float(at.float().mean())) or found[-1], 20, block=2, draws=1000)
    inside = sum(interval.low <= value <= interval.high for value in found[1:]) / 1000
    assert inside == pytest.approx(0.95, abs=0.01)


def test_two_blocks_are_too_few():
    interval = block_bootstrap(lambda at: 1.0, 8, block=3)
    assert interval.mean == 1.0 and math.isnan(interval.low) and math.isnan(interval.high)


@pytest.mark.parametrize("count", ["num_origins", "block", "draws"])
def test_counts_must_be_positive(count):
    with pytest.raises(ValueError, match="must be at least 1"):
        block_bootstrap(lambda at: 1.0, **(dict(num_origins=9, block=1, draws=5) | {count: 0}))
