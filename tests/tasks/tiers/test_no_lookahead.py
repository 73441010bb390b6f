"""Replacing every bar after a day changes nothing that was seen, paid or rewarded up to it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.small_env import random_actions, same_bits
from vecenv.core.engine import Engine
from vecenv.market.bars import OPEN, VOLUME, Bars
from vecenv.market.indicators import INDICATORS
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

NUM_DAYS, NUM_SYMBOLS, CUT = 330, 3, 300
FEATURES = (*INDICATORS, "score")
SEEN = ("seen", "grade")
PAID = ("cash", "holdings", "costs", "average_price")
REWARDED = ("value", "reward", "terminated", "truncated")


def bars(rng: np.random.Generator) -> Bars:
    """Random bars with gaps, a symbol that lists late, a column of the data and a VIX."""
    close = 50 * np.exp(rng.normal(0, 0.03, (NUM_DAYS, NUM_SYMBOLS)).cumsum(0))
    open_ = close * np.exp(rng.normal(0, 0.01, close.shape))
    high, low = np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99
    ohlcv = np.stack([open_, high, low, close, rng.integers(1, 1000, close.shape)], -1)
    ohlcv = ohlcv.clip(0.01, 800)
    ohlcv[rng.random(close.shape) < 0.01] = np.nan
    ohlcv[:40, 1] = np.nan
    return Bars(
        symbols=("A", "B", "C"),
        dates=np.datetime64("2020-01-01") + np.arange(NUM_DAYS),
        ohlcv=torch.from_numpy(ohlcv)[None],
        columns={"score": torch.from_numpy(rng.normal(0, 1, (1, NUM_DAYS, NUM_SYMBOLS)))},
        context={"vix": torch.from_numpy(rng.uniform(10, 40, (1, NUM_DAYS)))},
    )


def with_future(past: Bars, future: Bars | None) -> Bars:
    """Return the bars up to and including the day of the cut, and those of another future after it, if any."""

    def spliced(name: str) -> torch.Tensor:
        old, new = (
            source and (source.columns | source.context | {"": source.ohlcv})[name] for source in (past, future)
        )
        return old[:, : CUT + 1] if future is None else torch.cat([old[:, : CUT + 1], new[:, CUT + 1 :]], dim=1)

    dates = past.dates[: CUT + 1] if future is None else past.dates
    columns, context = {"score": spliced("score")}, {"vix": spliced("vix")}
    return replace(past, dates=dates, ohlcv=spliced(""), columns=columns, context=context)


def tape_of(source: Bars) -> MarketTape:
    return MarketTape.from_bars(source, FEATURES, ("vix", "turbulence"))


@pytest.fixture(scope="module")
def worlds() -> tuple[Bars, Bars]:
    """Bars, and the same with another future, which begins with a shock that every gate would see."""
    past, future = (bars(np.random.default_rng(seed)) for seed in (1, 2))
    future.ohlcv[:, CUT + 1, :, :VOLUME] = past.ohlcv[:, CUT, :, :VOLUME] * torch.tensor([[1.5], [0.7], [1.6]])
    past.context["vix"][:, CUT + 1], future.context["vix"][:, CUT + 1] = 10.0, 90.0
    return past, with_future(past, future)


@pytest.fixture(scope="module")
def tapes(worlds) -> tuple[MarketTape, MarketTape]:
    return tape_of(worlds[0]), tape_of(worlds[1])


def test_the_tape_up_to_a_day_is_made_of_the_bars_up_to_it(worlds, tapes):
    """Also with every indicator, the turbulence of a year, gaps and a late listing, and where the market ends then."""
    ended = tape_of(with_future(worlds[0], None))
    for name in ("ohlcv", "tradable", "features", "context"):
        one, other = (getattr(tape, name) for tape in tapes)
        assert same_bits(one[:, : CUT + 1], other[:, : CUT + 1]) and not same_bits(one, other), name
        assert same_bits(getattr(ended, name), one[:, : CUT + 1]), name
    assert tapes[0].first_day == tapes[1].first_day and tapes[0].tick_size == tapes[1].tick_size


def played_steps(scenario: StockTrading, num_envs: int, num_steps: int) -> list[dict[str, torch.Tensor]]:
    """Play random episodes and return per step what was seen, paid and rewarded, and the day it was decided on."""
    bound = Engine(scenario, num_envs).bound()
    ids = torch.arange(num_envs)
    rows, played = bound.start(torch.tensor(4), ids, torch.zeros_like(ids)), []
    for action in random_actions(num_steps, num_envs, *scenario.action_spec.shape):
        seen = bound.observation(rows)
        outcome = bound.step(rows, action)
        paid = {name: getattr(outcome.rows.state, name) for name in PAID}
        brought = {name: getattr(outcome, name) for name in REWARDED[1:]}
        brought["value"] = outcome.rows.state.portfolio_value
        now = {"day": rows.state.day, "done": rows.done, "seen": seen, "grade": bound.grade(rows)}
        played.append(now | paid | brought)
        rows = outcome.rows
    return played


def compared(one: list[dict], other: list[dict], names: tuple[str, ...], last: int) -> tuple[int, bool]:
    """Count the steps decided on days up to ``last``, and say whether what they left is equal, bit for bit."""
    count, equal = 0, True
    for left, right in zip(one, other, strict=True):
        chosen = (left["day"] <= last) & ~left["done"]
        count += int(chosen.sum())
        equal &= all(same_bits(left[name][chosen], right[name][chosen]) for name in names)
    return count, equal


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"action": "weights", "gate": "vix", "gate_threshold": 35.0, "stop_loss": 0.05, "rationing": "by_size"},
        {"gate": "turbulence", "gate_threshold": 4.0, "reward": "differential_sharpe", "ruin_fraction": 0.7},
        # Without the fee for borrowed shares, which is due at the next close.
        {"shorting": True, "borrow_rate": 0.0, "reward": "log_return"},
        {"fill": "next_open", "stop_loss": 0.05},
    ],
)
def test_fills_know_nothing_of_later_prices(worlds, tapes, rules):
    """Up to day t: what is seen, and what orders of day t pay. What is rewarded: up to the step that ends on day t.

    An order that is filled at the next open pays the open of day t+1 alone; the rest of that day's bar does not matter.
    """
    config = {"initial_cash": 20_000.0, "features": FEATURES, "episode_length": 60, "min_episode_length": 20} | rules

    def play(tape: MarketTape) -> list[dict[str, torch.Tensor]]:
        return played_steps(StockTrading(tape, StockTradingConfig(**config)), 40, 50)

    one, other = (play(tape) for tape in tapes)
    late = "fill" in rules
    for names, last in ((SEEN, CUT), (PAID, CUT - late), (REWARDED, CUT - 1)):
        count, equal = compared(one, other, names, last)
        assert count > 500 and equal, names
    # The replaced bars do reach what comes after.
    assert not compared(one, other, ("seen",), CUT + 1)[1] and not compared(one, other, ("reward",), CUT)[1]
    if late:
        assert not compared(one, other, PAID, CUT)[1]
        same_open = worlds[1].ohlcv.clone()
        kept = worlds[0].ohlcv[:, CUT + 1, :, OPEN, None]
        same_open[:, CUT + 1, :, :VOLUME] = kept * torch.tensor([1.0, 1.4, 0.6, 1.1])
        third = tape_of(replace(worlds[1], ohlcv=same_open))
        assert third.tradable[:, CUT + 1].equal(tapes[0].tradable[:, CUT + 1])
        assert compared(one, play(third), PAID, CUT)[1] and not compared(one, play(third), REWARDED, CUT)[1]
