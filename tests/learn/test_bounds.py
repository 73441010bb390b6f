"""Units of actions, and the squashed normal head, which has the distribution that it says and TorchRL's density."""

from __future__ import annotations

import pytest
import torch
from torchrl.data import Bounded, Categorical, Unbounded
from torchrl.modules import TanhNormal

from tests.learn.test_heads import keys_of
from vecenv.learn.bounds import Bounds
from vecenv.learn.tanh_normal import TanhNormalHead

LOW, HIGH = torch.tensor([-1.0, 0.0, -2.0]), torch.tensor([1.0, 1.0, 4.0])
SPEC = Bounded(LOW, HIGH, (3,))
OUTPUTS = torch.tensor([0.3, -0.6, 0.1, 0.2, -1.0, 0.4])


def test_units_are_half_widths_from_the_centre() -> None:
    bounds = Bounds(SPEC)
    action = torch.tensor([[-1.0, 0.5, 4.0], [2.0, 0.25, -9.0]])
    assert bounds.units(action).tolist() == [[-1.0, 0.0, 1.0], [1.0, -0.5, -1.0]]
    assert torch.equal(bounds.action(bounds.units(action)), action.clamp(LOW, HIGH))
    wide = Bounds(Bounded(-1.0, 1.0, (2, 3)))
    assert wide.units(torch.zeros(5, 4, 2, 3)).shape == (5, 4, 6) and wide.action(torch.zeros(4, 6)).shape == (4, 2, 3)
    assert Bounds(Bounded(-1.0, 1.0, ())).units(torch.zeros(7)).shape == (7, 1)


@pytest.mark.parametrize("spec", [Categorical(3), Unbounded((2,)), Bounded(0, 3, (2,), dtype=torch.int64)])
def test_only_numbers_within_bounds_are_taken(spec: object) -> None:
    for kind in (lambda spec, _: Bounds(spec), TanhNormalHead):
        with pytest.raises(ValueError, match="actions must be numbers within finite bounds, those here are"):
            kind(spec, 0.5)


def test_the_squashed_normal_head_is_torchrls() -> None:
    head = TanhNormalHead(SPEC, 0.5)
    outputs = OUTPUTS.expand(40_000, 6)
    mean, deviation = head.parts(outputs)
    reference = TanhNormal(mean, deviation, low=LOW, high=HIGH, upscale=1e6)
    action = head.sample(outputs, [], *keys_of(40_000))
    assert ((action > LOW) & (action < HIGH)).all()
    noise = (torch.atanh(head.bounds.units(action)) - mean) / deviation
    assert noise.mean(0).abs().max() < 0.03
    torch.testing.assert_close(torch.cov(noise.T), torch.eye(3), rtol=0, atol=0.04)
    log_prob, entropy = head.evaluate(outputs, [], action)
    torch.testing.assert_close(log_prob, reference.log_prob(action), rtol=0, atol=2e-2)
    assert torch.equal(entropy, -log_prob)
    units, density = head.units(outputs, noise)
    torch.testing.assert_close(head.bounds.action(units), action, rtol=0, atol=1e-4)
    # In half widths, of which the third is three and the second a half.
    torch.testing.assert_close(density, log_prob + torch.tensor(1.5).log(), rtol=0, atol=2e-2)
    torch.testing.assert_close(head.mode(outputs), head.bounds.action(torch.tanh(mean)))


def test_the_divergence_is_that_before_squashing() -> None:
    head = TanhNormalHead(SPEC, 0.5)
    outputs, others = OUTPUTS.expand(2, 6), torch.stack([OUTPUTS, OUTPUTS.flip(0)])
    normal, other = (torch.distributions.Normal(*head.parts(part)) for part in (outputs, others))
    expected = torch.distributions.kl_divergence(normal, other).sum(-1)
    assert expected[0] == 0 and expected[1] > 0.1
    torch.testing.assert_close(head.divergence(outputs, [], others, []), expected)


def test_the_initial_deviation_is_what_is_asked() -> None:
    head = TanhNormalHead(SPEC, 0.5)
    bias, own = head.initial_parameters(torch.device("cpu"))
    mean, deviation = head.parts(bias.unsqueeze(0))
    assert not own and torch.equal(mean, torch.zeros(1, 3))
    torch.testing.assert_close(deviation, torch.full((1, 3), 0.501))
