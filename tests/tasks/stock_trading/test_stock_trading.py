"""The stock-trading task: conservation of money, grades, observations by symbol, and refused settings."""

import math
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch

import vecenv
from tests.small_env import random_actions, small_tape
from tests.tasks.tiers.random_markets import random_tape
from vecenv.core.capabilities import Referencing
from vecenv.core.engine import Engine
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, leaves, with_leaves
from vecenv.finance.metrics import episode_metrics
from vecenv.learn.evaluation import evaluate
from vecenv.market.bars import CLOSE, OPEN
from vecenv.market.feature_names import FINRL_INDICATORS
from vecenv.market.indicators import INDICATORS
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.registry import make
from vecenv.tasks.stock_trading.agents import BuyAndHold
from vecenv.tasks.stock_trading.scenario import MAX_CASH_TICKS, StockTrading, StockTradingConfig
from vecenv.tasks.stock_trading.task import STOCK_TRADING

NUM_ENVS, NUM_SYMBOLS, DAYS = 24, 4, 30


@pytest.fixture(scope="module")
def tape():
    """Jumps between 0.01 and 700, with gaps."""
    return random_tape(np.random.default_rng(3), DAYS + 1, NUM_SYMBOLS)


def bound_for(tape, num_envs=NUM_ENVS, **overrides):
    config = {"features": tape.feature_names, "episode_length": DAYS, "random_start": False} | overrides
    return Engine(StockTrading(tape, StockTradingConfig(**config)), num_envs).bound()


def start(bound, num_envs=NUM_ENVS) -> Rows:
    ids = torch.arange(num_envs)
    return bound.start(torch.tensor(1), ids, torch.zeros_like(ids))


RULES = {
    "by size": {"initial_cash": 30_000.0, "rationing": "by_size", "slippage": 0.0005},
    "gate and stop-loss": {"gate": "turbulence", "gate_threshold": 150.0, "stop_loss": 0.1, "rationing": "by_size"},
    "costs per symbol": {"commission": (0.0, 0.001, 0.02, 0.3), "slippage": (0.001, 0.0, 0.0, 0.5)},
    "next open, weights": {"fill": "next_open", "action": "weights", "stop_loss": 0.05},
    "large orders": {"hmax": 5_000.0, "initial_cash": 1_000_000.0, "initial_holdings": (9_000.0, 0.0, 1.0, 5.0)},
    "shorts": {"shorting": True, "borrow_rate": 0.3, "initial_cash": 50_000.0},
    "shorts at the next open": {"shorting": True, "fill": "next_open", "slippage": 0.001, "rationing": "by_size"},
}


@pytest.mark.parametrize("name", RULES)
def test_an_account_adds_up_to_the_tick(tape, name):
    """Change of value = market profit - costs, in integers, on every day; no debt and nothing sold short.

    The market profit is taken from the tape: what was held before the orders from the close to the fill, what was
    held after them from the fill to the next close.
    """
    rules = RULES[name]
    bound = bound_for(tape, **rules)
    rows, close, open_ = start(bound), *(tape.price_ticks(column)[0].long() for column in (CLOSE, OPEN))
    paid, opened = torch.zeros(NUM_ENVS, dtype=torch.int64), 0
    for day, action in enumerate(random_actions(DAYS, NUM_ENVS, NUM_SYMBOLS, seed=2)):
        before = rows.state
        rows = bound.step(rows, action).rows
        after = rows.state
        assert after.cash.dtype == torch.int64 and torch.equal(after.holdings, after.holdings.trunc())
        fill = open_[day + 1] if rules.get("fill") == "next_open" else close[day]
        profit = (before.holdings.long() * (fill - close[day])).sum(-1)
        profit += (after.holdings.long() * (close[day + 1] - fill)).sum(-1)
        assert torch.equal(after.portfolio_value - before.portfolio_value, profit - after.costs), f"on day {day}"
        assert (after.costs >= 0).all() and (after.traded >= 0).all()
        paid += after.costs
        if "shorting" not in rules:
            assert (after.cash >= 0).all() and (after.holdings >= 0).all(), f"on day {day}"
        elif name == "shorts":
            # Whoever opens a short has the margin of all of them in cash; the commission is rounded up after that.
            opening = (after.holdings < before.holdings.clamp(max=0)).any(-1)
            shorts = (after.holdings.clamp(max=0).neg().long() * close[day]).sum(-1)
            assert ((after.cash + 1) * 2 >= 3 * shorts)[opening].all(), f"on day {day}"
            opened += int(opening.sum())
    assert (paid > 0).all() and (opened > NUM_ENVS or name != "shorts")


