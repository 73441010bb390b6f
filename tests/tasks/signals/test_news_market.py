"""The market of synthetic news: its law by sampling, the filter by enumeration, the weights by brute force."""

from itertools import product

import numpy as np
import pytest
import torch

from vecenv.market.bars import CLOSE, OPEN
from vecenv.tasks.signals.news.headlines import HEADLINES, RISKS, TONES
from vecenv.tasks.signals.news_market import NewsLaw, forward_filter, growth_weights, news_bars

LAW = NewsLaw(0.01, 0.02, 0.5, 0.6, 0.7, 0.2, 0.1)


def test_news_tell_of_the_next_day_and_not_of_their_own():
    """The mean of tone times the next return is accuracy times strength, and the risky headline's next one is wider."""
    options = {"strength": 0.004, "accuracy": 0.6, "danger": 0.8, "flip": 0.5, "danger_flip": 0.5}
    # Hidden signs that do not persist: tone and risk of a day say nothing of that day's return.
    bars = news_bars(num_paths=64, num_days=300, symbols=5, seed=3, **options)
    returns = (bars.ohlcv[..., CLOSE] / bars.ohlcv[..., OPEN] - 1)[:, 1:]
    there, headline = bars.columns["text"].isfinite(), bars.columns["text"].nan_to_num(0).long()
    tone, risk = torch.tensor(TONES)[headline], torch.tensor(RISKS)[headline]
    assert abs(float(there.double().mean()) - 0.6) < 0.01
    for days, mean in ((slice(None, -1), 0.6 * 0.004), (slice(1, None), 0.0)):
        told = there[:, days]
        led = (tone[:, days] * returns)[told]
        error = float(led.std() / len(led) ** 0.5)
        assert abs(float(led.mean()) - mean) < 4 * error and error < 2e-4
        wide, calm = (float(returns[told & (risk[:, days] == sign)].std()) for sign in (1, -1))
        assert (wide > 1.5 * calm) if mean else (abs(wide / calm - 1) < 0.05)


def test_a_path_does_not_depend_on_the_number_of_paths():
    few, many = (news_bars(num_paths=count, num_days=30, symbols=3) for count in (2, 5))
    assert torch.equal(few.ohlcv, many.ohlcv[:2]) and few.texts == HEADLINES
    assert torch.equal(few.columns["sentiment"].nan_to_num(0), many.columns["sentiment"][:2].nan_to_num(0))
    for options, message in (
        ({"accuracy": 1.5}, "accuracy"),
        ({"strength": -0.1}, "strength"),
        ({"volatility": 0.0}, "volatility"),
        ({"danger": -0.1}, "danger"),
        ({"danger": 1.0}, "danger"),
        ({"coverage": -0.1}, "coverage"),
        ({"volatility": 0.2}, "could reach zero"),
    ):
        with pytest.raises(ValueError, match=message):
            news_bars(num_paths=1, num_days=5, symbols=1, **options)


def test_the_filter_is_the_posterior_by_enumeration():
    """Of one symbol over five days: the sum over all histories of both signs, written out."""
    rng = np.random.default_rng(0)
    returns, tone = rng.normal(0, 0.02, 5), rng.integers(-1, 2, 5)
    risk, there = rng.integers(-1, 2, 5), np.array([True, False, True, True, False])
    seen = (torch.tensor(part)[None, :, None] for part in (returns, tone, risk, there))
    known = forward_filter(LAW, *seen)
    states = list(product((-1, 1), repeat=2))

    def chance_of_news(value, sign):
        return LAW.accuracy * (value == sign) + (1 - LAW.accuracy) / 3

    for day in range(5):
        weight = dict.fromkeys(states, 0.0)
        for history in product(states, repeat=day + 1):
            chance = 0.25
            for t, (direction, danger) in enumerate(history):
                if t:
                    before = history[t - 1]
                    chance *= LAW.flip if direction != before[0] else 1 - LAW.flip
                    chance *= LAW.danger_flip if danger != before[1] else 1 - LAW.danger_flip
                    scale = LAW.volatility * (1 + LAW.danger * before[1])
                    chance *= np.exp(-0.5 * ((returns[t] - LAW.strength * before[0]) / scale) ** 2) / scale
                if there[t]:
                    chance *= chance_of_news(tone[t], direction) * chance_of_news(risk[t], danger)
            weight[history[-1]] += chance
        total = sum(weight.values())
        np.testing.assert_allclose(known[0, day, 0], [weight[state] / total for state in states], rtol=1e-9)


def test_the_weights_maximise_growth_to_second_order():
    """No random portfolio has a larger mean less half its second moment, and the sum of the weights is at most 1."""
    generator = torch.Generator().manual_seed(1)
    known = torch.rand(1, 20, 4, 4, generator=generator, dtype=torch.float64)
    known /= known.sum(-1, keepdim=True)
    weights = growth_weights(LAW, known)
    signs = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    mean = LAW.strength * known @ signs[:, 0]
    second = LAW.strength**2 + known @ (LAW.volatility * (1 + LAW.danger * signs[:, 1])).square()

    def growth(portfolio):
        return (portfolio * mean - portfolio.square() * second / 2).sum(-1)

    assert float(weights.min()) >= 0 and float(weights.sum(-1).max()) <= 1 + 1e-12
    for _ in range(200):
        other = torch.rand(1, 20, 4, generator=generator, dtype=torch.float64)
        other *= torch.rand(1, 20, 1, generator=generator, dtype=torch.float64) / other.sum(-1, keepdim=True)
        near = (weights + 0.01 * (other - weights)).clamp(min=0)
        for portfolio in (other, near / near.sum(-1, keepdim=True).clamp(min=1)):
            assert bool((growth(portfolio) <= growth(weights) + 1e-15).all())
