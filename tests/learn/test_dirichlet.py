"""The Dirichlet head draws what it evaluates, evaluates what PyTorch does, and learns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchrl.data import Bounded

import vecenv
from vecenv import VecEnv
from vecenv.core.random import EpisodeKey, episode_key
from vecenv.learn.dirichlet import CANDIDATES, CASH, DirichletHead, gamma_candidates
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.planted import planted_bars
from vecenv.market.tape import MarketTape

ROWS = 20_000
SMALL = PPOConfig(num_steps=8, total_frames=4 * 8 * 16, epochs=2, minibatches=2, hidden=(8, 8), head="dirichlet")


def keys_of(rows: int) -> tuple[EpisodeKey, Tensor]:
    return episode_key(7, torch.arange(rows), 0), torch.arange(rows) % 5


def head_of(items: int, initial_std: float = 0.5) -> tuple[DirichletHead, list[Tensor]]:
    head = DirichletHead(Bounded(0.0, 1.0, (items,)), initial_std)
    return head, head.initial_parameters(torch.device("cpu"))[1]


def outputs_of(head: DirichletHead, rows: int, spread: float = 1.0) -> Tensor:
    return spread * torch.randn(rows, head.size, generator=torch.Generator().manual_seed(3))


def weights_env(num_envs: int = 16, symbols: int = 3, market_seed: int = 1, **rules: object) -> VecEnv:
    tape = MarketTape.from_bars(planted_bars(32, 120, symbols, seed=market_seed), features=("signal",))
    settings = {"features": ("signal",), "action": "weights", "commission": 0.0, "episode_length": 20}
    settings |= {"reward": "excess_log_return", "reward_scale": 1.0, "feature_scale": 1.0, "whole_shares": False}
    return vecenv.make("stock_trading", num_envs, market=tape, seed=2, compile=False, **(settings | rules))


def acceptance(alpha: float) -> float:
    """Return the probability that a candidate is accepted: the mass of the unnormalised density under the normal."""
    shape = alpha - 1 / 3
    return math.exp(shape + math.lgamma(alpha) + (0.5 - alpha) * math.log(shape)) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("initial_std", [0.05, 0.5, 3.0])
def test_density_and_entropy_are_those_of_pytorch(initial_std: float) -> None:
    head, own = head_of(6, initial_std)
    outputs = outputs_of(head, 200)
    action = head.sample(outputs, own, *keys_of(200))
    log_prob, entropy = head.evaluate(outputs, own, action)
    reference = torch.distributions.Dirichlet(head.concentrations(outputs, own).double())
    cash = 1 - action.double().sum(-1, keepdim=True)
    expected = reference.log_prob(torch.cat([action.double(), cash], dim=-1))
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), reference.entropy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("initial_std", "spread"), [(0.1, 0.5), (2.0, 2.0), (100.0, 0.0)])
def test_samples_have_the_moments_of_the_distribution(initial_std: float, spread: float) -> None:
    """Within six standard errors: of means, and of covariances by a bound on fourth moments of numbers in [0, 1]."""
    head, own = head_of(4, initial_std)
    outputs = outputs_of(head, 1, spread).expand(ROWS, -1)
    action = head.sample(outputs, own, *keys_of(ROWS)).double()
    weights = torch.cat([action, 1 - action.sum(-1, keepdim=True)], dim=-1)
    alpha = head.concentrations(outputs[:1], own)[0].double()
    mean = alpha / alpha.sum()
    covariance = (torch.diag(mean) - torch.outer(mean, mean)) / (alpha.sum() + 1)
    assert weights.min() >= -1e-6
    assert ((weights.mean(0) - mean).abs() < 6 * (covariance.diag() / ROWS).sqrt()).all()
    centred = weights - mean
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    assert ((products.mean(0) - covariance).abs() < 6 * products.std(0) / ROWS**0.5).all()


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_candidates_are_accepted_as_often_as_stated(alpha: float) -> None:
    numbers, accepted = gamma_candidates(torch.full((ROWS, 5), alpha), *keys_of(ROWS))
    assert len(numbers) == len(accepted) == CANDIDATES
    expected = acceptance(alpha)
    count = accepted.numel()
    assert abs(float(accepted.double().mean()) - expected) < 6 * (expected * (1 - expected) / count) ** 0.5
    assert (numbers[accepted] > 0).all()
    # Candidates are independent, so that all are refused with the product of the probabilities.
    assert (1 - expected) ** CANDIDATES <= 5.5e-6
    refused = (~accepted).double()
    pair = float((refused[0] * refused[-1]).mean())
    assert abs(pair - (1 - expected) ** 2) < 6 * ((1 - expected) ** 2 / (5 * ROWS)) ** 0.5 + 1e-9


def test_where_no_candidate_is_accepted_the_number_is_near_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise of 6.1 and -2.0 deviations and uniform numbers of 1, nothing is accepted at alpha = 1."""
    head, own = head_of(2, initial_std=100.0)
    words = (torch.full((1, 6), 1e-9), torch.full((1, 6), 0.3), torch.ones(1, 6), torch.ones(1, 6))
    monkeypatch.setattr("vecenv.learn.dirichlet.open_uniforms", lambda *_: words)
    outputs = torch.zeros(1, 3)
    alpha = head.concentrations(outputs, own)
    _, accepted = gamma_candidates(alpha, *keys_of(1))
    assert not accepted.any()
    drawn = alpha - 1 / 3
    assert torch.equal(head.sample(outputs, own, *keys_of(1)), (drawn / drawn.sum())[:, :2])


