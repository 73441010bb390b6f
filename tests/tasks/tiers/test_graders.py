"""Graders against their formulas, an episode's record day by day, and the law: nothing but skill raises a grade."""

import math
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vecenv
from tests.tasks.tiers.blind_agents import BLIND_AGENTS
from tests.tasks.tiers.random_tiers import random_orders, tier_tape
from vecenv.core.env import VecEnv
from vecenv.finance.metrics import independent_groups
from vecenv.learn.evaluation import Agent, evaluate
from vecenv.learn.intervals import Interval, bootstrap_interval
from vecenv.learn.report import evaluation_table, parts_table
from vecenv.market.feature_names import TIER_FEATURES
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.planted import planted_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.agents import AGENTS, orders_for, rule_column, shares_for
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE, TierConfig
from vecenv.tasks.tiers.graders import (
    GRADERS,
    EpisodeStatistics,
    calibrated,
    grade_function,
    seed_full,
    seed_portfolio,
    seed_single,
)
from vecenv.tasks.tiers.grading import episode_statistics
from vecenv.tasks.tiers.task import SINGLE_STOCK

# An ordinary episode, half invested for 20 days and ahead of buy-and-hold, and the bounds of what is drawn.
FIELDS = {
    "days": (20, 0, 40),
    "tier_days": (20, 1, 40),
    "total_return": (0.03, -0.2, 0.3),
    "mean_return": (0.0015, -0.02, 0.02),
    "deviation": (0.01, 1e-4, 0.05),
    "max_drawdown": (0.02, 0.0, 0.4),
    "num_trades": (6, 0, 320),
    "mistakes": (1, 0, 60),
    "rule_breaks": (0, 0, 60),
    "closed_days": (0, 0, 20),
    "respected_days": (0, 0, 20),
    "exposure": (0.5, 0.001, 1.2),
    "traded": (2.0, 0.0, 50.0),
    "max_exposure": (1.0, 0.1, 1.0),
    "costs": (0.002, 0.0, 0.003),
    "benchmark_return": (0.02, -0.2, 0.2),
    "benchmark_traded": (1.0, 0.0, 1.0),
    "oracle_return": (0.10, 0.0, 0.5),
    "oracle_exposure": (0.5, 0.0, 1.0),
    "periods_per_year": (252, 12, 365),
}


def record(**changes: float) -> EpisodeStatistics:
    numbers = {name: usual for name, (usual, _, _) in FIELDS.items()} | changes
    return EpisodeStatistics(**{name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()})


def drawn(count: int) -> EpisodeStatistics:
    """Draw episodes, some of which have only zeros where they may."""
    rng, numbers = np.random.default_rng(0), {}
    for name, (_, low, high) in FIELDS.items():
        whole = isinstance(high, int)
        numbers[name] = rng.integers(low, high + 1, count) if whole else rng.uniform(low, high, count)
        if name in ("deviation", "exposure", "closed_days", "mistakes", "rule_breaks", "num_trades"):
            numbers[name] = np.where(rng.random(count) < 0.2, 0, numbers[name])
    numbers["respected_days"] = np.minimum(numbers["respected_days"], numbers["closed_days"])
    return EpisodeStatistics(**{name: torch.from_numpy(column) for name, column in numbers.items()})


def bounded(x: float) -> float:
    return min(max(x, 0.001), 0.999)


def plain_sharpe_score(r: dict[str, float], flat: float) -> float:
    if r["deviation"] == 0:
        return flat
    return min(max((math.sqrt(r["periods_per_year"]) * r["mean_return"] / r["deviation"] + 1) / 4, 0), 1)


def plain_single(r: dict[str, float]) -> float:
    a, b = r["total_return"], r["benchmark_return"]
    if a <= -0.05:
        return 0.1
    if a <= 0:
        return bounded(0.2 + 2 * (a + 0.05))
    if b <= 0:
        return bounded(min(0.8, 0.5 + 3 * a))
    ratio = a / max(b, 0.001)
    if ratio >= 1.5:
        return bounded(0.8 + 0.2 * (ratio - 1.5))
    if ratio >= 1:
        return 0.6 + 0.4 * (ratio - 1)
    return 0.4 + 0.4 * (ratio - 0.5) if ratio >= 0.5 else 0.3 + 0.2 * ratio


def plain_portfolio(r: dict[str, float]) -> float:
    daily = r["num_trades"] / r["tier_days"]
    active = 0.3 if daily < 0.1 else 0.4 if daily > 5 else 0.8 + min(0.2, 0.05 * daily)
    return bounded(0.6 * plain_sharpe_score(r, 0.3) + 0.25 * max(0, 1 - 0.1 * r["mistakes"]) + 0.15 * active)


