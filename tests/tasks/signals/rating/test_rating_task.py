"""The task conforms, shows nothing of later days, and its agents know what they say they know."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from rating_tapes import holed_tape, news_tape

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action
from vecenv.learn.evaluation import evaluate
from vecenv.learn.evaluation_table import evaluation_table
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.signals.rating.agents import AGENTS, sized_signal
from vecenv.tasks.signals.rating.config import NewsSignalsConfig
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.tasks.signals.rating.task import NEWS_SIGNALS, shortened
from vecenv.testing import check_task
from vecenv.text.door import TextDoor

SMALL = {"num_paths": 3, "num_days": 40, "symbols": ("A", "B", "C")}


@pytest.mark.parametrize(
    ("config", "compiled"),
    [
        ({"horizon": 5, "demeaned": True}, False),
        pytest.param({"action": "continuous", "picks": 1, "recent_days": 0}, True, marks=pytest.mark.assembly),
        ({"feedback": "sign", "horizon": 3, "shuffled": True, "random_start": False}, False),
    ],
)
def test_the_task_conforms(config, compiled):
    task = task_named("news_signals")
    rules = replace(task, config=lambda: task.config(episode_length=6, **config))
    check_task(rules, steps=4, compiled=compiled, market="news", market_options=SMALL)


def with_another_future(tape, day):
    """Return a tape that is the same up to a day; later days have other prices and other news."""
    later = (torch.arange(tape.num_days) > day)[:, None]
    panels = tape.panels
    changed = replace(
        panels,
        scores=torch.where(later.unsqueeze(-1), 6 - panels.scores, panels.scores),
        text=torch.where(later, (panels.text + 41) % len(panels.texts), panels.text),
    )
    ohlcv = torch.where(later.unsqueeze(-1), tape.ohlcv * 1.5, tape.ohlcv)
    return replace(tape, ohlcv=ohlcv, panels=changed)


@pytest.mark.parametrize("horizon", [1, 5])
def test_nothing_that_is_shown_knows_the_future(horizon):
    """Observation, text, outcomes and what reader, filter and list of words say; the rewards part."""
    day, length = 22, 8
    tapes = [news_tape(1), with_another_future(news_tape(1), day)]
    config = {"horizon": horizon, "episode_length": length, "recent_days": 3}
    envs = [make_spoken("news_signals", 9, market=tape, seed=1, **config) for tape in tapes]
    for env in envs:
        start = torch.arange(9) + 12
        env.rows = env.rows.replace(state=env.state.replace(day=start, start_day=start, end_day=start + length))
    knowing = [[AGENTS[name]() for name in ("lexicon", "reader", "filter")] for _ in envs]
    differ = False
    for _ in range(length):
        known = envs[0].state.day <= day
        ids = known.nonzero().squeeze(-1).tolist()
        texts = [TextDoor(env).render(ids) for env in envs]
        shown = [env.observations()[ids] for env in envs]
        said = [
            torch.stack([agent.act(env)[ids] for agent in agents]) for env, agents in zip(envs, knowing, strict=True)
        ]
        told = [[env.info()[name][ids] for name in env.scenario.outcomes] for env in envs]
        running = ~envs[0].rows.done[ids]
        assert texts[0] == texts[1] and torch.equal(*shown) and torch.equal(*said)
        for one, other in zip(*told, strict=True):
            assert torch.equal(one[running], other[running])
        action = random_action(envs[0].scenario.action_spec, envs[0].episode_keys, envs[0].rows.elapsed)
        rewards = [env.advance(action) for env in envs]
        past = envs[0].state.day - 1 + horizon <= day
        assert torch.equal(rewards[0][past], rewards[1][past])
        differ |= not torch.equal(*rewards)
    assert differ


def test_agents_stand_in_the_order_of_what_they_know():
    env = vecenv.make("news_signals", 64, market=news_tape(20, 80, strength=0.02), compile=False, recent_days=0)
    evaluation = evaluate(env, {name: make() for name, make in AGENTS.items()}, 3)
    means = {name: told["rank_ic"].mean for name, told in evaluation.outcomes.items()}
    assert means["silent"] == 0 and abs(means["random"]) < 0.06
    assert 0.15 < means["lexicon"] < means["reader"] < means["filter"] < means["hindsight"] <= 1
    assert evaluation.outcomes["hindsight"]["hit_share"].mean == 1.0
    found = evaluation.to_json()["agents"]
    assert found["reader"]["rank_ic"]["mean"] == means["reader"] and found["reader"]["sharpe"]["mean"] > 0
    headers = [str(column.header) for column in evaluation_table(evaluation).columns]
    assert "Rank\nic" in headers and "Sharpe" in headers
    # Agents without a law or texts are silent, and strengths are rounded away from nothing.
    env = vecenv.make("news_signals", 3, market=holed_tape(1), compile=False, episode_length=5)
    for name in ("lexicon", "reader", "filter"):
        assert bool((AGENTS[name]().act(env) == 10).all())
    strength = torch.tensor([0.0, 0.01, -0.04, 0.26, -1.0, 1.2])
    assert sized_signal(strength).tolist() == [0, 1, -1, 3, -10, 10]
    loud = vecenv.make("news_signals", 3, market=holed_tape(1), compile=False, episode_length=5, action="continuous")
    assert AGENTS["silent"]().act(loud).tolist() == [[0.0] * 5] * 3
    numbers, levels = AGENTS["hindsight"]().act(loud), AGENTS["hindsight"]().act(env)
    assert numbers.dtype == torch.float32 and (10 * numbers).round().tolist() == (levels - 10).tolist()
    # Hindsight says ten from a move of two deviations on.
    said, move = AGENTS["hindsight"]().act(env) - 10, env.scenario.shared["move"]
    deviation = move[env.scenario.shared["tradable"]].square().mean().sqrt()
    now = move[env.state.path * env.scenario.tape.num_days + env.state.day]
    assert said.tolist() == sized_signal((now / (2 * deviation)).clamp(-1, 1)).tolist()
    # Of shuffled news nobody who reads alone knows anything: over many days, as a shuffle keeps a symbol's mean tone.
    tape = news_tape(10, 1000, strength=0.02)
    env = vecenv.make("news_signals", 128, market=tape, compile=False, recent_days=0, shuffled=True)
    shuffled = evaluate(env, {name: AGENTS[name]() for name in ("lexicon", "reader", "hindsight")}, 3).outcomes
    assert all(abs(shuffled[name]["rank_ic"].mean) < 0.06 for name in ("lexicon", "reader"))
    assert shuffled["hindsight"]["rank_ic"].mean > 0.9


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"initial_cash": 0.0}, "initial_cash must be positive"),
        ({"episode_length": 0}, "episode_length must be positive"),
        ({"recent_days": -1}, "recent_days must not be negative"),
        ({"move_threshold": -0.1}, "move_threshold must not be negative"),
        ({"threshold": 11}, "threshold must be from 1 to 10"),
        ({"commission": -0.1}, "commission must be in"),
        ({"horizon": 2}, "horizon must be one of 1, 3, 5"),
        ({"threshold": 0}, "threshold must be from 1 to 10"),
        ({"commission": 1.0}, "commission must be in"),
        ({"picks": 3}, "picks 3 needs 6 symbols"),
        ({"episode_length": 60}, "are fewer than the first 5, an episode of 60 and the 1 after it"),
        ({"signal_cost": -0.1}, "signal_cost must not be negative"),
    ],
)
def test_bad_rules_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        NewsSignals(news_tape(1), NewsSignalsConfig(**config))


def test_rules_at_their_bounds_are_taken_and_a_market_without_scores_is_not():
    NewsSignals(
        news_tape(1), NewsSignalsConfig(picks=2, threshold=10, commission=0.0, recent_days=0, episode_length=59)
    )
    assert asdict(NewsSignalsConfig()) == {
        "action": "levels", "horizon": 1, "feedback": "return", "threshold": 1, "move_threshold": 0.0, "picks": 0,
        "demeaned": False, "signal_cost": 0.0, "commission": 0.001, "initial_cash": 1e6, "recent_days": 5,
        "shuffled": False, "episode_length": 20, "random_start": True,
    }  # fmt: skip
    assert NewsSignalsConfig().inapplicable() == {"move_threshold": "feedback sign"}
    assert NewsSignalsConfig(feedback="sign").inapplicable() == {}
    NEWS_SIGNALS.check_trained({"action": "levels", "recent_days": 5}, NewsSignalsConfig())
    for trained in ({"action": "continuous", "recent_days": 5}, {"action": "levels", "recent_days": 4}):
        with pytest.raises(ValueError, match=r"the checkpoint was trained with (action continuous|recent_days 4), not"):
            NEWS_SIGNALS.check_trained(trained, NewsSignalsConfig())
    with pytest.raises(ValueError, match="no scores of documents"):
        NewsSignals(replace(news_tape(1), panels=None))


@pytest.mark.parametrize("config", [{}, {"horizon": 5, "recent_days": 0}, {"horizon": 3, "recent_days": 7}])
def test_shortened_episodes_fit(config):
    tape = news_tape(1, 30)
    short = shortened(NewsSignalsConfig(episode_length=500, **config), tape.num_days - tape.first_day - 1)
    scenario = NewsSignals(tape, short)
    assert scenario.num_starts >= 1
    with pytest.raises(ValueError, match="fewer"):
        NewsSignals(tape, replace(short, episode_length=short.episode_length + 1))
    # The first and the last start are drawn.
    env = vecenv.make("news_signals", 300, market=tape, compile=False, episode_length=20, horizon=3)
    assert sorted(set(env.state.start_day.tolist())) == [5, 6, 7]


def test_items_are_the_symbols_features():
    scenario = NewsSignals(news_tape(2), NewsSignalsConfig(recent_days=2))
    env = VecEnv(scenario, 3, seed=1, compiled=False)
    items = scenario.items(env.observations())
    assert items.features.shape == (3, 4, len(scenario.item_features)) and items.shared.shape == (3, 6)
    place, state = scenario.item_features.index("return_1"), env.state
    close = scenario.tape.ohlcv[state.path, :, :, 3][torch.arange(3), state.day - 1].double()
    now = scenario.tape.ohlcv[state.path, :, :, 3][torch.arange(3), state.day].double()
    assert torch.allclose(items.features[..., place].double(), 100 * (now / close - 1), atol=1e-3)
