"""Bars given returns: what is summed up of a day, normalised densities, and dependence among symbols."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vecenv.worldmodel.data.bar_scales import BarScales
from vecenv.worldmodel.network.bar_heads import BarHeads, BarNoise, day_summary
from vecenv.worldmodel.network.return_chain import Joint

HIDDEN, PATHS = 16, 20_000
CORRELATED = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
IDENTITY, ALIKE = torch.eye(3).repeat(3, 1, 1), CORRELATED.repeat(3, 1, 1)
EVERYONE = torch.ones(3, dtype=torch.bool)
RETURNS = torch.tensor([0.5, -1.0, 0.2]).expand(PATHS, -1)
SCALES = BarScales.typical(torch.zeros(3)).features()


def heads_of(joint: Joint = "correlations", markets: int = 1) -> BarHeads:
    """Random heads, without common shocks."""
    torch.manual_seed(4)
    heads = BarHeads(HIDDEN, HIDDEN, joint, markets).requires_grad_(False)
    heads.shocks.raw[..., 0] = -100.0
    return heads


def known() -> Tensor:
    return torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(1)).expand(PATHS, -1, -1)


def drawn(heads: BarHeads, matrices: Tensor, temperature: float = 1.0, market: int = 0) -> Tensor:
    """Bars of many paths after the same day with the same returns. Shape: (PATHS, 3, 5)."""
    generator = torch.Generator().manual_seed(2)
    noise = BarNoise(
        torch.randn(4, PATHS, 3, generator=generator),
        torch.rand(4, PATHS, 3, generator=generator).clamp(min=1e-9),
        torch.rand(4, PATHS, generator=generator),
        torch.randn(4, PATHS, generator=generator),
    )
    factors, shocks = heads.factors(matrices, EVERYONE, market), heads.shocks(market)
    return heads.draw(known(), RETURNS, SCALES.expand(PATHS, -1, -1), factors, noise, temperature, shocks)


def pairs_of(numbers: Tensor) -> list[float]:
    """Correlations of the first symbol with the second and third, and of these."""
    return torch.corrcoef(numbers.T)[[0, 0, 1], [1, 2, 2]].tolist()


def test_the_summary_of_a_day_by_plain_numbers():
    """Means of returns of at most four volatilities over the symbols that have a bar."""
    returns, valid = torch.tensor([[0.5, -9.0, 3.0, 7.0]]), torch.tensor([[True, True, False, True]])
    summary = torch.cat(list(day_summary(returns, valid)), dim=-1)
    assert summary[0].tolist() == pytest.approx([(0.5 - 4 + 4) / 3, (0.5 + 4 + 4) / 3, math.log(4)])
    nobody = torch.cat(list(day_summary(returns, torch.zeros_like(valid))), dim=-1)
    assert nobody[0].tolist() == [0.0, 0.0, 0.0]


def test_each_market_has_its_own_weights_of_the_matrices():
    heads = heads_of(markets=2)
    heads.mixing.copy_(torch.tensor([[50.0, 0.0, -50.0], [-50.0, 50.0, -50.0]])[:, None])
    own, estimated = (heads.factors(ALIKE, EVERYONE, market) for market in (0, 1))
    torch.testing.assert_close(own, torch.eye(3).expand(4, -1, -1))
    expected = 0.999 * CORRELATED + 0.001 * torch.eye(3)
    torch.testing.assert_close(estimated @ estimated.mT, expected.expand(4, -1, -1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("joint", "least", "most"), [("none", -0.03, 0.03), ("running mean", 0.3, 0.6)])
def test_without_correlations_there_is_the_common_level_or_none(joint, least, most):
    """The estimated matrix has no influence; the common level is a half before any training."""
    assert all(least < each < most for each in pairs_of(drawn(heads_of(joint), ALIKE)[..., 4]))


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
    one, changed = (heads.log_prob(known()[:50], each, valid, ALIKE, SCALES, 0) for each in (bars, other))
    assert torch.equal(one, changed) and not bool(one[:, 1].any()) and bool(one[:, [0, 2]].all())
