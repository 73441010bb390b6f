"""Shapes of a day's bars: what is summed up of the day, and normalised densities of token, gap, wicks and volume."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from vecenv.worldmodel.data.bar_moves import Move
from vecenv.worldmodel.network.bar_shape import ShapeHead, TokenHead, day_summary, market_token
from vecenv.worldmodel.network.mixture import GaussianMixture, SignedMixture, StudentTMixture

DAYS, SYMBOLS, HIDDEN = 7, 5, 16


@pytest.fixture
def days() -> tuple[Tensor, Tensor]:
    """Scaled moves of seven days, some of them wild, and which symbols have one; no one has on the second day."""
    generator = torch.Generator().manual_seed(1)
    scaled = torch.randn(DAYS, SYMBOLS, 5, generator=generator, dtype=torch.float64)
    scaled[0, 1] *= 20
    scaled[..., Move.UPPER : Move.VOLUME] = scaled[..., Move.UPPER : Move.VOLUME].abs()
    valid = torch.rand(DAYS, SYMBOLS, generator=generator) > 0.3
    valid[0], valid[1] = True, False
    return scaled, valid


def returns_of(scaled: Tensor) -> Tensor:
    return scaled[..., Move.GAP] + scaled[..., Move.BODY]


def random_head(kind: type[nn.Module], **settings: object) -> nn.Module:
    torch.manual_seed(4)
    return kind(HIDDEN, HIDDEN, **settings).double().requires_grad_(False)


def limited(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))


def test_summary_and_token_by_plain_numbers(days):
    """Means of limited numbers over the symbols that have a bar; the noise falls with the root of their number."""
    scaled, valid = days
    noise = torch.randn(DAYS, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    summary = torch.cat(list(day_summary(returns_of(scaled), valid)), dim=-1)
    token = market_token(scaled, valid, noise)
    for day in range(DAYS):
        here = [k for k in range(SYMBOLS) if valid[day, k]]
        count = max(1, len(here))
        rows = [scaled[day, k].tolist() for k in here]
        returns = [limited(row[0] + row[1], 4.0) for row in rows]
        expected = [sum(returns) / count, sum(map(abs, returns)) / count, math.log(1 + len(here))]
        assert summary[day].tolist() == pytest.approx(expected, abs=1e-12)
        totals = [
            sum(limited(row[0], 4.0) for row in rows),
            sum(min(row[2] + row[3], 4.0) for row in rows),
            sum(limited(row[4], 6.0) for row in rows),
        ]
        spread = [0.5 * number / math.sqrt(count) for number in noise[day].tolist()]
        expected = [total / count + each for total, each in zip(totals, spread, strict=True)]
        assert token[day].tolist() == pytest.approx(expected, abs=1e-12)


def test_symbols_without_a_bar_say_nothing(days):
    scaled, valid = days
    filled = scaled.where(valid.unsqueeze(-1), 7.0)
    noise = torch.zeros(DAYS, 3, dtype=torch.float64)
    known = torch.randn(DAYS, SYMBOLS, HIDDEN, dtype=torch.float64)
    other = known.where(valid.unsqueeze(-1), -3.0)
    one, changed = (day_summary(returns_of(moves), valid) for moves in (scaled, filled))
    assert all(torch.equal(*pair) for pair in zip(one, changed, strict=True))
    assert torch.equal(market_token(scaled, valid, noise), market_token(filled, valid, noise))
    head = random_head(TokenHead)
    assert isinstance(head, TokenHead)
    assert torch.allclose(head.begin(known, valid, one), head.begin(other, valid, one), atol=1e-12)


def total_of(law: SignedMixture) -> float:
    """Integrate a density by the trapezoid rule after x = sinh(u)."""
    u = torch.linspace(-10.0, 10.0, 2001, dtype=torch.float64)
    return float((law.log_prob(u.sinh()).exp() * u.cosh()).sum() * (u[1] - u[0]))


@pytest.mark.parametrize("mixture", [StudentTMixture, GaussianMixture])
def test_token_densities_are_normalised_and_multiply(days, mixture):
    scaled, valid = days
    head = random_head(TokenHead, mixture=mixture)
    assert isinstance(head, TokenHead)
    known = torch.randn(1, SYMBOLS, HIDDEN, dtype=torch.float64)
    joined = head.begin(known, valid[:1], day_summary(returns_of(scaled[:1]), valid[:1]))
    token = torch.tensor([[0.4, 1.2, -0.3]], dtype=torch.float64)
    numbers = list(token.unbind(-1))
    laws = [head.number(joined, numbers[:place]) for place in range(3)]
    assert [total_of(law) for law in laws] == pytest.approx([1.0] * 3, abs=1e-4)
    parts = torch.stack([law.log_prob(number) for law, number in zip(laws, numbers, strict=True)])
    assert torch.allclose(head.log_prob(joined, token), parts.sum(0))


@pytest.mark.parametrize("mixture", [StudentTMixture, GaussianMixture])
def test_shape_densities_are_normalised_and_multiply(days, mixture):
    """Each of gap, wicks and volume given those before it: the signed by quadrature, the wicks with their atom."""
    scaled, valid = days
    head = random_head(ShapeHead, mixture=mixture)
    assert isinstance(head, ShapeHead)
    known = torch.randn(1, 1, HIDDEN, dtype=torch.float64)
    move = scaled[2:3, :1]
    token = market_token(scaled[:1], valid[:1], torch.zeros(1, 3))
    joined = head.begin(known, returns_of(move), day_summary(returns_of(scaled[:1]), valid[:1]), token)
    gap, body, upper, lower, volume = move.unbind(-1)
    signed = (head.gap(joined, gap + body), head.volume(joined, gap, body, upper, lower))
    assert [total_of(law) for law in signed] == pytest.approx([1.0] * 2, abs=1e-4)
    u = torch.linspace(math.log(1e-4), 30.0, 4001, dtype=torch.float64)
    wicks = (head.upper(joined, gap, body), head.lower(joined, gap, body, upper))
    for wick in wicks:
        zero = wick.log_prob(torch.zeros(1, 1)).exp()
        assert float(torch.trapezoid((wick.log_prob(u.exp()) + u).exp(), u) + zero) == pytest.approx(1.0, abs=2e-3)
    parts = [signed[0].log_prob(gap), wicks[0].log_prob(upper), wicks[1].log_prob(lower), signed[1].log_prob(volume)]
    assert torch.allclose(head.log_prob(joined, move), torch.stack(parts).sum(0))


def test_shapes_of_symbols_are_independent_given_the_token(days):
    scaled, valid = days
    head = random_head(ShapeHead)
    assert isinstance(head, ShapeHead)
    summary, token = day_summary(returns_of(scaled), valid), market_token(scaled, valid, torch.zeros(DAYS, 3))
    known = torch.randn(DAYS, SYMBOLS, HIDDEN, dtype=torch.float64)
    other = scaled.clone()
    other[:, 2, Move.VOLUME] += 1.0
    density, changed = (
        head.log_prob(head.begin(known, returns_of(moves), summary, token), moves) for moves in (scaled, other)
    )
    same = torch.arange(SYMBOLS) != 2
    assert torch.equal(density[:, same], changed[:, same]) and bool((density[:, 2] != changed[:, 2]).all())


def test_shapes_of_a_symbol_alone_hear_of_its_own_return_only(days):
    scaled, valid = days
    known = torch.randn(DAYS, SYMBOLS, HIDDEN, dtype=torch.float64)
    summary, token = day_summary(returns_of(scaled), valid), market_token(scaled, valid, torch.zeros(DAYS, 3))
    others = type(summary)(*(part + 1.0 for part in summary)), token - 1.0
    for alone in (False, True):
        head = random_head(ShapeHead, alone=alone)
        assert isinstance(head, ShapeHead)
        same = head.begin(known, returns_of(scaled), summary, token), head.begin(known, returns_of(scaled), *others)
        assert torch.equal(*same) == alone
        assert not torch.equal(same[0], head.begin(known, returns_of(scaled) + 1.0, summary, token))
