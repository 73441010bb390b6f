"""Heads draw from the distributions that they evaluate, and never draw what is masked out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchrl.data import Bounded, MultiCategorical

from vecenv.core.random import EpisodeKey, episode_key
from vecenv.core.random_actions import random_action
from vecenv.learn.heads import FORBIDDEN, CategoricalHead, GaussianHead, open_uniforms, shortest_pattern


def keys_of(rows: int) -> tuple[EpisodeKey, Tensor]:
    return episode_key(7, torch.arange(rows), 0), torch.arange(rows) % 5


def test_gaussian_samples_have_their_distribution() -> None:
    head = GaussianHead(Bounded(0.0, 1.0, (6,)), initial_std=0.5)
    bias, own = head.initial_parameters(torch.device("cpu"))
    assert torch.equal(bias, torch.full((6,), 0.5))
    outputs = torch.arange(6.0).expand(40_000, 6)
    action = head.sample(outputs, own, *keys_of(40_000))
    noise = (action - outputs) / 0.25
    assert noise.mean(0).abs().max() < 0.03
    torch.testing.assert_close(torch.cov(noise.T), torch.eye(6), rtol=0, atol=0.04)
    reference = torch.distributions.Normal(outputs, 0.25)
    log_prob, entropy = head.evaluate(outputs, own, action)
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(-1), rtol=0, atol=1e-4)
    torch.testing.assert_close(entropy, reference.entropy().sum(-1), rtol=0, atol=1e-4)
    assert torch.equal(head.mode(outputs), outputs)


def test_categorical_samples_have_their_distribution() -> None:
    head = CategoricalHead(MultiCategorical((2, 3, 4, 2, 3)))
    logits = torch.linspace(-1.0, 1.0, head.size)
    outputs = logits.expand(40_000, -1)
    action = head.sample(outputs, [], *keys_of(40_000))
    references = [torch.distributions.Categorical(logits=part) for part in logits.split(head.choices)]
    for component, reference in enumerate(references):
        frequency = torch.bincount(action[:, component], minlength=head.choices[component]) / 40_000
        torch.testing.assert_close(frequency, reference.probs, rtol=0, atol=0.012)
    joint = torch.corrcoef(action.T.float()) - torch.eye(5)
    assert joint.abs().max() < 0.02
    log_prob, entropy = head.evaluate(outputs, [], action)
    expected = sum(reference.log_prob(action[:, component]) for component, reference in enumerate(references))
    torch.testing.assert_close(log_prob, expected, rtol=0, atol=1e-5)
    assert entropy[0].item() == pytest.approx(sum(reference.entropy().item() for reference in references), abs=1e-5)
    assert torch.equal(head.mode(outputs)[0], torch.tensor([count - 1 for count in head.choices]))


def test_no_noise_of_a_step_comes_again_in_a_later_one() -> None:
    """Ten numbers a step are three blocks of words; blocks that overlap the next step's repeat there, shifted."""
    drawn = torch.cat(open_uniforms(episode_key(7, torch.zeros(8, dtype=torch.int64), 0), torch.arange(8), 10), dim=-1)
    assert len(drawn.unique()) == drawn.numel() == 8 * 12


def test_a_policy_and_random_actions_share_no_number() -> None:
    """On no step of an episode: else a policy's noise would be known from what the random agent did there."""
    rows, days = 6, 4
    key, elapsed = episode_key(7, torch.arange(rows), 0), [torch.full((rows,), day) for day in range(days)]
    noise = torch.stack([torch.cat(open_uniforms(key, day, 8), dim=-1) for day in elapsed], dim=1).flatten(1)
    drawn = torch.stack([random_action(Bounded(0.0, 1.0, (8,)), key, day) for day in elapsed], dim=1).flatten(1)
    assert float((noise.unsqueeze(-1) - drawn.unsqueeze(-2)).abs().min()) > 1e-6


def test_components_that_repeat_are_found() -> None:
    assert shortest_pattern([51, 10] * 8) == [51, 10]
    assert shortest_pattern([3, 3, 3]) == [3]
    assert shortest_pattern([2, 3, 4, 2, 3]) == [2, 3, 4, 2, 3]


def test_repeated_components_keep_their_order() -> None:
    head = CategoricalHead(MultiCategorical(torch.tensor([[2, 3], [2, 3]])))
    # One choice of each component is certain: the second, the last, the first, the middle.
    outputs = torch.tensor([[0.0, 50.0, 0.0, 0.0, 50.0, 50.0, 0.0, 0.0, 50.0, 0.0]]).expand(100, -1)
    expected = torch.tensor([[1, 2], [0, 1]]).expand(100, 2, 2)
    assert torch.equal(head.mode(outputs), expected)
    assert torch.equal(head.sample(outputs, [], *keys_of(100)), expected)
    assert head.evaluate(outputs, [], expected)[0].abs().max() < 1e-6


