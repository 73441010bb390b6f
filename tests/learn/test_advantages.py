"""Advantages beside a slow loop, and the running moments and scales that rewards and observations are divided by."""

from types import SimpleNamespace

import pytest
import torch

from vecenv.learn import returns
from vecenv.learn.returns import (
    RewardScale,
    RunningMoments,
    batch_moments,
    discounted_sums,
    generalised_advantages,
    table_moments,
    times_of,
)
from vecenv.learn.shards import Shards

STEPS, ROWS, GAMMA, LAMBDA = 40, 7, 0.97, 0.9
CPU = torch.device("cpu")


def test_advantages_and_discounted_sums_are_those_of_a_loop():
    """Both kinds of ends, sometimes at once; sums go on in the next rollout, and start anew in the next episode."""
    generator = torch.Generator().manual_seed(3)
    reward, value, following = torch.randn(3, STEPS, ROWS, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, STEPS, ROWS, generator=generator) < 0.15
    assert (terminated & truncated).any() and (terminated ^ truncated).any()
    found = generalised_advantages(reward, value, following, terminated, truncated, GAMMA, LAMBDA)
    done = terminated | truncated
    first, carried = discounted_sums(reward[:15], done[:15], torch.zeros(ROWS, dtype=torch.float64), GAMMA)
    second, _ = discounted_sums(reward[15:], done[15:], carried, GAMMA)
    advantages, sums = torch.zeros(STEPS, ROWS).double(), torch.zeros(STEPS, ROWS).double()
    for row in range(ROWS):
        later, so_far = 0.0, 0.0
        for step in reversed(range(STEPS)):
            after = 0.0 if terminated[step, row] else following[step, row]
            later = reward[step, row] + GAMMA * after - value[step, row] + GAMMA * LAMBDA * later * ~done[step, row]
            advantages[step, row] = later
        for step in range(STEPS):
            so_far = sums[step, row] = reward[step, row] + GAMMA * so_far
            so_far = so_far * ~done[step, row]
    torch.testing.assert_close(found, advantages, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([first, second]), sums, rtol=0, atol=1e-12)


def rollout(*rewards, ends):
    done = torch.zeros(len(rewards), len(rewards[0]), dtype=torch.bool)
    done[ends[0]][ends[1]] = True
    return SimpleNamespace(reward=torch.tensor(rewards), terminated=done, truncated=torch.zeros_like(done))


def test_rewards_are_divided_by_the_deviation_of_discounted_sums_of_each_member():
    scale = RewardScale(2, 0.5, CPU)
    assert float(scale.deviation()) == 1.0 and scale.scaled(torch.tensor([3.0])).tolist() == [3.0]
    # The first row ends after its first step; sums 4, 2 and 1, 4.5: the second row carries 4.5 on.
    scale.update(rollout([4.0, 2.0], [1.0, 3.5], ends=(0, 0)), Shards())
    assert scale.discounted_return.tolist() == [1.0, 4.5]
    deviation = torch.tensor([4.0, 2.0, 1.0, 4.5]).std(correction=0)
    assert float(scale.deviation()) == pytest.approx(float(deviation))
    torch.testing.assert_close(scale.scaled(torch.tensor([[3.0, -6.0]])), torch.tensor([[3.0, -6.0]]) / deviation)
    other = RewardScale(2, 0.5, CPU)
    other.load_state_dict(scale.state_dict())
    for each in (scale, other):
        each.update(rollout([0.0, 1.0], ends=(0, 0)), Shards())
    assert other.discounted_return.tolist() == scale.discounted_return.tolist() == [0.0, 3.25]
    assert float(other.deviation()) == float(scale.deviation())
    # Each of two members of two rows has a scale of its own.
    scale = RewardScale(4, 0.0, CPU, num_members=2)
    scale.update(rollout([1.0, 3.0, 10.0, 30.0], [1.0, 3.0, 10.0, 50.0], ends=(0, 1)), Shards())
    deviations = [torch.tensor(own).std(correction=0) for own in ([1.0, 3.0, 1.0, 3.0], [10.0, 30.0, 10.0, 50.0])]
    torch.testing.assert_close(scale.deviation(), torch.stack(deviations))
    told = scale.scaled(torch.ones(3, 4))
    torch.testing.assert_close(told, (1 / torch.stack(deviations)).repeat_interleave(2).expand(3, 4))


@pytest.mark.parametrize("chunk", [4, 8192])
def test_moments_of_batches_and_of_rows_of_a_table_are_those_of_all_samples(monkeypatch, chunk):
    """Batches of unequal sizes, each about a mean of its own; rows count as often as they occur."""
    monkeypatch.setattr(returns, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 3, generator=generator) + 5.0 * place for place, size in enumerate((40, 1, 25))]
    moments, together = RunningMoments((3,), CPU), torch.cat(batches).double()
    for batch in batches:
        moments.update([batch.clone()], Shards())
    assert int(moments.count) == 66
    torch.testing.assert_close(moments.mean, together.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moments.deviation(), together.std(0, correction=0), rtol=1e-5, atol=0)
    table = torch.randn(11, 4, generator=generator) * 3.0 + 100.0
    table[:, 2] = 1e6
    rows = torch.randint(2, 9, (200,), generator=generator)
    found = table_moments(table, times_of(rows, 11), 200, rows[:1])
    for one, other in zip(found, batch_moments(table[rows]), strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert float(found[1][2]) == 0.0
    # A constant, however large, nothing yet, and a small change of a large number that is no rounding.
    moments = RunningMoments((2,), CPU)
    assert moments.deviation().tolist() == [1.0, 1.0]
    for _ in range(2):
        moments.update([1e6 + torch.tensor([[0.0, 0.0], [0.0, 64.0]])], Shards())
    assert moments.deviation().tolist() == pytest.approx([1.0, 32.0])
    # Rounding of a large constant is none either.
    moments = RunningMoments((2,), CPU)
    moments.update([torch.tensor([[1e8, 0.0], [1e8 + 8, 8.0]])], Shards())
    assert moments.deviation().tolist() == [1.0, 4.0]
