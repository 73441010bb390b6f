"""Agents know what they say they know: beliefs are conditional expectations, and shares are those of the attainable."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from rating_tapes import holed_tape, news_tape
from scipy.stats import spearmanr

import vecenv
from vecenv.learn.evaluation import evaluate, play
from vecenv.learn.evaluation_table import evaluation_table
from vecenv.tasks.signals.rating.agents import AGENTS, filtered_belief, read_belief, sized_signal, told_by
from vecenv.tasks.signals.rating.information import information
from vecenv.tasks.signals.rating.observation import daily_returns
from vecenv.tasks.signals.rating.ranks import mean_ranks, rank_correlation

LAW = {"strength": 0.01, "accuracy": 0.5, "flip": 0.2, "coverage": 0.7}


def market(num_days: int, num_paths: int):
    tape = news_tape(num_paths, num_days, **LAW)
    return tape, daily_returns(tape.price_ticks().double(), tape.tradable)


def test_a_belief_is_the_accuracy_of_a_headline_and_the_mean_move():
    """P(up | good) = (a + (1 - a) / 3) / (a + 2 (1 - a) / 3); neutral and missing news tell nothing.

    Moves are over one and five days, within three standard errors, where the belief is strong.
    """
    tape, returns = market(400, 12)
    belief, (tone, _, there) = read_belief(tape.law, returns, tape.panels, 0), told_by(tape.panels)
    certain = LAW["accuracy"] / (LAW["accuracy"] + 2 * (1 - LAW["accuracy"]) / 3)
    assert torch.allclose(belief, torch.where(there, tone, 0).double() * certain, atol=1e-12)
    close = tape.price_ticks().double()
    for horizon in (1, 5):
        move, good = close[:, horizon:] / close[:, :-horizon] - 1, belief[:, :-horizon] > 0.1
        expected = LAW["strength"] * certain * sum((1 - 2 * LAW["flip"]) ** day for day in range(horizon))
        error = float(move[good].std()) / math.sqrt(int(good.sum()) / horizon)
        assert abs(float(move[good].mean()) - expected) < 3 * error and expected > 5 * error


def test_the_filter_knows_all_that_was_shown_so_far():
    """On the second day it has the first one's news too, and all returns; other texts are not understood."""
    tape, returns = market(5, 2)
    one = replace(tape.panels, text=torch.where(torch.arange(5)[:, None] == 4, tape.panels.text, -1))
    found, last = filtered_belief(tape.law, returns, one), read_belief(tape.law, returns, tape.panels, 4)
    assert torch.allclose(found[:, 4], last[:, 4], atol=1e-12)
    assert not torch.allclose(filtered_belief(tape.law, returns, tape.panels)[:, 4], last[:, 4])
    with pytest.raises(ValueError, match="synthetic headlines alone"):
        told_by(replace(tape.panels, texts=("other",)))


def test_agents_stand_in_the_order_of_what_they_know_and_shares_are_of_the_attainable():
    env = vecenv.make("news_signals", 64, market=news_tape(20, 80, strength=0.02), compile=False, recent_days=0)
    evaluation = evaluate(env, {name: make() for name, make in AGENTS.items()}, 3)
    means = {name: told["rank_ic"].mean for name, told in evaluation.outcomes.items()}
    assert means["silent"] == 0 and abs(means["random"]) < 0.06
    assert 0.15 < means["lexicon"] < means["reader"] < means["filter"] < means["hindsight"] <= 1
    assert evaluation.outcomes["hindsight"]["hit_share"].mean == 1.0
    found = evaluation.to_json()["agents"]["reader"]
    assert found["rank_ic"]["mean"] == means["reader"] and found["sharpe"]["mean"] > 0
    headers = [str(column.header) for column in evaluation_table(evaluation).columns]
    assert "Rank\nic" in headers and "Sharpe" in headers
    told = information(env, {name: AGENTS[name]() for name in ("silent", "lexicon", "reader", "filter")}, 1)
    assert tuple(told["reader"].attained) == (1.0, 1.0, 1.0)
    assert tuple(told["silent"].attained) == (0.0, 0.0, 0.0) and told["silent"].sharpe.mean == 0.0
    assert 0.6 < told["lexicon"].attained.low < told["lexicon"].attained.high < 1.1
    assert told["filter"].attained.low > 1.0
    assert told["reader"].rank_ic.low < told["reader"].rank_ic.mean < told["reader"].rank_ic.high
    # Of shuffled news nobody who reads alone knows anything: over many days, as a shuffle keeps a symbol's mean tone.
    tape = news_tape(10, 1000, strength=0.02)
    env = vecenv.make("news_signals", 128, market=tape, compile=False, recent_days=0, shuffled=True)
    shuffled = evaluate(env, {name: AGENTS[name]() for name in ("lexicon", "reader", "hindsight")}, 3).outcomes
    assert all(abs(shuffled[name]["rank_ic"].mean) < 0.06 for name in ("lexicon", "reader"))
    assert shuffled["hindsight"]["rank_ic"].mean > 0.9


