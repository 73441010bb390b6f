"""Baselines on small markets whose accounts can be computed by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import vecenv
from vecenv.market.bars import CLOSE, OPEN, Bars
from vecenv.market.planted import planted_bars
from vecenv.market.planted_optimum import planted_target_weights
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.registry import task_of
from vecenv.tasks.commands.comparison import baseline_agents
from vecenv.tasks.stock_trading.agents import (
    BASELINES,
    BuyAndHold,
    EqualWeight,
    Oracle,
    days_to_trade,
    fill_up,
    gain_ahead,
    return_bound,
)


def tape_of(closes: list[list[float]]) -> MarketTape:
    """A market of one path whose bars are flat at given closes. Shape: (T, K); NaN for no bar."""
    close = torch.tensor(closes, dtype=torch.float64)
    bars = torch.stack([close, close, close, close, torch.where(close.isnan(), close, 1e6)], dim=-1)[None]
    dates = np.datetime64("2020-01-01") + np.arange(len(closes))
    names = tuple("ABCDEFG"[: close.shape[1]])
    return MarketTape.from_bars(Bars(names, dates, bars, {"zero": torch.zeros_like(bars[..., 0])}), ("zero",))


def make(tape, num_envs=1, **overrides):
    overrides = {"random_start": False, "episode_length": tape.num_days - 1, **overrides}
    return vecenv.make("stock_trading", num_envs, market=tape, compile=False, **overrides)


def play(env, agent):
    """Values after every step, in currency. Shape: (T + 1, N)."""
    env.reset_groups(env.num_envs, 1, 0)
    values = [env.state.portfolio_value.double()]
    while not bool(env.rows.done.all()):
        env.advance(agent.act(env))
        values.append(env.state.portfolio_value.double())
    return torch.stack(values) * env.scenario.tape.tick_size


@pytest.fixture(scope="module")
def synthetic():
    return MarketTape.from_bars(synthetic_bars(num_paths=4, num_days=100, symbols=6, seed=3), ("rsi_14",))


@pytest.mark.parametrize("action", ["weights", "tilt"])
def test_equal_weights_are_restored_every_day(action):
    """Fractions of shares and no costs: the account grows by the mean of the symbols' growth each day."""
    closes = [[10.0, 40.0, math.nan], [12.0, 40.0, math.nan], [12.0, 20.0, 5.0], [15.0, 30.0, 5.0]]
    env = make(tape_of(closes), whole_shares=False, dtype="float64", commission=0.0, action=action)
    # C can trade from the third day on.
    grown = [1.1, 0.75, (1.25 + 1.5 + 1.0) / 3]
    expected = 1e6 * np.cumprod([1.0, *grown])
    assert play(env, EqualWeight())[:, 0].tolist() == pytest.approx(expected, rel=1e-9)


def planted(kind, **overrides):
    features = ("signal",) if kind == "signal" else ("daily_change",)
    options = {"num_paths": 3, "num_days": 20, "symbols": ["A", "B", "C"], "generator": {"kind": kind}, "seed": 5}
    overrides = {"commission": 0.0, "action": "tilt", "whole_shares": False, "dtype": "float64", **overrides}
    config = {"features": features, "episode_length": 10, **overrides}
    return vecenv.make("stock_trading", 6, market="planted", market_options=options, compile=False, **config)


@pytest.mark.parametrize(
    ("kind", "action"),
    [("signal", "tilt"), ("momentum", "weights"), ("cross_section", "tilt"), ("volatility", "weights")],
)
def test_the_best_rule_earns_what_its_weights_earn_by_hand(kind, action):
    env = planted(kind, action=action)
    bars = planted_bars(3, 20, ("A", "B", "C"), seed=5, kind=kind)
    weights = planted_target_weights(bars.ohlcv, bars.columns.get("signal"), kind=kind)
    values = play(env, task_of(env).best(env))
    path, start = env.state.path.tolist(), env.state.start_day.tolist()
    for row in range(6):
        expected = 1e6
        for day in range(start[row], start[row] + 10):
            close, after = (bars.ohlcv[path[row], at, :, CLOSE] for at in (day, day + 1))
            expected *= 1 + float((weights[path[row], day] * (after / close - 1)).sum())
        # Prices of the account are whole ticks.
        assert float(values[-1, row]) == pytest.approx(expected, rel=1e-4)
    assert (values[-1] / values[0]).std() > 1e-3