def plain_full(r: dict[str, float]) -> float:
    gain = min(max((r["total_return"] + 0.05) / 0.15, 0), 1)
    respect = r["respected_days"] / r["closed_days"] if r["closed_days"] else 1
    risk = (max(0, 1 - 0.05 * r["mistakes"]) + max(0, 1 - r["max_drawdown"] / 0.15)) / 2
    return bounded(0.35 * gain + 0.25 * plain_sharpe_score(r, 0.2) + 0.25 * respect + 0.15 * risk)


def plain_calibrated(r: dict[str, float]) -> float:
    if r["exposure"] == 0:
        return 0.0
    extra = max(0, 0.002 - r["costs"])
    a, b = r["total_return"] - extra * r["traded"], r["benchmark_return"] - extra * r["benchmark_traded"]
    up = max(r["oracle_return"] - b, 0.02)
    placed = min(1, 0.5 + 0.5 * (a - b) / up) if a >= b else max(0, 0.5 + (a - b) / up)
    taken = min(1, r["exposure"] / max(r["oracle_exposure"], 0.1 * r["max_exposure"]))
    return taken * placed * max(0.5, 1 - 0.02 * r["rule_breaks"])


PLAIN = {
    seed_single: plain_single,
    seed_portfolio: plain_portfolio,
    seed_full: plain_full,
    calibrated: plain_calibrated,
}


def test_grades_equal_the_formulas():
    episodes = drawn(2_000)
    rows = [dict(zip(FIELDS, row, strict=True)) for row in torch.stack([x.double() for x in episodes], -1).tolist()]
    for function, plain in PLAIN.items():
        grades = function(episodes)
        assert grades.dtype == torch.float64
        assert grades.tolist() == pytest.approx([plain(row) for row in rows], abs=1e-12), plain.__name__


def test_what_grades_promise():
    """No grade falls when the return rises, and the calibrated one obeys its laws."""
    episodes = drawn(2_000)
    better = episodes._replace(total_return=episodes.total_return + torch.rand(2_000).double() / 5)
    for function in (seed_single, seed_full, calibrated):
        assert (function(better) >= function(episodes) - 1e-12).all()
    grades = calibrated(episodes)
    assert (grades >= 0.0).all() and (grades <= 1.0).all()
    assert (calibrated(episodes._replace(exposure=torch.zeros(2_000))) == 0.0).all()
    assert (calibrated(episodes._replace(rule_breaks=episodes.rule_breaks + 1)) <= grades).all()
    assert (calibrated(episodes._replace(exposure=episodes.exposure + 0.1)) >= grades).all()
    # The same return from more trades is less.
    assert (calibrated(episodes._replace(traded=episodes.traded + 1.0)) <= grades).all()


E = 1e-9
# Gain and that of the benchmark; halves and quarters, so that the ratio is exact.
SINGLE = {
    0.1: [(-0.05 - E, 0.02), (-0.05, 0.02)],
    0.2: [(-0.05 + E, 0.02)],
    0.3: [(0.0, 0.02), (0.0, -0.02), (E, 0.02)],
    0.4: [(0.0625 - E, 0.125), (0.0625, 0.125), (0.0005, 1e-6)],
    0.5: [(E, 0.0), (E, -0.02)],
    0.6: [(0.125 - E, 0.125), (0.125, 0.125)],
    0.8: [(0.1, -0.02), (0.5, -0.02), (0.1875 - E, 0.125), (0.1875, 0.125)],
    0.9: [(0.125 * 2.0, 0.125)],
    0.999: [(0.125 * 2.75, 0.125)],
}


def test_thresholds_of_the_seed_grades():
    """Of one symbol by its gain and that of the benchmark; of several by the trades a day over the tier's own days."""
    for expected, pairs in SINGLE.items():
        for gain, benchmark in pairs:
            grade = seed_single(record(total_return=gain, benchmark_return=benchmark)).item()
            assert grade == pytest.approx(expected, abs=1e-7), (gain, benchmark)
    # Days gone do not matter: half an episode is graded over all of its 20 days.
    active = [(0, 0.3), (1, 0.3), (2, 0.8 + 0.05 * 0.1), (20, 0.85), (80, 1.0), (100, 1.0), (101, 0.4)]
    for trades, expected in active:
        grade = seed_portfolio(record(deviation=0.0, mistakes=10, num_trades=trades, days=10)).item()
        assert grade == pytest.approx(0.6 * 0.3 + 0.15 * expected, abs=1e-12)


