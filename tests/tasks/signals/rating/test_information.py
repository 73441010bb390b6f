"""Information coefficients are those of the signals, and shares are those of the attainable."""

from __future__ import annotations

import math

import pytest
import torch
from rating_tapes import holed_tape, news_tape
from scipy.stats import spearmanr

import vecenv
from vecenv.learn.evaluation import play
from vecenv.tasks.signals.rating.agents import AGENTS
from vecenv.tasks.signals.rating.information import information
from vecenv.tasks.signals.rating.ranks import mean_ranks, rank_correlation


def test_ranks_and_correlations_are_scipys():
    generator = torch.Generator().manual_seed(3)
    first = torch.randint(-3, 4, (6, 20), generator=generator).double()
    second = torch.randint(-9, 9, (6, 20), generator=generator).double()
    known = torch.rand(6, 20, generator=generator) < 0.7
    found = rank_correlation(first, second, known)
    for row in range(6):
        x, y = (values[row][known[row]] for values in (first, second))
        assert float(found[row]) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
    ranks = mean_ranks(torch.tensor([4.0, 1.0, 4.0, 9.0]), torch.tensor([True, True, True, False]))
    assert ranks[:3].tolist() == [1.5, 0.0, 1.5]
    constant = torch.ones(1, 5)
    assert float(rank_correlation(constant, second[:1, :5], torch.ones(1, 5, dtype=torch.bool))) == 0.0


def test_coefficients_are_those_of_the_outcomes():
    """On a market of few bars: the mean of the episodes' own coefficients where all have as many days."""
    env = vecenv.make("news_signals", 12, market=holed_tape(2), compile=False, episode_length=6, random_start=True)
    agent = AGENTS["random"]()
    told = information(env, {"random": agent}, 4)["random"]
    record = play(env, agent, 4)
    assert told.rank_ic.mean == pytest.approx(float(record.outcomes["rank_ic"].mean()))
    assert told.total_return.mean == pytest.approx(float(record.outcomes["total_return"].mean()))
    scenario, state = env.scenario, env.state
    pairs = [
        (int(state.said[row, step, k]), float(scenario.shared["move"][int(state.start_day[row]) + step, k]))
        for row in range(12)
        for step in range(6)
        for k in range(5)
        if scenario.shared["tradable"][int(state.start_day[row]) + step, k]
    ]
    assert told.pooled_ic.mean == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic)
    returns = record.curves.returns
    sharpe = math.sqrt(252) * float(returns.mean() / returns.std(correction=0))
    assert told.sharpe.mean == pytest.approx(sharpe)


def test_the_reader_attains_what_is_attainable_and_silence_nothing():
    env = vecenv.make("news_signals", 64, market=news_tape(20, 100, strength=0.02), compile=False, recent_days=0)
    told = information(env, {name: AGENTS[name]() for name in ("silent", "lexicon", "reader", "filter")}, 1)
    assert tuple(told["reader"].attained) == (1.0, 1.0, 1.0)
    assert tuple(told["silent"].attained) == (0.0, 0.0, 0.0) and told["silent"].sharpe.mean == 0.0
    assert 0.6 < told["lexicon"].attained.low < told["lexicon"].attained.high < 1.1
    assert told["filter"].attained.low > 1.0
    assert told["reader"].rank_ic.low < told["reader"].rank_ic.mean < told["reader"].rank_ic.high


def test_without_anything_to_attain_there_is_no_share():
    env = vecenv.make("news_signals", 6, market=holed_tape(2), compile=False, episode_length=6)
    told = information(env, {"hindsight": AGENTS["hindsight"]()})["hindsight"]
    assert math.isnan(told.attained.mean) and told.to_json()["attained"] == dict.fromkeys(("mean", "low", "high"))
