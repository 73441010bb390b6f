"""Common shocks of returns: densities and draws against plain Python, and densities that integrate to one."""

import math

import pytest
import torch
from torch import Tensor

from tests.worldmodel.neural_market import tiny_network
from vecenv.worldmodel.data.calendar import CALENDAR
from vecenv.worldmodel.network.return_chain import ChainStatistics, ReturnDraws, chain_statistics, masked_factor
from vecenv.worldmodel.network.return_shocks import NO_SHOCK, STATES, ReturnShocks, common_shares, no_shock

MATRIX = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1.0, 0.2], [0.1, 0.2, 1.0]])
CHOSEN = {(1.0, -2.0): 0.3, (0.85, 0.0): 0.1, (1.0, 0.0): 0.4, (2.0, 0.0): 0.15, (1.0, 0.5): 0.05}
PROBABILITY = torch.tensor([CHOSEN.get(state, 0.0) for state in STATES])
NONE = no_shock()


def shocked_network():
    network = tiny_network().double()
    for parameter in network.returns.parameters():
        parameter.mul_(3.0)
    network.return_shocks_of("us").copy_(PROBABILITY)
    network.coupling_of("us").fill_(1.2)
    return network


def scores(network, returns: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    days, symbols = returns.shape
    known = torch.randn(symbols, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrices = MATRIX[:symbols, :symbols].double().expand(days, 4, -1, -1)
    nothing = torch.zeros_like(returns)
    scaled = torch.stack([nothing, returns, nothing, nothing, nothing], dim=-1)
    given = (matrices, nothing[..., None].expand(-1, -1, 4), torch.zeros(days, len(CALENDAR)), torch.ones_like(returns))
    alone, chained, _ = network.log_prob(known.expand(days, -1, -1), scaled, valid, *given, "us")
    return alone, chained


def test_the_density_is_the_mixture_of_the_chain_in_every_state():
    network, generator = shocked_network(), torch.Generator().manual_seed(2)
    returns = 2.0 * torch.randn(6, 3, generator=generator, dtype=torch.float64)
    valid = torch.ones(6, 3, dtype=torch.bool)
    valid[0, 1], valid[1] = False, False
    alone, chained = scores(network, returns, valid)
    known = network.returns.known(torch.randn(3, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    rows = [sum(row) / 3 for row in MATRIX.tolist()]
    shares = torch.tensor([row / (sum(rows) / 3) for row in rows], dtype=torch.float64)
    for day in range(6):
        factor, own, joint = masked_factor(MATRIX.double(), valid[day]), [0.0] * 3, [0.0] * 4
        for (scale, move), probability in CHOSEN.items():
            moved = (returns[day] - move * shares) / scale
            first = network.returns(known, ChainStatistics.none(moved)).log_prob(moved).exp() / scale
            after = (
                network.returns(known, chain_statistics(moved, valid[day], factor), 1.2).log_prob(moved).exp() / scale
            )
            so_far = probability
            joint[0] += so_far
            for k in range(3):
                own[k] += probability * float(first[k])
                so_far *= float(after[k]) if valid[day, k] else 1.0
                joint[k + 1] += so_far
        for k in range(3):
            there = bool(valid[day, k])
            assert float(alone[day, k]) == pytest.approx(math.log(own[k]) if there else 0.0, abs=1e-6)
            assert float(chained[day, k]) == pytest.approx(
                math.log(joint[k + 1] / joint[k]) if there else 0.0, abs=1e-6
            )


def test_in_training_there_are_none():
    network, returns = shocked_network(), torch.tensor([[0.5, -1.0, 2.0]]).double()
    everyone = torch.ones(1, 3, dtype=torch.bool)
    with_shocks = scores(network, returns, everyone)
    trained = scores(network.train(), returns, everyone)
    network.eval().return_shocks_of("us").copy_(NONE)
    without = scores(network, returns, everyone)
    for part, plain, mixed in zip(trained, without, with_shocks, strict=True):
        assert torch.equal(part, plain) and not bool((part == mixed).any())


def test_densities_integrate_to_one():
    network = shocked_network()
    # Of a mean and scale that do not vary, so that a coarse grid will do; tails are those of Student's distributions.
    for parameter in network.returns.parameters():
        parameter.mul_(0.1)
    grid = torch.linspace(-60.0, 60.0, 601, dtype=torch.float64)
    both = torch.cartesian_prod(grid, grid)
    _, chained = scores(network, both, torch.ones_like(both, dtype=torch.bool))
    assert float(chained.sum(-1).exp().sum()) * 0.2**2 == pytest.approx(1.0, abs=2e-3)
    alone, _ = scores(network, grid[:, None], torch.ones(601, 1, dtype=torch.bool))
    assert float(alone.exp().sum()) * 0.2 == pytest.approx(1.0, abs=2e-3)


def test_a_number_chooses_the_state_by_the_probabilities():
    scale, move = torch.tensor(STATES).unbind(-1)
    returns, shares = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 1.5])
    below, told = 0.0, []
    for state, share in CHOSEN.items():
        told += [(below + part * share, state) for part in (1e-4, 0.5, 1.0 - 1e-4)]
        below += share
    # No number chooses a state of probability 0, though the sum of the others may round to less than one.
    told += [(1.0, (1.0, 0.5)), (1e-9, (1.0, -2.0))]
    uniform = torch.tensor([number for number, _ in told])
    for temperature, total in ((1.0, 1.0), (1.0, 0.99), (0.5, 1.0)):
        found = ReturnShocks(total * PROBABILITY, scale, move).shocked(
            returns.expand(len(told), -1), uniform, shares.expand(len(told), -1), temperature
        )
        mean = sum(share * move for (_, move), share in CHOSEN.items())
        moved = [(a, mean + temperature * (m - mean)) for _, (a, m) in told]
        expected = [[a * r + m * b for r, b in ((1.0, 0.5), (-2.0, 1.5))] for a, m in moved]
        assert found.tolist() == [pytest.approx(row) for row in expected]
    assert STATES[NO_SHOCK] == (1.0, 0.0) and sorted(move for _, move in STATES) == [move for _, move in STATES]


def test_shares_are_mean_correlations_over_their_mean():
    rows = [1.9 / 3, 2.0 / 3, 1.3 / 3]
    expected = [row / (sum(rows) / 3) for row in rows]
    assert common_shares(MATRIX.mean(-1)).tolist() == pytest.approx(expected)
    assert common_shares(torch.eye(4).mean(-1)).tolist() == common_shares(torch.ones(1)).tolist() * 4 == [1.0] * 4
    # The mean of opposite symbols hardly varies.
    opposite = torch.tensor([[1.0, -0.9, -0.9], [-0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    assert common_shares(opposite.mean(-1)).tolist() == pytest.approx([-0.8, 1.0, 1.0])


def test_draws_have_the_shares_of_the_density_at_every_level():
    network = shocked_network()
    matrices = torch.stack([MATRIX, torch.lerp(MATRIX, torch.ones(3, 3), 0.5), torch.eye(3)]).double()
    factor, others = torch.linalg.cholesky(matrices), torch.linalg.cholesky(matrices.flip(0))
    generator = torch.Generator().manual_seed(3)
    known = torch.randn(3, 3, 16, generator=generator, dtype=torch.float64)
    noise = torch.rand(4, 3, 3, generator=generator, dtype=torch.float64)
    noise[3, :, 0] = torch.tensor([0.1, 0.9, 0.99])
    draws = network.draws(factor, "us")
    for now, matrix in ((factor, matrices), (others, matrices.flip(0))):
        draws.renew(now)
        shares = common_shares(matrix.mean(-1))
        assert torch.allclose(draws.shares, shares)
        plain = ReturnDraws(network.returns, now, network.coupling_of("us"), draws.shocks._replace(probability=NONE))
        scale, move = torch.tensor([[1.0, -2.0], [2.0, 0.0], [1.0, 0.5]]).unsqueeze(-1).unbind(1)
        expected = scale * plain.draw(known, noise, 1.0) + move * shares
        assert torch.allclose(draws.draw(known, noise, 1.0), expected)
