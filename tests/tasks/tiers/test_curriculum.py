"""The curriculum: schedulers on hand-made scores, rules by sub-environment, and a learner on a mixed batch."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.small_env import make_env as make_stock_env
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE, CurriculumConfig, interpolated_rules
from vecenv.tasks.tiers.curriculum import AdaptiveDifficulty, Curriculum, Promotion, path_volatility
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


def make_env(num_envs: int, **overrides) -> VecEnv:
    # Few orders a day, because eager steps serve them one by one.
    config = CurriculumConfig(**({"action": "orders", "max_orders": 1} | overrides))
    return VecEnv(CURRICULUM.build(market(), config), num_envs, compiled=False)


def report(scheduler: Promotion, rows: list[int], score: list[float], rule: list[int] | None = None) -> list[int]:
    """Report ended episodes, by default of the current tiers, and return the tiers after it."""
    ids = torch.tensor(rows, dtype=torch.int64)
    rules = scheduler.tier[ids] if rule is None else torch.tensor(rule)
    scheduler.update(ids, rules, torch.tensor(score))
    return scheduler.rules().tolist()


def test_promotion_and_demotion_follow_the_rate_of_success_of_each_sub_environment():
    scheduler = Promotion(3, thresholds=[0.4, 0.6, 0.4], window=4)
    for _ in range(3):
        assert report(scheduler, [0, 1, 2], [0.5, 0.3, 0.4]) == [0, 0, 0], "no decision before the window is full"
    # Sub-environment 2 was never above its threshold, and the first tier has none below it.
    assert report(scheduler, [0, 1, 2], [0.41, 0.9, 0.4]) == [1, 0, 0]
    assert scheduler.metrics() == {"mean_tier": pytest.approx(1 / 3)}
    # 0.5 is a success in the first tier only; the window starts anew in the second.
    assert [report(scheduler, [0], [0.5]) for _ in range(4)] == [[1, 0, 0]] * 3 + [[0, 0, 0]]
    # The rate is of the last four alone: 1 has one success and three more to go.
    assert [report(scheduler, [1], [0.9])[1] for _ in range(3)] == [0, 0, 1]
    scheduler = Promotion(2, thresholds=[0.5, 0.5], window=5)
    # 4 of 5 is not above 0.8, and 1 of 5 not below 0.2.
    scheduler.tier.copy_(torch.tensor([0, 1]))
    for first, second in zip([1, 1, 1, 1, 0] * 3, [0, 0, 0, 0, 1] * 3, strict=True):
        assert report(scheduler, [0, 1], [first, second]) == [0, 1]
    scheduler = Promotion(3, thresholds=[0.5] * 3, window=2)
    # The third episode of 1 still followed the first tier: it does not count in the second, nor does it demote.
    assert report(scheduler, [1, 0, 1, 1, 0], [1.0, 0.0, 1.0, 0.0, 1.0], [0, 0, 0, 0, 0]) == [0, 1, 0]
    assert scheduler.count.tolist() == [2, 0, 0]
    assert report(scheduler, [1, 0], [0.0, 1.0], [0, 0]) == [1, 1, 0] == report(scheduler, [], [])
    # Successes of the tier before do not count, and the ends hold.
    moved = [report(scheduler, [2], [score])[2] for score in (*[1.0] * 6, *[0.0] * 6)]
    assert moved == [0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0]


def test_the_target_difficulty_moves_as_the_formula_says():
    scheduler = AdaptiveDifficulty(5, num_levels=11, nearest=3, target_score=0.4, step_size=0.5, sensitivity=2.0)
    ids, target = torch.arange(5), 0.0
    assert scheduler.rules().tolist() == [0, 1, 2, 0, 1]
    for scores in ([0.8, 0.6, 0.7, 0.9, 0.5], [0.1, 0.2, 0.5, 0.3, 0.2], [0.4] * 5):
        scheduler.update(ids, scheduler.rules(), torch.tensor(scores))
        target += 0.5 * math.tanh(2.0 * (sum(scores) / 5 - 0.4))
        assert scheduler.metrics()["target_difficulty"] == pytest.approx(target, abs=1e-7)
        near = sorted(range(11), key=lambda level: abs(level / 10 - target))[:3]
        assert scheduler.rules().tolist() == [near[n % 3] for n in range(5)]
    scheduler.update(ids[:0], ids[:0], torch.zeros(0))
    assert scheduler.metrics()["target_difficulty"] == pytest.approx(target, abs=1e-7)
    for score, end in ((1.0, 1.0), (-1.0, 0.0)):
        for _ in range(5):
            scheduler.update(ids, scheduler.rules(), torch.full((5,), score))
        assert scheduler.metrics()["target_difficulty"] == end


def test_levels_run_through_the_tiers_on_the_first_symbols():
    config = CurriculumConfig(scheduler="adaptive", num_levels=9)
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
    config = CurriculumConfig(symbols=("A", "B", "C", "D"), thresholds={"portfolio": 0.7})
    assert [len(rules.symbols) for rules in config.rules] == [1, 1, 3, 4, 4]
    assert config.success_scores == (0.4, 0.4, 0.4, 0.7, 0.4)
    assert CurriculumConfig(score="regret").success_scores == (-0.15, -0.15, -0.15, -0.15, -0.4)


def test_defaults_and_what_is_refused_or_without_effect():
    config = CurriculumConfig()
    own = ("tiers", "symbols", "scheduler", "score", "thresholds", "window", "promote_above", "demote_below")
    assert [getattr(config, name) for name in own] == [NAMES, TWENTY_FIVE, "promotion", "grade", {}, 8, 0.8, 0.2]
    levels = ("num_levels", "nearest", "step_size", "sensitivity", "target_score", "path_share")
    assert [getattr(config, name) for name in levels] == [21, 3, 0.5, 2.0, None, 0.5]
    assert config.inapplicable() == {"tilt_gain": "action limit_weights"} | dict.fromkeys(levels, "scheduler adaptive")
    adaptive = CurriculumConfig(scheduler="adaptive", action="limit_weights", nearest=21, path_share=1.0).inapplicable()
    assert adaptive == dict.fromkeys(("window", "promote_above", "demote_below"), "scheduler promotion")
    for settings, message in (
        ({"tiers": ()}, "tiers must have at least 1, got"),
        ({"tiers": ("portfolio", "hard")}, r"unknown tier 'hard'; there are single_stock, .*full_autonomous"),
        ({"tiers": ("portfolio", "portfolio")}, "tiers must be different, got"),
        ({"score": "reward"}, "unknown score 'reward'; there are grade, regret"),
        ({"thresholds": {"hard": 0.4}}, "thresholds of hard, but the tiers are single_stock, "),
        ({"window": 0}, r"window must be in \[1, 10,000\], got 0"),
        ({"num_levels": 1}, r"num_levels must be in \[2, 1,000\], got 1"),
        ({"nearest": 22}, "nearest must be at most num_levels 21, got 22"),
        ({"step_size": 0.0}, "step_size must be positive, got 0.0"),
        ({"path_share": 1.5}, r"path_share must be in \(0, 1\], got 1.5"),
        ({"demote_below": 0.8}, "demote_below 0.8 and promote_above 0.8 must be"),
    ):
        with pytest.raises(ValueError, match=message):
            CurriculumConfig(**settings)


def test_episodes_play_the_last_tier_without_a_schedule_and_keep_theirs_to_the_end_with_one():
    env = make_env(3)
    assert env.state.rule.tolist() == [4, 4, 4]
    schedule = env.scenario.schedule(env.num_envs)
    env.follow(schedule)
    assert env.state.rule.tolist() == [0, 0, 0]
    assert (env.state.end_day - env.state.start_day).tolist() == [4, 4, 4]
    collector = FusedCollector(env, None, num_steps=3)
    collector.rollout()
    schedule.load_state_dict({"tier": torch.tensor([0, 2, 4])})
    nobody = torch.zeros(0, dtype=torch.int64)
    metrics = schedule.update(env.rows_of(nobody)[0], nobody, lambda: torch.zeros(0))
    assert math.isnan(metrics.pop("curriculum_score")) and metrics.pop("mean_tier") == 2.0
    assert list(metrics.values()) == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])
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
    env = make_env(6, score="regret")
    schedule = env.scenario.schedule(env.num_envs)
    env.follow(schedule)
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
    env = make_env(200, scheduler="adaptive", num_levels=5, nearest=1, path_share=0.5)
    schedule = env.scenario.schedule(env.num_envs)
    env.follow(schedule)
    volatility = path_volatility(market().price_ticks())
    for target in (0.0, 1.0):
        schedule.load_state_dict({"target": torch.tensor(target)})
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
    scenario = Curriculum(one, CurriculumConfig(scheduler="adaptive", num_levels=3))
    assert VecEnv(scenario, 4, compiled=False).state.path.tolist() == [0] * 4


@pytest.mark.parametrize("scheduler", ["promotion", "adaptive"])
def test_a_learner_follows_the_rules_and_goes_on_from_its_state(scheduler):
    """Every rollout reports its ended episodes, rules change in every update, and a resumed run is the same."""
    settings = {"window": 1, "num_levels": 5, "target_score": 0.1, "scheduler": scheduler, "action": "limit_weights"}
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
    assert len(outcome) == 2 + len(TIERS) and [one[key] for key in outcome] == [two[key] for key in outcome]
    for name, value in learner.state_dict()["schedule"].items():
        assert torch.equal(other.state_dict()["schedule"][name], value), name
    assert torch.equal(learner.env.state.portfolio_value, other.env.state.portfolio_value)
    assert PPO(make_stock_env(num_envs=4), config).state_dict()["schedule"] is None