def test_no_best_rule_is_known_with_costs_limits_or_shorts_or_without_a_law():
    env = planted("momentum")
    assert list(baseline_agents(env, ["hold"])) == ["hold", "best_rule"]
    limits = {"action": "shares"}, {"stop_loss": 0.1}, {"shorting": True}
    for overrides in ({"commission": 0.001}, {"slippage": 0.001}, *limits):
        env = planted("momentum", **overrides)
        assert task_of(env).best(env) is None, overrides
    assert "best_rule" not in baseline_agents(env, ["hold"])
    env = make(tape_of([[10.0], [11.0], [12.0]]), action="tilt", commission=0.0)
    assert task_of(env).best(env) is None


def test_buy_and_hold_equals_a_hand_computation():
    closes = [[10.0, 40.0], [9.5, 40.0], [9.0, 30.0], [13.0, 50.0], [9.0, 60.0]]
    env = make(tape_of(closes), initial_cash=10_000.0, commission=0.01, hmax=200.0)
    # Half of the cash each: floor(5000 / 10.1) = 495 of A, floor(5000 / 40.4) = 123 of B, 200 a day at most.
    cash, held = 10_000.0, np.zeros(2)
    expected = [cash]
    for today, tomorrow in itertools.pairwise(closes):
        bought = np.minimum(np.array([495.0, 123.0]) - held, 200.0)
        cost = float(bought @ today) * 1.01
        assert cost <= cash
        cash, held = cash - cost, held + bought
        expected.append(cash + float(held @ tomorrow))
    assert play(env, BuyAndHold())[:, 0].tolist() == pytest.approx(expected, abs=1e-6)
    assert env.state.holdings[0].tolist() == [495.0, 123.0]


def test_buy_and_hold_leaves_out_what_cannot_be_traded_at_the_start_and_keeps_what_is_held():
    env = make(tape_of([[10.0, math.nan], [10.0, 5.0], [10.0, 5.0]]), initial_cash=1_000.0, hmax=1_000.0)
    play(env, BuyAndHold())
    assert env.state.holdings[0].tolist() == [99.0, 0.0]
    env = make(tape_of([[10.0, 10.0]] * 4), initial_cash=1_000.0, initial_holdings=(7.0, 0.0), commission=0.0)
    play(env, BuyAndHold())
    assert env.state.holdings[0].tolist() == [57.0, 50.0]


@pytest.mark.parametrize("whole", [True, False])
def test_buy_and_hold_in_weights_buys_once(whole):
    """Half of the cash each, with costs: 49 of A at 10.1 and 12 of B at 40.4; no cash buys what has fallen."""
    closes = [[10.0, 40.0], [9.0, 40.0], [5.0, 20.0], [9.0, 60.0]]
    kind = {"whole_shares": whole, "dtype": "float64"}
    env = make(tape_of(closes), initial_cash=1_000.0, commission=0.01, action="weights", **kind)
    env.reset_groups(1, 1, 0)
    held = []
    for _ in range(3):
        env.advance(BuyAndHold().act(env))
        held.append(env.state.holdings[0].tolist())
    # A fully invested account cannot be held exactly: once, up to a commission's share is sold.
    if whole:
        assert held[0] == [49.0, 12.0] and held[1:] == [[48.0, 12.0]] * 2
    else:
        assert held[0] == pytest.approx([500 / 10.1, 500 / 40.4], rel=1e-4)
        assert held[2] == pytest.approx(held[0], rel=0.02) and held[2][0] <= held[0][0]


@pytest.mark.parametrize("action", ["shares", "weights"])
@pytest.mark.parametrize("fill", ["close", "next_open"])
def test_order_of_the_agents_on_a_market(synthetic, action, fill):
    settings = {"action": action, "fill": fill, "random_start": True, "episode_length": 30, "initial_cash": 1e5}
    env = make(synthetic, 8, **settings)
    env.reset_groups(8, 1, 0)
    bound = return_bound(env)
    returns = {name: play(env, agent())[-1] / 1e5 - 1 for name, agent in BASELINES.items()}
    for name, values in returns.items():
        assert bool((values <= bound + 1e-6).all()), name
    assert bool((returns["hold"] == 0).all())
    for name in ("hold", "random", "buy_and_hold", "equal_weight"):
        assert bool((returns["oracle"] > returns[name] + 0.02).all()), name


