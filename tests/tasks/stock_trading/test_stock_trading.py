"""The stock-trading task: conservation of money over whole years, the observation, and refused settings."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.small_env import random_actions, same_bits, small_tape
from tests.tasks.tiers.random_markets import random_tape
from vecenv.core.engine import Engine
from vecenv.core.rows import Rows, leaves, with_leaves
from vecenv.market.bars import CLOSE, OPEN
from vecenv.tasks.stock_trading.scenario import MAX_CASH_TICKS, StockTrading, StockTradingConfig

NUM_ENVS, NUM_SYMBOLS, YEAR = 24, 4, 250


@pytest.fixture(scope="module")
def tape():
    """A year of jumps between 0.01 and 700, with gaps."""
    return random_tape(np.random.default_rng(3), YEAR + 1, NUM_SYMBOLS)


def bound_for(tape, num_envs=NUM_ENVS, **overrides):
    config = {"features": tape.feature_names, "episode_length": YEAR, "random_start": False} | overrides
    return Engine(StockTrading(tape, StockTradingConfig(**config)), num_envs).bound()


def start(bound, num_envs=NUM_ENVS) -> Rows:
    ids = torch.arange(num_envs)
    return bound.start(torch.tensor(1), ids, torch.zeros_like(ids))


EVERY_RULE = {
    "default": {},
    "small account": {"initial_cash": 3_000.0, "slippage": 0.002},
    "by size": {"initial_cash": 30_000.0, "rationing": "by_size"},
    "weights": {"action": "weights", "initial_cash": 50_000.0, "slippage": 0.0005},
    "weights by size": {"action": "weights", "rationing": "by_size", "initial_cash": 500.0},
    "gate": {"gate": "turbulence", "gate_threshold": 180.0, "initial_holdings": 7.0},
    "stop-loss": {"stop_loss": 0.03, "slippage": 0.001, "initial_cash": 20_000.0},
    "gate and stop-loss": {"gate": "turbulence", "gate_threshold": 150.0, "stop_loss": 0.1, "rationing": "by_size"},
    "costs per symbol": {"commission": (0.0, 0.001, 0.02, 0.3), "slippage": (0.001, 0.0, 0.0, 0.5)},
    "next open": {"fill": "next_open", "slippage": 0.001, "initial_cash": 10_000.0},
    "next open, weights": {"fill": "next_open", "action": "weights", "stop_loss": 0.05},
    "large orders": {"hmax": 5_000.0, "initial_cash": 1_000_000.0, "initial_holdings": (9_000.0, 0.0, 1.0, 5.0)},
}
SHORTS = {
    "shorts": {"shorting": True, "borrow_rate": 0.3, "initial_cash": 50_000.0},
    "shorts at the next open": {"shorting": True, "fill": "next_open", "slippage": 0.001, "rationing": "by_size"},
}


@pytest.mark.parametrize("name", [*EVERY_RULE, *SHORTS])
@pytest.mark.assembly
def test_a_year_adds_up_to_the_tick(tape, name):
    """Change of value = market profit - costs, in integers, on each of 250 days; no debt and nothing sold short.

    The market profit is taken from the tape: what was held before the orders from the close to the fill, what was
    held after them from the fill to the next close.
    """
    rules = (EVERY_RULE | SHORTS)[name]
    bound = bound_for(tape, **rules)
    rows = start(bound)
    close, open_ = (tape.price_ticks(column)[0].long() for column in (CLOSE, OPEN))
    paid = torch.zeros(NUM_ENVS, dtype=torch.int64)
    for day, action in enumerate(random_actions(YEAR, NUM_ENVS, NUM_SYMBOLS, seed=2)):
        before = rows.state
        rows = bound.step(rows, action).rows
        after = rows.state
        assert after.cash.dtype == torch.int64 and torch.equal(after.holdings, after.holdings.trunc())
        fill = open_[day + 1] if rules.get("fill") == "next_open" else close[day]
        profit = (before.holdings.long() * (fill - close[day])).sum(-1)
        profit += (after.holdings.long() * (close[day + 1] - fill)).sum(-1)
        gained = after.portfolio_value - before.portfolio_value
        assert torch.equal(gained, profit - after.costs), f"on day {day}"
        worth = after.cash + (after.holdings.long() * close[day + 1]).sum(-1)
        assert torch.equal(after.portfolio_value, worth), f"on day {day}"
        assert (after.costs >= 0).all() and (after.traded >= 0).all()
        paid += after.costs
        if name in EVERY_RULE:
            assert (after.cash >= 0).all() and (after.holdings >= 0).all(), f"on day {day}"
    assert (paid > 0).all(), "nothing was traded"


@pytest.mark.parametrize("name", EVERY_RULE)
def test_a_year_of_fractions_has_no_debt(tape, name):
    """In float32 no rounding becomes a debt or a short, and the value is the account's."""
    rules = EVERY_RULE[name]
    bound = bound_for(tape, whole_shares=False, **rules)
    rows = start(bound)
    close = tape.price_ticks(CLOSE)[0]
    for day, action in enumerate(random_actions(YEAR, NUM_ENVS, NUM_SYMBOLS, seed=2)[:100]):
        rows = bound.step(rows, action).rows
        state = rows.state
        assert (state.cash >= 0).all() and (state.holdings >= 0).all(), f"on day {day}"
        worth = state.cash.double() + (state.holdings.double() * close[day + 1].double()).sum(-1)
        torch.testing.assert_close(state.portfolio_value.double(), worth, rtol=1e-5, atol=1.0)


