"""The kernels against the scalar oracle, step by step over random episodes of random size and settings."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.tasks.stock_trading.oracle import Account, Rules
from tests.tasks.tiers.random_markets import oracle_market, random_tape
from vecenv.core.engine import BoundEngine, Engine
from vecenv.core.rows import Rows, leaves, with_leaves
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

NUM_DAYS, LONGEST = 16, 12
SCALES = {"cash_scale": 1e-3, "price_scale": 1e-2, "holdings_scale": 1e-3, "feature_scale": 1e-2}
REWARDS = ("delta_value", "log_return", "excess_log_return", "differential_sharpe", "risk_penalised")
EXACT = ("cash", "holdings", "portfolio_value", "costs", "traded", "invalid_actions")


class Case:
    """Rules, a market and actions of some rows; every ten successive seeds have every value of every rule."""

    scenario: type[StockTrading] = StockTrading
    settings: type[StockTradingConfig] = StockTradingConfig

    def __init__(self, seed: int, num_envs: int, whole_shares: bool = True, shorting: bool | None = None) -> None:
        self.rng, self.num_envs, self.gate = np.random.default_rng(seed), num_envs, seed % 2 == 0
        symbols = (1, 2, 3, 5, 12, 2, 3)[seed % 7]
        self.rules = self.drawn_rules(seed, symbols, whole_shares, seed % 3 == 1 if shorting is None else shorting)
        # Prices up to 2.3 million in ticks of 1e-4 have 35 bits; the usual ones have 24.
        highest = 1e6 if whole_shares and seed % 3 == 2 else 300.0
        self.tape = random_tape(self.rng, NUM_DAYS, symbols, gaps=seed % 4 != 3, highest=highest)
        self.actions = self.drawn_actions(symbols)

    def drawn_rules(self, seed: int, symbols: int, whole_shares: bool, shorting: bool) -> dict[str, Any]:
        rng = self.rng

        def rate(turn: int) -> float | tuple[float, ...]:
            if turn % 3 == 0:
                return tuple(rng.choice([0.0, 0.0007, 0.002], symbols).tolist())
            return float(rng.choice([0.0, 0.0005, 0.001, 0.0123]))

        return {
            "whole_shares": whole_shares,
            "action": ("shares", "tilt", "weights", "tilt", "shares")[seed % 5],
            "benchmark": ("equal_weight", "buy_and_hold")[seed // 5 % 2],
            "benchmark_cash": float(rng.choice([0.0, 0.005, 0.5])),
            "tilt_gain": float(rng.choice([0.2, 1.0, 3.0])),
            "fill": ("close", "close", "next_open")[seed % 3],
            "rationing": ("pro_rata", "by_size")[seed // 2 % 2],
            "initial_cash": float(rng.choice([0.5, 10.0, 1e4, 1e6, 1.3e7])),
            "initial_holdings": tuple(rng.integers(0, 50, symbols).tolist()) if seed % 4 > 1 else 0.0,
            "hmax": int(rng.choice([1, 100, 1000])),
            "commission": rate(seed),
            "slippage": rate(seed + 1),
            "dead_zone": (0.0, 0.1)[seed // 3 % 2],
            "stop_loss": (0.0, 0.05)[seed // 2 % 2],
            "gate_threshold": 180.0,
            "shorting": shorting,
            "borrow_rate": (0.0, 0.5)[seed % 2] if shorting else 0.0,
            "ruin_fraction": (0.0, 0.9)[seed // 4 % 2],
            "reward": REWARDS[(seed + seed // 5) % 5],
            "min_cash_fraction": (0.0, 0.2)[seed // 3 % 2],
            "terminal_bonus": (0.0, 3.0)[seed // 2 % 2],
            **({"reward_scale": 1e-4} | SCALES if seed // 5 % 2 else {}),
        }

    def drawn_actions(self, symbols: int) -> np.ndarray:
        """Draw actions of all sizes, beyond the bounds and a few that are no numbers; with tilts also weights."""
        rng, count = self.rng, symbols + (self.rules["action"] == "tilt" and self.rng.random() < 0.8)
        actions = rng.uniform(-1.3, 1.3, (NUM_DAYS, self.num_envs, count)).astype(np.float32)
        actions *= rng.choice([0.01, 0.3, 1.0], (1, self.num_envs, 1)).astype(np.float32)
        for value, chance in ((np.nan, 0.01), (np.inf, 0.01), (0.0, 0.05)):
            actions[rng.random(actions.shape) < chance] = value
        return actions

    def started(self, dtype: str) -> tuple[BoundEngine, Rows]:
        config = self.settings(
            **self.rules, dtype=dtype, gate="turbulence" if self.gate else "none",
            episode_length=LONGEST, min_episode_length=2, features=self.tape.feature_names,
        )  # fmt: skip
        bound = Engine(self.scenario(self.tape, config), self.num_envs).bound()
        ids = torch.arange(self.num_envs)
        return bound, bound.start(torch.tensor(3), ids, torch.zeros_like(ids))

    def account(self, spelled: dict[str, Any], start: int, length: int) -> Account:
        return Account(Rules(gate=self.gate, **spelled), oracle_market(self.tape), start, length)

    def accounts(self, rows: Rows) -> list[Account]:
        days = zip(rows.state.start_day.tolist(), rows.state.end_day.tolist(), strict=True)
        return [self.account(self.rules, start, end - start) for start, end in days]

    def check_level(self, bound: BoundEngine, before: Rows, after: Rows, accounts: dict[int, Account]) -> None:
        """Compare what rules on scores add."""


def oracle_steps(accounts: list[Account], actions: np.ndarray) -> Iterator[tuple[dict, dict]]:
    """Play all episodes; yield per step the rows that played: what they saw before, and their rewards."""
    for action in actions.tolist():
        playing = [n for n, account in enumerate(accounts) if not (account.terminated or account.truncated)]
        if not playing:
            return
        observations = {n: accounts[n].observation() for n in playing}
        yield observations, {n: accounts[n].step(action[n]) for n in playing}


def check_exact(case: Case, tolerance: dict[str, float]) -> int:
    """Compare accounts and flags bit for bit, and rewards up to the given tolerance, in some precisions."""
    started = {dtype: case.started(dtype) for dtype in tolerance}
    bounds, rows = ({dtype: pair[place] for dtype, pair in started.items()} for place in (0, 1))
    accounts, count = case.accounts(next(iter(rows.values()))), 0
    for start in (one.state for one in rows.values()):
        columns = zip(*(getattr(start, name).tolist() for name in EXACT), strict=True)
        opened = [(a.cash, a.holdings, a.value, a.costs, a.traded, a.invalid_actions) for a in accounts]
        assert list(columns) == opened and bool((start.buy_ratio == 1).all())
    for step, (observations, rewards) in enumerate(oracle_steps(accounts, case.actions)):
        playing, action = list(rewards), torch.from_numpy(case.actions[step])
        wanted = [(a.cash, a.holdings, a.value, a.costs, a.traded, a.invalid_actions) for a in accounts]
        count += len(playing)
        for dtype, bound in bounds.items():
            context = f"{dtype}, step {step}, {case.rules}, gate {case.gate}"
            observed = bound.observation(rows[dtype])[playing]
            np.testing.assert_allclose(observed, list(observations.values()), rtol=1e-5, atol=1e-6, err_msg=context)
            outcome = bound.step(rows[dtype], action)
            columns = zip(*(getattr(outcome.rows.state, name)[playing].tolist() for name in EXACT), strict=True)
            for n, numbers in zip(playing, columns, strict=True):
                assert numbers == wanted[n], f"row {n}, {context}"
                assert case.rules["shorting"] or (accounts[n].cash >= 0 and min(accounts[n].holdings) >= 0)
            for name in ("terminated", "truncated"):
                assert getattr(outcome, name)[playing].tolist() == [getattr(accounts[n], name) for n in playing]
            error = tolerance[dtype]
            found = outcome.reward[playing].double()
            np.testing.assert_allclose(found, list(rewards.values()), rtol=error, atol=error, err_msg=context)
            case.check_level(bound, rows[dtype], outcome.rows, {n: accounts[n] for n in playing})
            rows[dtype] = outcome.rows
    return count


def check_fractions(case: Case) -> None:
    """Cash, holdings and value within 1e-9 of the value at every step of whole episodes."""
    bound, rows = case.started("float64")
    accounts = case.accounts(rows)
    for step, (_, rewards) in enumerate(oracle_steps(accounts, case.actions)):
        outcome = bound.step(rows, torch.from_numpy(case.actions[step]))
        state = outcome.rows.state
        for n, reward in rewards.items():
            account, context = accounts[n], f"row {n}, step {step}, {case.rules}, gate {case.gate}"
            error = 1e-9 * max(account.value, account.start_value)
            assert abs(float(state.cash[n]) - account.cash) <= error, context
            assert abs(float(state.portfolio_value[n]) - account.value) <= error, context
            np.testing.assert_allclose(state.holdings[n], account.holdings, rtol=1e-9, atol=1e-9, err_msg=context)
            np.testing.assert_allclose(float(outcome.reward[n]), reward, rtol=1e-6, atol=1e-9, err_msg=context)
        rows = outcome.rows


BOTH = {"float32": 1e-5, "float64": 1e-9}


@pytest.mark.parametrize("seed", range(10))
def test_whole_shares_equal_the_oracle_exactly(seed):
    assert check_exact(Case(seed, 40), BOTH) > 100


@pytest.mark.parametrize("seed", range(10, 15))
def test_fractional_shares_in_float64_equal_the_oracle(seed):
    check_fractions(Case(seed, 25, whole_shares=False))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20, 70))
def test_ten_thousand_episodes_equal_the_oracle(seed):
    check_exact(Case(seed, 200), BOTH)
    check_fractions(Case(seed, 80, whole_shares=False))


@pytest.mark.parametrize("seed", range(10))
def test_one_fractional_step_in_float32_from_an_equal_state(seed):
    """From the same account, one float32 step lands within 1e-6 of the float64 one, and never in debt."""
    case = Case(seed, 100, whole_shares=False, shorting=False)
    (double, rows), (single, like) = case.started("float64"), case.started("float32")
    for action in torch.from_numpy(case.actions[:2]):
        # The second step starts from accounts that hold something.
        narrowed = with_leaves(like, [old.to(new.dtype) for old, new in zip(leaves(rows), leaves(like), strict=True)])
        exact, fast = double.step(rows, action), single.step(narrowed, action)
        value = rows.state.portfolio_value.clamp(min=1.0)
        moved = (fast.rows.state.portfolio_value.double() - exact.rows.state.portfolio_value).abs()
        assert float((moved / value).max()) <= 1e-6, case.rules
        assert float(fast.rows.state.cash.min()) >= 0 and float(fast.rows.state.holdings.min()) >= 0
        rows = exact.rows