def test_oracle_finds_the_obvious():
    closes = [[10.0, 20.0], [10.0, 22.0], [12.0, 22.0], [12.0, 22.0], [12.0, 11.0], [12.0, 11.0]]
    env = make(tape_of(closes), initial_cash=1_000.0, commission=0.001, hmax=1_000.0)
    agent = Oracle()
    held = []
    env.reset_groups(1, 1, 0)
    for _ in range(5):
        env.advance(agent.act(env))
        held.append(env.state.holdings[0].tolist())
    assert held[0] == [0.0, 49.0]
    assert held[1] == [109.0, 0.0]
    assert all(position[1] == 0.0 for position in held[1:])
    assert float(env.state.portfolio_value[0]) * env.scenario.tape.tick_size == pytest.approx(
        1000 * 1.1 * 1.2, rel=0.02
    )


def test_oracle_leaves_gains_below_the_costs():
    env = make(tape_of([[10.0], [10.05], [10.0], [10.05], [10.0]]), initial_cash=1e3, commission=0.01, hmax=1e3)
    assert bool((play(env, Oracle()) == 1e3).all())


def test_oracle_forgets_the_market_it_saw_before():
    rising, falling = tape_of([[10.0], [11.0], [12.0]]), tape_of([[12.0], [11.0], [10.0]])
    agent = Oracle()
    assert float(play(make(rising), agent)[-1]) > 1e6
    assert float(play(make(falling), agent)[-1]) == 1e6


def test_gain_ahead_discounts_future_returns_from_the_price_that_is_paid():
    env = make(tape_of([[1.0], [2.0], [8.0]]))
    gain = gain_ahead(env, 2.0)[0, :, 0]
    assert gain.tolist() == pytest.approx([np.log(2.0) + 0.5 * np.log(4.0), np.log(4.0), 0.0])
    late = make(tape_of([[1.0], [2.0], [8.0]]), fill="next_open")
    assert gain_ahead(late, 1.0)[0, :, 0].tolist() == pytest.approx([np.log(4.0), 0.0, 0.0])
    # A symbol that lists on the second day gains nothing before.
    listed = make(tape_of([[1.0, math.nan], [1.0, 2.0], [1.0, 4.0]]))
    assert gain_ahead(listed, 1.0)[0, :, 1].tolist() == pytest.approx([0.0, np.log(2.0), 0.0])


@pytest.mark.parametrize(
    ("rules", "days"),
    [
        # 100 shares of a third of 60 a day: 2,000 of 10,000.
        ({"initial_cash": 10_000.0}, 5.0),
        ({"initial_cash": 100.0}, 1.0),
        ({"initial_cash": 1e6}, 20.0),
        ({"initial_cash": 1e6, "action": "weights"}, 1.0),
    ],
)
def test_the_days_that_an_account_needs_to_be_invested(rules, days):
    assert days_to_trade(make(tape_of([[20.0, 40.0]] * 3), hmax=100.0, **rules)) == pytest.approx(days)


def test_fill_up_serves_the_highest_rank_first():
    amount = fill_up(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([[10.0]]))
    assert amount.tolist() == [[0.0, 6.0, 4.0]]


def test_return_bound_by_hand():
    """With orders: at most 10 shares after the first day, 20 after the second: 10 (11 - 10), then 20 (12 - 11)."""
    closes = [[10.0, 10.0], [11.0, 10.0], [12.0, 9.0]]
    env = make(tape_of(closes), initial_cash=1_000.0, hmax=10.0)
    assert float(return_bound(env)) == pytest.approx(0.03)
    # With weights all is in the first; at the next open, which is the close here, the first rise is missed or not.
    for rules in ({}, {"fill": "next_open"}):
        env = make(tape_of(closes), action="weights", **rules)
        assert float(return_bound(env)) == pytest.approx(0.2)
    # What is held at the start counts, in value and in what can be held.
    env = make(tape_of(closes), initial_cash=900.0, initial_holdings=(10.0, 0.0), hmax=10.0)
    assert float(return_bound(env)) == pytest.approx((20 + 30) / 1_000)
    # Of a fall to the next open and a rise from it only the rise is taken.
    tape = tape_of([[10.0], [12.0]])
    opens = tape.ohlcv.clone()
    opens[0, 1, 0, OPEN] = 8.0
    assert float(return_bound(make(replace(tape, ohlcv=opens), action="weights", fill="next_open"))) == pytest.approx(
        0.5
    )
    short = make(tape_of([[10.0], [11.0]]), shorting=True)
    assert task_of(short).bound(short) is None
    with pytest.raises(ValueError, match="long-only"):
        return_bound(short)
