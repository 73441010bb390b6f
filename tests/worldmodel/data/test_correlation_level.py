"""The fast level of correlations: by plain numbers, in matrices, and along drawn paths as in the days of a history."""

import numpy as np
import pytest
import torch

from tests.worldmodel.neural_market import extended, history_of, small_network
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.data.correlation import matrices_after, matrices_before, matrices_over
from vecenv.worldmodel.data.correlation_level import CommonMoves, mean_correlation, with_level
from vecenv.worldmodel.data.features import observe_history
from vecenv.worldmodel.network.return_chain import ReturnDraws
from vecenv.worldmodel.sampling.neural import NeuralMarket


def plain_levels(values: np.ndarray, valid: np.ndarray) -> list[list[float]]:
    """Levels before each of some days, and after the last, of values (T, K, Q) by pairs of symbols."""
    decay, count = 0.5 ** (1 / 45), values.shape[-1]
    product, square, levels = [0.3] * count, [1.0] * count, []
    for day in range(len(values) + 1):
        levels.append([min(max(p / s, 0.0), 0.95) for p, s in zip(product, square, strict=True)])
        here = [symbol for symbol in range(values.shape[1]) if day < len(values) and valid[day, symbol]]
        if len(here) < 2:
            continue
        for q in range(count):
            x = [min(max(values[day, symbol, q], -4.0), 4.0) for symbol in here]
            pairs = [a * b for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
            product[q] = decay * product[q] + (1 - decay) * sum(pairs) / len(pairs)
            square[q] = decay * square[q] + (1 - decay) * sum(a * a for a in x) / len(x)
    return levels


def test_levels_of_a_history_by_plain_numbers():
    bars = synthetic_bars(1, 70, 4, seed=5)
    bars.ohlcv[0, :12, 1:] = bars.ohlcv[0, 30:33, 1] = float("nan")
    bars.ohlcv[0, 40:43, 2:, :4] *= 1.4
    observed = observe_history(encode_bars(bars.ohlcv))
    expected = plain_levels(observed.quantities[0].numpy(), observed.valid[0].numpy())
    assert float(observed.quantities.abs().max()) > 4.0 and len(set(map(tuple, expected[:12]))) == 1
    assert torch.allclose(observed.levels[0], torch.tensor(expected[:-1], dtype=torch.float64), rtol=1e-12)
    assert observed.last.common.level()[0].tolist() == pytest.approx(expected[-1])


@pytest.mark.parametrize("own", [0.45, 0.02, -0.1])
def test_the_level_of_matrices(own):
    """Its mean is the mixture; matrices stay positive definite; pairs keep their order; a share of 0 keeps digits."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(6, 400, generator=generator, dtype=torch.float64)
    noise[:3] += 1.2 * noise[:1] if own > 0.1 else own * noise[3:]
    matrix = torch.corrcoef(noise).fill_diagonal_(1.0)
    mean = mean_correlation(matrix)
    assert float(mean) == pytest.approx(float(matrix[~torch.eye(6, dtype=torch.bool)].mean()))
    assert torch.equal(with_level(matrix, torch.tensor(0.8), torch.tensor(0.0)), matrix)
    for fast, share in ((0.0, 0.5), (0.1, 0.8), (0.95, 0.5), (0.95, 1.0)):
        mixed = with_level(matrix, torch.tensor(fast), torch.tensor(share))
        wanted = (1 - share) * float(mean) + share * fast
        # Matrices that are not positive in the mean are not lowered.
        assert float(mean_correlation(mixed)) == pytest.approx(wanted if mean > 0 else max(wanted, float(mean)))
        assert bool((mixed.diagonal() == 1.0).all()) and float(torch.linalg.eigvalsh(mixed)[0]) > 0
        order = [each[np.triu_indices(6, 1)].argsort().tolist() for each in (mixed, matrix)]
        assert order[0] == order[1] or share == 1.0
    single = torch.ones(2, 1, 1)
    assert torch.equal(with_level(single, torch.tensor([0.1, 0.9]), torch.tensor(0.5)), single)


def test_one_day_moves_a_level_by_its_pairs():
    day = CommonMoves.of_day(torch.tensor([[1.0], [1.0], [-2.0], [9.0]]), torch.tensor([True, True, True, False]))
    assert [float(part) for part in day] == pytest.approx([(1 - 2 - 2) / 3, (1 + 1 + 4) / 3])


def test_drawn_days_have_the_levels_of_the_days_before_them(monkeypatch):
    """As the density of the same days has, but for the matrices themselves, which stay those of the origin."""
    market, history, used, renew = NeuralMarket(small_network(), "india"), history_of(4), [], ReturnDraws.renew
    monkeypatch.setattr(ReturnDraws, "renew", lambda self, factor: used.append(factor[0]) or renew(self, factor))
    drawn = market.generate(history, 1, 12, 3)
    observed = observe_history(encode_bars(extended(history, drawn).ohlcv))
    matrices = matrices_over(observed, *market.network.estimator_of("india")).float()
    at_origin = matrices_after(observe_history(encode_bars(history.ohlcv)), *market.network.estimator_of("india"))[0]
    levels, shares = observed.levels[0].float(), market.network.level_shares_of("india")
    for factor, day in zip(used, (40, 45, 50), strict=True):
        expected = with_level(at_origin.float(), levels[day], shares)
        assert torch.allclose(factor @ factor.T, expected[0], atol=1e-5)
        until = torch.arange(day, min(day + 5, 52))
        same = matrices_before(at_origin.float().expand_as(matrices), levels, until, shares)
        assert torch.allclose(same, expected, atol=1e-6)
    assert float((used[0] @ used[0].T - used[2] @ used[2].T).abs().max()) > 0.01
