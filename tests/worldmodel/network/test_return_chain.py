"""Returns of one day, symbol after symbol: what the earlier ones say, and that chained densities are normalised."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vecenv.worldmodel.network.mixture import GaussianMixture, StudentTMixture
from vecenv.worldmodel.network.return_chain import ChainStatistics, ReturnHead, chain_statistics, masked_factor

SYMBOLS, HIDDEN = 5, 16


@pytest.fixture
def correlation() -> Tensor:
    factor = torch.randn(SYMBOLS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariance = factor @ factor.T + torch.eye(SYMBOLS, dtype=torch.float64)
    return covariance / covariance.diagonal().sqrt() / covariance.diagonal().sqrt()[:, None]


@pytest.fixture
def days() -> tuple[Tensor, Tensor]:
    """Seven days of scaled returns, some of them wild, and which symbols have one."""
    generator = torch.Generator().manual_seed(1)
    returns = torch.randn(7, SYMBOLS, generator=generator, dtype=torch.float64)
    returns[0, 1] = -20.0
    valid = torch.rand(7, SYMBOLS, generator=generator) > 0.3
    valid[0], valid[1], valid[2] = True, False, torch.tensor([False, True, True, False, True])
    return returns * valid, valid


def plain_statistics(returns: list[float], valid: list[bool], correlation: Tensor) -> list[list[float]]:
    """Condition each symbol on the ones before it by the normal equations, one symbol after the other."""
    rows = []
    seen: list[int] = []
    limited = [max(-4.0, min(4.0, value)) for value in returns]
    total = squares = 0.0
    for k, here in enumerate(valid):
        mean, variance = 0.0, 1.0
        if here and seen:
            weights = torch.linalg.solve(correlation[seen][:, seen], correlation[seen, k])
            mean = sum(float(weight) * limited[j] for weight, j in zip(weights, seen, strict=True))
            variance = 1.0 - float(weights @ correlation[seen, k])
        count = len(seen)
        surprise = math.log((squares + 2) / (count + 2))
        rows.append([mean, 0.5 * math.log(variance), total / (count + 2), surprise, math.log(1 + count)])
        if here:
            seen.append(k)
            total += limited[k]
            squares += (limited[k] - mean) ** 2 / variance
    return rows


def test_statistics_of_all_symbols_at_once_are_those_of_one_after_the_other(correlation, days):
    """Mean and deviation are the conditional ones of a multivariate normal law given the symbols before."""
    returns, valid = days
    statistics = chain_statistics(returns, valid, masked_factor(correlation, valid))
    expected = [plain_statistics(returns[day].tolist(), valid[day].tolist(), correlation) for day in range(7)]
    found = torch.stack(list(statistics), dim=-1)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-10)


def test_a_symbol_hears_only_the_symbols_before_it(correlation, days):
    returns, _ = days
    valid = torch.ones(7, SYMBOLS, dtype=torch.bool)
    factor = masked_factor(correlation, valid)
    other = returns + torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])
    one, changed = (chain_statistics(each, valid, factor) for each in (returns, other))
    for name, before, after in zip(ChainStatistics._fields, one, changed, strict=True):
        assert torch.equal(before[:, :3], after[:, :3]), name
        assert torch.allclose(before[:, 3], after[:, 3], atol=1e-12), name
        assert name in ("implied_log_scale", "position") or bool((before[:, 4] != after[:, 4]).all()), name


def test_symbols_without_a_return_say_nothing(correlation, days):
    """Whatever a symbol without a bar holds, the others hear what they hear when it is left out."""
    returns, valid = days[0][2], days[1][2]
    here = valid.nonzero().flatten()
    everyone = torch.ones(len(here), dtype=torch.bool)
    filled = returns.where(valid, 7.0)
    whole = chain_statistics(filled, valid, masked_factor(correlation, valid))
    alone = chain_statistics(returns[here], everyone, masked_factor(correlation[here][:, here], everyone))
    for one, other in zip(whole, alone, strict=True):
        assert torch.allclose(one[here], other, atol=1e-12)


def test_the_first_symbol_hears_nothing(correlation, days):
    returns, valid = days
    statistics = chain_statistics(returns, valid, masked_factor(correlation, valid))
    first = valid.int().argmax(-1, keepdim=True)
    for part, zero in zip(statistics, ChainStatistics.none(returns), strict=True):
        assert torch.allclose(part.gather(1, first), zero.gather(1, first), atol=1e-12)


def test_a_head_hears_what_its_kind_of_joint_distribution_has(correlation, days):
    returns, valid = days
    statistics = chain_statistics(returns, valid, masked_factor(correlation, valid))
    assert statistics.heard("correlations") is statistics
    nothing = torch.zeros_like(returns)
    assert all(torch.equal(part, nothing) for part in statistics.heard("none"))
    mean, position = statistics.running_mean, statistics.position
    for part, expected in zip(statistics.heard("running mean"), (mean, nothing, mean, nothing, position), strict=True):
        assert torch.equal(part, expected)


def test_the_running_mean_is_what_one_correlation_of_a_third_implies(days):
    returns, valid = days
    third = torch.full((SYMBOLS, SYMBOLS), 1 / 3, dtype=torch.float64).fill_diagonal_(1.0)
    statistics = chain_statistics(returns, valid, masked_factor(third, valid))
    assert torch.allclose(statistics.running_mean[valid], statistics.implied_mean[valid], atol=1e-12)


@pytest.mark.parametrize("mixture", [StudentTMixture, GaussianMixture])
@pytest.mark.parametrize("joint", ["correlations", "running mean"])
def test_the_product_of_chained_densities_is_normalised(joint, mixture):
    """Two symbols, by the trapezoid rule after x = sinh(u) in both."""
    torch.manual_seed(2)
    head = ReturnHead(HIDDEN, HIDDEN, joint, mixture).double().requires_grad_(False)
    for parameter in head.parameters():
        parameter.mul_(1.5)
    known = head.known(torch.randn(2, HIDDEN, dtype=torch.float64))
    u = torch.linspace(-8.0, 8.0, 401, dtype=torch.float64)
    x, weight = u.sinh(), u.cosh() * (u[1] - u[0])
    returns = torch.cartesian_prod(x, x)
    correlation = torch.tensor([[1.0, 0.7], [0.7, 1.0]], dtype=torch.float64)
    everyone = torch.ones(2, dtype=torch.bool)
    valid = everyone.expand(len(returns), -1)
    statistics = chain_statistics(returns, valid, masked_factor(correlation, valid))
    density = head(known, statistics).log_prob(returns)
    area = torch.cartesian_prod(weight, weight).prod(-1)
    assert float((density.sum(-1).exp() * area).sum()) == pytest.approx(1.0, abs=1e-4)
    second = density[:, 1].unflatten(0, (401, 401))
    assert float((second[150] - second[250]).abs().max()) > 0.1
    assert torch.allclose((second.exp() * weight).sum(-1), torch.ones(401, dtype=torch.float64), atol=1e-4)


def test_without_a_gain_the_law_follows_the_implied_mean_and_scale():
    """At zero output weights: the law of the first symbol, moved to the implied mean and scaled by what is left."""
    torch.manual_seed(3)
    head = ReturnHead(HIDDEN, HIDDEN).double().requires_grad_(False)
    torch.nn.init.zeros_(head.output.weight)
    torch.nn.init.zeros_(head.output.bias[:2])
    known = head.known(torch.randn(3, HIDDEN, dtype=torch.float64))
    mean = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    log_scale = torch.tensor([-0.1, -0.7, 0.0], dtype=torch.float64)
    statistics = ChainStatistics.none(mean)._replace(implied_mean=mean, implied_log_scale=log_scale)
    first = head(known, ChainStatistics.none(mean))
    x = torch.tensor([0.3, 0.1, -2.0], dtype=torch.float64)
    found = head(known, statistics).log_prob(mean + log_scale.exp() * x)
    assert torch.allclose(found, first.log_prob(x) - log_scale)
