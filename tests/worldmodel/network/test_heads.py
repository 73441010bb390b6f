"""Heads and their distributions: those of torch or by hand, normalised, drawn as they are dense, tied by a copula."""

import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal, Normal, StudentT

from vecenv.worldmodel.data.calendar import CALENDAR
from vecenv.worldmodel.data.features import BarScales
from vecenv.worldmodel.network.bar_heads import BarHeads, BarNoise, day_summary
from vecenv.worldmodel.network.gaussian_copula import CommonShocks, CopulaDraws, CopulaNoise, CopulaSums, ShockSizes
from vecenv.worldmodel.network.mixture import GaussianMixture, SignedMixture, Stretched, StudentTMixture, taken
from vecenv.worldmodel.network.return_chain import (
    ChainStatistics,
    ReturnDraws,
    ReturnHead,
    chain_statistics,
    masked_factor,
)
from vecenv.worldmodel.network.return_shocks import STATES, ReturnShocks, no_shock
from vecenv.worldmodel.network.settings import Joint
from vecenv.worldmodel.network.sinh_arcsinh import Scored, SinhArcsinh, ZeroInflated


@pytest.fixture(params=[StudentTMixture, GaussianMixture])
def signed(request) -> SignedMixture:
    size = request.param.num_parameters(3)
    parameters = torch.randn(4, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    parameters[..., 9:] -= 4.0
    return request.param(parameters)


def drawn_of(signed: SignedMixture, *words: torch.Tensor) -> torch.Tensor:
    return signed.draw_raw(signed.parameters.movedim(-1, 0), *words)


def law_of(signed: SignedMixture) -> MixtureSameFamily:
    weight, location, log_scale, *rest = signed.parameters.unflatten(-1, (-1, 3)).unbind(-2)
    freedom, scale = [2.1 + torch.log1p((raw + 4.0).exp()) for raw in rest], log_scale.clamp(-5.0, 4.0).exp()
    part = StudentT(*freedom, location, scale) if freedom else Normal(location, scale)
    return MixtureSameFamily(Categorical(weight.softmax(-1)), part)


def test_densities_and_means_are_those_of_torch_and_draws_follow_them(signed):
    x = torch.linspace(-4.6, 4.6, 101, dtype=torch.float64).sinh()[:, None]
    assert torch.allclose(signed.log_prob(x), law_of(signed).log_prob(x), atol=1e-10)
    assert torch.allclose(signed.mean(), law_of(signed).mean)
    location = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
    log_scale = torch.tensor([-0.5, 0.4, 0.0, 1.0], dtype=torch.float64)
    moved = Stretched(signed, location, log_scale)
    assert torch.allclose(moved.log_prob(location + log_scale.exp() * x), signed.log_prob(x) - log_scale)
    assert torch.allclose(moved.mean(), location + log_scale.exp() * signed.mean())
    choice, radial, angular = (torch.tensor(number, dtype=torch.float64).expand(4) for number in (0.4, 0.2, 0.7))
    noise = signed.noise(radial, angular)
    assert torch.allclose(moved.draw(choice, *noise), location + log_scale.exp() * drawn_of(signed, choice, *noise))
    # Of the second law: the distance is below one that a thousandth of samples exceed.
    draws, generator = 50_000, torch.Generator().manual_seed(4)
    law = type(signed)(signed.parameters[1].expand(draws, -1))
    choice, radial, angular = (torch.rand(draws, generator=generator, dtype=torch.float64) for _ in range(3))
    drawn = drawn_of(law, choice, *law.noise(radial, angular)).sort().values
    u = torch.linspace(-10.0, 10.0, 4001, dtype=torch.float64)
    mass = type(signed)(signed.parameters[1]).log_prob(u.sinh()).exp() * u.cosh() * (u[1] - u[0])
    share = torch.searchsorted(drawn, u.sinh(), right=True) / draws
    assert float((share - (mass.cumsum(0) - 0.5 * mass)).abs().max()) < 1.95 / math.sqrt(draws)


def test_any_parameters_give_a_law_with_finite_variance_and_finite_draws(signed):
    """More than two degrees of freedom, and scales within bounds; single precision rounds the largest words to one."""
    for size in (-1e4, -50.0, 0.0, 50.0, 1e4):
        law = StudentTMixture(torch.tensor([[size, 0.0, *[size] * 6]], dtype=torch.float64))
        near, far, here = law.log_prob(torch.tensor([[1e6], [1e7], [0.5]], dtype=torch.float64))
        # The density falls with the degrees of freedom and one as its power, far from locations.
        assert size > 50.0 or float(near - far) / math.log(10.0) > 3.0
        other = GaussianMixture(torch.tensor([[size, 0.0, *[size] * 4]])).log_prob(torch.tensor([0.5]))
        assert bool(here.isfinite()) and bool(other.isfinite())
    law = type(signed)(signed.parameters.float())
    for extreme in (2.0**-33, 1.0):
        word = torch.full((4,), extreme)
        assert bool(drawn_of(law, word, *law.noise(word, word)).isfinite().all())


def test_choices_of_components_and_the_sinh_arcsinh_law():
    """Of weights a half, a third and a sixth."""
    laws = torch.tensor([[3.0, 2.0, 1.0], [10.0, 20.0, 30.0]], dtype=torch.float64)[..., None].expand(-1, -1, 6).clone()
    laws[0] = laws[0].log() + 5.0
    choice = torch.tensor([1e-9, 0.4999, 0.5001, 0.8332, 0.8334, 1.0 - 1e-9], dtype=torch.float64)
    for found in (taken(laws, choice), taken(laws.numpy(), choice.numpy())):
        assert found[0].tolist() == [10.0, 10.0, 20.0, 20.0, 30.0, 30.0]
    # X = 1 + 2 sinh((asinh(0.5) + 0.3) / 0.8); without skew and at a tail of one the law is normal.
    u = torch.linspace(-25.0, 25.0, 50001, dtype=torch.float64)
    law = SinhArcsinh(*(part.unsqueeze(-1) for part in SinhArcsinh.of_raw(RAW_SINH)))
    mass = (law.log_prob(u.sinh()).exp() * u.cosh()) * (u[1] - u[0])
    assert mass.sum(-1).tolist() == pytest.approx([1.0] * len(RAW_SINH), abs=1e-4)
    assert torch.allclose(mass.cumsum(-1) - 0.5 * mass, torch.special.ndtr(law.normal(u.sinh())), atol=2e-3)
    normal = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64)
    assert torch.allclose(law.normal(law.drawn(normal)), normal.expand(len(RAW_SINH), -1), atol=1e-9)
    half, normal = torch.tensor(0.5, dtype=torch.float64), torch.tensor([0.4, 2.0, 0.0, 1.0], dtype=torch.float64)
    law = SinhArcsinh(*torch.tensor([1.0, 2.0, 0.3, 0.8], dtype=torch.float64))
    assert float(law.drawn(half)) == pytest.approx(1 + 2 * math.sinh((math.asinh(0.5) + 0.3) / 0.8))
    assert torch.allclose(SinhArcsinh(*normal).log_prob(u), Normal(0.4, 2.0).log_prob(u))
    raw = (0.5, math.exp(0.25), 0.0, 0.35 + 1.65 / (1 + math.exp(0.4)))
    assert SinhArcsinh.of_raw(RAW_SINH[0], 0.5, 0.25) == pytest.approx(raw)
    extreme = torch.tensor([[1e4] * 4, [-1e4] * 4]).requires_grad_()
    law = SinhArcsinh.of_raw(extreme)
    assert law.tail.tolist() == pytest.approx([2.0, 0.35]) and law.skew.tolist() == pytest.approx([2.0, -2.0])
    assert law.scale.log().tolist() == pytest.approx([3.0, -5.0])
    law.log_prob(torch.tensor([1e6, -1e6])).sum().backward()
    assert extreme.grad is not None and bool(extreme.grad.isfinite().all())


