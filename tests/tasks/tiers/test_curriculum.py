"""The tiers as levels: rules by sub-environment, regret, wilder paths, and a learner on a mixed batch."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.small_env import make_env as make_stock_env
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.curriculum import CurriculumSettings, set_curriculum
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.feature_names import TIER_FEATURES
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE, CurriculumConfig, interpolated_rules
from vecenv.tasks.tiers.curriculum import Curriculum, path_volatility
from vecenv.tasks.tiers.task import CURRICULUM
from vecenv.text.door import TextDoor

NAMES, NUM_PATHS = tuple(TIERS), 6


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch):
    """Make episodes of 4, 4, 5, 6 and 8 days of the five tiers."""
    for name, tier in list(TIERS.items()):
        monkeypatch.setitem(TIERS, name, replace(tier, days=tier.days // 5))


@cache
def market() -> MarketTape:
    options = MarketOptions(symbols=TWENTY_FIVE, features=TIER_FEATURES, num_paths=NUM_PATHS, num_days=330)
    return load_market("synthetic", options)


def make_env(num_envs: int, curriculum: CurriculumSettings | None = None, **overrides) -> VecEnv:
    # Few orders a day, because eager steps serve them one by one.
    config = CurriculumConfig(**({"action": "orders", "max_orders": 1} | overrides))
    env = VecEnv(CURRICULUM.build(market(), config), num_envs, compiled=False)
    if curriculum is not None:
        set_curriculum(env.scenario, curriculum)
    return env


def test_levels_run_through_the_tiers_on_the_first_symbols():
    config = CurriculumConfig(num_levels=9)
    own = ("days", "initial_cash", "commission", "slippage", "max_trades", "max_position", "max_exposure", "gate")
    for index, name in enumerate(NAMES):
        level, tier = config.rules[2 * index], TIERS[name]
        assert level.symbols == tier.symbols and level.seed_grader == tier.seed_grader
        assert [getattr(level, rule) for rule in own] == [getattr(tier, rule) for rule in own]
    between = config.rules[7]
    assert (between.days, between.initial_cash, len(between.symbols)) == (7, 350_000.0, 18)
    assert between.slippage == pytest.approx(0.0015) and between.max_position == pytest.approx(0.225)
    assert between.gate and between.seed_grader == "full"
    assert not interpolated_rules([TIERS["portfolio"], TIERS["full_autonomous"]], 0.49).gate
    assert config.nearest_tiers == tuple(NAMES[place] for place in (0, 1, 1, 2, 2, 3, 3, 4, 4))
    config = CurriculumConfig(symbols=("A", "B", "C", "D"))
    assert [len(rules.symbols) for rules in config.rules] == [1, 1, 3, 4, 4]
    assert config.nearest_tiers == NAMES
    scenario = make_env(1, num_levels=9).scenario
    assert scenario.success_scores("grade") == [0.4] * 9
    assert scenario.success_scores("regret") == [-0.15] * 7 + [-0.4] * 2


def test_defaults_and_what_is_refused_or_without_effect():
    config = CurriculumConfig()
    assert (config.tiers, config.symbols, config.num_levels, config.path_share) == (NAMES, TWENTY_FIVE, None, 0.5)
    assert config.inapplicable() == {"tilt_gain": "action limit_weights", "path_share": "num_levels"}
    assert CurriculumConfig(num_levels=2, action="limit_weights", path_share=1.0).inapplicable() == {}
    for settings, message in (
        ({"tiers": ()}, "tiers must have at least 1, got"),
        ({"tiers": ("portfolio", "hard")}, r"unknown tier 'hard'; there are single_stock, .*full_autonomous"),
        ({"tiers": ("portfolio", "portfolio")}, "tiers must be different, got"),
        ({"num_levels": 1}, r"num_levels must be in \[2, 1,000\], got 1"),
        ({"path_share": 1.5}, r"path_share must be in \(0, 1\], got 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            CurriculumConfig(**settings)


def test_episodes_play_the_last_tier_without_a_schedule_and_keep_theirs_to_the_end_with_one():
    env = make_env(3)
    assert env.state.rule.tolist() == [4, 4, 4]
    schedule = env.scenario.schedule(env.num_envs)
    env.follow(schedule.params())
    assert env.state.rule.tolist() == [0, 0, 0]
    assert (env.state.end_day - env.state.start_day).tolist() == [4, 4, 4]
    collector = FusedCollector(env, None, num_steps=3)
    collector.rollout()
    schedule.load_state_dict({**schedule.state_dict(), "level": torch.tensor([0, 2, 4])})
    nobody = torch.zeros(0, dtype=torch.int64)
    metrics = schedule.update(env.rows_of(nobody)[0], nobody, lambda: torch.zeros(0))
    assert math.isnan(metrics.pop("curriculum_score")) and metrics.pop("mean_level") == 2.0
    assert [metrics[f"share_{name}"] for name in NAMES] == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])
    env.write_params(schedule.params())
    collector.rollout()
    rows = collector.rows()
    assert rows.state.rule[0].eq(0).all() and rows.done[0].all(), "4 days, 3 of them before the promotion"
    assert rows.state.rule[1:].tolist() == [[0, 2, 4]] * 2
    assert (rows.state.end_day - rows.state.start_day)[-1].tolist() == [4, 5, 8]
    assert rows.state.start_value[-1].mul(env.scenario.tape.tick_size).tolist() == [100_000.0, 150_000.0, 500_000.0]
    # Texts name the tier's own symbols alone, and orders of others are none.
    texts = TextDoor(env).render([0, 2])
    assert "INFY" not in texts[0].upper() and "RELIANCE" in texts[0] and "MARUTI" in texts[1]
    assert TextDoor(env).parse(["BUY MARUTI 0.1"] * 3, range(3))[1].tolist() == [False, False, True]
    # One tier alone is padded too.
    env = make_env(2, tiers=("single_stock",))
    assert env.scenario.config.symbols == TWENTY_FIVE
    assert env.scenario.owned(env.state[0], env.scenario.params).sum() == 1


def test_regret_is_what_hindsight_earned_more():
    env = make_env(6, CurriculumSettings("promotion", score_by="regret"))
    schedule = env.scenario.schedule(env.num_envs)
    env.follow(schedule.params())
    state = env.state
    for _ in range(4):
        env.rows = env.engine.bound().step(env.rows, torch.zeros(6, 1, 3)).rows
    assert env.rows.done.all()
    close = market().price_ticks().double()[..., 0]
    best = []
    for path, day in zip(state.path.tolist(), state.day.tolist(), strict=True):
        # The best of all single purchases and sales at the standard cost bounds hindsight from below.
        window = close[path, day : day + 5]
        gain = [window[j] / window[i] * (1 - 0.002) ** 2 - 1 for i in range(4) for j in range(i + 1, 5)]
        best.append(max(0.0, float(max(gain))))
    regret = env.scenario.regret(env.state)
    assert (regret >= torch.tensor(best) - 1e-6).all() and (regret > 0.01).any()
    metrics = schedule.update(env.rows, torch.arange(6), lambda: torch.full((6,), math.nan))
    assert metrics["curriculum_score"] == pytest.approx(-float(regret.mean()))


def test_harder_levels_draw_wilder_paths():
    env = make_env(200, CurriculumSettings("adarft"), num_levels=5, path_share=0.5)
    schedule = env.scenario.schedule(env.num_envs)
    env.follow(schedule.params())
    volatility = path_volatility(market().price_ticks())
    for target in (0.0, 1.0):
        schedule.load_state_dict({**schedule.state_dict(), "target": torch.tensor(target)})
        env.write_params(schedule.params())
        env.reset(seed=1)
        wanted = volatility.sort(descending=target == 1.0).indices[: NUM_PATHS // 2]
        assert set(env.state.path.tolist()) == set(wanted.tolist())
        assert env.state.rule.eq(4 * target).all()
    # Days before a listing say nothing: up and down by a tenth, in one symbol late and thrice.
    wild = 1000 * 1.1 ** (torch.arange(9) % 2)
    late = torch.where(torch.arange(9) >= 5, wild, 0.0)
    close = torch.stack([torch.stack([wild, wild], dim=-1), torch.stack([wild, late], dim=-1)]).float()
    assert path_volatility(close).tolist() == pytest.approx([math.log(1.1)] * 2, rel=1e-5)
    # A market of one path has nothing to choose.
    names = ("ohlcv", "tradable", "features", "context")
    one = replace(market(), **{name: getattr(market(), name)[:1] for name in names})
    scenario = Curriculum(one, CurriculumConfig(num_levels=3))
    assert VecEnv(scenario, 4, compiled=False).state.path.tolist() == [0] * 4


@pytest.mark.parametrize("num_levels", [None, 5])
def test_a_learner_follows_the_rules_and_goes_on_from_its_state(num_levels):
    """Every rollout reports its ended episodes, rules change in every update, and a resumed run is the same."""
    curriculum = (
        CurriculumSettings("promotion", window=1)
        if num_levels is None
        else CurriculumSettings("adarft", target_score=0.1)
    )
    settings = {"curriculum": curriculum, "num_levels": num_levels, "action": "limit_weights"}
    config = PPOConfig(num_steps=9, total_frames=9 * 6 * 4, epochs=1, minibatches=1, hidden=(8,))
    learner, other = (PPO(make_env(6, max_orders=2, **settings), config) for _ in range(2))
    rules = []
    for _ in range(2):
        metrics = learner.update()
        assert metrics["episodes"] > 0 and metrics["curriculum_score"] == pytest.approx(metrics["grade"], abs=1e-6)
        rules.append(learner.env.scenario.params["rule"].tolist())
    assert rules[0] != rules[1]
    other.load_state_dict(learner.state_dict())
    one, two = learner.update(), other.update()
    outcome = [key for key in one if key.startswith(("share_", "curriculum_", "mean_", "target_"))]
    assert len(outcome) == (7 if num_levels is None else 8) and [one[key] for key in outcome] == [
        two[key] for key in outcome
    ]
    for name in learner.schedule.scheduler.kept:
        assert torch.equal(*(each.state_dict()["schedule"][name] for each in (learner, other))), name
    assert torch.equal(learner.env.state.portfolio_value, other.env.state.portfolio_value)
    assert PPO(make_stock_env(num_envs=4), config).state_dict()["schedule"] is None