def test_zero_outputs_hold_the_benchmark_and_any_portfolio_can_be() -> None:
    head, own = head_of(5)
    zero = torch.zeros(1, head.size)
    expected = torch.full((1, 5), (1 - CASH) / 5)
    torch.testing.assert_close(head.mode(zero), expected)
    alpha = head.concentrations(zero, own)[0]
    mode = (alpha - 1) / (alpha.sum() - head.size)
    torch.testing.assert_close(mode, torch.cat([expected[0], torch.tensor([CASH])]))
    corner = torch.tensor([[0.0, 0.0, 60.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(head.mode(corner), torch.eye(5)[2:3])


@pytest.mark.parametrize("shares", [[0.0, 1.0, 0.0], [1e-30, 0.0, 0.0], [0.5, 0.5, 1e-7], [1 / 3, 1 / 3, 1 / 3 + 1e-6]])
def test_densities_at_the_edge_are_finite(shares: list[float]) -> None:
    head, own = head_of(3)
    outputs = torch.zeros(1, head.size, requires_grad=True)
    log_prob, entropy = head.evaluate(outputs, own, torch.tensor([shares]))
    (gradient,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), outputs)
    assert log_prob.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("task", "rules"),
    [
        ("stock_trading", {"action": "tilt"}),
        ("stock_trading", {"action": "shares"}),
        ("single_stock", {"action": "discrete"}),
        ("portfolio", {"action": "weights"}),
    ],
)
def test_other_actions_are_refused(task: str, rules: dict[str, str]) -> None:
    env = vecenv.make(task, 16, market_options={"num_paths": 2, "num_days": 330}, compile=False, **rules)
    with pytest.raises(ValueError, match=f"head 'dirichlet' needs actions that are target weights.*{task}"):
        PPO(env, SMALL)


def test_a_divergence_from_the_benchmark_is_refused() -> None:
    with pytest.raises(ValueError, match="benchmark_kl needs the gaussian head"):
        PPO(weights_env(), replace(SMALL, benchmark_kl=0.1))


def test_divergence_is_that_of_pytorch() -> None:
    head, own = head_of(5, 0.5)
    other, wide = outputs_of(head, 50).flip(0), [own[0] - 0.7]
    outputs = outputs_of(head, 50)
    kinds = [
        torch.distributions.Dirichlet(head.concentrations(values, given).double())
        for values, given in ((outputs, own), (other, wide))
    ]
    expected = torch.distributions.kl_divergence(*kinds).float()
    torch.testing.assert_close(head.divergence(outputs, own, other, wide), expected, rtol=1e-4, atol=1e-5)
