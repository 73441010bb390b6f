"""Bars given returns: what is summed up of a day, normalised densities, and dependence among symbols."""

from __future__ import annotations

import math

import pytest
import torch

from vecenv.worldmodel.data.bar_scales import BarScales
from vecenv.worldmodel.network.bar_heads import BarHeads, BarNoise, day_summary
from vecenv.worldmodel.network.return_chain import Joint

HIDDEN, PATHS = 16, 20_000
CORRELATED = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
EVERYONE = torch.ones(3, dtype=torch.bool)


def heads_of(joint: Joint = "correlations", markets: int = 1) -> BarHeads:
    """Random heads, without common shocks."""
    torch.manual_seed(4)
    heads = BarHeads(HIDDEN, HIDDEN, joint, markets).requires_grad_(False)
    heads.shocks.raw[..., 0] = -100.0
    return heads


def scales_of(symbols: int) -> torch.Tensor:
    return BarScales.typical(torch.zeros(symbols)).features()


def known_of(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(3, HIDDEN, generator=generator).expand(PATHS, -1, -1)


def drawn(heads: BarHeads, matrices: torch.Tensor, temperature: float = 1.0, market: int = 0) -> torch.Tensor:
    """Bars of many paths after the same day with the same returns. Shape: (PATHS, 3, 5)."""
    generator = torch.Generator().manual_seed(1)
    known = known_of(generator)
    returns = torch.tensor([0.5, -1.0, 0.2]).expand(PATHS, -1)
    noise = BarNoise(
        torch.randn(4, PATHS, 3, generator=generator),
        torch.rand(4, PATHS, 3, generator=generator).clamp(min=1e-9),
        torch.rand(4, PATHS, generator=generator),
        torch.randn(4, PATHS, generator=generator),
    )
    factors, shocks = heads.factors(matrices, EVERYONE, market), heads.shocks(market)
    return heads.draw(known, returns, scales_of(3).expand(PATHS, -1, -1), factors, noise, temperature, shocks)


def test_the_summary_of_a_day_by_plain_numbers():
    """Means of returns of at most four volatilities over the symbols that have a bar."""
    returns, valid = torch.tensor([[0.5, -9.0, 3.0, 7.0]]), torch.tensor([[True, True, False, True]])
    summary = torch.cat(list(day_summary(returns, valid)), dim=-1)
    assert summary[0].tolist() == pytest.approx([(0.5 - 4 + 4) / 3, (0.5 + 4 + 4) / 3, math.log(4)])
    nobody = torch.cat(list(day_summary(returns, torch.zeros_like(valid))), dim=-1)
    assert nobody[0].tolist() == [0.0, 0.0, 0.0]


def correlation_of(numbers: torch.Tensor) -> torch.Tensor:
    return torch.corrcoef(numbers.T)


def test_symbols_of_one_quantity_are_drawn_with_its_own_correlation():
    """Gaps by the first matrix, wicks by the second and volumes by the third; other symbols stay independent."""
    heads = heads_of()
    heads.mixing.copy_(torch.tensor([-50.0, 0.0, -50.0]))
    for place, columns in enumerate(((0,), (2, 3), (4,))):
        matrices = torch.eye(3).repeat(3, 1, 1)
        matrices[place] = CORRELATED
        bars = drawn(heads, matrices)
        for column in (0, 2, 3, 4):
            numbers = bars[..., column]
            found = correlation_of(numbers.clamp(min=0.05).log() if column in (2, 3) else numbers)
            # Exact zeros and what follows from the numbers before keep it below the normals' 0.9.
            assert (float(found[0, 1]) > 0.5) == (column in columns), (place, column)
            assert abs(float(found[0, 2])) < 0.05


def test_each_market_has_its_own_weights_of_the_matrices():
    heads = heads_of(markets=2)
    heads.mixing.copy_(torch.tensor([[50.0, 0.0, -50.0], [-50.0, 50.0, -50.0]])[:, None])
    own, estimated = (heads.factors(CORRELATED.repeat(3, 1, 1), EVERYONE, market) for market in (0, 1))
    torch.testing.assert_close(own, torch.eye(3).expand(4, -1, -1))
    torch.testing.assert_close(estimated @ estimated.mT, CORRELATED.expand(4, -1, -1), atol=2e-3, rtol=0)


def test_a_shock_shifts_its_quantity_of_all_symbols():
    """On every day, in volume alone: independent numbers of variance 1 with a shift of variance 4. Wicks have none."""
    heads, identity = heads_of(), torch.eye(3).repeat(3, 1, 1)
    heads.mixing.copy_(torch.tensor([50.0, 0.0, -50.0]))
    before = drawn(heads, identity)
    heads.shocks.raw[0, 1:, 1] = torch.tensor([100.0, -1.0, math.log(2.0)])
    bars = drawn(heads, identity)
    assert torch.equal(bars[..., :4], before[..., :4])
    found = correlation_of(bars[..., 4].asinh())
    assert all(0.65 < float(each) < 0.85 for each in found[[0, 0, 1], [1, 2, 2]])


def test_a_density_with_shocks_is_that_of_the_draws():
    """Days of a market with shocks, weighted by the ratio of the densities, are those of a market without."""
    heads, identity = heads_of(markets=2), torch.eye(3).repeat(3, 1, 1)
    heads.mixing.copy_(torch.tensor([0.0, -50.0, 0.0]))
    heads.mixing[1, :, 2] = -1.0
    for quantity, mean in ((0, 1.5), (3, -1.5)):
        heads.shocks.raw[0, quantity] = torch.tensor([[3.0, mean + 1.0, math.log(0.5)], [-100.0, 0.0, 0.0]])
    bars, without = (drawn(heads, identity, market=market) for market in (0, 1))
    known = known_of(torch.Generator().manual_seed(1))
    valid = EVERYONE.expand(PATHS, -1)
    logs = [heads.log_prob(known, bars, valid, identity, scales_of(3), market).sum(-1) for market in (0, 1)]
    ratio = (logs[1] - logs[0]).exp()
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.03)
    for column in (0, 4):
        numbers, target = bars[..., column].asinh().mean(-1), float(without[..., column].asinh().mean())
        # A quarter of the days has the shock, so the draws themselves are far from the other market's.
        assert abs(float(numbers.mean()) - target) > 0.04
        assert float((ratio * numbers).mean()) == pytest.approx(target, abs=0.02)