def test_agents_without_a_law_or_texts_are_silent_and_hindsight_says_ten_from_two_deviations_on():
    env, loud = (
        vecenv.make("news_signals", 3, market=holed_tape(1), compile=False, episode_length=5, action=action)
        for action in ("levels", "continuous")
    )
    for name in ("lexicon", "reader", "filter"):
        assert bool((AGENTS[name]().act(env) == 10).all())
    strength = torch.tensor([0.0, 0.01, -0.04, 0.26, -1.0, 1.2])
    assert sized_signal(strength).tolist() == [0, 1, -1, 3, -10, 10]
    assert AGENTS["silent"]().act(loud).tolist() == [[0.0] * 5] * 3
    numbers, said = AGENTS["hindsight"]().act(loud), AGENTS["hindsight"]().act(env) - 10
    assert numbers.dtype == torch.float32 and (10 * numbers).round().tolist() == said.tolist()
    move = env.scenario.shared["move"]
    deviation = move[env.scenario.shared["tradable"]].square().mean().sqrt()
    now = move[env.state.path * env.scenario.tape.num_days + env.state.day]
    assert said.tolist() == sized_signal((now / (2 * deviation)).clamp(-1, 1)).tolist()


def test_ranks_and_correlations_are_scipys():
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.randint(-size, size, (6, 20), generator=generator).double() for size in (3, 9))
    known = torch.rand(6, 20, generator=generator) < 0.7
    found = rank_correlation(first, second, known)
    for row in range(6):
        x, y = (values[row][known[row]] for values in (first, second))
        assert float(found[row]) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
    ranks = mean_ranks(torch.tensor([4.0, 1.0, 4.0, 9.0]), torch.tensor([True, True, True, False]))
    assert ranks[:3].tolist() == [1.5, 0.0, 1.5]
    assert float(rank_correlation(torch.ones(1, 5), second[:1, :5], torch.ones(1, 5, dtype=torch.bool))) == 0.0


def test_coefficients_are_those_of_the_outcomes():
    """On a market of few bars: the mean of the episodes' own coefficients where all have as many days."""
    env = vecenv.make("news_signals", 12, market=holed_tape(2), compile=False, episode_length=6, random_start=True)
    agent = AGENTS["random"]()
    told, record = information(env, {"random": agent}, 4)["random"], play(env, agent, 4)
    assert told.rank_ic.mean == pytest.approx(float(record.outcomes["rank_ic"].mean()))
    assert told.total_return.mean == pytest.approx(float(record.outcomes["total_return"].mean()))
    # Nothing is attainable without a law.
    assert math.isnan(told.attained.mean) and told.to_json()["attained"] == dict.fromkeys(("mean", "low", "high"))
    shared, state = env.scenario.shared, env.state
    days = state.start_day.unsqueeze(1) + torch.arange(6)
    usable = shared["tradable"][days]
    assert told.pooled_ic.mean == pytest.approx(spearmanr(state.said[usable], shared["move"][days][usable]).statistic)
    returns = record.curves.returns
    assert told.sharpe.mean == pytest.approx(math.sqrt(252) * float(returns.mean() / returns.std(correction=0)))
