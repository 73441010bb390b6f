"""Advantages within groups: by hand, as torchrl has them, and what must not change them."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives.llm import MCAdvantage

from vecenv.learn.group_advantages import group_advantages, has_spread, step_advantages


def test_advantages_of_two_groups_by_hand():
    """1, 2, 6 has mean 3 and unbiased variance (4 + 1 + 9) / 2 = 7."""
    returns = torch.tensor([[1.0, 2.0, 6.0], [0.5, 0.5, 0.5]], dtype=torch.float64)
    assert has_spread(returns).tolist() == [True, False]
    centred = torch.tensor([[-2.0, -1.0, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(group_advantages(returns, scaled=False), centred)
    torch.testing.assert_close(group_advantages(returns, scaled=True), centred / (math.sqrt(7) + 1e-6))


def test_a_group_without_spread_teaches_nothing_at_any_precision():
    returns = torch.full((3, 7), 0.1, dtype=torch.float32)
    assert not bool(group_advantages(returns, scaled=True).any())
    assert not bool(group_advantages(returns, scaled=False).any())


def test_one_member_cannot_be_compared():
    with pytest.raises(ValueError, match="at least 2 members to compare, got 1"):
        group_advantages(torch.zeros(4, 1), scaled=True)


def test_advantages_are_those_of_torchrl():
    torch.manual_seed(0)
    returns = torch.randn(5, 4)
    theirs = MCAdvantage(grpo_size=4, prompt_key="group", trajectory_return="sum")
    for group, members in enumerate(returns):
        for number, value in enumerate(members):
            reward = torch.tensor([[0.25], [float(value) - 0.25]])
            episode = TensorDict(
                group=torch.full((2,), group),
                next=TensorDict(reward=reward, done=torch.tensor([[False], [True]]), batch_size=[2]),
                batch_size=[2],
            )
            out = theirs.inv(episode)
            assert (out is None) == (number < 3)
        ours = group_advantages(members[None], scaled=True)
        torch.testing.assert_close(out["advantage"].view(4, 2), ours.T.expand(4, 2), atol=1e-5, rtol=1e-5)


def test_steps_are_compared_with_those_of_their_anchor_by_hand():
    """Anchor 7: 1, 2, 6; anchor 3: 4, 4; anchor 9 is alone; the last step does not count."""
    returns = torch.tensor([[1.0, 4.0, 5.0], [2.0, 6.0, 4.0], [0.0, 0.0, 100.0]], dtype=torch.float64)
    anchor = torch.tensor([[7, 3, 9], [7, 7, 3], [5, 5, 7]])
    mask = torch.tensor([[True, True, True], [True, True, True], [True, True, False]])
    centred = torch.tensor([[-2.0, 0.0, 0.0], [-1.0, 3.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(step_advantages(returns, anchor, mask, scaled=False), centred)
    torch.testing.assert_close(step_advantages(returns, anchor, mask, scaled=True), centred / (math.sqrt(7) + 1e-6))


def test_steps_that_did_equally_well_teach_nothing_although_their_mean_is_rounded():
    returns = torch.full((1, 3), 0.1, dtype=torch.float64)
    assert float(returns.sum() / 3) != 0.1
    anchor, mask = torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.bool)
    for scaled in (True, False):
        assert not bool(step_advantages(returns, anchor, mask, scaled).any())


def test_one_anchor_for_a_whole_group_is_the_group(seed=0):
    torch.manual_seed(seed)
    returns = torch.randn(6, 8)
    anchor = torch.arange(6)[:, None].expand(6, 8)
    for scaled in (True, False):
        ours = step_advantages(returns, anchor, torch.ones_like(anchor, dtype=torch.bool), scaled)
        torch.testing.assert_close(ours, group_advantages(returns, scaled))