def test_nothing_trades_without_a_bar():
    """The account of a symbol stays while it cannot trade, whatever is ordered."""
    tape = small_tape()
    bound = bound_for(tape, 8, episode_length=30, initial_holdings=10.0, stop_loss=0.01)
    rows, blocked = start(bound, 8), 0
    for day, action in enumerate(random_actions(30, 8, 3)):
        after = bound.step(rows, action).rows
        closed = ~tape.tradable[0, day]
        assert torch.equal(after.state.holdings[:, closed], rows.state.holdings[:, closed])
        blocked += int(closed.sum())
        rows = after
    assert blocked > 3


def test_the_observation_is_laid_out_as_documented():
    """[b, p, h, f]: cash, closes, holdings and features, symbol by symbol, each with its scale."""
    tape = small_tape()
    rules = {"cash_scale": 1e-3, "price_scale": 0.5, "holdings_scale": 0.1, "feature_scale": 2.0}
    bound = bound_for(tape, 5, episode_length=30, initial_cash=777.0, initial_holdings=(1.0, 2.0, 3.0), **rules)
    rows = start(bound, 5)
    blocks = bound.observe(rows)
    assert [block.shape for block in blocks] == [(5, 1), (5, 3), (5, 3), (5, 6)]
    assert all(block.dtype == torch.float32 for block in blocks)
    cash, prices, holdings, features = blocks
    torch.testing.assert_close(cash, torch.full((5, 1), 0.777))
    torch.testing.assert_close(prices[0], tape.ohlcv[0, 0, :, CLOSE] * 0.5)
    torch.testing.assert_close(holdings[0], torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(features[0].view(3, 2), tape.features[0, 0] * 2.0)


def test_the_default_observation_has_301_numbers():
    """K = 30 symbols and FinRL's eight indicators."""
    tape = random_tape(np.random.default_rng(0), 300, 30, num_features=8)
    bound = bound_for(tape, 1)
    assert torch.cat(bound.observe(start(bound, 1)), dim=-1).shape == (1, 301)


def test_invalid_actions_count_and_do_nothing():
    tape = replace(small_tape(), tradable=torch.ones(1, 40, 3, dtype=torch.bool))
    bound = bound_for(tape, 1, episode_length=30, initial_holdings=5.0)
    rows = start(bound, 1)
    wrong = bound.step(rows, torch.tensor([[float("nan"), float("inf"), float("-inf")]])).rows.state
    nothing = bound.step(rows, torch.zeros(1, 3)).rows.state
    assert wrong.invalid_actions.tolist() == [3] and nothing.invalid_actions.tolist() == [0]
    for name in ("cash", "holdings", "portfolio_value", "costs"):
        assert same_bits(getattr(wrong, name), getattr(nothing, name))
    beyond = bound.step(rows, torch.tensor([[7.0, -9.0, 1e30]])).rows.state
    at_most = bound.step(rows, torch.tensor([[1.0, -1.0, 1.0]])).rows.state
    assert same_bits(beyond.holdings, at_most.holdings) and beyond.invalid_actions.tolist() == [0]


def test_buy_and_hold_of_equal_weights_is_graded_one_half():
    """An account that does exactly that is level with itself; a tenth more, in logarithms, is graded 0.73."""
    tape = small_tape()
    close = torch.full((1, 40, 3), 100.0)
    close[:, 1:] = torch.tensor([110.0, 90.0, 130.0])
    ohlcv = close[..., None].expand(-1, -1, -1, 5).contiguous()
    tape = replace(tape, ohlcv=ohlcv, tradable=torch.ones_like(tape.tradable))
    rules = {"episode_length": 30, "initial_holdings": 1_000.0, "initial_cash": 0.01}
    bound = bound_for(tape, 2, **rules)
    rows = bound.step(start(bound, 2), torch.zeros(2, 3)).rows
    assert bound.grade(rows) == pytest.approx([0.5, 0.5], abs=1e-4)
    held = rows.state.portfolio_value.double()
    ahead = with_leaves(rows, leaves(rows))
    other_values = (held * torch.tensor([0.1, -0.1], dtype=torch.float64).exp()).round().long()
    ahead.state = rows.state.replace(portfolio_value=other_values)
    expected = torch.sigmoid(torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(bound.grade(ahead), expected, atol=1e-3, rtol=0)


def test_a_grade_is_measured_against_what_could_be_bought_at_the_start():
    """Symbols that trade later are no part of it, and those that no longer trade still are; without any it is cash."""
    tape = small_tape()
    close = torch.full((1, 40, 3), 100.0)
    close[:, 1:] = torch.tensor([110.0, 90.0, 150.0])
    tradable = torch.ones_like(tape.tradable)
    tradable[:, 0, 2] = tradable[:, 1:, 1] = False
    ohlcv = close[..., None].expand(-1, -1, -1, 5).contiguous()
    for first in (tradable[:, :1], torch.zeros_like(tradable[:, :1])):
        traded = torch.cat([first, tradable[:, 1:]], dim=1)
        bound = bound_for(replace(tape, ohlcv=ohlcv, tradable=traded), 1, episode_length=30)
        rows = bound.step(start(bound, 1), torch.zeros(1, 3)).rows
        assert bound.grade(rows).item() == pytest.approx(0.5, abs=1e-6)


def test_episodes_begin_at_the_first_day_on_the_rows_own_path():
    tape = small_tape()
    paths = replace(
        tape,
        **{
            name: getattr(tape, name).repeat(3, *(1,) * (getattr(tape, name).ndim - 1))
            for name in ("ohlcv", "tradable", "features", "context")
        },
    )
    bound = bound_for(paths, 7, episode_length=5)
    state = start(bound, 7).state
    assert state.path.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert state.day.tolist() == [0] * 7 and state.end_day.tolist() == [5] * 7


def test_warm_up_is_never_shown():
    tape = replace(small_tape(), first_day=17)
    bound = bound_for(tape, 500, random_start=True, episode_length=9, min_episode_length=2)
    assert start(bound, 500).state.day.min() == 17
    fixed = bound_for(tape, 3, episode_length=9)
    assert start(fixed, 3).state.day.tolist() == [17] * 3


def test_a_longer_length_than_the_data_is_cut_off_at_their_end():
    tape = small_tape()
    bound = bound_for(tape, 400, random_start=True, episode_length=1_000, min_episode_length=10)
    state = start(bound, 400).state
    assert state.end_day.max() == 39 and (state.start_day >= 0).all() and (state.end_day > state.start_day).all()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"initial_cash": 0.0}, "initial_cash must be positive"),
        ({"episode_length": 0}, "episode_length must be positive"),
        ({"hmax": float("nan")}, "hmax must be positive"),
        ({"dead_zone": -0.1}, "dead_zone must not be negative"),
        ({"stop_loss": -1.0}, "stop_loss must not be negative"),
        ({"commission": 1.0}, r"commission must be in \[0, 1\)"),
        ({"slippage": (0.1, -0.1, 0.0)}, r"slippage must be in \[0, 1\)"),
        ({"min_episode_length": 31}, r"min_episode_length must be between 0 and episode_length \(30\)"),
        ({"commission": (0.1, 0.1)}, "commission has 2 numbers for 3 symbols"),
        ({"initial_holdings": (1.0, -1.0, 0.0)}, "initial_holdings must not be negative"),
        ({"gate": "vix"}, "no series 'vix' for the gate"),
        ({"episode_length": 40}, "40 days are fewer than the warm-up of 0 days plus an episode of 40 days"),
        ({"initial_cash": MAX_CASH_TICKS * 1e-4}, r"exact accounts need fewer than 2\^37"),
    ],
)
def test_settings_that_cannot_be_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        bound_for(small_tape(), **({"episode_length": 30} | rules))


def test_the_most_cash_there_may_be_is_exact():
    cash = (MAX_CASH_TICKS - 1) * 1e-4
    bound = bound_for(small_tape(), 1, episode_length=30, initial_cash=cash)
    assert start(bound, 1).state.cash.item() == int(np.floor(cash / 1e-4))


def test_metadata_names_rules_and_market_and_is_json():
    tape = small_tape()
    scenario = StockTrading(tape, StockTradingConfig(features=tape.feature_names, episode_length=30))
    written = json.loads(json.dumps(scenario.metadata()))
    assert written["task"] == "stock_trading" and written["task_version"] == scenario.version
    assert written["config"]["episode_length"] == 30
    assert written["market"]["fingerprint"] == tape.fingerprint()
    assert written["market"]["first_day"] == "2020-01-01"