RAW_SINH = torch.tensor([[0.0] * 4, [0.3, 0.5, 0.8, -1.5], [-1.0, -1.0, -3.0, 2.0], [2.0, 1.0, 9.0, -9.0]]).double()
ZERO = 1.0 / (1.0 + math.exp(-(1.5 - 3.0)))


def mass(score, edges: torch.Tensor) -> float:
    return float(torch.trapezoid(score(edges).density.exp(), edges))


@pytest.mark.parametrize("location", [-1.0, math.log(1e-4)])
def test_zero_and_the_other_numbers_have_probability_one(location):
    """Short wicks count as zero: a location at the shortest one puts half of the distribution below it."""
    raw, value = torch.tensor([1.5, 0.3, -0.2, 0.4, 0.1]).double(), torch.tensor([0.0, 0.7]).double()
    law = ZeroInflated.of_raw(raw, torch.tensor(location, dtype=torch.float64))
    assert float(law.scored(value).density[0].exp()) == pytest.approx(ZERO)
    others = mass(law.scored, torch.linspace(-60.0, 60.0, 200_000, dtype=torch.float64))
    assert others == pytest.approx(1 - ZERO, abs=1e-4)
    # Numbers without a zero are all present.
    scored = Scored.of(law.other, value)
    assert torch.equal(scored.density, law.other.log_prob(value))
    assert torch.equal(scored.normal, law.other.normal(value))
    assert scored.present.tolist() == [True, True] and law.scored(value).present.tolist() == [False, True]
    scored = law.scored_wick(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64) * 1e-4)
    below = float(law.other.normal(torch.tensor(math.log(1e-4), dtype=torch.float64)))
    expected = ZERO + (1.0 - ZERO) * 0.5 * math.erfc(-below / math.sqrt(2.0))
    assert scored.density[:2].exp().tolist() == pytest.approx([expected, expected])
    assert scored.present.tolist() == [False, False, True]
    edges = torch.logspace(-4.0, 12.0, 400_000, dtype=torch.float64)
    assert mass(law.scored_wick, edges) == pytest.approx(1.0 - expected, abs=1e-4)
    normal = torch.linspace(-3.0, 3.0, 9, dtype=torch.float64)
    drawn = law.wick(normal, torch.full_like(normal, ZERO + 1e-9))
    assert torch.allclose(law.scored_wick(drawn).normal[drawn > 1e-4], normal[drawn > 1e-4])
    assert not bool(law.wick(normal, torch.full_like(normal, ZERO - 1e-9)).any())
    assert float(law.wick(torch.tensor(1e6), torch.tensor(0.999))) == pytest.approx(16.0)


