"""Draws of a day's returns: the law of each is what the density says of it, given the returns before."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from vecenv.worldmodel.network.mixture import GaussianMixture, StudentTMixture
from vecenv.worldmodel.network.return_chain import Joint, ReturnHead, chain_statistics
from vecenv.worldmodel.network.return_draw import ReturnDraws

PATHS, SYMBOLS, WIDTH = 6, 5, 8
COUPLING = torch.tensor(1.2, dtype=torch.float64)


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
    """With statistics of the drawn returns, the density's laws give the same draws; one day after the other."""
    head, factor, known, noise, draws = case(joint)
    for today in (known, known + 1.0):
        returns = draws.draw(today, noise, 1.0)
        law = head(
            head.known(today), chain_statistics(returns, torch.ones_like(returns, dtype=torch.bool), factor), COUPLING
        )
        expected = law.draw(noise[0], *law.mixture.noise(noise[1], noise[2]))
        assert torch.allclose(returns, expected, atol=1e-12)
        assert float(returns.abs().max()) > 4.0, "no return was limited"


@torch.no_grad()
def test_temperature_scales_the_distance_from_the_mean(case):
    head, factor, known, noise, draws = case("correlations")
    for temperature in (0.0, 0.4, 1.7):
        returns = draws.draw(known, noise, temperature)
        law = head(
            head.known(known), chain_statistics(returns, torch.ones_like(returns, dtype=torch.bool), factor), COUPLING
        )
        drawn = law.draw(noise[0], *law.mixture.noise(noise[1], noise[2]))
        assert torch.allclose(returns, law.mean() + temperature * (drawn - law.mean()), atol=1e-12)