def masked_outputs(head: CategoricalHead, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits and which are allowed, at least one per component. Shape of each: (rows, size)."""
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(rows, head.size, generator=generator) < 0.4
    for part in allowed.split(head.choices, dim=-1):
        kept = torch.randint(part.shape[1], (rows, 1), generator=generator)
        part.scatter_(1, kept, True)
    logits = 3.0 * torch.randn(rows, head.size, generator=generator)
    return torch.where(allowed, logits, FORBIDDEN), allowed


def is_allowed(head: CategoricalHead, allowed: Tensor, action: Tensor) -> Tensor:
    """Return whether each component's choice is allowed. Shape: (rows, components)."""
    parts = zip(allowed.split(head.choices, dim=-1), action.flatten(1).unbind(-1), strict=True)
    return torch.stack([part.gather(1, choice[:, None]).squeeze(1) for part, choice in parts], dim=-1)


def test_masked_choices_are_never_taken() -> None:
    head = CategoricalHead(MultiCategorical(torch.tensor([[5, 2], [3, 9]])))
    outputs, allowed = masked_outputs(head, 20_000)
    assert is_allowed(head, allowed, head.sample(outputs, [], *keys_of(20_000))).all()
    assert is_allowed(head, allowed, head.mode(outputs)).all()


def test_numbers_at_the_ends_draw_allowed_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    head = CategoricalHead(MultiCategorical((61, 61)))
    outputs, allowed = masked_outputs(head, 5_000)
    # Sums of many probabilities fall short of 1 or pass it; the first and the last choices are masked here.
    outputs[:, [0, 60, 61, 121]], allowed[:, [0, 60, 61, 121]] = FORBIDDEN, False
    outputs[:, [30, 91]], allowed[:, [30, 91]] = 0.0, True
    for number in (1e-10, 1.0 - 2.0**-24, 1.0):
        draws = tuple(torch.full((5_000, 1), number) for _ in range(4))
        monkeypatch.setattr("vecenv.learn.heads.open_uniforms", lambda *_, draws=draws: draws)
        assert is_allowed(head, allowed, head.sample(outputs, [], *keys_of(5_000))).all()


def test_masked_distributions_are_those_of_the_allowed_choices() -> None:
    head = CategoricalHead(MultiCategorical(torch.tensor([[6, 4]] * 2)))
    outputs, allowed = masked_outputs(head, 500)
    action = head.sample(outputs, [], *keys_of(500))
    log_prob, entropy = head.evaluate(outputs, [], action)
    expected_log_prob, expected_entropy = torch.zeros(500), torch.zeros(500)
    infinite = torch.where(allowed, outputs, -torch.inf)
    for component, logits in enumerate(infinite.split(head.choices, dim=-1)):
        reference = torch.distributions.Categorical(logits=logits)
        expected_log_prob += reference.log_prob(action.flatten(1)[:, component])
        expected_entropy += reference.entropy()
    torch.testing.assert_close(log_prob, expected_log_prob, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-5)
    frequency_outputs = outputs[:1].expand(40_000, -1)
    drawn = head.sample(frequency_outputs, [], *keys_of(40_000))[:, 0, 0]
    reference = torch.distributions.Categorical(logits=infinite[0, :6])
    frequency = torch.bincount(drawn, minlength=6) / 40_000
    torch.testing.assert_close(frequency, reference.probs, rtol=0, atol=0.012)


def test_masked_gradients_are_finite_and_reach_only_the_allowed() -> None:
    head = CategoricalHead(MultiCategorical(torch.tensor([[6, 4]] * 2)))
    outputs, allowed = masked_outputs(head, 500)
    action = head.sample(outputs, [], *keys_of(500))
    logits = torch.randn(500, head.size, requires_grad=True)
    log_prob, entropy = head.evaluate(torch.where(allowed, logits, FORBIDDEN), [], action)
    (gradient,) = torch.autograd.grad((log_prob + 0.1 * entropy).sum(), logits)
    assert gradient.isfinite().all()
    assert (gradient[~allowed] == 0).all()
    assert gradient[allowed].abs().max() > 0.1


@pytest.mark.parametrize("shared", [False, True])
def test_divergence_of_normal_distributions_is_that_of_pytorch(shared: bool) -> None:
    head = GaussianHead(Bounded(-1.0, 1.0, (4,)), initial_std=0.5, shared_std=shared)
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(30, 4, generator=generator) for _ in range(2))
    spread, wider = ([0.3 * torch.randn(1 if shared else 4, generator=generator)] for _ in range(2))
    kinds = [torch.distributions.Normal(mean, own[0].exp()) for mean, own in ((one, spread), (other, wider))]
    expected = torch.distributions.kl_divergence(*kinds).sum(-1)
    torch.testing.assert_close(head.divergence(one, spread, other, wider), expected, rtol=1e-5, atol=1e-5)


def test_divergence_of_choices_is_that_of_pytorch_and_leaves_out_what_is_forbidden() -> None:
    head = CategoricalHead(MultiCategorical((3, 4)))
    one, other = torch.randn(2, 30, 7, generator=torch.Generator().manual_seed(0)).unbind()
    kinds = [
        [torch.distributions.Categorical(logits=part) for part in outputs.split((3, 4), -1)] for outputs in (one, other)
    ]
    expected = sum(torch.distributions.kl_divergence(*pair) for pair in zip(*kinds, strict=True))
    torch.testing.assert_close(head.divergence(one, [], other, []), expected, rtol=1e-5, atol=1e-5)
    for outputs in (one, other):
        outputs[:, 2] = FORBIDDEN
    kept = [
        [torch.distributions.Categorical(logits=part) for part in (outputs[:, :2], outputs[:, 3:])]
        for outputs in (one, other)
    ]
    expected = sum(torch.distributions.kl_divergence(*pair) for pair in zip(*kept, strict=True))
    torch.testing.assert_close(head.divergence(one, [], other, []), expected, rtol=1e-5, atol=1e-5)


def test_the_distance_from_the_centre_is_half_the_square_in_deviations() -> None:
    head = GaussianHead(Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0]), (2,)), 0.5, shared_std=True)
    bias, own = head.initial_parameters(torch.device("cpu"))
    assert bias.tolist() == [0.0, 2.0] and own[0].exp().tolist() == [0.5]
    told = head.divergence_from_centre(torch.tensor([[1.0, 4.0], [0.0, 2.0]]), own)
    assert told.tolist() == pytest.approx([0.5 * (2.0**2 + 4.0**2), 0.0])