def market_of(after: list[float], tradable: torch.Tensor | None = None) -> MarketTape:
    """Return three symbols whose closes are 100 on the first day and stay at other prices after it."""
    tape, close = small_tape(), torch.full((1, 40, 3), 100.0)
    close[:, 1:] = torch.tensor(after)
    ohlcv = close[..., None].expand(-1, -1, -1, 5).contiguous()
    return replace(tape, ohlcv=ohlcv, tradable=torch.ones_like(tape.tradable) if tradable is None else tradable)


def test_buy_and_hold_of_equal_weights_is_graded_one_half():
    """An account that does exactly that is level with itself; a tenth more, in logarithms, is graded 0.73."""
    rules = {"episode_length": 30, "initial_holdings": 1_000.0, "initial_cash": 0.01}
    bound = bound_for(market_of([110.0, 90.0, 130.0]), 2, **rules)
    rows = bound.step(start(bound, 2), torch.zeros(2, 3)).rows
    assert bound.grade(rows) == pytest.approx([0.5, 0.5], abs=1e-4)
    ahead = with_leaves(rows, leaves(rows))
    value = rows.state.portfolio_value * torch.tensor([0.1, -0.1], dtype=torch.float64).exp()
    ahead.state = rows.state.replace(portfolio_value=value.round().long())
    torch.testing.assert_close(bound.grade(ahead), torch.sigmoid(torch.tensor([1.0, -1.0])), atol=1e-3, rtol=0)
    # Symbols that trade later are no part of it, and those that no longer trade still are; without any it is cash.
    tradable = torch.ones(1, 40, 3, dtype=torch.bool)
    tradable[:, 0, 2] = tradable[:, 1:, 1] = False
    for first in (tradable[:, :1], torch.zeros_like(tradable[:, :1])):
        tape = market_of([110.0, 90.0, 150.0], torch.cat([first, tradable[:, 1:]], dim=1))
        bound = bound_for(tape, 1, episode_length=30)
        rows = bound.step(start(bound, 1), torch.zeros(1, 3)).rows
        assert bound.grade(rows).item() == pytest.approx(0.5, abs=1e-6)


def test_starts_and_lengths_are_drawn_from_the_warm_up_to_the_end_of_the_data():
    """Every start and length that fits, each as often as another; fixed starts take the row's own path."""
    tape = replace(small_tape(), first_day=17)
    state = start(bound_for(tape, 4_000, random_start=True, episode_length=9, min_episode_length=7), 4_000).state
    length, chance = state.end_day - state.start_day, state.start_day.bincount()
    assert sorted(set(length.tolist())) == [7, 8, 9] and (length.bincount()[7:] / 4_000 - 1 / 3).abs().max() < 0.03
    assert (int(state.start_day.min()), int(state.end_day.max())) == (17, 39)
    # Of 9 days the last start is day 30; 14 starts are as likely, and a shorter episode may begin later.
    nine = state.start_day[length == 9].bincount()[17:]
    assert len(nine) == 14 and (nine / nine.sum() - 1 / 14).abs().max() < 0.03 and int(chance[:17].sum()) == 0
    longer = start(bound_for(tape, 400, random_start=True, episode_length=1_000, min_episode_length=10), 400).state
    assert longer.end_day.max() == 39 and (longer.end_day > longer.start_day).all()
    names = ("ohlcv", "tradable", "features", "context")
    paths = replace(tape, **{name: getattr(tape, name).repeat_interleave(3, 0) for name in names})
    fixed = start(bound_for(paths, 7, episode_length=5), 7).state
    assert fixed.path.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert fixed.day.tolist() == [17] * 7 and fixed.end_day.tolist() == [22] * 7