@pytest.mark.parametrize(("joint", "least", "most"), [("none", -0.03, 0.03), ("running mean", 0.3, 0.6)])
def test_without_correlations_there_is_the_common_level_or_none(joint, least, most):
    """The estimated matrix has no influence; the common level is a half before any training."""
    volume = drawn(heads_of(joint), CORRELATED.repeat(3, 1, 1))[..., 4]
    assert all(least < float(each) < most for each in correlation_of(volume)[[0, 0, 1], [1, 2, 2]])


def test_gaps_of_zero_leave_the_return_to_the_body_and_have_the_probability_of_their_logit():
    heads = heads_of()
    heads.gap[-1].weight.zero_()
    heads.gap[-1].bias.zero_()
    bars = drawn(heads, torch.eye(3).repeat(3, 1, 1))
    still = bars[..., 0] == 0
    assert float(still.float().mean()) == pytest.approx(1 / (1 + math.exp(3)), abs=0.003)
    returns = torch.tensor([0.5, -1.0, 0.2]).expand(PATHS, -1)
    assert torch.equal(bars[..., 1][still], returns[still])
    torch.testing.assert_close(bars[..., 0] + bars[..., 1], returns)


def test_temperature_scales_gaps_about_their_median_and_wicks():
    heads, identity = heads_of(), torch.eye(3).repeat(3, 1, 1)
    bars, cold = drawn(heads, identity), drawn(heads, identity, 0.5)
    moved = (bars[..., 0] != 0) & (cold[..., 0] != 0)
    for symbol in range(3):
        here = moved[:, symbol]
        gaps, colder = bars[here, symbol, 0], cold[here, symbol, 0]
        median = float(gaps.median())
        torch.testing.assert_close(colder - median, 0.5 * (gaps - median), atol=0.02, rtol=0)
    assert float(cold[..., 2].mean() / bars[..., 2].mean()) == pytest.approx(0.5, abs=0.15)


def test_scales_widen_gaps_and_volumes_and_lengthen_wicks():
    """Before training laws follow the scales wholly: twice the scale, twice the number."""
    heads = heads_of()
    for part in (heads.gap, heads.upper, heads.lower, heads.volume):
        part[-1].weight.zero_()
        part[-1].bias.zero_()
    known, returns = torch.zeros(1, 1, HIDDEN), torch.zeros(1, 1)
    noise = BarNoise(torch.ones(4, 1, 1), torch.ones(4, 1, 1), torch.zeros(4, 1), torch.zeros(4, 1))
    one, other = (
        heads.draw(known, returns, scales, torch.ones(1, 4, 1, 1), noise, 1.0, heads.shocks(0))[0, 0]
        for scales in (torch.zeros(1, 1, 4), torch.full((1, 1, 4), math.log(2.0)))
    )
    torch.testing.assert_close(other[[0, 2, 3, 4]], 2.0 * one[[0, 2, 3, 4]])


def test_a_bar_that_is_not_there_has_no_density_and_tells_others_nothing():
    heads = heads_of()
    bars = drawn(heads, torch.eye(3).repeat(3, 1, 1))[:50]
    valid = torch.ones(50, 3, dtype=torch.bool)
    valid[:, 1] = False
    other = bars.clone()
    other[:, 1] = 3.0
    known, matrices = torch.zeros(50, 3, HIDDEN), CORRELATED.repeat(3, 1, 1)
    one, changed = (heads.log_prob(known, each, valid, matrices, scales_of(3), 0) for each in (bars, other))
    assert torch.equal(one, changed) and not bool(one[:, 1].any()) and bool(one[:, [0, 2]].all())
