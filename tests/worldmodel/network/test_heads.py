"""Heads: returns of one day, symbol after symbol, and bars given returns: by plain numbers, drawn as dense."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from vecenv.worldmodel.data.bar_scales import BarScales
from vecenv.worldmodel.network.bar_heads import BarHeads, BarNoise, day_summary
from vecenv.worldmodel.network.mixture import GaussianMixture, StudentTMixture
from vecenv.worldmodel.network.return_chain import ChainStatistics, Joint, ReturnHead, chain_statistics, masked_factor
from vecenv.worldmodel.network.return_draw import ReturnDraws

PATHS, SYMBOLS, WIDTH = 6, 5, 8
COUPLING = torch.tensor(1.2, dtype=torch.float64)


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


def test_statistics_of_all_symbols_at_once_are_those_of_one_after_the_other():
    """Mean and deviation are the conditional ones of a normal law; what a symbol without a bar holds says nothing."""
    generator = torch.Generator().manual_seed(1)
    factor, returns = (torch.randn(*shape, generator=generator).double() for shape in ((SYMBOLS, 3), (7, SYMBOLS)))
    covariance = factor @ factor.T + torch.eye(SYMBOLS, dtype=torch.float64)
    correlation = covariance / covariance.diagonal().sqrt() / covariance.diagonal().sqrt()[:, None]
    returns[0, 1] = -20.0
    valid = torch.rand(7, SYMBOLS, generator=generator) > 0.3
    valid[0], valid[1], valid[2] = True, False, torch.tensor([False, True, True, False, True])
    statistics = chain_statistics(returns.where(valid, 7.0), valid, masked_factor(correlation, valid))
    expected = [plain_statistics(returns[day].tolist(), valid[day].tolist(), correlation) for day in range(7)]
    found = torch.stack(list(statistics), dim=-1)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-10)
    # What a head hears by its kind of joint distribution; the first symbol hears nothing.
    nothing = torch.zeros_like(returns)
    assert statistics.heard("correlations") is statistics
    assert all(torch.equal(part, nothing) for part in (*statistics.heard("none"), *ChainStatistics.none(returns)))
    mean, position = statistics.running_mean, statistics.position
    for part, whole in zip(statistics.heard("running mean"), (mean, nothing, mean, nothing, position), strict=True):
        assert torch.equal(part, whole)


@pytest.mark.parametrize("mixture", [StudentTMixture, GaussianMixture])
@pytest.mark.parametrize("joint", get_args(Joint))
@torch.no_grad()
def test_every_return_is_drawn_from_its_density(mixture, joint):
    """With statistics of the drawn returns, the density's laws give the same draws; one day after the other.

    Temperature scales the distance from the mean.
    """
    torch.manual_seed(1)
    draws = torch.randn(SYMBOLS, 3 * SYMBOLS, dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.corrcoef(draws)).repeat(PATHS, 1, 1)
    factor[3:] = torch.eye(SYMBOLS)
    known = torch.randn(PATHS, SYMBOLS, WIDTH, dtype=torch.float64)
    noise = torch.rand(3, PATHS, SYMBOLS, dtype=torch.float64)
    head = ReturnHead(WIDTH, 16, joint, mixture).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.4)
    draws = ReturnDraws(head, factor, COUPLING)
    for today, temperature in ((known, 1.0), (known + 1.0, 1.0), (known, 0.0), (known, 1.7)):
        returns = draws.draw(today, noise, temperature)
        statistics = chain_statistics(returns, torch.ones_like(returns, dtype=torch.bool), factor)
        law = head(head.known(today), statistics, COUPLING)
        drawn = law.draw(noise[0], *law.mixture.noise(noise[1], noise[2]))
        expected = law.mean() + temperature * (drawn - law.mean())
        assert torch.allclose(returns, expected, atol=1e-12)
        assert temperature < 1.0 or float(returns.abs().max()) > 4.0, "no return was limited"


HIDDEN, MANY = 16, 20_000
CORRELATED = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
IDENTITY, ALIKE = torch.eye(3).repeat(3, 1, 1), CORRELATED.repeat(3, 1, 1)
EVERYONE = torch.ones(3, dtype=torch.bool)
RETURNS = torch.tensor([0.5, -1.0, 0.2]).expand(MANY, -1)
SCALES = BarScales.typical(torch.zeros(3)).features()
KNOWN = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(1)).expand(MANY, -1, -1)


def heads_of(joint: Joint = "correlations", markets: int = 1) -> BarHeads:
    """Random heads, without common shocks."""
    torch.manual_seed(4)
    heads = BarHeads(HIDDEN, HIDDEN, joint, markets).requires_grad_(False)
    heads.shocks.raw[..., 0] = -100.0
    return heads


def drawn(heads: BarHeads, matrices: Tensor, temperature: float = 1.0) -> Tensor:
    """Bars of many paths after the same day with the same returns. Shape: (MANY, 3, 5)."""
    generator = torch.Generator().manual_seed(2)
    noise = BarNoise(
        torch.randn(4, MANY, 3, generator=generator),
        torch.rand(4, MANY, 3, generator=generator).clamp(min=1e-9),
        torch.rand(4, MANY, generator=generator),
        torch.randn(4, MANY, generator=generator),
    )
    factors, shocks = heads.factors(matrices, EVERYONE, 0), heads.shocks(0)
    return heads.draw(KNOWN, RETURNS, SCALES.expand(MANY, -1, -1), factors, noise, temperature, shocks)


def test_the_summary_of_a_day_by_plain_numbers():
    """Means of returns of at most four volatilities over the symbols that have a bar."""
    returns, valid = torch.tensor([[0.5, -9.0, 3.0, 7.0]]), torch.tensor([[True, True, False, True]])
    summary = torch.cat(list(day_summary(returns, valid)), dim=-1)
    assert summary[0].tolist() == pytest.approx([(0.5 - 4 + 4) / 3, (0.5 + 4 + 4) / 3, math.log(4)])
    nobody = torch.cat(list(day_summary(returns, torch.zeros_like(valid))), dim=-1)
    assert nobody[0].tolist() == [0.0, 0.0, 0.0]


def test_each_market_has_its_own_weights_of_the_matrices():
    """Without correlations the estimate has no influence; the common level is a half before any training, or none."""
    heads = heads_of(markets=2)
    heads.mixing.copy_(torch.tensor([[50.0, 0.0, -50.0], [-50.0, 50.0, -50.0]])[:, None])
    own, estimated = (heads.factors(ALIKE, EVERYONE, market) for market in (0, 1))
    torch.testing.assert_close(own, torch.eye(3).expand(4, -1, -1))
    expected = 0.999 * CORRELATED + 0.001 * torch.eye(3)
    torch.testing.assert_close(estimated @ estimated.mT, expected.expand(4, -1, -1), atol=1e-5, rtol=0)
    for joint, least, most in (("none", -0.03, 0.03), ("running mean", 0.3, 0.6)):
        pairs = torch.corrcoef(drawn(heads_of(joint), ALIKE)[..., 4].T)[[0, 0, 1], [1, 2, 2]]
        assert least < float(pairs.min()) and float(pairs.max()) < most


def test_gaps_of_zero_and_temperature():
    """Gaps of zero leave the return to the body; temperature scales other gaps about their median, and wicks."""
    heads = heads_of()
    heads.gap[-1].weight.zero_()
    heads.gap[-1].bias.zero_()
    bars, cold = drawn(heads, IDENTITY), drawn(heads, IDENTITY, 0.5)
    still = bars[..., 0] == 0
    assert float(still.float().mean()) == pytest.approx(1 / (1 + math.exp(3)), abs=0.003)
    assert torch.equal(bars[..., 1][still], RETURNS[still])
    torch.testing.assert_close(bars[..., 0] + bars[..., 1], RETURNS)
    for symbol in range(3):
        gaps, colder = (each[~still[:, symbol], symbol, 0] for each in (bars, cold))
        median = float(gaps.median())
        torch.testing.assert_close(colder - median, 0.5 * (gaps - median), atol=0.02, rtol=0)
    assert float(cold[..., 2].mean() / bars[..., 2].mean()) == pytest.approx(0.5, abs=0.15)


def test_a_bar_that_is_not_there_has_no_density_and_tells_others_nothing():
    heads = heads_of()
    bars, valid = drawn(heads, IDENTITY)[:50], torch.tensor([True, False, True]).expand(50, -1)
    other = bars.clone()
    other[:, 1] = 3.0
    one, changed = (heads.log_prob(KNOWN[:50], each, valid, ALIKE, SCALES, 0) for each in (bars, other))
    assert torch.equal(one, changed) and not bool(one[:, 1].any()) and bool(one[:, [0, 2]].all())