C = torch.tensor([[1.0, 0.6, 0.2], [0.6, 1.0, -0.3], [0.2, -0.3, 1.0]], dtype=torch.float64)
RAW = torch.tensor([[2.5, -1.0, 0.3], [3.0, 0.4, -0.5]], dtype=torch.float64)


def parts(shocks):
    return list(zip(shocks.log_weight.exp().tolist(), shocks.mean.tolist(), shocks.variance.tolist(), strict=True))


def copula_log_density(factor, numbers, present, shocks=None, shift=0.0):
    return CopulaSums.of(factor, numbers, present).log_density(shocks, shift)


def mixture_log_density(matrix, numbers, shocks, shift=0.0):
    density = 0.0
    for weight, mean, variance in parts(shocks) if shocks else [(1.0, 0.0, 0.0)]:
        law = MultivariateNormal(torch.full((len(matrix),), mean + shift).double(), matrix + variance)
        density = density + weight * law.log_prob(numbers).exp()
    return density.log() - Normal(0.0, 1.0).log_prob(numbers).sum(-1)


@pytest.mark.parametrize("shocks", [None, CommonShocks.of_raw(RAW)])
def test_the_density_is_that_of_the_mixture_of_mixed_matrices(shocks):
    for here in ([0, 1, 2], [0, 2]):
        present = torch.zeros(3, dtype=torch.bool)
        present[here] = True
        numbers = 2.0 * torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        factor = masked_factor(C, present).expand(50, -1, -1)
        found = copula_log_density(factor, numbers, present.expand(50, -1), shocks)
        assert torch.allclose(found, mixture_log_density(C[here][:, here], numbers[:, here], shocks))
        found = copula_log_density(factor, numbers, present.expand(50, -1), shocks, torch.full((50,), -1.3))
        assert torch.allclose(found, mixture_log_density(C[here][:, here], numbers[:, here], shocks, -1.3))