def test_graders_are_found_by_name_and_kind():
    kinds = {"single": seed_single, "portfolio": seed_portfolio, "full": seed_full}
    assert {kind: grade_function("seed", kind) for kind in kinds} == kinds
    assert GRADERS["calibrated"].grades == dict.fromkeys(kinds, "calibrated")
    assert [grader.version for grader in GRADERS.values()] == [1, 1]
    with pytest.raises(ValueError, match=r"'sede'.*calibrated \(version 1\), seed \(version 1\)"):
        grade_function("sede", "single")
    with pytest.raises(ValueError, match=r"'seed'.*'double'.*single, portfolio, full"):
        grade_function("seed", "double")


# Rates that are powers of two, so that whole numbers tell costs exactly.
COMMISSION, SLIPPAGE = 1024, 512
DAYS, SYMBOLS, PER_DAY, SHARE = 9, 5, 2, 0.125
CONFIG = TierConfig(
    symbols=tuple(f"S{k}" for k in range(SYMBOLS)),
    days=DAYS,
    initial_cash=50_000.0,
    commission=1 / COMMISSION,
    slippage=1 / SLIPPAGE,
    max_trades=PER_DAY,
    max_position=SHARE,
    gate=True,
    action="orders",
)


def held(
    path: list[list[int]], bars: list[list[bool]], closed: list[bool], start: int, day: int, cash: int
) -> tuple[int, int]:
    """Return what buy-and-hold is worth at a day's close, and what it has bought for, both in ticks."""
    worth, traded, budget = cash, 0, int(SHARE * cash)
    queue, bought = list(range(SYMBOLS)), []
    for other in range(start, day):
        now = [symbol for symbol in queue if bars[other][symbol] and not closed[other]][:PER_DAY]
        bought += [(symbol, other) for symbol in now]
        queue = [symbol for symbol in queue if symbol not in now]
    for symbol, other in bought:
        price = path[other][symbol] + -(-path[other][symbol] // SLIPPAGE)
        shares = budget // price
        while shares * price - (-shares * price // COMMISSION) > budget:
            shares -= 1
        worth += shares * path[day][symbol] - shares * price + (-shares * price // COMMISSION)
        traded += shares * price
    return worth, traded


@pytest.mark.parametrize("seed", range(3))
def test_a_record_is_that_of_plain_numbers_on_every_day(seed):
    """Mean and deviation of the returns so far, and buy-and-hold that buys at a close and gains from the next on."""
    rng, num_envs = np.random.default_rng(seed), 12
    tape = tier_tape(rng, SYMBOLS, num_paths=2, highest=2_000_000)
    env = VecEnv(SINGLE_STOCK.build(tape, replace(CONFIG, dtype="float64")), num_envs, seed, "cpu", False)
    scenario, closes = env.scenario, tape.price_ticks().long().tolist()
    bars = tape.tradable.tolist()
    closed = (scenario.shared["breadth"][:, 0] > 0).view(2, -1).tolist()
    assert any(map(any, closed)) and not all(map(all, closed))
    values = [env.state.portfolio_value.tolist()]
    for elapsed in range(DAYS + 1):
        state = env.state
        record = env.engine.bound().mapped(
            lambda state, params, market: episode_statistics(scenario, state, params, market, scenario.references),
            state,
        )
        for row, (path, start) in enumerate(zip(state.path.tolist(), state.start_day.tolist(), strict=True)):
            first = values[0][row]
            returns = [after[row] / before[row] - 1 for before, after in pairwise(values)]
            worth, traded = held(closes[path], bars[path], closed[path], start, start + elapsed, int(first))
            expected = {
                "days": elapsed,
                "tier_days": DAYS,
                "total_return": values[-1][row] / first - 1,
                "mean_return": statistics.fmean(returns) if returns else 0.0,
                "deviation": statistics.stdev(returns) if elapsed > 1 else 0.0,
                "costs": 1 / COMMISSION + 1 / SLIPPAGE,
                "benchmark_return": worth / first - 1,
                "benchmark_traded": traded / first,
            }
            found = {name: float(getattr(record, name)[row]) for name in expected}
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-10), (row, elapsed)
        if elapsed < DAYS:
            env.advance(torch.from_numpy(random_orders(rng, num_envs, CONFIG.max_orders, num_symbols=SYMBOLS)))
            values.append(env.state.portfolio_value.tolist())
    assert bool(env.rows.done.all())


NUM_EPISODES = 200


class FollowSignal:
    """Buys up to the limits on a positive signal, and sells all on a negative one. Shape of it: (P, T, K)."""

    def __init__(self, signal: Tensor) -> None:
        self.signal = signal

    def act(self, env: VecEnv) -> Tensor:
        held, shown = env.state.holdings.double(), self.signal[env.state.path, env.state.day]
        wanted = shares_for(env, rule_column(env, "max_position") * env.state.portfolio_value.unsqueeze(-1))
        return orders_for(env, torch.where(shown < 0, -held, torch.where(held > 0, 0.0, wanted)))


class Grades:
    """Calibrated grades of agents that played the same episodes, and intervals of their means."""

    def __init__(self, tape: MarketTape, task: str, agents: dict[str, Callable[[], Agent]]) -> None:
        config = replace(TIERS[task], action="orders")
        env = VecEnv(SINGLE_STOCK.build(tape, config), NUM_EPISODES, compiled=False)
        played = evaluate(env, {name: make() for name, make in agents.items()})
        self.groups = independent_groups(played.traded.path, played.traded.start_day, config.days)[0]
        self.of = {name: record.grades["calibrated"] for name, record in played.records.items()}

    def mean(self, name: str) -> float:
        return float(self.of[name].mean())

    def lead(self, name: str, other: str) -> Interval:
        """Return the interval of the mean difference between two agents' grades."""
        return bootstrap_interval(self.of[name] - self.of[other], self.groups)


@cache
def real_tape() -> MarketTape:
    path = Path(os.environ["VECENV_DATA"]) / "india_nifty109.parquet"
    return load_market(path, MarketOptions(symbols=TWENTY_FIVE, end="2021-12-31", features=TIER_FEATURES))


@pytest.mark.nightly
@pytest.mark.realdata
@pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set")
@pytest.mark.parametrize("task", TIERS)
def test_the_law_holds_on_real_prices(task):
    grades = Grades(real_tape(), task, AGENTS | BLIND_AGENTS)
    assert grades.mean("hold") <= 0.10 and grades.mean("invalid") <= 0.10
    assert grades.mean("random") <= 0.35
    assert grades.lead("buy_and_hold", "random").low >= 0.10
    assert 0.45 <= grades.mean("buy_and_hold") <= 0.55
    assert grades.mean("oracle") >= 0.90
    for name in BLIND_AGENTS:
        assert grades.lead(name, "buy_and_hold").low <= 0.0, name


def planted_grades(task: str, strength: float) -> Grades:
    bars = planted_bars(num_paths=16, num_days=320, symbols=TIERS[task].symbols, strength=strength)
    tape = MarketTape.from_bars(bars, features=TIER_FEATURES)
    signal = bars.columns["signal"]
    return Grades(tape, task, {"signal": lambda: FollowSignal(signal), "buy_and_hold": AGENTS["buy_and_hold"]})


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=() if task == "multi_stock_3" else pytest.mark.nightly) for task in TIERS]
)
def test_who_uses_a_planted_signal_stands_above_buy_and_hold_and_who_follows_noise_does_not(task):
    grades = planted_grades(task, strength=0.01)
    signal, held = (bootstrap_interval(grades.of[name], grades.groups) for name in ("signal", "buy_and_hold"))
    assert signal.low > held.high
    assert grades.lead("signal", "buy_and_hold").low > 0.0
    noise = planted_grades(task, strength=0.0)
    if TIERS[task].commission:
        assert noise.lead("signal", "buy_and_hold").high < 0.0


def test_the_parts_of_a_calibrated_grade_are_its_factors_and_stand_in_a_table_of_their_own():
    market = {"num_paths": 2, "num_days": 330}
    env = vecenv.make("multi_stock_3", 16, action="orders", days=3, market_options=market, compile=False)
    told = evaluate(env, {name: AGENTS[name]() for name in ("random", "hold")})
    for record in told.records.values():
        product = torch.stack(list(record.grade_parts.values())).prod(0)
        torch.testing.assert_close(product, record.grades["calibrated"])
    table, means = parts_table(told), told.to_json()["agents"]["random"]["grade_parts"]
    assert [column.header for column in table.columns] == ["Agent", "Participation", "Position", "Discipline"]
    assert [next(iter(column.cells)) for column in table.columns][1:] == [f"{mean:.3f}" for mean in means.values()]
    assert "0.5 at buy and hold's" in evaluation_table(told).caption
