"""Grades of programs are those of the same rules played in environments, on any paths, with their standard errors."""

import math
import statistics
from dataclasses import replace
from functools import partial

import pytest
import torch

import vecenv
from vecenv import Episode, make_interaction
from vecenv.finance.metrics import episode_metrics
from vecenv.learn.evaluation import evaluate
from vecenv.market.bars import CLOSE
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.programs.drawing import random_programs
from vecenv.programs.graph import Graph
from vecenv.programs.native import machine
from vecenv.programs.parsing import parsed
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.programs import PROGRAMS
from vecenv.tasks.strategy.accounts import played_natively
from vecenv.tasks.strategy.grading import Grader, Grades, played_by_law

TAPE = MarketTape.from_bars(synthetic_bars(4, 90, ("A", "B", "C"), seed=3))
DAYS = 6
TREND = "weight = 0.1 if close > mean(close, bars=3) and gain > -0.01 else held / 2"


def read(config, *texts):
    return [parsed(text, PROGRAMS.vocabulary(config)) for text in texts]


class Trend:
    """The rule `TREND` by hand."""

    def act(self, env):
        state, tape = env.state, env.scenario.tape
        close = [tape.ohlcv[..., CLOSE][state.path, state.day - ago] for ago in (2, 1, 0)]
        mean = (sum(day.double() for day in close) / 3).float()
        gain = (state.portfolio_value.double() / state.start_value.double() - 1).float().unsqueeze(-1)
        value = (state.portfolio_value.double() * tape.tick_size).unsqueeze(-1)
        worth = state.holdings.double() * close[-1].double() / value
        return torch.where((close[-1] > mean) & (gain > -0.01), 0.1, worth.float() / 2)


def check_equal(grades, record):
    """Check what programs made against the record of an agent that played them all, a program's paths together."""
    metrics, shape = episode_metrics(record.curves), grades.grade.shape
    assert torch.equal(grades.grade, record.grades["grade"].view(shape))
    assert torch.equal(grades.total_return, record.outcomes["total_return"].view(shape))
    assert torch.allclose(grades.drawdown, metrics["max_drawdown"].view(shape), rtol=0, atol=1e-12)
    assert torch.allclose(grades.turnover, metrics["turnover"].view(shape), rtol=1e-9)


def test_a_program_is_graded_as_an_agent_by_hand_that_is_evaluated():
    config = StockTradingConfig(action="weights", episode_length=DAYS, random_start=False)
    env = vecenv.make("stock_trading", TAPE.num_paths, market=TAPE, config=config, compile=False)
    grades = Grader("stock_trading", config, TAPE).grades(read(config, TREND))
    check_equal(grades, evaluate(env, {"trend": Trend()}).records["trend"])
    assert len(grades.grade.unique()) == TAPE.num_paths and grades.turnover.min() > 0


@pytest.mark.parametrize(
    ("rules", "texts"),
    [
        ({"action": "weights", "fill": "next_open", "slippage": 0.002}, (TREND, "weight = 0.5", "weight = 0 * held")),
        ({"action": "weights", "whole_shares": False, "dead_zone": 0.01}, (TREND, "weight = 1 / plain(bars_left)")),
        ({"action": "tilt", "benchmark": "buy_and_hold"}, ("tilt = macd / close * 30", "tilt = plain(gain)")),
        ({"action": "shares", "initial_holdings": 5.0, "stop_loss": 0.001}, ("order = holdings - 20", "order = 90")),
        (
            {"action": "shares", "shorting": True, "borrow_rate": 0.1},
            ("most = param(-70, 'shares')\norder = most * rank(close)",),
        ),
        ({"action": "shares", "hmax": 5e4, "shorting": True, "ruin_fraction": 0.999}, ("order = -2e4", "order = 9e4")),
        (
            {"action": "shares", "rationing": "by_size", "initial_cash": 2e3},
            ("one = param(1, 'shares')\norder = one * plain(close) / 2",),
        ),
    ],
)
def test_many_programs_are_graded_as_they_play_in_an_environment(rules, texts):
    config = StockTradingConfig(episode_length=DAYS, random_start=False, **rules)
    programs = read(config, *texts)
    env = vecenv.make("stock_trading", 4 * len(texts), market=TAPE, config=config, compile=False)
    record = evaluate(env, {"programs": PROGRAMS.agent(programs)}).records["programs"]
    grader = Grader("stock_trading", config, TAPE)
    grades = grader.grades(programs)
    check_equal(grades, record)
    if "ruin_fraction" in rules:
        assert record.length.min() == 1 and record.length.max() > 4
    alone = grader.grades(programs[-1:], torch.tensor([2, 0]))
    assert torch.equal(alone.grade, grades.grade[-1:, [2, 0]])
    assert torch.equal(alone.turnover, grades.turnover[-1:, [2, 0]])