def test_settings_that_cannot_be_are_refused_and_those_at_their_bounds_are_not():
    """No cost, an episode of all days but one, and the most cash that is exact."""
    for rules, message in (
        ({"initial_cash": 0.0}, "initial_cash must be positive"),
        ({"hmax": float("nan")}, "hmax must be positive"),
        ({"dead_zone": -0.1}, "dead_zone must not be negative"),
        ({"initial_margin": -0.1}, "initial_margin must not be negative"),
        ({"commission": 1.0}, r"commission must be in \[0, 1\)"),
        ({"slippage": (0.1, -0.1, 0.0)}, r"slippage\[1\] must be in \[0, 1\)"),
        ({"slippage": (0.1, 0.5, 0.0), "commission": 0.5}, "together must be below 1"),
        ({"benchmark_cash": 0.51}, r"benchmark_cash must be in \[0, 0.5\]"),
        ({"min_episode_length": 31}, r"min_episode_length must be at most episode_length \(30\)"),
        ({"commission": (0.1, 0.1)}, "commission has 2 numbers for 3 symbols"),
        ({"initial_holdings": (1.0, -1.0, 0.0)}, "initial_holdings must not be negative"),
        ({"gate": "vix"}, "no series 'vix' for the gate"),
        ({"episode_length": 40}, "40 days are fewer than the warm-up of 0 days plus an episode of 40 days"),
        ({"initial_cash": MAX_CASH_TICKS * 1e-4}, r"exact accounts need fewer than 2\^37"),
    ):
        with pytest.raises(ValueError, match=message):
            bound_for(small_tape(), **({"episode_length": 30} | rules))
    cash = (MAX_CASH_TICKS - 1) * 1e-4
    bound = bound_for(small_tape(), 1, episode_length=39, initial_cash=cash, benchmark_cash=0.5, commission=0.0)
    assert start(bound, 1).state.cash.item() == int(np.floor(cash / 1e-4))


