"""The rules by examples worked out by hand, which the kernels must meet to the tick."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from vecenv.core.engine import Engine
from vecenv.learn.cppo import risk_weighed
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading import law
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

TEN = 100_000
"""A price of 10.0000, in ticks."""
RICH = 10_000_000_000
"""Cash of a million, in ticks."""
SHORT = {"shorting": True}
FREE = {"commission": 0.0}


@dataclass
class Example:
    """Closes ``[day][symbol]`` in ticks, the actions of the days, and what is left after the last of them.

    Opens equal the closes and all is tradable unless told. Rewards are those of all days.
    """

    close: list[list[int]]
    actions: list[list[float]]
    want: dict[str, Any]
    rules: dict[str, Any] = field(default_factory=dict)
    open: list[list[int]] | None = None
    tradable: list[list[bool]] | None = None
    gate_series: list[float] | None = None
    start_day: int = 0
    length: int = 250

    def tape(self) -> MarketTape:
        close, open_ = (np.array(ticks, float) * 0.0001 for ticks in (self.close, self.open or self.close))
        days, symbols = close.shape
        features = [[[10.0 * day + k, -1.0] for k in range(symbols)] for day in range(days)]
        return MarketTape(
            symbols=tuple("ABCD"[:symbols]),
            dates=np.datetime64("2020-01-01") + np.arange(days),
            ohlcv=torch.from_numpy(np.stack([open_, close, close, close, close], -1)).float()[None],
            tradable=torch.tensor(self.tradable or [[True] * symbols] * days)[None],
            features=torch.tensor(features)[None],
            feature_names=("f", "g"),
            context=torch.tensor(self.gate_series or [0.0] * days).view(1, -1, 1),
            context_names=("turbulence",),
            first_day=self.start_day,
            tick_size=0.0001,
        )

    def played(self) -> dict[str, Any]:
        """Return the state, the rewards and the observation after the actions."""
        scales = {"cash_scale": 1.0, "price_scale": 1.0, "holdings_scale": 1.0, "feature_scale": 1.0}
        config = StockTradingConfig(
            **(scales | self.rules),
            features=("f", "g"),
            gate="none" if self.gate_series is None else "turbulence",
            dtype="float32" if self.rules.get("whole_shares", True) else "float64",
            random_start=False,
            episode_length=min(self.length, len(self.close) - 1 - self.start_day),
        )
        bound = Engine(StockTrading(self.tape(), config), 1).bound()
        rows, rewards = bound.start(torch.tensor(0), torch.zeros(1, dtype=torch.int64), torch.zeros(1).long()), []
        for action in self.actions:
            outcome = bound.step(rows, torch.tensor([action]))
            rows = outcome.rows
            rewards.append(float(outcome.reward))
        found = {name: getattr(rows.state[0], name).tolist() for name in EXACT}
        found |= {"terminated": bool(outcome.terminated), "truncated": bool(outcome.truncated)}
        return found | {"rewards": rewards, "observation": bound.observation(rows)[0].tolist()}


EXACT = ("cash", "holdings", "portfolio_value", "start_value", "traded", "costs", "average_price", "invalid_actions")


def days(*ticks: int, symbols: int = 1) -> list[list[int]]:
    """Return closes that all symbols share."""
    return [[tick] * symbols for tick in ticks]


FLAT, PAIR = days(TEN, TEN), days(TEN, TEN, symbols=2)
MOVES = days(TEN, 110_000, 104_500, 104_500)
"""100 shares are worth 1000, 1100 and 1045: returns of 10% and -5%."""
HELD = {"initial_cash": 1e-9, "initial_holdings": 100, "reward_scale": 2.0}
WEIGHTS = {"action": "weights"}
SCALES = ("cash_scale", "price_scale", "holdings_scale", "feature_scale")
MEAN = math.sqrt((0 + 1 + 100 + 121) / 4)
OWN_FEATURES = (10 / MEAN, -1.0, 11 / MEAN, -1.0)
"""Of the second day: f has been 0 and 1, and is 10 and 11; g is always -1."""

EXAMPLES = {
    "a purchase pays price and commission and earns the move": Example(
        days(TEN, 105_000), [[1.0]],
        {"holdings": [100], "cash": RICH - 10_010_000, "traded": 10_000_000, "costs": 10_000,
         "portfolio_value": RICH + 490_000, "rewards": [49.0e-4]},
    ),
    "a sale is limited to the holding and pays commission": Example(
        FLAT, [[-1.0]], {"holdings": [0], "cash": 2_997_000, "traded": 3_000_000, "costs": 3_000},
        {"initial_cash": 1e-9, "initial_holdings": (30,)},
    ),
    # 0.29 × 100 is 28.999999999999996 in double precision and 29 in single precision.
    "orders are multiplied in single precision": Example(FLAT, [[0.29]], {"holdings": [29]}),
    # 8,749,999 of 10,000,000 is 57,343.99 steps: 69,998.8 shares instead of 69,999.99.
    "the ratio is a multiple of two to the minus 16": Example(
        days(125, 125), [[1.0]], {"holdings": [69_998]}, {"initial_cash": 874.9999, "hmax": 80_000, **FREE}
    ),
    # 999.0000 of proceeds against a need of 1001.0000: 99.8 shares.
    "sales pay for purchases": Example(
        PAIR, [[1.0, -1.0]],
        {"holdings": [99, 0], "cash": 80_100, "traded": 19_900_000, "costs": 19_900},
        {"initial_cash": 1e-9, "initial_holdings": (0, 100)},
    ),
    "the next open is paid and the close is the value": Example(
        days(TEN, 120_000), [[1.0]],
        {"cash": RICH - 11_011_000, "costs": 11_000, "portfolio_value": RICH + 1_000_000 - 11_000},
        {"fill": "next_open"}, open=days(1, 110_000),
    ),
    # 0.1: 6,553 / 65,536 of 1e9 = 99,990,844 ÷ 10; unrounded it would buy 10,000,000.
    "targets are rounded down to two to the minus 16": Example(
        days(10, 10), [[0.1]], {"holdings": [9_999_084]}, {"initial_cash": 100_000, **WEIGHTS, **FREE}
    ),
    **{
        f"of weights the dead zone is a share of the value, {zone}": Example(
            FLAT, [[0.75]], {"holdings": [held]},
            {"dead_zone": zone, "initial_cash": 500, "initial_holdings": 50, **WEIGHTS, **FREE},
        )
        for zone, held in ((0.25, 50), (0.24, 75))
    },
    "the gate sells all that can trade and refuses purchases": Example(
        days(TEN, TEN, TEN, symbols=3), [[0.1, 0.0, 0.0], [1.0, 1.0, -1.0]], {"holdings": [0, 0, 300]},
        {"gate_threshold": 100.0, "initial_holdings": 300}, tradable=[[True] * 3, [True, True, False], [True] * 3],
        gate_series=[99.0, 100.0, 0.0],
    ),
    "the stop-loss sells at its threshold whatever was ordered": Example(
        [[TEN, TEN], [90_000, 90_001], [90_000] * 2], [[1.0, 1.0], [1.0, 0.0]], {"holdings": [0, 100]},
        {"stop_loss": 0.1},
    ),
    "what is held at the start was bought at its close": Example(
        days(1, TEN, 90_000, 90_000), [[0.0], [0.0]], {"holdings": [0], "start_value": RICH + 700_000},
        {"stop_loss": 0.1, "initial_holdings": 7}, start_day=1,
    ),
    **{
        f"the average price follows purchases alone, day {day + 1}": Example(
            days(TEN, 130_000, 50_000, 130_000, TEN, TEN), [[1.0], [0.5], [-1.0], [-1.0], [0.1]][: day + 1],
            {"average_price": [average]}, {"stop_loss": 0.99},
        )
        for day, average in ((2, 110_000), (3, 0), (4, 100_000))
    },
    # (100,000 + 2 × 100,001) ÷ 3 = 100,000.667; the nearest multiple of 2⁻⁷ is 85 / 128.
    "the average price is in single precision": Example(
        days(TEN, 100_001, TEN), [[0.5], [1.0]], {"average_price": [100_000 + 85 / 128]}, {"hmax": 2, "stop_loss": 0.9}
    ),
    "fractions are not rounded": Example(
        days(100_001, 100_001), [[0.3]],
        {"holdings": [0.3], "cash": RICH - 0.3 * 100_001 * 1.001 * 1.001, "average_price": [100_001 * 1.001]},
        {"whole_shares": False, "hmax": 1, "slippage": 0.001, "stop_loss": 0.9},
    ),
    "reward: change of value": Example(MOVES, [[0.0]] * 2, {"rewards": [200, -110]}, HELD),
    "reward: a tenth of 1100 and of 1045 is missing in cash, at half a point each": Example(
        MOVES, [[0.0]] * 2, {"rewards": [2 * (100 - 55), 2 * (-55 - 52.25)]},
        HELD | {"min_cash_fraction": 0.1, "cash_penalty_weight": 0.5},
    ),
    **{
        f"own scale of {reward}": Example(
            MOVES, [[0.0]] * 2, {"rewards": rewards}, HELD | {"reward": reward, "reward_scale": None},
        )
        for reward, rewards in {
            "delta_value": [10.0, -5.5],
            "log_return": [100 * math.log(1.1), 100 * math.log(0.95)],
            "risk_penalised": [100 * (0.1 - 0.01), 100 * (-0.05 - 0.0025)],
        }.items()
    },
    "own scale of a cash penalty: a tenth of 110% and of 104.5% of the start is missing, at half a point each": Example(
        MOVES, [[0.0]] * 2, {"rewards": [10 - 5.5, -5.5 - 5.225]},
        HELD | {"min_cash_fraction": 0.1, "cash_penalty_weight": 0.5, "reward_scale": None},
    ),
    "own scales of cash, prices, holdings and features: 10 of 13 at the start are cash": Example(
        [[TEN, 0], [2 * TEN, TEN]], [[0.0, 0.0]],
        {"observation": [10 / 40, 1 + math.log(2), 1.0, 2 * 60 / 40, 0.0, *OWN_FEATURES]},
        {"initial_holdings": (3, 0), "initial_cash": 10.0, **dict.fromkeys(SCALES)},
    ),
    "the bonus comes on the last day alone and is not scaled": Example(
        MOVES, [[0.0]] * 2, {"rewards": [200, -110 + 7 * 0.045], "truncated": True}, HELD | {"terminal_bonus": 7.0},
        length=2,
    ),
    **{
        f"ruin is a share of the value at the start, {price}": Example(
            days(TEN, price, TEN), [[0.0]], {"terminated": ruined},
            {"initial_cash": 1e-9, "initial_holdings": 1, "ruin_fraction": 0.5},
        )
        for price, ruined in ((50_001, False), (50_000, True))
    },
    "observed are cash, prices, holdings and features": Example(
        [[TEN, 0], [TEN, 2 * TEN]], [[0.0, 0.0]], {"observation": [5e5, 1.0, 2.0, 6, 0, 30, -3, 33, -3]},
        {"initial_holdings": (3, 0), "cash_scale": 0.5, "price_scale": 0.1, "holdings_scale": 2.0,
         "feature_scale": 3.0},
    ),
    # 2 longs bring 2.0000 - 0.0020; cash 161.9980 of a need of 320.3200: 10.1 of 20 shares.
    "a margin call sells longs first and covers what cash allows": Example(
        [[160_000, 10_000]] * 2, [[0.0, 1.0]], {"holdings": [-10, 0], "cash": 18_380},
        {"initial_cash": 160, "initial_holdings": (-20, 2), **SHORT},
    ),
    # 0.1% of 11 × 9 ticks and of 7 × 9 ticks are rounded up to a tick each; that of 18 × 9 to one.
    "each part pays its own commission": Example(
        days(9, 9), [[-0.18]], {"costs": 2}, {"initial_holdings": (11,), **SHORT}
    ),
    # 1 × 10,000 × 2.52 ÷ 252 = 100 a day of 50 in cash; nothing is tradable, so nothing else moves.
    "a borrow fee beyond cash leaves a debt": Example(
        [[10_000, TEN]] * 3, [[1.0, 1.0]] * 2, {"cash": -150, "terminated": False},
        {"borrow_rate": 2.52, "initial_cash": 0.0050, "initial_holdings": (-1, 1), **SHORT},
        tradable=[[False, False]] * 3,
    ),
    "a worthless account ends": Example(
        days(TEN, 210_000, TEN), [[0.0]], {"portfolio_value": -10_000, "terminated": True, "truncated": False},
        {"initial_cash": 20, "initial_holdings": -1, **SHORT},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_by_hand(name):
    example, found = EXAMPLES[name], EXAMPLES[name].played()
    for wanted, value in example.want.items():
        exact = example.rules.get("whole_shares", True) and wanted not in ("rewards", "observation")
        assert found[wanted] == (value if exact else pytest.approx(value, rel=1e-6, abs=1e-4)), wanted


def test_rewards_of_a_step():
    """A = 1 and B = 3: (B (r - A) - A (r^2 - B) / 2) / (B - A^2)^1.5 for r = 2; nothing without a variance."""
    # Of a value of 10 to one of 8, of nothing to something, and to ruin.
    before, after = torch.tensor([10, 0, 10]), torch.tensor([8, 5, -3])
    assert law.simple_return(before, after, torch.float64).tolist() == [-0.2, 0.0, -1.3]
    assert law.log_return(before, after, torch.float64).tolist() == pytest.approx([math.log(0.8), 0.0, math.log(1e-6)])
    moments, step = torch.tensor([1.0, 3.0], dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    assert float(law.differential_sharpe(step, moments)) == pytest.approx((3 * 1 - 0.5 * (4 - 3)) / 2**1.5)
    assert float(law.differential_sharpe(step, torch.tensor([2.0, 4.0], dtype=torch.float64))) == 0.0
    assert law.updated_moments(step, moments, torch.tensor(0.25)).tolist() == [1.25, 3.25]
    step = torch.tensor([0.5, -0.5], dtype=torch.float64)
    assert law.risk_penalised(step, torch.tensor(0.5)).tolist() == [0.375, -0.625]
    assert risk_weighed(step, torch.tensor([2.0, 2.0], dtype=torch.float64)).tolist() == [0.25, -1.0]
