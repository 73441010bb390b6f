"""What is logged of the episodes that end in a rollout."""

from __future__ import annotations

import math

import pytest
import torch

from tests.reach_zero import REACH_ZERO
from tests.small_env import make_env
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.learn.episode_metrics import episode_metrics, members_metrics, outcomes


def test_means_are_of_the_episodes_that_ended():
    env = make_env(8)
    collector = FusedCollector(env, num_steps=12)
    collector.rollout()
    rows, metrics = collector.rows(), episode_metrics(collector)
    ended = rows.done
    assert metrics["episodes"] == int(ended.sum()) > 8
    value, start = (part[ended].double() for part in (rows.state.portfolio_value, rows.state.start_value))
    assert metrics["return_percent"] == pytest.approx(float((100 * (value / start - 1)).mean()))
    step, env_id = ended.nonzero(as_tuple=True)
    grades = env.engine.bound().of_rows(env_id).grade(rows[step, env_id])
    assert metrics["grade"] == pytest.approx(float(grades.mean()))
    assert metrics["reward"] == pytest.approx(float(collector.reward.mean()))


def test_without_an_episode_there_is_no_mean():
    env = make_env(2)
    told = outcomes(env, env.rows[:0], torch.zeros(0, dtype=torch.int64))
    assert all(math.isnan(value) for value in told.values()) and set(told) == {"return_percent", "grade"}


def test_days_of_the_market_are_counted_once():
    env = make_env(8)
    collector = FusedCollector(env, num_steps=12)
    collector.rollout()
    state = collector.rows().state
    seen = {*zip(state.path.flatten().tolist(), state.day.flatten().tolist(), strict=True)}
    assert episode_metrics(collector)["market_rows"] == len(seen) < 8 * 12


def test_a_task_without_an_account_has_no_return():
    env = VecEnv(REACH_ZERO.build(), 3, compiled=False)
    for ids in (torch.arange(0), torch.arange(3)):
        assert set(outcomes(env, env.rows_of(ids)[0], ids)) == {"grade"}


def test_the_figures_of_members_are_those_of_their_own_rows():
    env = make_env(8)
    collector = FusedCollector(env, num_steps=6)
    collector.rollout()
    rows, told = collector.rows(), members_metrics(collector, 2)
    step, ids = rows.done.nonzero(as_tuple=True)
    grades = env.engine.bound().of_rows(ids).grade(rows[step, ids])
    for number, own in enumerate(told):
        mine = ids // 4 == number
        state = rows[:, 4 * number : 4 * number + 4].state
        assert own["episodes"] == int(mine.sum()) > 0
        assert own["reward"] == pytest.approx(float(collector.reward[:, 4 * number : 4 * number + 4].mean()))
        assert own["grade"] == pytest.approx(float(grades[mine].mean()))
        assert own["market_rows"] == len(
            {*zip(state.path.flatten().tolist(), state.day.flatten().tolist(), strict=True)}
        )
    assert list(told[0]) == ["reward", "episodes", "market_rows", "return_percent", "grade"]
