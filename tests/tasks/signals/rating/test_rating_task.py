"""The task is the page's, which the oracle has in plain Python, and its agents know what they say they know."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from oracle import Oracle
from rating_tapes import holed_tape, news_tape
from scipy.stats import spearmanr

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.learn.evaluation import evaluate, play
from vecenv.registry import task_named
from vecenv.tasks.signals.rating.agents import AGENTS, filtered_belief, headline_signs, read_belief, sized_signal
from vecenv.tasks.signals.rating.config import NewsSignalsConfig
from vecenv.tasks.signals.rating.information import information
from vecenv.tasks.signals.rating.law import daily_returns, mean_ranks, rank_correlation
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.tasks.signals.rating.task import NEWS_SIGNALS, shortened
from vecenv.testing import check_task


@pytest.mark.parametrize(
    "config",
    [
        {"horizon": 5, "demeaned": True},
        {"action": "continuous", "picks": 1, "recent_days": 0},
        {"feedback": "sign", "horizon": 3, "shuffled": True, "random_start": False},
    ],
)
def test_the_task_conforms(config):
    task = task_named("news_signals")
    rules = replace(task, config=lambda: task.config(episode_length=6, **config))
    small = {"num_paths": 3, "num_days": 40, "symbols": ("A", "B", "C")}
    check_task(rules, steps=4, compiled=False, market="news", market_options=small)


RULES = (
    ({}, "levels"),
    ({"horizon": 3, "demeaned": True, "commission": 0.01}, "continuous"),
    ({"horizon": 5, "feedback": "sign", "move_threshold": 0.04, "signal_cost": 0.3, "threshold": 4}, "signals"),
    ({"picks": 1, "feedback": "sign"}, "continuous"),
    ({"picks": 2, "demeaned": True, "threshold": 7, "signal_cost": 0.1}, "levels"),
    ({"picks": 2, "horizon": 5, "signal_cost": 0.1}, "signals"),
)
TOLD = {"cash": "cash", "value": "portfolio_value", "traded": "traded", "costs": "costs"}


@pytest.mark.parametrize(("rules", "action"), RULES)
def test_an_episode_is_the_oracles(rules, action):
    draw, spoken = np.random.default_rng(len(action)), action == "signals"
    config = NewsSignalsConfig(**rules, episode_length=12, recent_days=2, action="levels" if spoken else action)
    scenario, tick = NewsSignals(holed_tape(3), config), 0.1
    env = VecEnv(scenario, 6, seed=8, compiled=False)
    market = scenario.tape.price_ticks()[0].tolist(), scenario.tape.tradable[0].tolist()
    starts = env.state.start_day.tolist()
    oracles = [Oracle(asdict(config), *market, start, config.initial_cash / tick) for start in starts]
    for step in range(12):
        # Few different signals, so that there are ties.
        signals = draw.choice([-10, -7, -4, -1, 0, 0, 2, 6, 10], (6, 5))
        signals[0] *= step % 3 > 0
        if spoken and step == 4:
            signals[1, 2] = 11
        given = torch.from_numpy(signals)
        actions = {"levels": given + 10, "continuous": given.float() / 10, "signals": given.unsqueeze(-1)}[action]
        expected = [oracle.step(row.tolist()) for oracle, row in zip(oracles, signals, strict=True)]
        assert env.advance(actions).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        info, outcomes = env.info(), [oracle.outcomes() for oracle in oracles]
        for name in outcomes[0]:
            assert info[name].tolist() == pytest.approx([told[name] for told in outcomes], abs=1e-9), (name, step)
        assert env.grade().tolist() == pytest.approx([oracle.grade() for oracle in oracles], abs=1e-6)
        for name, told in TOLD.items():
            assert info[told].tolist() == pytest.approx([getattr(one, name) * tick for one in oracles], rel=1e-9)
    assert env.state.invalid_actions.tolist() == [oracle.invalid for oracle in oracles]
    assert bool(env.rows.truncated.all())


def test_a_ruined_portfolio_ends_the_episode():
    scenario = NewsSignals(holed_tape(3), NewsSignalsConfig(episode_length=5, recent_days=0, random_start=False))
    scenario.shared["close"][1:] *= 3.0
    env = VecEnv(scenario, 1, seed=0, compiled=False)
    env.advance(torch.full((1, 5, 1), -10))
    assert bool(env.rows.terminated) and env.grade().isfinite().all()


def test_nothing_that_is_shown_knows_the_future():
    """Observation, outcomes and what reader, filter and list of words say; the rewards part."""
    day, length, horizon, tape, differ = 22, 8, 5, news_tape(1), False
    later, panels = (torch.arange(tape.num_days) > day)[:, None], tape.panels
    scores = torch.where(later.unsqueeze(-1), 6 - panels.scores, panels.scores)
    text = torch.where(later, (panels.text + 41) % len(panels.texts), panels.text)
    ohlcv = torch.where(later.unsqueeze(-1), tape.ohlcv * 1.5, tape.ohlcv)
    other = replace(tape, ohlcv=ohlcv, panels=replace(panels, scores=scores, text=text))
    config = NewsSignalsConfig(horizon=horizon, episode_length=length, recent_days=3)
    envs = [VecEnv(NewsSignals(market, config), 9, seed=1, compiled=False) for market in (tape, other)]
    start = torch.arange(9) + 12
    for env in envs:
        env.rows = env.rows.replace(state=env.state.replace(day=start, start_day=start, end_day=start + length))
    knowing = [[AGENTS[name]() for name in ("lexicon", "reader", "filter")] for _ in envs]
    for _ in range(length):
        known, running = envs[0].state.day <= day, ~envs[0].rows.done
        one, two = (
            [env.observations()[known], *(agent.act(env)[known] for agent in agents)]
            + [env.info()[name][known & running] for name in env.scenario.outcomes]
            for env, agents in zip(envs, knowing, strict=True)
        )
        assert all(torch.equal(left, right) for left, right in zip(one, two, strict=True))
        action = random_action(envs[0].scenario.action_spec, envs[0].episode_keys, envs[0].rows.elapsed)
        rewards = [env.advance(action) for env in envs]
        past = envs[0].state.day - 1 + horizon <= day
        assert torch.equal(rewards[0][past], rewards[1][past])
        differ |= not torch.equal(*rewards)
    assert differ


WRONG = (
    ({"initial_cash": 0.0}, "initial_cash must be positive"),
    ({"episode_length": 0}, "episode_length must be at least 1, got 0"),
    ({"recent_days": -1}, "recent_days must be in"),
    ({"move_threshold": -0.1}, "move_threshold must not be negative"),
    ({"signal_cost": -0.1}, "signal_cost must not be negative"),
    *(({"threshold": value}, r"threshold must be in \[1, 10\]") for value in (0, 11)),
    *(({"commission": value}, "commission must be in") for value in (-0.1, 1.0)),
    ({"horizon": 2}, "unknown horizon 2; there are 1, 3, 5"),
    ({"picks": 3}, "picks 3 needs 6 symbols"),
    ({"episode_length": 60}, "are fewer than the first 5, an episode of 60 .episode_length. and the 1 after it"),
)


def test_bad_rules_are_refused_and_those_at_their_bounds_taken():
    tape = news_tape(1)
    for config, message in WRONG:
        with pytest.raises(ValueError, match=message):
            NewsSignals(tape, NewsSignalsConfig(**config))
    NewsSignals(tape, NewsSignalsConfig(picks=2, threshold=10, commission=0.0, recent_days=0, episode_length=59))
    assert asdict(NewsSignalsConfig()) == {
        "action": "levels", "horizon": 1, "feedback": "return", "threshold": 1, "move_threshold": 0.0, "picks": 0,
        "demeaned": False, "signal_cost": 0.0, "commission": 0.001, "initial_cash": 1e6, "recent_days": 5,
        "shuffled": False, "episode_length": 20, "random_start": True,
    }  # fmt: skip
    assert NewsSignalsConfig().inapplicable() == {"move_threshold": "feedback sign"}
    assert NewsSignalsConfig(feedback="sign").inapplicable() == {}
    NEWS_SIGNALS.domain.check_trained({"action": "levels", "recent_days": 5}, NewsSignalsConfig())
    for trained in ({"action": "continuous", "recent_days": 5}, {"action": "levels", "recent_days": 4}):
        with pytest.raises(ValueError, match=r"the checkpoint was trained with (action continuous|recent_days 4), not"):
            NEWS_SIGNALS.domain.check_trained(trained, NewsSignalsConfig())
    with pytest.raises(ValueError, match="no scores of documents"):
        NewsSignals(replace(tape, panels=None))


def test_shortened_episodes_fit_and_the_first_and_the_last_start_are_drawn():
    tape = news_tape(1, 30)
    for config in ({}, {"horizon": 5, "recent_days": 0}, {"horizon": 3, "recent_days": 7}):
        short = shortened(NewsSignalsConfig(episode_length=500, **config), tape.num_days - tape.first_day - 1)
        assert NewsSignals(tape, short).num_starts >= 1
        with pytest.raises(ValueError, match="fewer"):
            NewsSignals(tape, replace(short, episode_length=short.episode_length + 1))
    env = vecenv.make("news_signals", 300, market=tape, compile=False, episode_length=20, horizon=3)
    assert sorted(set(env.state.start_day.tolist())) == [5, 6, 7]


LAW = {"strength": 0.01, "accuracy": 0.5, "flip": 0.2, "coverage": 0.7}


def test_a_belief_is_the_accuracy_of_a_headline_and_a_filter_has_earlier_ones_too():
    """P(up | good) = (a + (1 - a) / 3) / (a + 2 (1 - a) / 3); neutral and missing news tell nothing."""
    tape = news_tape(3, 40, **LAW)
    returns = daily_returns(tape.price_ticks().double(), tape.tradable)
    belief, (tone, _, there) = read_belief(tape.law, returns, tape.panels, 0), headline_signs(tape.panels)
    certain = LAW["accuracy"] / (LAW["accuracy"] + 2 * (1 - LAW["accuracy"]) / 3)
    assert torch.allclose(belief, torch.where(there, tone, 0).double() * certain, atol=1e-12)
    # With the headline of a day alone a filter is a reader of the returns up to it.
    alone = replace(tape.panels, text=torch.where(torch.arange(40)[:, None] == 4, tape.panels.text, -1))
    last = read_belief(tape.law, returns, tape.panels, 4)[:, 4]
    assert torch.allclose(filtered_belief(tape.law, returns, alone)[:, 4], last, atol=1e-12)
    assert not torch.allclose(filtered_belief(tape.law, returns, tape.panels)[:, 4], last)
    with pytest.raises(ValueError, match="synthetic headlines alone"):
        headline_signs(replace(tape.panels, texts=("other",)))


def test_agents_stand_in_the_order_of_what_they_know_and_shares_are_of_the_attainable():
    env = vecenv.make("news_signals", 64, market=news_tape(20, 80, strength=0.02), compile=False, recent_days=0)
    evaluation = evaluate(env, {name: make() for name, make in AGENTS.items()}, 3)
    means = {name: told["rank_ic"].mean for name, told in evaluation.outcomes.items()}
    assert means["silent"] == 0 and abs(means["random"]) < 0.06
    assert 0.15 < means["lexicon"] < means["reader"] < means["filter"] < means["hindsight"] <= 1
    assert evaluation.outcomes["hindsight"]["hit_share"].mean == 1.0
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
    assert sized_signal(torch.tensor([0.0, 0.01, -0.04, 0.26, -1.0, 1.2])).tolist() == [0, 1, -1, 3, -10, 10]
    assert AGENTS["silent"]().act(loud).tolist() == [[0.0] * 5] * 3
    numbers, said = AGENTS["hindsight"]().act(loud), AGENTS["hindsight"]().act(env) - 10
    assert numbers.dtype == torch.float32 and (10 * numbers).round().tolist() == said.tolist()
    move = env.scenario.shared["move"]
    deviation = move[env.scenario.shared["tradable"]].square().mean().sqrt()
    now = move[env.state.path * env.scenario.tape.num_days + env.state.day]
    assert said.tolist() == sized_signal((now / (2 * deviation)).clamp(-1, 1)).tolist()


def test_ranks_and_coefficients_are_scipys_and_those_of_the_outcomes():
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
    # Those of a market of few bars: the mean of the episodes' own where all have as many days.
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
    assert told.sharpe.mean == pytest.approx(
        math.sqrt(env.scenario.tape.periods_per_year) * float(returns.mean() / returns.std(correction=0))
    )
