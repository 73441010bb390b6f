"""Losses of group-relative policy optimisation: by hand, as torchrl has them, and what must not change them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives.llm import GRPOLoss

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


def test_a_sequence_without_tokens_adds_nothing():
    empty = torch.zeros_like(MASK)
    assert all(float(part) == 0 for part in loss(TOKEN, mask=empty))


class TorchrlLoss(GRPOLoss):
    """Theirs, of given log-probabilities instead of an actor's."""

    def _get_cur_log_prob(self, tensordict):
        return tensordict["own"], SimpleNamespace(mask=tensordict["mask"]), False


@pytest.mark.parametrize(("theirs", "ours"), [("prompt_mean", "sequence_mean"), ("token_mean", "token_mean")])
@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.2, 0.28)])
def test_losses_and_gradients_are_those_of_torchrl(theirs, ours, clip):
    torch.manual_seed(1)
    mask = torch.rand(8, 12) < 0.8
    mask[:, 0] = True
    own, old, reference = (0.3 * torch.randn(8, 12) for _ in range(3))
    advantage = torch.randn(8, 1).expand(8, 12)
    one, other = own.clone().requires_grad_(), own.clone().requires_grad_()
    found = group_losses(one, old, advantage, mask, GroupObjective("token", ours, *clip), 12)
    batch = TensorDict(
        {
            "own": other, "mask": mask, "advantage": advantage.unsqueeze(-1),
            ("tokens", "full"): torch.zeros(8, 12), ("log_probs", "full"): old,
        },
        batch_size=[8],
    )  # fmt: skip
    expected = TorchrlLoss(clip_epsilon=clip, aggregation=theirs, entropy_bonus=False)(batch)
    torch.testing.assert_close(found.policy, expected.loss_objective.squeeze())
    found.policy.backward()
    expected.loss_objective.sum().backward()
    torch.testing.assert_close(one.grad, other.grad)
    # Their divergence is a mean over all places, those of others with 0.
    apart = group_losses(own, old, advantage, mask, GroupObjective("token", "fixed_length", *clip), 12, reference)
    batch = batch.set(("next", "ref_log_probs", "full"), reference)
    expected = TorchrlLoss(clip_epsilon=clip, entropy_bonus=False, kl_to_ref_coeff=1.0)(batch)
    torch.testing.assert_close(apart.reference_kl, expected.kl_to_ref)
