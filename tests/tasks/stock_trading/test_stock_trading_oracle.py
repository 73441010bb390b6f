"""The kernels against the scalar oracle, step by step over random episodes of random size and settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.tasks.stock_trading.oracle import Account, Rules
from tests.tasks.tiers.random_markets import oracle_market, random_tape
from vecenv.core.engine import Engine
from vecenv.core.rows import Rows, leaves, with_leaves
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

NUM_ENVS = 200
NUM_DAYS = 16
LONGEST = 12
# Without shrinking: an example is a whole market, and the message names row, step and settings.
QUICK = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate),
}
rates = st.sampled_from([0.0, 0.0005, 0.001, 0.0123])


@st.composite
def rules_and_market(draw, whole_shares=True, shorting=None):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    symbols = draw(st.sampled_from([1, 2, 2, 3, 3, 5, 12]))

    def per_symbol(rate):
        return tuple(rng.choice([0.0, 0.0007, 0.002], symbols).tolist()) if draw(st.booleans()) else rate

    shorts = draw(st.booleans()) if shorting is None else shorting
    rules = {
        "whole_shares": whole_shares,
        "action": draw(st.sampled_from(["shares", "shares", "weights", "tilt", "tilt"])),
        "benchmark": draw(st.sampled_from(["equal_weight", "buy_and_hold"])),
        "benchmark_cash": draw(st.sampled_from([0.0, 0.005, 0.5])),
        "tilt_gain": draw(st.sampled_from([0.2, 1.0, 3.0])),
        "fill": draw(st.sampled_from(["close", "next_open"])),
        "rationing": draw(st.sampled_from(["pro_rata", "pro_rata", "by_size"])),
        "initial_cash": draw(st.sampled_from([0.0, 10.0, 1e4, 1e6, 1.3e7])) or 0.5,
        "initial_holdings": tuple(rng.integers(0, 50, symbols).tolist()) if draw(st.booleans()) else 0.0,
        "hmax": draw(st.sampled_from([1, 100, 1000])),
        "commission": per_symbol(draw(rates)),
        "slippage": per_symbol(draw(rates)),
        "dead_zone": draw(st.sampled_from([0.0, 0.1])),
        "stop_loss": draw(st.sampled_from([0.0, 0.0, 0.05])),
        "gate_threshold": 180.0,
        "shorting": shorts,
        "borrow_rate": draw(st.sampled_from([0.0, 0.5])) if shorts else 0.0,
        "ruin_fraction": draw(st.sampled_from([0.0, 0.9])),
        "reward": draw(
            st.sampled_from(["delta_value", "log_return", "excess_log_return", "differential_sharpe", "risk_penalised"])
        ),
        "min_cash_fraction": draw(st.sampled_from([0.0, 0.2])),
        "terminal_bonus": draw(st.sampled_from([0.0, 3.0])),
    }
    gate = draw(st.booleans())
    # Prices up to 2.3 million in ticks of 1e-4 have 35 bits; the usual ones have 24.
    highest = draw(st.sampled_from([300.0, 300.0, 1e6])) if whole_shares else 300.0
    tape = random_tape(rng, NUM_DAYS, symbols, gaps=draw(st.booleans()), highest=highest)
    return rules, gate, tape, rng


def actions_for(rng, symbols, rules):
    """Draw actions of all sizes, beyond the bounds and a few that are not numbers; with tilts also weights."""
    count = symbols + (rules["action"] == "tilt" and rng.random() < 0.8)
    actions = rng.uniform(-1.3, 1.3, (NUM_DAYS, NUM_ENVS, count)).astype(np.float32)
    actions *= rng.choice([0.01, 0.3, 1.0], (1, NUM_ENVS, 1)).astype(np.float32)
    actions[rng.random(actions.shape) < 0.01] = np.nan
    actions[rng.random(actions.shape) < 0.01] = np.inf
    actions[rng.random(actions.shape) < 0.05] = 0.0
    return actions


def engine_for(rules, gate, tape, dtype):
    config = StockTradingConfig(
        **rules,
        dtype=dtype,
        gate="turbulence" if gate else "none",
        episode_length=LONGEST,
        min_episode_length=2,
        features=tape.feature_names,
        cash_scale=1e-3,
        price_scale=1e-2,
        holdings_scale=1e-3,
        feature_scale=1e-2,
    )
    engine = Engine(StockTrading(tape, config), NUM_ENVS)
    ids = torch.arange(NUM_ENVS)
    return engine.bound(), engine.bound().start(torch.tensor(3), ids, torch.zeros_like(ids))


def accounts_for(rules, gate, rows, tape, **scales):
    market = oracle_market(tape)
    scales = {"cash_scale": 1e-3, "price_scale": 1e-2, "holdings_scale": 1e-3, "feature_scale": 1e-2}
    spelled = {name: list(value) if isinstance(value, tuple) else value for name, value in rules.items()}
    starts, ends = rows.state.start_day.tolist(), rows.state.end_day.tolist()
    return [
        Account(Rules(gate=gate, **spelled, **scales), market, start, end - start)
        for start, end in zip(starts, ends, strict=True)
    ]


def oracle_steps(accounts, actions):
    """Play all episodes; yield per step the rows that played, their values before, and their rewards."""
    for action in actions.tolist():
        playing = [n for n, account in enumerate(accounts) if not (account.terminated or account.truncated)]
        if not playing:
            return
        observations = {n: accounts[n].observation() for n in playing}
        rewards = {n: accounts[n].step(action[n]) for n in playing}
        yield observations, rewards


EXACT = ("cash", "holdings", "portfolio_value", "costs", "traded", "invalid_actions")


def account_numbers(account):
    return (
        account.cash,
        account.holdings,
        account.value,
        account.costs,
        account.traded,
        account.invalid_actions,
    )


@given(rules_and_market())
@settings(max_examples=12, **QUICK)
def test_whole_shares_equal_the_oracle_exactly(case):
    check_whole_shares(case)


@pytest.mark.nightly
@given(rules_and_market())
@settings(max_examples=50, **QUICK)
def test_whole_shares_equal_the_oracle_exactly_in_ten_thousand_episodes(case):
    check_whole_shares(case)


def check_whole_shares(case):
    """Compare 200 episodes: account and flags are equal in both precisions, bit for bit, at every step."""
    rules, gate, tape, rng = case
    actions = actions_for(rng, tape.num_symbols, rules)
    engines = {dtype: engine_for(rules, gate, tape, dtype) for dtype in ("float32", "float64")}
    bounds = {dtype: bound for dtype, (bound, _) in engines.items()}
    rows = {dtype: start for dtype, (_, start) in engines.items()}
    accounts = accounts_for(rules, gate, rows["float32"], tape)
    for step, (observations, rewards) in enumerate(oracle_steps(accounts, actions)):
        playing = list(rewards)
        for dtype, bound in bounds.items():
            context = f"{dtype}, step {step}, {rules}, gate {gate}"
            observed = torch.cat(bound.observe(rows[dtype]), dim=-1)[playing]
            np.testing.assert_allclose(observed, list(observations.values()), rtol=1e-5, atol=1e-6, err_msg=context)
            outcome = bound.step(rows[dtype], torch.from_numpy(actions[step]))
            state = outcome.rows.state
            columns = zip(*(getattr(state, name)[playing].tolist() for name in EXACT), strict=True)
            for n, numbers in zip(playing, columns, strict=True):
                assert numbers == account_numbers(accounts[n]), f"row {n}, {context}"
                if not rules["shorting"]:
                    assert accounts[n].cash >= 0 and min(accounts[n].holdings) >= 0
            assert outcome.terminated[playing].tolist() == [accounts[n].terminated for n in playing], context
            assert outcome.truncated[playing].tolist() == [accounts[n].truncated for n in playing], context
            tolerance = 1e-9 if dtype == "float64" else 1e-5
            given = outcome.reward[playing].double()
            np.testing.assert_allclose(given, list(rewards.values()), rtol=tolerance, atol=tolerance, err_msg=context)
            rows[dtype] = outcome.rows


@pytest.mark.nightly
@given(rules_and_market(whole_shares=False))
@settings(max_examples=20, **QUICK)
def test_fractional_shares_in_float64_equal_the_oracle(case):
    """Cash, holdings and value within 1e-9 of the value at every step of whole episodes."""
    rules, gate, tape, rng = case
    actions = actions_for(rng, tape.num_symbols, rules)
    bound, rows = engine_for(rules, gate, tape, "float64")
    accounts = accounts_for(rules, gate, rows, tape)
    for step, (_, rewards) in enumerate(oracle_steps(accounts, actions)):
        outcome = bound.step(rows, torch.from_numpy(actions[step]))
        state = outcome.rows.state
        for n, reward in rewards.items():
            account = accounts[n]
            error = 1e-9 * max(account.value, account.start_value)
            context = f"row {n}, step {step}, {rules}, gate {gate}"
            assert abs(float(state.cash[n]) - account.cash) <= error, context
            assert abs(float(state.portfolio_value[n]) - account.value) <= error, context
            np.testing.assert_allclose(state.holdings[n], account.holdings, rtol=1e-9, atol=1e-9, err_msg=context)
            np.testing.assert_allclose(float(outcome.reward[n]), reward, rtol=1e-6, atol=1e-9, err_msg=context)
        rows = outcome.rows


@given(rules_and_market(whole_shares=False, shorting=False))
@settings(max_examples=20, **QUICK)
def test_one_fractional_step_in_float32_from_an_equal_state(case):
    """From the same account, one float32 step lands within 1e-6 of the float64 one, and never in debt."""
    rules, gate, tape, rng = case
    actions = actions_for(rng, tape.num_symbols, rules)
    double, rows = engine_for(rules, gate, tape, "float64")
    single, like = engine_for(rules, gate, tape, "float32")
    for action in torch.from_numpy(actions[:2]):
        # The second step starts from accounts that hold something.
        narrowed: Rows = with_leaves(
            like, [old.to(new.dtype) for old, new in zip(leaves(rows), leaves(like), strict=True)]
        )
        exact, fast = double.step(rows, action), single.step(narrowed, action)
        value = rows.state.portfolio_value.clamp(min=1.0)
        moved = (fast.rows.state.portfolio_value.double() - exact.rows.state.portfolio_value).abs()
        assert float((moved / value).max()) <= 1e-6, rules
        assert float(fast.rows.state.cash.min()) >= 0 and float(fast.rows.state.holdings.min()) >= 0
        rows = exact.rows


def test_plain_float32_would_fail():
    """The exact arithmetic is needed: float32 sums of the same trades differ from the oracle's integers."""
    shares, prices = torch.full((30,), 100.0), torch.full((30,), 2.0**23 - 1)
    assert int((shares * prices).sum()) != 30 * 100 * (2**23 - 1)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(float((shares * prices).sum()), 30 * 100 * (2**23 - 1))