def test_shocks_are_drawn_with_their_weights_means_and_sizes_of_each_market():
    """On 2% of days each before training, of means -1 and 1; the last one takes what rounding leaves."""
    shocks = CommonShocks.of_raw(RAW)
    weights, means, variances = zip(*parts(shocks), strict=True)
    odds = [1.0, math.exp(2.5 - 4.0), math.exp(3.0 - 4.0)]
    assert weights == pytest.approx([each / sum(odds) for each in odds]) and means == pytest.approx([0.0, -2.0, 1.4])
    assert variances == pytest.approx([0.0, math.exp(0.6), math.exp(-1.0)])
    edges = torch.cumsum(shocks.log_weight.exp(), 0).tolist()
    for place, (low, high) in enumerate(zip([0.0, *edges[:-1]], edges, strict=True)):
        for uniform in (low + 1e-9, high - 1e-9):
            for apart in (0.0, 0.3):
                shift = shocks.drawn(*(torch.tensor(each, dtype=torch.float64) for each in (uniform, 0.7, apart)))
                expected = means[place] + 0.7 * math.sqrt(variances[place] + apart)
                assert float(shift) == pytest.approx(expected)
    for logit in torch.linspace(-3.0, 3.0, 200):
        last = CommonShocks.of_raw(torch.tensor([[0.0, 0.0, 0.0], [float(logit), 0.0, -20.0]]))
        assert float(last.drawn(torch.tensor([1.0 - 2.0**-24]), torch.zeros(1), torch.zeros(1))) == pytest.approx(1.0)
    # Without shocks the density is the copula's alone, with finite gradients.
    sizes = ShockSizes(2, (True, False, True))
    assert sizes.raw.shape == (2, 3, 2, 3)
    with torch.no_grad():
        sizes.raw[1, 2, 0, 1] = 5.0
    assert sizes(1).mean[2].tolist() == [0.0, 4.0, 1.0]
    assert sizes(0).mean[2].tolist() == sizes(1).mean[0].tolist() == [0.0, -1.0, 1.0]
    assert sizes(1).log_weight.exp()[1].tolist() == [1.0, 0.0, 0.0]
    assert sizes(1).drawn(torch.tensor([0.999] * 3), torch.ones(3), torch.zeros(3)).tolist() == [2.0, 0.0, 2.0]
    none, numbers = ShockSizes(1, (False,)), torch.tensor([[0.3, -1.2, 2.0]])
    everyone = torch.ones(1, 3, dtype=torch.bool)
    factor = masked_factor(C.float()[None], everyone)
    found = copula_log_density(factor, numbers, everyone, none(0))
    assert torch.allclose(found, copula_log_density(factor, numbers, everyone))
    found.sum().backward()
    assert none.raw.grad is not None and not bool(none.raw.grad.any())


PATHS, SYMBOLS, WIDTH = 6, 5, 8
COUPLING = torch.tensor(1.2, dtype=torch.float64)


def plain_statistics(returns: list[float], valid: list[bool], correlation: Tensor) -> list[list[float]]:
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
    torch.manual_seed(1)
    draws = torch.randn(SYMBOLS, 3 * SYMBOLS, dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.corrcoef(draws)).repeat(PATHS, 1, 1)
    factor[3:] = torch.eye(SYMBOLS)
    known = torch.randn(PATHS, SYMBOLS, WIDTH, dtype=torch.float64)
    noise = torch.rand(3, PATHS, SYMBOLS, dtype=torch.float64)
    head = ReturnHead(WIDTH, 16, joint, mixture).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.4)
    draws = ReturnDraws(head, factor, COUPLING, ReturnShocks(no_shock(), *torch.tensor(STATES).unbind(-1)))
    for today, temperature in ((known, 1.0), (known + 1.0, 1.0), (known, 0.0), (known, 1.7)):
        returns = draws.draw(today, torch.cat([noise, noise[:1]]), temperature)
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
    torch.manual_seed(4)
    heads = BarHeads(HIDDEN, HIDDEN, joint, markets).requires_grad_(False)
    heads.shocks.raw[..., 0] = -100.0
    return heads


