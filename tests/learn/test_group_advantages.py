"""Advantages within groups: by hand, as torchrl has them, and what must not change them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives.llm import MCAdvantage

from vecenv.learn.group_credit import group_advantages, has_spread, refilled, step_advantages, step_anchors, step_credit
from vecenv.learn.group_episodes import EpisodeAccounts, audit, rollout_seed
from vecenv.learn.grpo_config import GRPOConfig


def test_advantages_of_two_groups_by_hand():
    """1, 2, 6 has mean 3 and unbiased variance (4 + 1 + 9) / 2 = 7."""
    returns = torch.tensor([[1.0, 2.0, 6.0], [0.5, 0.5, 0.5]], dtype=torch.float64)
    assert has_spread(returns).tolist() == [True, False]
    centred = torch.tensor([[-2.0, -1.0, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(group_advantages(returns, scaled=False), centred)
    torch.testing.assert_close(group_advantages(returns, scaled=True), centred / (math.sqrt(7) + 1e-6))


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


def credit(reward, variant="grpo", progress=0.0, **settings):
    """The credit of two groups of two episodes of three steps, of which the last has two."""
    mask = torch.tensor([[True] * 4, [True] * 4, [True, True, True, False]])
    nothing = torch.zeros(4, dtype=torch.float64)
    exposure = torch.tensor([[0.0, 0.1, 0.0, 0.0], [0.2, 0.25, 1.0, 0.9], [0.0, 0.0, 0.0, 0.0]])
    episodes = EpisodeAccounts(mask, torch.tensor(reward, dtype=torch.float64), {}, exposure, None, nothing)
    return step_credit(episodes, GRPOConfig(variant=variant, **settings), 2, progress), episodes


REWARD = [[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 5.0], [0.0, 1.0, 4.0, 0.0]]


def test_the_credit_of_steps_by_hand():
    """Returns of 1 and 3, and of 4 and 5."""
    plain, _ = credit(REWARD, "dr_grpo")
    assert plain.tolist() == [[-1.0, 1.0, -0.5, 0.5]] * 3 and plain.dtype == torch.float32
    first, _ = credit(REWARD, "capo", progress=0.24)
    later, _ = credit(REWARD, "capo", progress=0.25)
    scaled, _ = credit(REWARD)
    assert torch.equal(first, scaled.clamp(min=0.0)) and torch.equal(later, scaled)
    exposure = torch.tensor([0.0, 0.24, 0.25, 1.0, 0.0, -0.3, 1.7, 0.99]).expand(20, 8)
    episodes = replace(
        credit(REWARD)[1], mask=torch.ones(20, 8, dtype=torch.bool), reward=torch.zeros(20, 8), exposure=exposure
    )
    assert step_anchors(episodes, 4, 4)[0].tolist() == [0, 0, 1, 3, 80, 80, 83, 83]
    # Returns-to-go at 0.5, compared where day and fifth of the exposure are alike: on the first day of both groups, on
    # the second of both, and on the third of the first; the second group's last step is alone.
    steps, _ = credit(REWARD, "gigpo", step_gamma=0.5, step_weight=2.0)
    returns = torch.tensor([[1.0, 1.25, 1.0, 2.5], [0.0, 2.5, 2.0, 5.0], [0.0, 1.0, 4.0, 0.0]])
    away = returns.view(3, 2, 2) - returns.view(3, 2, 2).mean(-1, keepdim=True)
    own = (away / (returns.view(3, 2, 2).std(-1, keepdim=True) + 1e-6)).view(3, 4)
    own[2, 2:] = 0.0
    torch.testing.assert_close(steps, scaled + 2.0 * own, rtol=1e-4, atol=1e-5)


def test_groups_without_spread_are_replaced_or_left_out():
    _, episodes = credit([[1.0, 1.0, 0.0, 2.0], [0.0] * 4, [0.0] * 4])
    _, others = credit([[3.0, 5.0, 7.0, 7.0], [0.0] * 4, [0.0] * 4])
    calls = []
    again = lambda: calls.append(1) or others  # noqa: E731
    with_spread, refills = refilled(episodes, again, GRPOConfig(variant="dapo"), 2)
    assert with_spread.tolist() == [False, True] and refills == len(calls) == 1
    assert episodes.reward[0].tolist() == [3.0, 5.0, 0.0, 2.0] and bool(episodes.mask[0].all())
    _, alike = credit([[1.0, 1.0, 0.0, 2.0], [0.0] * 4, [0.0] * 4])
    _, same = credit([[1.0] * 4, [0.0] * 4, [0.0] * 4])
    _, refills = refilled(alike, lambda: same, GRPOConfig(variant="dapo", refills=3), 2)
    assert refills == 3 and alike.mask[0].tolist() == [False, False, True, True]
    assert refilled(alike, again, GRPOConfig(), 2)[1] == 0 and len(calls) == 1


def test_what_is_logged_of_groups_by_hand():
    _, episodes = credit(REWARD)
    parts = {"steps": torch.tensor([3.0, -1.0, 0.0, 0.0]), "grade": torch.tensor([1.0, 1.0, 1.0, 1.0])}
    flow = torch.tensor([[1, 0, -1, 0], [0, 0, 0, 0], [0, 1, 0, 1]])
    told = audit(
        replace(episodes, parts=parts, flow=flow, invalid=torch.tensor([1, 0, 0, 1])), torch.tensor([True, False])
    )
    assert told == pytest.approx(
        {
            "episode_reward": 13 / 4, "share/steps": 0.5, "share/grade": 0.5, "hold": 8 / 11, "buy": 2 / 11,
            "sell": 1 / 11, "invalid": 2 / 11, "no_spread": 0.5, "length": 11 / 4,
        }
    )  # fmt: skip
    assert [rollout_seed(5, 0), rollout_seed(5, 2), rollout_seed(2**63 - 1, 1)] == [5, 5 + 2**33, 2**32 - 1]
