"""The curriculum: schedulers on hand-made scores, rules by sub-environment, and whole runs on a mixed batch."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.small_env import assert_same_bits, collected
from tests.small_env import make_env as make_stock_env
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.agents import BuyAndHold
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE
from vecenv.tasks.tiers.curriculum import Curriculum, CurriculumSchedule, path_volatility
from vecenv.tasks.tiers.curriculum_config import CurriculumConfig, interpolated_rules
from vecenv.tasks.tiers.curriculum_schedulers import AdaptiveDifficulty, Promotion
from vecenv.tasks.tiers.layout import Account
from vecenv.tasks.tiers.order_list import Kind
from vecenv.tasks.tiers.reward_components import COMPONENTS
from vecenv.tasks.tiers.tasks import CURRICULUM
from vecenv.text.door import TextDoor

NAMES = tuple(TIERS)
NUM_PATHS = 6


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch):
    """Make episodes of 4, 4, 5, 6 and 8 days of the five tiers."""
    for name, tier in list(TIERS.items()):
        monkeypatch.setitem(TIERS, name, replace(tier, days=tier.days // 5))


@cache
def market() -> MarketTape:
    """Return a short synthetic market of the 25 symbols."""
    return load_market(
        "synthetic", MarketOptions(symbols=TWENTY_FIVE, features=TIER_FEATURES, num_paths=NUM_PATHS, num_days=330)
    )


def make_env(num_envs: int, **overrides) -> VecEnv:
    # Few orders a day, because eager steps serve them one by one.
    config = CurriculumConfig(**({"action": "orders", "max_orders": 1} | overrides))
    return VecEnv(CURRICULUM.build(market(), config), num_envs, compiled=False)


class Driver:
    """Applies a curriculum to an environment, as learners do."""

    def __init__(self, env: VecEnv, scheduler: Promotion | None = None) -> None:
        self.env, made = env, scheduler or env.scenario.scheduler(env.num_envs)
        self.schedule, self.scheduler = CurriculumSchedule(env.scenario, made), made
        env.follow(self.schedule)

    def update(self, ended: Rows, ids: torch.Tensor) -> dict[str, float]:
        bound = self.env.engine.bound().of_rows(ids)
        metrics = self.schedule.update(ended, ids, lambda: bound.grade(ended))
        self.env.write_params(self.schedule.params())
        return metrics

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.schedule.load_state_dict(state)
        self.env.write_params(self.schedule.params())


def play(env: VecEnv, driver: Driver, rounds: int, steps: int = 1) -> list[dict[str, float]]:
    """Let buy-and-hold play, and report the episodes that end to the driver after some steps each."""
    agent, history = BuyAndHold(), []
    for _ in range(rounds):
        ended, ids = [], []
        for _ in range(steps):
            bound = env.engine.bound()
            env.rows = bound.restart_done(env.rows, env.seed_tensor, env.start_ids)
            env.rows = bound.step(env.rows, agent.act(env)).rows
            rows, done = env.rows_of(env.rows.done.nonzero())
            ended.append(rows)
            ids.append(done)
        history.append(driver.update(torch.cat(ended), torch.cat(ids)))
    return history


@pytest.mark.assembly
def test_a_collector_without_a_schedule_can_be_traced():
    """All rows follow one rule then, a number that no step may read on the host."""
    collector = FusedCollector(make_env(3), num_steps=2)
    (phase,) = collector._phases
    make_fx(collector._observe_and_step)(*phase.inputs[0])
    collector.rollout()
    assert (collector.rows().state.rule == len(NAMES) - 1).all()


@pytest.mark.nightly
def test_a_compiled_collector_without_a_schedule_collects_as_an_eager_one():
    eager, compiled = (FusedCollector(make_env(3), num_steps=4, mode=mode) for mode in ("eager", "compiled"))
    for _ in range(2):
        for collector in (eager, compiled):
            collector.rollout()
        assert_same_bits(collected(compiled), collected(eager))


def report(scheduler: Promotion, rows: list[int], score: list[float], rule: list[int] | None = None) -> list[int]:
    """Report ended episodes, by default of the current tiers, and return the tiers after it."""
    ids = torch.tensor(rows, dtype=torch.int64)
    followed = scheduler.tier[ids] if rule is None else torch.tensor(rule)
    scheduler.update(ids, followed, torch.tensor(score))
    return scheduler.rules().tolist()


def test_promotion_and_demotion_follow_the_rate_of_success_of_each_sub_environment():
    scheduler = Promotion(3, thresholds=[0.4, 0.6, 0.4], window=4)
    for _ in range(3):
        assert report(scheduler, [0, 1, 2], [0.5, 0.3, 0.4]) == [0, 0, 0], "no decision before the window is full"
    # Sub-environment 2 was never above its threshold, and the first tier has none below it.
    assert report(scheduler, [0, 1, 2], [0.41, 0.9, 0.4]) == [1, 0, 0]
    # 0.5 is a success in the first tier only; the window starts anew in the second.
    for _ in range(3):
        assert report(scheduler, [0], [0.5]) == [1, 0, 0]
    assert report(scheduler, [0], [0.5]) == [0, 0, 0]
    # The rate is of the last four alone: 1 has one success and three more to go.
    assert report(scheduler, [1], [0.9]) == [0, 0, 0]
    assert report(scheduler, [1], [0.9]) == [0, 0, 0]
    assert report(scheduler, [1], [0.9]) == [0, 1, 0]


def test_successes_of_the_tier_before_do_not_count():
    scheduler = Promotion(1, thresholds=[0.5] * 3, window=2)
    assert [report(scheduler, [0], [score])[0] for score in (1.0, 1.0, 1.0, 1.0)] == [0, 1, 1, 2]
    assert [report(scheduler, [0], [score])[0] for score in (0.0, 0.0, 0.0, 0.0)] == [2, 1, 1, 0]


def test_rates_between_the_thresholds_move_nobody_and_the_ends_hold():
    scheduler = Promotion(2, thresholds=[0.5, 0.5], window=5)
    # 4 of 5 is not above 0.8, and 1 of 5 not below 0.2.
    scheduler.tier.copy_(torch.tensor([0, 1]))
    for first, second in zip([1, 1, 1, 1, 0] * 3, [0, 0, 0, 0, 1] * 3, strict=True):
        assert report(scheduler, [0, 1], [first, second]) == [0, 1]
    scheduler = Promotion(2, thresholds=[0.5, 0.5], window=1)
    scheduler.tier.copy_(torch.tensor([0, 1]))
    assert report(scheduler, [0, 1], [0.0, 1.0]) == [0, 1]
    assert report(scheduler, [0, 1], [1.0, 0.0]) == [1, 0]


def test_episodes_of_one_rollout_count_in_their_order_and_only_in_their_tier():
    scheduler = Promotion(3, thresholds=[0.5] * 3, window=2)
    # The third episode of 1 still followed the first tier: it does not count in the second, nor does it demote.
    assert report(scheduler, [1, 0, 1, 1, 0], [1.0, 0.0, 1.0, 0.0, 1.0], [0, 0, 0, 0, 0]) == [0, 1, 0]
    assert scheduler.count.tolist() == [2, 0, 0]
    assert report(scheduler, [1, 0], [0.0, 1.0], [0, 0]) == [1, 1, 0]
    assert report(scheduler, [], []) == [1, 1, 0]


def test_the_target_difficulty_moves_as_the_formula_says():
    scheduler = AdaptiveDifficulty(5, num_levels=11, nearest=3, target_score=0.4, step_size=0.5, sensitivity=2.0)
    ids = torch.arange(5)
    assert scheduler.rules().tolist() == [0, 1, 2, 0, 1]
    target = 0.0
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


def test_levels_run_through_the_tiers():
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


def test_each_tier_trades_the_first_symbols_of_the_market():
    config = CurriculumConfig(symbols=("A", "B", "C", "D"), thresholds={"portfolio": 0.7})
    assert [rules.symbols for rules in config.rules] == [
        ("A",),
        ("A",),
        ("A", "B", "C"),
        config.symbols,
        config.symbols,
    ]
    assert config.success_scores == (0.4, 0.4, 0.4, 0.7, 0.4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tiers": ("portfolio", "hard")}, r"unknown tier 'hard'; there are single_stock, .*full_autonomous"),
        ({"tiers": ("portfolio", "portfolio")}, "different and at least one, got portfolio, portfolio"),
        ({"scheduler": "random"}, "unknown scheduler 'random'; there are promotion, adaptive"),
        ({"score": "reward"}, "unknown score 'reward'; there are grade, regret"),
        ({"thresholds": {"hard": 0.4}}, "thresholds of hard, but the tiers are single_stock, "),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"nearest": 30}, "nearest must be at most num_levels 21, got 30"),
        ({"path_share": 1.5}, "path_share must be at most 1, got 1.5"),
        ({"demote_below": 0.9}, "demote_below 0.9 and promote_above 0.8 must be"),
        ({"grader": "kind"}, "unknown grader 'kind'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CurriculumConfig(**settings)


def test_without_a_driver_all_play_the_last_tier_and_with_one_they_start_at_the_first():
    env = make_env(3)
    assert env.state.rule.tolist() == [4, 4, 4]
    Driver(env)
    assert env.state.rule.tolist() == [0, 0, 0]
    assert (env.state.end_day - env.state.start_day).tolist() == [4, 4, 4]
    assert make_stock_env(1).scenario.schedule(1) is None


def test_symbols_that_are_not_the_tiers_show_zeros_and_cannot_be_traded():
    scheduler = Promotion(5, thresholds=[0.4] * 5)
    scheduler.tier.copy_(torch.arange(5))
    env = make_env(5)
    Driver(env, scheduler)
    width = 2 + len(TIER_FEATURES)
    shown = env.observe_rows(env.rows, torch.arange(5))[:, len(Account._fields) :][:, : 25 * width].view(5, 25, width)
    for row, name in enumerate(NAMES):
        own = len(TIERS[name].symbols)
        assert (shown[row, :own, 0] > 0).all() and not shown[row, own:].any(), name
    # BUY a tenth of the 25th symbol, then of the first.
    for symbol, valid in ((24, [False] * 4 + [True]), (0, [True] * 5)):
        order = torch.zeros(5, env.scenario.config.max_orders, 3)
        order[:, 0] = torch.tensor([float(Kind.BUY), symbol, 0.1])
        outcome = env.engine.bound().step(env.rows, order)
        info = env.engine.bound().info(outcome.rows)
        assert (info["invalid_actions"] == 0).tolist() == valid
        assert (outcome.rows.state.cash < env.state.cash).logical_or(outcome.rows.state.fills[:, 0] == 0).all()
        assert not outcome.rows.state.holdings[~torch.tensor(valid)].any()
    texts = TextDoor(env).render([0, 4])
    assert "INFY" not in texts[0].upper() and "RELIANCE" in texts[0] and "MARUTI" in texts[1]
    assert TextDoor(env).parse(["BUY MARUTI 0.1"] * 5, range(5))[1].tolist() == [False] * 4 + [True]


def test_one_tier_alone_is_padded_too():
    env = make_env(2, tiers=("single_stock",))
    assert env.scenario.config.symbols == TWENTY_FIVE
    assert env.scenario.owned(env.state[0], env.scenario.params).sum() == 1


def test_a_running_episode_keeps_its_tier_and_the_next_one_follows_the_new():
    env = make_env(3)
    driver = Driver(env)
    collector = FusedCollector(env, None, num_steps=3)
    collector.rollout()
    driver.scheduler.tier.copy_(torch.tensor([0, 2, 4]))
    nothing = torch.zeros(0, dtype=torch.int64)
    driver.update(env.rows_of(nothing)[0], nothing)
    collector.rollout()
    rows = collector.rows()
    assert rows.state.rule[0].eq(0).all() and rows.done[0].all(), "4 days, 3 of them before the promotion"
    assert rows.state.rule[1:].tolist() == [[0, 2, 4]] * 2
    assert (rows.state.end_day - rows.state.start_day)[-1].tolist() == [4, 5, 8]
    assert rows.state.start_value[-1].mul(env.scenario.tape.tick_size).tolist() == [100_000.0, 150_000.0, 500_000.0]


def test_a_run_of_high_grades_climbs_to_the_last_tier():
    env = make_env(4, window=1, thresholds={"portfolio": 0.45}, max_orders=4)
    history = play(env, Driver(env), rounds=19)
    climbed = [metrics["mean_tier"] for metrics in history]
    assert climbed == sorted(climbed) and climbed[2] == 0.0 and climbed[3] == 1.0 and climbed[-1] == 4.0
    assert history[3]["share_single_stock_costs"] == 1.0 and history[-1]["share_full_autonomous"] == 1.0
    assert history[3]["curriculum_score"] == pytest.approx(0.5, abs=0.05) and math.isnan(history[2]["curriculum_score"])
    assert len({tuple(metrics) for metrics in history}) == 1


@pytest.mark.parametrize(("action", "threshold"), [("weights", 0.2), ("limit_weights", 0.45)])
def test_random_actions_on_the_mixed_batch(action, threshold):
    thresholds = dict.fromkeys(NAMES, threshold)
    env = make_env(16, window=1, thresholds=thresholds, action=action, reward="grade_potential")
    driver = Driver(env)
    collector = FusedCollector(env, None, num_steps=7)
    rules = []
    for _ in range(4):
        collector.rollout()
        step, ids = collector.rows().done.nonzero(as_tuple=True)
        metrics = driver.update(collector.rows()[step, ids], ids)
        rules.append(env.scenario.params["rule"].tolist())
        assert collector.reward.isfinite().all() and collector.observation.isfinite().all()
        assert not collector.rows().state.totals[..., COMPONENTS.index("invalid")].any()
        assert [metrics[f"share_{name}"] for name in NAMES] == [rules[-1].count(tier) / 16 for tier in range(5)]
    assert len({*rules[0], *rules[1], *rules[2]}) > 1 and len(collector.rows().state.rule.unique()) > 1


def test_regret_is_what_hindsight_earned_more():
    env = make_env(6, score="regret")
    driver = Driver(env)
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
    metrics = driver.update(env.rows, torch.arange(6))
    assert metrics["curriculum_score"] == pytest.approx(-float(regret.mean()))


def test_days_before_a_listing_say_nothing_of_a_path_s_volatility():
    """The root mean square of the returns that there are: up and down by a tenth, in one symbol late and thrice."""
    wild = 1000 * 1.1 ** (torch.arange(9) % 2)
    late = torch.where(torch.arange(9) >= 5, wild, 0.0)
    close = torch.stack([torch.stack([wild, wild], dim=-1), torch.stack([wild, late], dim=-1)]).float()
    assert path_volatility(close).tolist() == pytest.approx([math.log(1.1)] * 2, rel=1e-5)


def test_harder_levels_draw_wilder_paths():
    env = make_env(200, scheduler="adaptive", num_levels=5, nearest=1, path_share=0.5)
    driver = Driver(env)
    volatility = path_volatility(market().price_ticks())
    for target in (0.0, 1.0):
        driver.load_state_dict({"target": torch.tensor(target)})
        env.reset(seed=1)
        env.set_seed(3)
        wanted = volatility.sort(descending=target == 1.0).indices[: NUM_PATHS // 2]
        assert set(env.state.path.tolist()) == set(wanted.tolist())
        assert env.state.rule.eq(4 * target).all()
    returns = market().ohlcv[..., 3].double().log().diff(dim=1)
    assert volatility == pytest.approx(returns.square().mean((1, 2)).sqrt(), rel=1e-3)


def test_an_adaptive_run_gets_harder_with_high_grades():
    env = make_env(4, scheduler="adaptive", num_levels=5, nearest=2, sensitivity=8.0)
    history = play(env, Driver(env), rounds=6)
    targets = [metrics["target_difficulty"] for metrics in history]
    assert targets[:3] == [0.0] * 3 and targets[3] == pytest.approx(0.5 * math.tanh(0.8), abs=0.05)
    assert env.scenario.params["rule"].unique().tolist() == [1, 2]
    assert sum(value for name, value in history[-1].items() if name.startswith("share_")) == 1.0


@pytest.mark.parametrize("settings", [{"window": 1}, {"scheduler": "adaptive", "num_levels": 5, "nearest": 2}])
def test_a_run_goes_on_from_its_state(settings):
    env, resumed = make_env(3, **settings), make_env(3, **settings)
    driver = Driver(env)
    play(env, driver, rounds=5)
    fresh = Driver(resumed)
    resumed.load_state_dict(env.state_dict())
    fresh.load_state_dict(driver.state_dict())
    assert torch.equal(env.scenario.params["rule"], resumed.scenario.params["rule"])
    first, second = play(env, driver, rounds=4), play(resumed, fresh, rounds=4)
    assert str(first) == str(second)
    assert torch.equal(env.state.portfolio_value, resumed.state.portfolio_value)
    assert float(first[-1].get("mean_tier", first[-1].get("target_difficulty"))) > 0


def test_a_market_of_one_path_has_nothing_to_choose():
    one = replace(
        market(), **{name: getattr(market(), name)[:1] for name in ("ohlcv", "tradable", "features", "context")}
    )
    scenario = Curriculum(one, CurriculumConfig(scheduler="adaptive", num_levels=3))
    assert VecEnv(scenario, 4, compiled=False).state.path.tolist() == [0] * 4