def drawn(heads: BarHeads, matrices: Tensor, temperature: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    normal, zero = torch.randn(4, MANY, 3, generator=generator), torch.rand(4, MANY, 3, generator=generator)
    own, common = torch.randn(4, MANY, 3, generator=generator), torch.randn(4, MANY, generator=generator)
    copula = CopulaNoise(normal, own, common, torch.rand(4, MANY, generator=generator))
    factor = heads.estimated_factor(matrices.expand(MANY, -1, -1, -1))
    draws = CopulaDraws(factor, heads.variances(torch.ones(MANY, 3), torch.zeros(MANY, 3), 0))
    given = (draws, BarNoise(copula, zero.clamp(min=1e-9)), temperature, heads.shocks(0), torch.zeros(MANY))
    return heads.draw(KNOWN, RETURNS, SCALES.expand(MANY, -1, -1), *given)


def test_summaries_of_days_and_weights_of_matrices():
    returns, valid = torch.tensor([[0.5, -9.0, 3.0, 7.0]]), torch.tensor([[True, True, False, True]])
    summary = torch.cat(list(day_summary(returns, valid)), dim=-1)
    assert summary[0].tolist() == pytest.approx([(0.5 - 4 + 4) / 3, (0.5 + 4 + 4) / 3, math.log(4)])
    nobody = torch.cat(list(day_summary(returns, torch.zeros_like(valid))), dim=-1)
    assert nobody[0].tolist() == [0.0, 0.0, 0.0]
    # Without correlations the estimate has no influence; the common level is a half before any training, or none.
    heads = heads_of(markets=2)
    heads.mixing.copy_(torch.tensor([[50.0, 0.0, -50.0], [math.log(0.5), math.log(0.3), math.log(0.2)]])[:, None])
    own, mixed = (heads.factors(ALIKE, EVERYONE, market) for market in (0, 1))
    torch.testing.assert_close(own, torch.eye(3).expand(4, -1, -1))
    expected = 0.999 * (0.5 * torch.eye(3) + 0.3 * CORRELATED + 0.2) + 0.001 * torch.eye(3)
    torch.testing.assert_close(mixed @ mixed.mT, expected.expand(4, -1, -1), atol=1e-5, rtol=0)
    for joint, least, most in (("none", -0.03, 0.03), ("running mean", 0.3, 0.6)):
        pairs = torch.corrcoef(drawn(heads_of(joint), ALIKE)[..., 4].T)[[0, 0, 1], [1, 2, 2]]
        assert least < float(pairs.min()) and float(pairs.max()) < most


def test_drawn_gaps_and_wicks_are_bounded():
    heads = heads_of()
    for stage in (heads.gap, heads.upper, heads.lower):
        # Scales of three logarithms more.
        stage[-1].bias[-3] = 3.0
    for temperature in (1.0, 0.5):
        gap, _, upper, lower, _ = drawn(heads, IDENTITY, temperature).unbind(-1)
        assert float(upper.max()) == pytest.approx(16.0 * temperature) == float(lower.max())
        assert float(gap.max()) <= 16.0 and float(gap.min()) >= -16.0
        assert temperature < 1.0 or {-16.0, 16.0} < set(gap.flatten().tolist())


def test_gaps_of_zero_and_temperature():
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
    heads = heads_of()
    bars, valid = drawn(heads, IDENTITY)[:50], torch.tensor([True, False, True]).expand(50, -1)
    other = bars.clone()
    other[:, 1] = 3.0
    one, changed = (
        heads.log_prob(KNOWN[:50], each, valid, ALIKE, SCALES, torch.zeros(len(CALENDAR)), 0) for each in (bars, other)
    )
    assert torch.equal(one, changed) and not bool(one[:, 1].any()) and bool(one[:, [0, 2]].all())
