"""Losses of group-relative policy optimisation: by hand, as torchrl has them, and what must not change them."""

from __future__ import annotations

import math

import pytest
import torch

from vecenv.learn.group_objective import GroupObjective, group_losses

TOKEN = GroupObjective("token", "sequence_mean", 0.2, 0.28)


def logs(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


RATIOS = logs([1.5, 0.5, 1.1], [0.7, 1.3, 1.0])
ADVANTAGE = torch.tensor([[2.0], [-1.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def loss(objective, log_prob=RATIOS, mask=MASK, advantage=ADVANTAGE, longest=5, reference=None):
    return group_losses(log_prob, torch.zeros_like(log_prob), advantage, mask, objective, longest, reference)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # Gains: min(3, 2.56), min(1, 1.6) of the first sequence; min(-0.7, -0.8), min(-1.3, -1.28), -1 of the second.
        ("sequence_mean", -((2.56 + 1.0) / 2 + (-0.8 - 1.3 - 1.0) / 3) / 2),
        ("token_mean", -(2.56 + 1.0 - 0.8 - 1.3 - 1.0) / 5),
        ("fixed_length", -(2.56 + 1.0 - 0.8 - 1.3 - 1.0) / (2 * 5)),
    ],
)
def test_token_ratios_by_hand(aggregation, expected):
    found = loss(GroupObjective("token", aggregation, 0.2, 0.28))
    assert float(found.policy) == pytest.approx(expected)
    # 1.5, 0.5, 0.7 and 1.3 of five tokens are beyond 0.8 and 1.28.
    assert float(found.clip_fraction) == pytest.approx(4 / 5)
    k3 = sum(ratio - 1 - math.log(ratio) for ratio in (1.5, 0.5, 0.7, 1.3, 1.0))
    assert float(found.approx_kl) == pytest.approx(k3 / 5)
    assert float(found.reference_kl) == 0
    # Halves and doubles of the first sequence; what is beyond its end counts for nothing.
    reference = RATIOS + logs([2.0, 0.5, 9.0], [1.0, 1.0, 4.0])
    away = [2 - 1 - math.log(2), 0.5 - 1 - math.log(0.5), 0.0, 0.0, 4 - 1 - math.log(4)]
    averages = {"sequence_mean": (sum(away[:2]) / 2 + sum(away[2:]) / 3) / 2, "token_mean": sum(away) / 5}
    told = loss(GroupObjective("token", aggregation, 0.2, 0.28), reference=reference).reference_kl
    assert float(told) == pytest.approx(averages.get(aggregation, sum(away) / 10))


def test_sequence_ratios_by_hand():
    """The geometric means are sqrt(0.75) = 0.866 and 0.91^(1/3) = 0.969."""
    first, second = math.sqrt(0.75), 0.91 ** (1 / 3)
    free = loss(GroupObjective("sequence", "sequence_mean", 0.5, 0.5))
    assert float(free.policy) == pytest.approx(-(2 * first - second) / 2)
    clipped = loss(GroupObjective("sequence", "sequence_mean", 0.01, 0.01))
    # A ratio below its bound is kept with a positive advantage, and clipped with a negative one.
    assert float(clipped.policy) == pytest.approx(-(2 * first - 0.99) / 2)
    assert float(clipped.clip_fraction) == 1.0


def test_the_gradient_of_a_sequence_ratio_is_that_of_its_definition():
    torch.manual_seed(0)
    mask = torch.rand(6, 9) < 0.7
    mask[:, 0] = True
    own, old = (0.05 * torch.randn(6, 9, dtype=torch.float64) for _ in range(2))
    advantage = torch.randn(6, 1, dtype=torch.float64)
    one, other = own.clone().requires_grad_(), own.clone().requires_grad_()
    group_losses(
        one, old, advantage, mask, GroupObjective("sequence", "sequence_mean", 0.02, 0.03), 9
    ).policy.backward()
    ratio = (((other - old) * mask).sum(-1) / mask.sum(-1)).exp()
    gain = torch.minimum(ratio * advantage[:, 0], ratio.clamp(0.98, 1.03) * advantage[:, 0])
    (-gain.mean()).backward()
    assert 0 < int((one.grad.abs().sum(-1) > 0).sum()) < 6
    torch.testing.assert_close(one.grad, other.grad)


def test_tokens_of_a_sequence_ratio_learn_by_their_own_advantages():
    """Eq. 13 of the paper: a token's ratio has the sequence's value, and a gradient in its own probability alone."""
    torch.manual_seed(2)
    mask = torch.rand(6, 9) < 0.7
    mask[:, 0] = True
    own, old, advantage = (size * torch.randn(6, 9, dtype=torch.float64) for size in (0.05, 0.05, 1.0))
    one, other = own.clone().requires_grad_(), own.clone().requires_grad_()
    objective = GroupObjective("sequence", "sequence_mean", 0.02, 0.03)
    found = group_losses(one, old, advantage, mask, objective, 9).policy
    sequence = (((own - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()
    ratio = sequence * (other - own).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.98, 1.03) * advantage) * mask
    expected = -(gain.sum(-1) / mask.sum(-1)).mean()
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "fixed_length"])
def test_tokens_of_others_count_for_nothing(ratio, aggregation):
    """Whatever stands there, infinities and NaN too, neither loss nor gradient sees it."""
    objective = GroupObjective(ratio, aggregation, 0.2, 0.2)
    reference = RATIOS.roll(1, 1)
    clean = RATIOS.clone().requires_grad_()
    dirty = RATIOS.clone()
    dirty[~MASK] = math.nan
    dirty.requires_grad_()
    for each in (clean, dirty):
        found = loss(objective, each, reference=reference)
        (found.policy + found.reference_kl).backward()
        assert all(bool(part.isfinite()) for part in found)
    assert torch.equal(clean.grad.where(MASK, 0.0), clean.grad)
    assert torch.equal(clean.grad, dirty.grad)
    assert loss(objective, clean.detach()).policy == loss(objective, dirty.detach()).policy
