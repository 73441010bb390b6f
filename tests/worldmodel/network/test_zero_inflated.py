"""Numbers that may be exactly zero: probabilities add up to one, and draws follow them."""

from __future__ import annotations

import math

import pytest
import torch

from vecenv.worldmodel.network.zero_inflated import LONGEST_LOG_WICK, SMALLEST_WICK, ZERO_LOGIT, Scored, ZeroInflated

RAW = torch.tensor([1.5, 0.3, -0.2, 0.4, 0.1], dtype=torch.float64)
"""Logit of zero, and the raw numbers of a skewed distribution."""

ZERO = 1.0 / (1.0 + math.exp(-(1.5 + ZERO_LOGIT)))


def law_of(location: float = 0.2) -> ZeroInflated:
    return ZeroInflated.of_raw(RAW, torch.tensor(location, dtype=torch.float64))


def mass(score, edges: torch.Tensor) -> float:
    """The density over a range, by the trapezoid rule."""
    return float(torch.trapezoid(score(edges).density.exp(), edges))


def test_zero_and_the_other_numbers_have_probability_one():
    law = law_of()
    assert float(law.scored(torch.zeros(1, dtype=torch.float64)).density.exp()) == pytest.approx(ZERO)
    edges = torch.linspace(-60.0, 60.0, 200_000, dtype=torch.float64)
    assert mass(law.scored, edges) == pytest.approx(1.0 - ZERO, abs=1e-4)


@pytest.mark.parametrize("location", [-1.0, math.log(SMALLEST_WICK)])
def test_short_wicks_count_as_zero_and_the_others_have_the_rest(location):
    """A location at the shortest wick puts half of the distribution below it."""
    law = law_of(location)
    zero = law.scored_wick(torch.tensor([0.0, 0.5 * SMALLEST_WICK], dtype=torch.float64))
    below = float(law.other.normal(torch.tensor(math.log(SMALLEST_WICK), dtype=torch.float64)))
    expected = ZERO + (1.0 - ZERO) * 0.5 * math.erfc(-below / math.sqrt(2.0))
    assert zero.density.exp().tolist() == pytest.approx([expected, expected])
    assert not bool(zero.present.any())
    edges = torch.logspace(math.log10(SMALLEST_WICK), 12.0, 400_000, dtype=torch.float64)
    assert mass(law.scored_wick, edges) == pytest.approx(1.0 - expected, abs=1e-4)


def test_wicks_are_drawn_as_they_are_scored():
    law, count = law_of(-1.0), 200_000
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(count, dtype=torch.float64, generator=generator)
    drawn = law.wick(normal, torch.rand(count, dtype=torch.float64, generator=generator))
    there = drawn > 0
    assert float(there.double().mean()) == pytest.approx(1.0 - ZERO, abs=0.005)
    assert torch.allclose(law.scored_wick(drawn[there]).normal, normal[there])
    assert float(law.wick(torch.tensor(1e6), torch.tensor(0.999)).log()) == pytest.approx(LONGEST_LOG_WICK)


def test_numbers_without_a_zero_are_all_present():
    value = torch.tensor([0.0, 0.7], dtype=torch.float64)
    scored, other = Scored.of(law_of().other, value), law_of().other
    assert torch.equal(scored.density, other.log_prob(value)) and torch.equal(scored.normal, other.normal(value))
    assert scored.present.tolist() == [True, True]
    assert law_of().scored(value).present.tolist() == [False, True]
