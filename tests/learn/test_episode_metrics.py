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


def test_means_are_of_the_episodes_that_ended_of_all_rows_or_of_those_of_a_member():
    env = make_env(8)
    collector = FusedCollector(env, num_steps=12)
    collector.rollout()
    rows, told = collector.rows(), [episode_metrics(collector), *members_metrics(collector, 2)]
    for metrics, mine in zip(told, (slice(0, 8), slice(0, 4), slice(4, 8)), strict=True):
        own = rows[:, mine]
        step, ids = own.done.nonzero(as_tuple=True)
        assert metrics["episodes"] == len(step) > 4
        value, start = (part[step, ids].double() for part in (own.state.portfolio_value, own.state.start_value))
        assert metrics["return_percent"] == pytest.approx(float((100 * (value / start - 1)).mean()))
        grades = env.engine.bound().of_rows(ids + mine.start).grade(own[step, ids])
        assert metrics["grade"] == pytest.approx(float(grades.mean()))
        assert metrics["reward"] == pytest.approx(float(collector.reward[:, mine].mean()))
        # Days of the market are counted once.
        seen = {*zip(own.state.path.flatten().tolist(), own.state.day.flatten().tolist(), strict=True)}
        assert metrics["market_rows"] == len(seen) < 12 * (mine.stop - mine.start)
        assert list(metrics) == ["reward", "episodes", "market_rows", "return_percent", "grade"]


def test_without_an_episode_there_is_no_mean_and_without_an_account_no_return():
    env = make_env(2)
    told = outcomes(env, env.rows[:0], torch.zeros(0, dtype=torch.int64))
    assert all(math.isnan(value) for value in told.values()) and set(told) == {"return_percent", "grade"}
    env = VecEnv(REACH_ZERO.build(), 3, compiled=False)
    for ids in (torch.arange(0), torch.arange(3)):
        assert set(outcomes(env, env.rows_of(ids)[0], ids)) == {"grade"}
