"""Returns of one day, symbol after symbol: what the earlier ones say, their densities, and draws that follow them."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from vecenv.worldmodel.network.mixture import GaussianMixture, StudentTMixture
from vecenv.worldmodel.network.return_chain import ChainStatistics, Joint, ReturnHead, chain_statistics, masked_factor
from vecenv.worldmodel.network.return_draw import ReturnDraws

PATHS, SYMBOLS, WIDTH, HIDDEN = 6, 5, 8, 16
COUPLING = torch.tensor(1.2, dtype=torch.float64)


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


def test_symbols_without_a_return_and_later_ones_say_nothing(correlation, days):
    """The first symbol hears nothing; whatever one without a bar holds, others hear what they hear without it."""
    returns, valid = days
    factor = masked_factor(correlation, valid)
    statistics = chain_statistics(returns, valid, factor)
    assert all(torch.equal(one, other) for one, other in zip(
        chain_statistics(returns.where(valid, 7.0), valid, factor), statistics, strict=True))  # fmt: skip
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


@pytest.fixture(params=[StudentTMixture, GaussianMixture])
def case(request):
    """Return a function that makes draws of a kind of head, and what its law is made of."""
    torch.manual_seed(1)
    draws = torch.randn(SYMBOLS, 3 * SYMBOLS, dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.corrcoef(draws)).repeat(PATHS, 1, 1)
    factor[3:] = torch.eye(SYMBOLS)
    known = torch.randn(PATHS, SYMBOLS, WIDTH, dtype=torch.float64)
    noise = torch.rand(3, PATHS, SYMBOLS, dtype=torch.float64)

    def make(joint: Joint):
        head = ReturnHead(WIDTH, 16, joint, request.param).double()
        for parameter in head.parameters():
            nn.init.normal_(parameter, std=0.4)
        return head, factor, known, noise, ReturnDraws(head, factor, COUPLING)

    return make


@pytest.mark.parametrize("joint", get_args(Joint))
@torch.no_grad()
def test_every_return_is_drawn_from_its_density(case, joint):
    """With statistics of the drawn returns, the density's laws give the same draws; one day after the other.

    Temperature scales the distance from the mean.
    """
    head, factor, known, noise, draws = case(joint)
    for today, temperature in ((known, 1.0), (known + 1.0, 1.0), (known, 0.0), (known, 1.7)):
        returns = draws.draw(today, noise, temperature)
        statistics = chain_statistics(returns, torch.ones_like(returns, dtype=torch.bool), factor)
        law = head(head.known(today), statistics, COUPLING)
        drawn = law.draw(noise[0], *law.mixture.noise(noise[1], noise[2]))
        expected = law.mean() + temperature * (drawn - law.mean())
        assert torch.allclose(returns, expected, atol=1e-12)
        assert temperature < 1.0 or float(returns.abs().max()) > 4.0, "no return was limited"
