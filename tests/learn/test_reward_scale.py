"""Rewards are divided by the deviation of the discounted sums so far: by hand, for one policy and for several."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vecenv.learn.reward_scale import RewardScale


def rollout(*rewards, ends):
    done = torch.zeros(len(rewards), len(rewards[0]), dtype=torch.bool)
    done[ends[0]][ends[1]] = True
    return SimpleNamespace(reward=torch.tensor(rewards), terminated=done, truncated=torch.zeros_like(done))


def test_the_scale_is_the_deviation_of_discounted_sums():
    scale = RewardScale(2, 0.5, torch.device("cpu"))
    assert float(scale.deviation()) == 1.0 and scale.scaled(torch.tensor([3.0])).tolist() == [3.0]
    # The first row ends after its first step; sums 4, 2 and 1, 4.5: the second row carries 4.5 on.
    scale.update(rollout([4.0, 2.0], [1.0, 3.5], ends=(0, 0)))
    assert scale.discounted_return.tolist() == [1.0, 4.5]
    deviation = torch.tensor([4.0, 2.0, 1.0, 4.5]).std(correction=0)
    assert float(scale.deviation()) == pytest.approx(float(deviation))
    torch.testing.assert_close(scale.scaled(torch.tensor([[3.0, -6.0]])), torch.tensor([[3.0, -6.0]]) / deviation)
    other = RewardScale(2, 0.5, torch.device("cpu"))
    other.load_state_dict(scale.state_dict())
    for each in (scale, other):
        each.update(rollout([0.0, 1.0], ends=(0, 0)))
    assert other.discounted_return.tolist() == scale.discounted_return.tolist() == [0.0, 3.25]
    assert float(other.deviation()) == float(scale.deviation())


def test_every_member_has_a_scale_of_its_own():
    """Two members of two rows each."""
    scale = RewardScale(4, 0.0, torch.device("cpu"), num_members=2)
    scale.update(rollout([1.0, 3.0, 10.0, 30.0], [1.0, 3.0, 10.0, 50.0], ends=(0, 1)))
    deviations = [torch.tensor(own).std(correction=0) for own in ([1.0, 3.0, 1.0, 3.0], [10.0, 30.0, 10.0, 50.0])]
    torch.testing.assert_close(scale.deviation(), torch.stack(deviations))
    told = scale.scaled(torch.ones(3, 4))
    torch.testing.assert_close(told, (1 / torch.stack(deviations)).repeat_interleave(2).expand(3, 4))