def gappy(num_paths, symbols, seed=5):
    """Return a market in which symbols are suspended now and then, and one is worth nothing from some day on."""
    tape = MarketTape.from_bars(synthetic_bars(num_paths, 84, symbols, seed=seed))
    draw = torch.Generator().manual_seed(seed)
    tradable = tape.tradable & (torch.rand(tape.tradable.shape, generator=draw) > 0.1)
    ohlcv = tape.ohlcv.clone()
    ohlcv[::3, 78:, 0, :4] = 0.0
    return replace(tape, tradable=tradable, ohlcv=ohlcv)


@pytest.mark.parametrize(
    ("rules", "hostile"),
    [
        ({}, "weight = close / (close - lag(close, bars=1)) - 0.2"),
        ({"fill": "next_open", "slippage": 0.003, "dead_zone": 0.02}, "weight = 1e38 * plain(volume)"),
        ({"commission": (0.0, 0.01, 0.3), "initial_cash": 700.0}, "weight = lag(rsi_30, bars=70)"),
        ({"initial_holdings": (0.0, 3e4, 2e6), "ruin_fraction": 0.99, "commission": 0.4}, "weight = 1 / held"),
        (
            {"action": "shares", "hmax": 250.0, "dead_zone": 0.1, "slippage": 0.01},
            "order = volume * 1e38 * plain(close - lag(close, bars=1))",
        ),
        ({"action": "shares", "fill": "next_open", "initial_cash": 5e3}, "order = holdings * plain(gain) * 1e5"),
        ({"action": "shares", "initial_holdings": 4.0, "ruin_fraction": 0.999}, "order = lag(volume, bars=72)"),
    ],
)
def test_accounts_in_cpp_are_those_of_the_law(rules, hostile):
    if machine() is None:
        pytest.skip("no C++ compiler")
    config = StockTradingConfig(**{"action": "weights", "episode_length": DAYS, **rules})
    tape, vocabulary = gappy(67, ("A", "B", "C")), PROGRAMS.vocabulary(config)
    programs = [*random_programs(vocabulary, 20, seed=len(hostile)), parsed(hostile, vocabulary)]
    days = torch.randint(60, 84 - 1 - DAYS, (67,), generator=torch.Generator().manual_seed(1))
    native, law = (Grader("stock_trading", config, tape, native) for native in (True, False))
    assert native.native and not law.native
    ours, theirs = (grader.grades(programs, torch.arange(67).flip(0), days) for grader in (native, law))
    for name in ("grade", "total_return", "drawdown", "turnover", "refusals"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.refusals.unique().numel() > 2 and len(ours.grade.unique()) > 67


@pytest.mark.parametrize("native", [True, False])
def test_what_comes_later_changes_nothing_before(native):
    config = StockTradingConfig(action="weights", episode_length=8)
    bars, seen = synthetic_bars(6, 100, ("A", "B", "C"), seed=2), 92 - 5
    ohlcv = bars.ohlcv.clone()
    ohlcv[:, seen + 1 :] *= 0.5 + torch.rand(6, 100 - seen - 1, 3, 1, generator=torch.Generator().manual_seed(0))
    programs = random_programs(PROGRAMS.vocabulary(config), 60, seed=4, past=0.3)
    paths, days = torch.arange(6), torch.full((6,), seen - 3)
    play, played = played_natively if native else partial(played_by_law, PROGRAMS), []
    for market in (bars, replace(bars, ohlcv=ohlcv)):
        grader = Grader("stock_trading", config, MarketTape.from_bars(market))
        played.append(play(grader.scenario, programs, paths, days, grader.opened(paths, days)))
    before, after = played
    # Three days and the orders of the fourth, at the close of the last day that is alike.
    assert torch.equal(before.value[:4], after.value[:4]) and torch.equal(before.traded[:4], after.traded[:4])
    assert (before.value[4] != after.value[4]).any(1).sum() > 20 and (before.traded[3] > 0).any(1).sum() > 10


def test_episodes_start_on_any_day_and_know_what_came_before():
    config = StockTradingConfig(action="weights", episode_length=DAYS)
    program, days = read(config, "weight = 0.5 if close > mean(close, bars=30) else 0"), torch.tensor([80, 79, 83, 80])
    grades = Grader("stock_trading", config, TAPE).grades(program, torch.tensor([1, 1, 3, 0]), days)
    later = Grader("stock_trading", config, TAPE.days(10, 90)).grades(program, torch.tensor([1, 1, 3, 0]), days - 10)
    assert torch.equal(grades.grade, later.grade) and torch.equal(grades.turnover, later.turnover)
    assert len(grades.grade.unique()) > 2


def test_refusals_are_entries_without_a_number_and_days_without_cash():
    config = StockTradingConfig(action="shares", episode_length=DAYS, initial_cash=1e3)
    texts = ("order = mean(volume, bars=88)", "order = 90", "order = -10")
    grades = Grader("stock_trading", config, TAPE).grades(read(config, *texts))
    nan, poor, idle = grades.refusals.tolist()
    assert set(nan) == {3 * DAYS} and set(poor) == {DAYS} and set(idle) == {0}


def test_the_standard_error_counts_paths_and_not_episodes():
    grade = torch.rand(3, 40, generator=torch.Generator().manual_seed(0))
    other = torch.zeros(3, 40, dtype=torch.float64)

    def of(grade, groups):
        return Grades(grade, other, other, other, other.long(), groups)

    once = of(grade, torch.arange(40))
    assert torch.allclose(once.mean, grade.double().mean(1))
    assert torch.allclose(once.standard_error, grade.double().std(1) / math.sqrt(40))
    twice = of(grade.repeat(1, 2), torch.arange(40).repeat(2))
    assert torch.allclose(twice.standard_error, once.standard_error)
    assert of(grade, torch.zeros(40, dtype=torch.int64)).standard_error.isnan().all()


@pytest.mark.nightly
def test_standard_errors_cover_the_grade_on_fresh_paths():
    count, batch, days = 1000, 50, 63
    config = StockTradingConfig(features=("momentum_10", "rsi_14"), action="weights", episode_length=days)

    def grader_of(num_paths, seed):
        options = MarketOptions(features=config.features, symbols=5, num_paths=num_paths, num_days=100, seed=seed)
        return Grader("stock_trading", config, load_market("planted", options, torch.device("cpu")))

    # Whose windows are full on the first day.
    drawn = random_programs(PROGRAMS.vocabulary(config), 2 * count, seed=0)
    programs = [program for program in drawn if Graph([program]).history() <= 36][:count]
    start, fresh = 99 - days, grader_of(2**14, 0)
    everywhere = torch.full((2**14,), start)
    wanted = fresh.grades(programs, days=everywhere).mean
    errors = []
    for first in range(0, count, batch):
        # Every program has paths of its own: those of one market would err together.
        pool = grader_of(256 * batch, 1 + first).grades
        own = [
            pool([programs[first + n]], torch.arange(256 * n, 256 * n + 256), everywhere[:256]) for n in range(batch)
        ]
        errors += [float((grades.mean - wanted[first + n]) / grades.standard_error) for n, grades in enumerate(own)]
    covered = sum(abs(error) <= 1.96 for error in errors) / count
    print(f"{covered:.1%} covered; mean {statistics.mean(errors):.3f}, deviation {statistics.stdev(errors):.3f}")
    assert 0.93 <= covered <= 0.97


def test_what_is_not_on_the_tape_is_refused():
    config = StockTradingConfig(action="weights", episode_length=DAYS)
    grader, program = Grader("stock_trading", config, TAPE), read(config, TREND)
    with pytest.raises(ValueError, match="there must be a program to grade"):
        grader.grades([])
    with pytest.raises(ValueError, match="read for other rules"):
        grader.grades(read(StockTradingConfig(action="tilt"), "tilt = 0"))
    with pytest.raises(ValueError, match=r"paths must be in \[0, 3\], got 1 to 4"):
        grader.grades(program, torch.tensor([1, 4]))
    with pytest.raises(ValueError, match=r"days must be in \[\d+, 83\], got 84 to 84"):
        grader.grades(program, torch.tensor([1]), torch.tensor([84]))
    with pytest.raises(ValueError, match="days must be a vector of int64, one for each path"):
        grader.grades(program, torch.tensor([1, 2]), torch.tensor([80]))


def test_roundings_of_fractional_shares_are_no_refusals():
    """A constant weight buys with all the cash that there is, day by day; orders beyond it are cut."""
    small = {"num_paths": 8, "num_days": 64, "days": 6, "paths": 4, "features": ("daily_change",)}
    world = make_interaction("strategy", 1, **small, whole_shares=False)
    (even,) = world.grades(Episode(0, 0), [world.read("weight = 0.3")]).refusals.tolist()
    orders = make_interaction("strategy", 1, **small, whole_shares=False, action="shares")
    (beyond,) = orders.grades(Episode(0, 0), [orders.read("order = 9000")]).refusals.tolist()
    assert even == [0] * 4 and min(beyond) >= 4
