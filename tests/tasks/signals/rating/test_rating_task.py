"""The task conforms, is the page's, which the oracle has in plain Python, and shows nothing of later days."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from oracle import Oracle
from rating_tapes import holed_tape, news_tape

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.signals.rating.agents import AGENTS
from vecenv.tasks.signals.rating.config import NewsSignalsConfig
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.tasks.signals.rating.task import NEWS_SIGNALS, shortened
from vecenv.testing import check_task
from vecenv.text.door import TextDoor


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
    small = {"num_paths": 3, "num_days": 40, "symbols": ("A", "B", "C")}
    check_task(rules, steps=4, compiled=compiled, market="news", market_options=small)


RULES = (
    ({}, "levels"),
    ({"horizon": 3, "demeaned": True, "commission": 0.01}, "continuous"),
    ({"horizon": 5, "feedback": "sign", "move_threshold": 0.04, "signal_cost": 0.3, "threshold": 4}, "signals"),
    ({"picks": 1, "feedback": "sign"}, "continuous"),
    ({"picks": 2, "demeaned": True, "threshold": 7, "signal_cost": 0.1}, "levels"),
    ({"picks": 2, "horizon": 5, "signal_cost": 0.1}, "signals"),
)
TOLD = {"cash": "cash", "value": "portfolio_value", "traded": "traded", "costs": "costs"}


def oracle_of(scenario: NewsSignals, start: int) -> Oracle:
    """Return the oracle of the only path."""
    close, bar = scenario.tape.price_ticks()[0].tolist(), scenario.tape.tradable[0].tolist()
    config = asdict(scenario.config)
    return Oracle(config, close, bar, start, config["initial_cash"] / scenario.tape.tick_size)


@pytest.mark.parametrize(("rules", "action"), RULES)
def test_an_episode_is_the_oracles(rules, action):
    draw, spoken = np.random.default_rng(len(action)), action == "signals"
    config = NewsSignalsConfig(**rules, episode_length=12, recent_days=2, action="levels" if spoken else action)
    scenario = NewsSignals(holed_tape(3), config)
    env = VecEnv(scenario, 6, seed=8, compiled=False)
    oracles = [oracle_of(scenario, start) for start in env.state.start_day.tolist()]
    for step in range(12):
        # Few different signals, so that there are ties.
        signals = draw.choice([-10, -7, -4, -1, 0, 0, 2, 6, 10], (6, 5))
        signals[0] *= step % 3 > 0
        if spoken and step == 4:
            signals[1, 2] = 11
        given = torch.from_numpy(signals)
        actions = {"levels": given + 10, "continuous": given.float() / 10, "signals": given.unsqueeze(-1)}[action]
        rewards = env.advance(actions)
        expected = [oracle.step(row.tolist()) for oracle, row in zip(oracles, signals, strict=True)]
        assert rewards.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        info, outcomes = env.info(), [oracle.outcomes() for oracle in oracles]
        for name in outcomes[0]:
            assert info[name].tolist() == pytest.approx([told[name] for told in outcomes], abs=1e-9), (name, step)
        assert env.grade().tolist() == pytest.approx([oracle.grade() for oracle in oracles], abs=1e-6)
        for name, told in TOLD.items():
            found = (info[told] / scenario.tape.tick_size).tolist()
            assert found == pytest.approx([getattr(one, name) for one in oracles], rel=1e-9)
    assert env.state.invalid_actions.tolist() == [oracle.invalid for oracle in oracles]
    assert bool(env.rows.truncated.all())


def test_a_ruined_portfolio_ends_the_episode():
    scenario = NewsSignals(holed_tape(3), NewsSignalsConfig(episode_length=5, recent_days=0, random_start=False))
    scenario.shared["close"][1:] *= 3.0
    env = VecEnv(scenario, 1, seed=0, compiled=False)
    env.advance(torch.full((1, 5, 1), -10))
    assert bool(env.rows.terminated) and env.grade().isfinite().all()


def with_another_future(tape, day):
    """Return a tape that is the same up to a day; later days have other prices and other news."""
    later, panels = (torch.arange(tape.num_days) > day)[:, None], tape.panels
    scores = torch.where(later.unsqueeze(-1), 6 - panels.scores, panels.scores)
    text = torch.where(later, (panels.text + 41) % len(panels.texts), panels.text)
    ohlcv = torch.where(later.unsqueeze(-1), tape.ohlcv * 1.5, tape.ohlcv)
    return replace(tape, ohlcv=ohlcv, panels=replace(panels, scores=scores, text=text))


def test_nothing_that_is_shown_knows_the_future():
    """Observation, text, outcomes and what reader, filter and list of words say; the rewards part."""
    day, length, horizon, differ = 22, 8, 5, False
    tapes = [news_tape(1), with_another_future(news_tape(1), day)]
    config = {"horizon": horizon, "episode_length": length, "recent_days": 3}
    envs = [make_spoken("news_signals", 9, market=tape, seed=1, **config) for tape in tapes]
    for env in envs:
        start = torch.arange(9) + 12
        env.rows = env.rows.replace(state=env.state.replace(day=start, start_day=start, end_day=start + length))
    knowing = [[AGENTS[name]() for name in ("lexicon", "reader", "filter")] for _ in envs]
    for _ in range(length):
        ids = (envs[0].state.day <= day).nonzero().squeeze(-1).tolist()
        running = ~envs[0].rows.done[ids]
        one, other = (
            [env.observations()[ids], *(agent.act(env)[ids] for agent in agents)]
            + [env.info()[name][ids][running] for name in env.scenario.outcomes]
            for env, agents in zip(envs, knowing, strict=True)
        )
        assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))
        assert TextDoor(envs[0]).render(ids) == TextDoor(envs[1]).render(ids)
        action = random_action(envs[0].scenario.action_spec, envs[0].episode_keys, envs[0].rows.elapsed)
        rewards = [env.advance(action) for env in envs]
        past = envs[0].state.day - 1 + horizon <= day
        assert torch.equal(rewards[0][past], rewards[1][past])
        differ |= not torch.equal(*rewards)
    assert differ


WRONG = (
    ({"initial_cash": 0.0}, "initial_cash must be positive"),
    ({"episode_length": 0}, "episode_length must be positive"),
    ({"recent_days": -1}, "recent_days must not be negative"),
    ({"move_threshold": -0.1}, "move_threshold must not be negative"),
    ({"signal_cost": -0.1}, "signal_cost must not be negative"),
    *(({"threshold": value}, "threshold must be from 1 to 10") for value in (0, 11)),
    *(({"commission": value}, "commission must be in") for value in (-0.1, 1.0)),
    ({"horizon": 2}, "horizon must be one of 1, 3, 5"),
    ({"picks": 3}, "picks 3 needs 6 symbols"),
    ({"episode_length": 60}, "are fewer than the first 5, an episode of 60 and the 1 after it"),
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
    NEWS_SIGNALS.check_trained({"action": "levels", "recent_days": 5}, NewsSignalsConfig())
    for trained in ({"action": "continuous", "recent_days": 5}, {"action": "levels", "recent_days": 4}):
        with pytest.raises(ValueError, match=r"the checkpoint was trained with (action continuous|recent_days 4), not"):
            NEWS_SIGNALS.check_trained(trained, NewsSignalsConfig())
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


def test_items_are_the_symbols_features():
    scenario = NewsSignals(news_tape(2), NewsSignalsConfig(recent_days=2))
    env = VecEnv(scenario, 3, seed=1, compiled=False)
    items, state = scenario.items(env.observations()), env.state
    assert items.features.shape == (3, 4, len(scenario.item_features)) and items.shared.shape == (3, 6)
    close = scenario.tape.ohlcv[state.path, :, :, 3].double()
    before, now = (close[torch.arange(3), state.day - back] for back in (1, 0))
    shown = items.features[..., scenario.item_features.index("return_1")].double()
    assert torch.allclose(shown, 100 * (now / before - 1), atol=1e-3)
