"""PPO on the curriculum: rules change while it learns, and a run that was cut off goes on as if it never was."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.small_env import make_env as make_stock_env
from vecenv.core.env import VecEnv
from vecenv.learn.ppo import PPO, PPOConfig, train
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE
from vecenv.tasks.tiers.curriculum import CurriculumSchedule
from vecenv.tasks.tiers.curriculum_config import CurriculumConfig
from vecenv.tasks.tiers.tasks import CURRICULUM

NUM_ENVS = 12
UPDATES = 4
SMALL = PPOConfig(num_steps=9, total_frames=UPDATES * 9 * NUM_ENVS, epochs=1, minibatches=2, hidden=(8,))


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch):
    """Make episodes of 4, 4, 5, 6 and 8 days of the five tiers."""
    for name, tier in list(TIERS.items()):
        monkeypatch.setitem(TIERS, name, replace(tier, days=tier.days // 5))


@cache
def market() -> MarketTape:
    """Return a short synthetic market of the 25 symbols."""
    return load_market(
        "synthetic", MarketOptions(symbols=TWENTY_FIVE, features=TIER_FEATURES, num_paths=4, num_days=330)
    )


def make_env(seed: int = 0, scheduler: str = "promotion") -> VecEnv:
    # One success promotes, one failure demotes, and the target moves fast: rules change in every update.
    config = CurriculumConfig(window=1, num_levels=5, target_score=0.1, scheduler=scheduler, max_orders=1)
    return VecEnv(CURRICULUM.build(market(), config), NUM_ENVS, seed, compiled=False)


@pytest.mark.parametrize("scheduler", ["promotion", "adaptive"])
@pytest.mark.assembly
def test_an_interrupted_curriculum_resumes_bit_for_bit(tmp_path: Path, scheduler: str) -> None:
    whole = train(make_env(scheduler=scheduler), SMALL, tmp_path / "whole")

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["update"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_env(scheduler=scheduler), SMALL, tmp_path / "parts", on_update=interrupt)
    resumed = train(make_env(9, scheduler), SMALL, tmp_path / "parts", resume=True)
    expected, found = whole.learner.state_dict(), resumed.learner.state_dict()
    for name, value in expected["schedule"].items():
        assert torch.equal(found["schedule"][name], value), name
    pairs = zip(
        [*expected["actor"], *expected["critic"], *expected["environment"]["rows"]],
        [*found["actor"], *found["critic"], *found["environment"]["rows"]],
        strict=True,
    )
    assert all(torch.equal(one, other) for one, other in pairs)
    outcome = [key for key in whole.metrics[-1] if key.startswith(("share_", "curriculum_", "mean_", "target_"))]
    assert len(outcome) == 2 + len(TIERS)
    for one, other in zip(whole.metrics[2:], resumed.metrics, strict=True):
        assert [one[key] for key in outcome] == [other[key] for key in outcome]


@pytest.mark.assembly
def test_the_rules_follow_the_episodes_of_every_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = PPO(make_env(), SMALL)
    assert isinstance(learner.schedule, CurriculumSchedule)
    reported = []
    update = CurriculumSchedule.update

    def recorded(schedule, ended, env, grade):
        reported.append((ended.done.all(), len(env)))
        return update(schedule, ended, env, grade)

    monkeypatch.setattr(CurriculumSchedule, "update", recorded)
    followed = []
    for _ in range(UPDATES):
        metrics = learner.update()
        assert reported[-1] == (True, metrics["episodes"])
        assert metrics["curriculum_score"] == pytest.approx(metrics["grade"], abs=1e-6)
        followed.append(learner.env.state.rule.clone())
    assert len(reported) == UPDATES
    # Rows of several tiers run side by side, and not always the same.
    assert len(followed[-1].unique()) > 1
    assert not torch.equal(followed[1], followed[-1])


def test_other_tasks_have_no_schedule() -> None:
    learner = PPO(make_stock_env(num_envs=4), replace(SMALL, minibatches=1))
    assert learner.schedule is None
    assert learner.state_dict()["schedule"] is None
