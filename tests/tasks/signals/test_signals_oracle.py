"""The rules on scores against the scalar oracle, step by step over random episodes of random size and settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.signals.oracle import SignalAccount, SignalRules
from tests.tasks.stock_trading.test_stock_trading_oracle import (
    EXACT,
    LONGEST,
    NUM_ENVS,
    QUICK,
    account_numbers,
    actions_for,
    oracle_steps,
    rules_and_market,
)
from tests.tasks.tiers.random_markets import oracle_market
from vecenv.core.engine import Engine
from vecenv.market.panels import Panels
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.scenario import SignalTrading

SCALES = {"cash_scale": 1e-3, "price_scale": 1e-2, "holdings_scale": 1e-3, "feature_scale": 1e-2}


def random_panels(rng, num_days, symbols):
    """Scores of all sizes, whole and broken, and missing ones, of which the neutral value alone counts."""
    shape = (1, num_days, symbols, 2)
    scores = np.where(rng.random(shape) < 0.5, rng.integers(1, 6, shape), rng.uniform(1, 5, shape))
    known = rng.random(shape) < 0.7
    return Panels(torch.from_numpy(np.where(known, scores, 3.0)).float(), torch.from_numpy(known))


@st.composite
def signal_case(draw, whole_shares=True):
    rules, gate, tape, rng = draw(rules_and_market(whole_shares=whole_shares))
    rules |= {
        "sentiment_strength": draw(st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.1, 0.45])),
        "risk_strength": draw(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.45])),
        "risk_form": draw(st.sampled_from(["reward", "published", "trajectory"])),
    }
    return rules, gate, replace(tape, panels=random_panels(rng, tape.num_days, tape.num_symbols)), rng


def played(case, dtype):
    rules, gate, tape, rng = case
    config = SignalsConfig(
        **rules,
        **SCALES,
        dtype=dtype,
        gate="turbulence" if gate else "none",
        episode_length=LONGEST,
        min_episode_length=2,
        features=tape.feature_names,
    )
    bound = Engine(SignalTrading(tape, config), NUM_ENVS).bound()
    ids = torch.arange(NUM_ENVS)
    rows = bound.start(torch.tensor(3), ids, torch.zeros_like(ids))
    market, (sentiment, risk) = oracle_market(tape), (one.tolist() for one in tape.panels.scores[0].unbind(-1))
    spelled = {name: list(value) if isinstance(value, tuple) else value for name, value in rules.items()}
    state = rows.state
    accounts = [
        SignalAccount(SignalRules(gate=gate, **spelled, **SCALES), market, start, end - start, sentiment, risk)
        for start, end in zip(state.start_day.tolist(), state.end_day.tolist(), strict=True)
    ]
    return bound, rows, accounts, actions_for(rng, tape.num_symbols, rules)


def check_exact(case, dtype):
    """Account and flags are equal bit for bit at every step, rewards and risk levels up to their precision."""
    bound, rows, accounts, actions = played(case, dtype)
    # Far below what the weakest strength does to a reward; float32 cancels in a cash penalty.
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    for step, (_, rewards) in enumerate(oracle_steps(accounts, actions)):
        before, playing, context = rows.state, list(rewards), f"step {step}, {dtype}, {case[0]}"
        outcome = bound.step(rows, torch.from_numpy(actions[step]))
        state = outcome.rows.state
        columns = zip(*(getattr(state, name)[playing].tolist() for name in EXACT), strict=True)
        for n, numbers in zip(playing, columns, strict=True):
            assert numbers == account_numbers(accounts[n]), f"row {n}, {context}"
        # Divided by a level that is rounded to single precision.
        given = outcome.reward[playing].double()
        np.testing.assert_allclose(
            given, list(rewards.values()), rtol=max(tolerance, 2e-7), atol=tolerance, err_msg=context
        )
        levels = torch.vmap(lambda now, then: bound.scenario.risk_level(now, then, *tensors(bound)))(before, state)
        np.testing.assert_allclose(levels[playing], [accounts[n].level for n in playing], rtol=2e-7, err_msg=context)
        rows = outcome.rows


def tensors(bound):
    return bound.params, bound.shared


@given(signal_case())
@settings(max_examples=10, **QUICK)
def test_whole_shares_equal_the_oracle(case):
    check_exact(case, "float32")


@pytest.mark.nightly
@given(signal_case())
@settings(max_examples=50, **QUICK)
def test_whole_shares_equal_the_oracle_in_ten_thousand_episodes(case):
    for dtype in ("float32", "float64"):
        check_exact(case, dtype)