def test_parameters_of_rows_have_the_bounds_of_their_settings():
    for name, value, other, told in (
        ("initial_cash", -1.0, 1.0, "initial_cash must be positive, got -1"),
        ("commission", math.inf, 0.0, r"commission must be in \[0, 1\), got inf"),
        ("hmax", math.nan, 1.0, "parameter 'hmax' must be numbers, got nan"),
        ("episode_length", 0, 9, "episode_length must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=told):
            make("stock_trading", 2, compile=False, params={name: torch.tensor([value, other])})


def test_settings_without_effect_are_told_with_what_they_need():
    everything = {
        "hmax": "action shares", "benchmark_cash": "action tilt", "tilt_gain": "action tilt",
        "benchmark": "action tilt or reward excess_log_return", "gate_threshold": "a gate",
        "initial_margin": "shorting", "maintenance_margin": "shorting", "borrow_rate": "shorting",
        "sharpe_decay": "reward differential_sharpe", "risk_aversion": "reward risk_penalised",
        "cash_penalty_weight": "a min_cash_fraction above 0",
    }  # fmt: skip
    assert StockTradingConfig(action="weights").inapplicable() == everything
    rules = {"gate": "vix", "shorting": True, "min_cash_fraction": 0.1}
    used = ({"reward": "differential_sharpe"}, {"reward": "risk_penalised"}, {"reward": "excess_log_return"})
    left = [set(StockTradingConfig(**rules, **more).inapplicable()) for more in used]
    tilts = {"benchmark_cash", "tilt_gain"}
    assert left == [
        tilts | {"benchmark", "risk_aversion"}, tilts | {"benchmark", "sharpe_decay"},
        tilts | {"sharpe_decay", "risk_aversion"},
    ]  # fmt: skip
    assert set(StockTradingConfig(**rules, action="tilt").inapplicable()) == {"hmax", "sharpe_decay", "risk_aversion"}


def test_the_record_shortens_smooths_and_compares_rules_and_refuses_other_actions():
    config = StockTradingConfig(episode_length=30, min_episode_length=5, dead_zone=0.1)
    assert STOCK_TRADING.domain.compared(config) == replace(config, min_episode_length=0)
    assert STOCK_TRADING.domain.shortened(config, 30) == config
    assert STOCK_TRADING.domain.shortened(config, 29) == replace(config, episode_length=29)
    assert STOCK_TRADING.domain.shortened(config, 4) == replace(config, episode_length=4, min_episode_length=4)
    assert STOCK_TRADING.domain.smooth(config) == replace(config, whole_shares=False, dead_zone=0.0)
    STOCK_TRADING.domain.check_trained({"action": "shares"}, config)
    with pytest.raises(ValueError, match="trained on actions 'weights', not 'shares'"):
        STOCK_TRADING.domain.check_trained({"action": "weights"}, config)


FIXED_SCALES = {"cash_scale": 1e-6, "price_scale": 1e-2, "holdings_scale": 1e-3, "feature_scale": 1e-2}


@pytest.mark.parametrize("scales", [FIXED_SCALES, {}])
def test_weights_and_cash_are_shares_of_the_account_and_features_know_no_unit_of_prices(scales):
    """With all prices and the account ten times as large every indicator is the same."""
    bars, names = synthetic_bars(2, 260, 3, seed=5), [name for name in INDICATORS if not name.endswith("_state")]
    played, rules = [], {"action": "weights", "whole_shares": False, "dtype": "float64", "commission": 0.0}
    rules |= scales
    for scale in (1.0, 10.0):
        ohlcv = bars.ohlcv * torch.tensor([scale] * 4 + [1.0], dtype=torch.float64)
        rules |= {"initial_cash": 1e5 * scale, "features": tuple(names), "episode_length": 20}
        tape = MarketTape.from_bars(replace(bars, ohlcv=ohlcv), names, tick_size=1e-4)
        env = vecenv.make("stock_trading", 4, market=tape, compile=False, **rules)
        env.advance(torch.tensor([[0.5, 0.25, 0.0]] * 4))
        played.append(env.scenario.items(env.observations()))
        price = tape.ohlcv[env.state.path, env.state.day][..., 3].double()
        value = env.info()["portfolio_value"].unsqueeze(-1)
        weight = (3 * env.state.holdings * price / value).float()
        torch.testing.assert_close(played[-1].features[..., -1], weight, rtol=1e-4, atol=1e-5)
        share = env.info()["cash"].unsqueeze(-1) / value
        torch.testing.assert_close(played[-1].shared, share.float(), rtol=1e-4, atol=1e-5)
        assert float(weight.max()) > 1.0 and env.scenario.item_features == (*names, "weight")
    plain, scaled = (items.features.flatten(0, 1) for items in played)
    assert ((scaled - plain).abs() <= 2e-3 * (plain.abs() + plain.abs().amax(0))).all(0).tolist() == [True] * 29


def test_symbols_are_not_told_apart_by_amounts_in_different_units():
    for given in ({"price_scale": 1e-2}, {"feature_scale": 1e-2}):
        env = vecenv.make("stock_trading", 2, market="synthetic", compile=False, **given)
        with pytest.raises(ValueError, match="all of cash_scale, price_scale, holdings_scale, feature_scale, or none"):
            env.scenario.items(env.observations())


@pytest.mark.parametrize("price", [3_000.0, 1e-5])
@pytest.mark.parametrize("cash", [1e4, 1e7])
def test_own_scales_are_of_order_one_whatever_prices_and_cash_and_read_no_later_day(price, cash):
    bars, names = synthetic_bars(1, 160, 3, seed=5), (*FINRL_INDICATORS, "daily_change")
    tape = MarketTape.from_bars(
        replace(bars, ohlcv=bars.ohlcv * torch.tensor([price / 100] * 4 + [1.0], dtype=torch.float64)),
        names,
        tick_size=price * 1e-6,
    )
    column = 1e9 * torch.rand(1, 160, 3, 1, generator=torch.Generator().manual_seed(1))
    tape = replace(tape, features=torch.cat([tape.features, column], -1), feature_names=(*names, "market_cap"))
    rules = {"action": "tilt", "reward": "log_return", "whole_shares": False, "initial_cash": cash}
    rules |= {"episode_length": 60, "features": tape.feature_names, "commission": 0.0, "compile": False}
    env, cut = (vecenv.make("stock_trading", 8, market=given, **rules) for given in (tape, tape.days(0, 130)))
    shown = "relative_close", "features"
    for name in shown:
        assert torch.equal(env.scenario.shared[name][:130], cut.scenario.shared[name])
    seen, rewards = [], []
    for action in random_actions(40, 8, 4):
        seen.append(list(env.engine.bound().observe(env.rows).values()))
        rewards.append(env.advance(action))
    sizes = [float(torch.stack(block).square().mean().sqrt()) for block in zip(*seen, strict=True)]
    assert all(0.05 < size < 5 for size in [*sizes, float(torch.stack(rewards).std())]), sizes
    features = torch.stack([blocks[3] for blocks in seen]).unflatten(-1, (3, -1)).square().mean((0, 1, 2)).sqrt()
    assert bool(((features > 0.1) & (features < 4)).all()), features


@pytest.mark.parametrize(("frequency", "year"), [("B", 252), ("D", 365), ("W", 52)])
def test_fees_and_ratios_are_of_the_market_s_own_year(frequency, year):
    """A borrow rate of a year is paid in as many parts, and Sharpe, Sortino ratio and turnover are of as many days."""
    dates = pd.date_range("2020-01-03", periods=40, freq=frequency)
    close = 100.0 + np.random.default_rng(0).integers(-5, 5, 40)
    frame = pd.DataFrame({"date": dates, "symbol": "A", "volume": 1.0, "x": 1.0})
    frame = frame.assign(**dict.fromkeys(("open", "high", "low", "close"), close))
    rules = {"features": ("x",), "random_start": False, "episode_length": 30, "compile": False, "reward_scale": 1.0}
    env = vecenv.make("stock_trading", market=frame, **rules)
    curves = evaluate(env, {"a": BuyAndHold()}).records["a"].curves
    returns, found = curves.returns[:, 0].numpy(), episode_metrics(curves)
    assert found["sharpe"].item() == pytest.approx(year**0.5 * returns.mean() / returns.std(ddof=1))
    assert found["turnover"].item() == pytest.approx(float(curves.traded.sum() / curves.equity[:-1].mean()) * year / 30)
    short = {"shorting": True, "initial_holdings": -100.0, "borrow_rate": 0.5, "commission": 0.0}
    env = vecenv.make("stock_trading", market=frame, **rules, **short)
    env.advance(torch.zeros(1, 1))
    assert env.info()["costs"].item() == pytest.approx(100 * close[1] * 0.5 / year, abs=1e-4)


def test_the_defaults_are_those_of_the_contests():
    """FinRL's indicators, a million in cash, orders of at most 100 shares at 0.1%, and no other rule."""
    assert asdict(StockTradingConfig()) == {
        "features": FINRL_INDICATORS, "action": "shares", "benchmark": "equal_weight", "benchmark_cash": 0.005,
        "tilt_gain": 1.0, "whole_shares": True, "dtype": "float32", "fill": "close", "rationing": "pro_rata",
        "reward": "delta_value", "initial_cash": 1e6, "initial_holdings": 0.0, "hmax": 100.0, "commission": 0.001,
        "slippage": 0.0, "dead_zone": 0.0, "gate": "none", "gate_threshold": 120.0, "stop_loss": 0.0,
        "shorting": False, "initial_margin": 0.5, "maintenance_margin": 0.25, "borrow_rate": 0.0,
        "ruin_fraction": 0.0, "random_start": True, "episode_length": 250, "min_episode_length": 0,
        "reward_scale": None, "sharpe_decay": 0.01, "risk_aversion": 1.0, "min_cash_fraction": 0.0,
        "cash_penalty_weight": 1.0, "terminal_bonus": 0.0, "cash_scale": None, "price_scale": None,
        "holdings_scale": None, "feature_scale": None,
    }  # fmt: skip


@pytest.mark.parametrize("task", ["stock_trading", "signals", "news_signals", "single_stock", "portfolio"])
def test_rows_beyond_32_bits_are_found(task):
    """A tape of 2^32 equal days, of which one is in memory: the last paths see and earn what the first ones do."""
    options = {"num_paths": 1, "num_days": 420}
    scenario = vecenv.make(task, 1, compile=False, market_options=options, seed=0).scenario
    days = scenario.tape.num_days
    scenario.shared = {
        name: tensor[-1:].expand(2**32, *tensor.shape[1:]) if len(tensor) == days else tensor
        for name, tensor in scenario.shared.items()
    }
    env, seen = VecEnv(scenario, 2, compiled=False), []
    path = torch.tensor([0, 2**32 // days - 1])
    env.rows = env.rows.replace(state=env.state.replace(path=path))
    action = scenario.action_spec.rand().expand(2, *scenario.action_spec.shape)
    for _ in range(3):
        seen.append(torch.cat([env.observations(), env.advance(action)[:, None]], 1))
    assert bool((torch.stack(seen)[:, 0] == torch.stack(seen)[:, 1]).all()) and torch.equal(env.state.path, path)
    if isinstance(scenario, Referencing):
        assert scenario.reference(env.state)[1] > 2**31
