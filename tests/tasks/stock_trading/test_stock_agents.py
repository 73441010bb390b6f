"""Baselines on small markets whose accounts can be computed by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import vecenv
from vecenv.market.bars import CLOSE, OPEN, Bars
from vecenv.market.planted import planted_bars
from vecenv.market.planted_law import planted_law
from vecenv.market.planted_optimum import planted_target_weights
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.registry import task_of
from vecenv.tasks.experiment.comparison import baseline_agents
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


def tape_of(closes: list) -> MarketTape:
    """A market whose bars are flat at given closes. Shape: (T, K) of one path or (P, T, K); NaN for no bar."""
    close = torch.tensor(closes, dtype=torch.float64)
    close = close if close.ndim == 3 else close[None]
    bars = torch.stack([close, close, close, close, torch.where(close.isnan(), close, 1e6)], dim=-1)
    dates = np.datetime64("2020-01-01") + np.arange(close.shape[1])
    names = tuple("ABCDEFG"[: close.shape[2]])
    return MarketTape.from_bars(Bars(names, dates, bars, {"zero": torch.zeros_like(bars[..., 0])}), ("zero",))


def make(tape, num_envs=1, **overrides):
    tape = tape if isinstance(tape, MarketTape) else tape_of(tape)
    overrides = {"random_start": False, "episode_length": tape.num_days - 1, **overrides}
    return vecenv.make("stock_trading", num_envs, market=tape, compile=False, **overrides)


def play(env, agent):
    """Values in currency and holdings after every step. Shapes: (T + 1, N), (T + 1, N, K)."""
    env.reset_groups(env.num_envs, 1, 0)
    values, held = [env.state.portfolio_value.double()], [env.state.holdings]
    while not bool(env.rows.done.all()):
        env.advance(agent.act(env))
        values.append(env.state.portfolio_value.double())
        held.append(env.state.holdings)
    return torch.stack(values) * env.scenario.tape.tick_size, torch.stack(held)


FRACTIONS = {"whole_shares": False, "dtype": "float64", "commission": 0.0}


@pytest.mark.parametrize("action", ["weights", "tilt"])
def test_equal_weights_are_restored_every_day(action):
    """Fractions of shares and no costs: the account grows by the mean of the symbols' growth each day."""
    closes = [[10.0, 40.0, math.nan], [12.0, 40.0, math.nan], [12.0, 20.0, 5.0], [15.0, 30.0, 5.0]]
    env = make(closes, **FRACTIONS, action=action)
    # C can trade from the third day on.
    expected = 1e6 * np.cumprod([1.0, 1.1, 0.75, (1.25 + 1.5 + 1.0) / 3])
    assert play(env, EqualWeight())[0][:, 0].tolist() == pytest.approx(expected, rel=1e-9)


NAN = math.nan
PATTERNS = {
    "a coin and a stock that rises on every reopening": [[9.0, a] for a in (1.0, NAN, NAN, 1.1, 1.1, NAN, NAN, 1.3)],
    "a start inside a gap, and listed late": [[9.0, NAN, NAN], [8.0, 5.0, NAN], [8.5, 7.0, 3.0], [9.0, 4.0, 2.0]],
    "delisted for ever": [[9.0, 4.0, 2.0], [8.0, 3.0, NAN], [7.0, 5.0, NAN], [3.0, 6.0, NAN]],
    "all are missing": [[9.0, 4.0], [NAN, NAN], [NAN, NAN], [10.0, 1.0], [NAN, 2.0], [NAN, NAN], [3.0, NAN]],
}


def patterns(days: int = 12, symbols: int = 4) -> list[list[list[float]]]:
    """The patterns above, with nothing after their end, and random ones, of one shape."""
    rng, filled = np.random.default_rng(5), []
    for closes in PATTERNS.values():
        rows = [[*row, *[NAN] * (symbols - len(row))] for row in closes]
        filled.append(rows + [[NAN] * symbols] * (days - len(rows)))
    close = 20.0 * np.exp(rng.normal(0, 0.2, (200, days, symbols)).cumsum(1))
    close[rng.random(close.shape) < rng.choice([0.0, 0.1, 0.4, 0.8], (200, 1, symbols))] = NAN
    return filled + close.tolist()


@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize(
    ("action", "benchmark"),
    [("tilt", "equal_weight"), ("tilt", "buy_and_hold"), ("weights", "equal_weight"), ("shares", "equal_weight")],
)
def test_playing_the_benchmark_has_no_excess_whatever_bars_are_missing(action, benchmark, start):
    """Zero tilts and the agent of equal weights earn what the benchmark does, over gaps too, from any start."""
    close = patterns()
    tape = replace(tape_of(close), first_day=start)
    rules = {"benchmark_cash": 0.0} if action == "tilt" else {"hmax": 1e9} if action == "shares" else {}
    rules |= {"reward": "excess_log_return", "reward_scale": 1.0, "episode_length": tape.num_days - 1 - start}
    env = make(tape, len(close), **FRACTIONS, action=action, benchmark=benchmark, **rules)
    env.reset()
    while not bool(env.rows.done.all()):
        zeros = torch.zeros(len(close), tape.num_symbols + 1)
        excess = env.advance(zeros if action == "tilt" else EqualWeight().act(env))
        # Actions are in single precision.
        assert float(excess.abs().max()) < (1e-9 if action == "tilt" else 1e-6)
    assert float(env.info()["total_return"].abs().max()) > 0.5


@pytest.mark.parametrize("benchmark", ["equal_weight", "buy_and_hold"])
def test_tilts_of_zero_invest_whatever_the_account_holds_of_what_cannot_be_sold(benchmark):
    """Half is kept of a symbol that cannot trade, or nothing; the rest is in the others, and cash in neither case."""
    tape = tape_of([[10.0, 10.0, 10.0], [10.0, 10.0, NAN], [10.0, 10.0, NAN], [10.0, 10.0, 10.0]])
    env = make(tape, **FRACTIONS, action="tilt", benchmark=benchmark, benchmark_cash=0.0, tilt_gain=50.0)
    for first, kept in (([1.0, 1.0, -1.0, 0.0], 0.0), ([-1.0, 1.0, 1.0, -1.0], 0.5)):
        env.reset()
        env.advance(torch.tensor([first]))
        for _ in range(2):
            env.advance(torch.zeros(1, 4))
            worth = env.state.holdings[0] * env.state.holdings.new_tensor([1e5] * 3)
            share = (worth / env.state.portfolio_value[0]).tolist()
            assert share == pytest.approx([(1 - kept) / 2, (1 - kept) / 2, kept], abs=1e-9)
        assert float(env.info()["cash"]) == pytest.approx(0.0, abs=1e-6)


def planted(kind, **overrides):
    features = ("signal",) if kind == "signal" else ("daily_change",)
    options = {"num_paths": 3, "num_days": 20, "symbols": ["A", "B", "C"], "generator": {"kind": kind}, "seed": 5}
    config = {"features": features, "episode_length": 10, "action": "tilt", **FRACTIONS, **overrides}
    return vecenv.make("stock_trading", 6, market="planted", market_options=options, compile=False, **config)


@pytest.mark.parametrize(("kind", "action"), [("signal", "tilt"), ("cross_section", "tilt"), ("momentum", "weights")])
def test_the_best_rule_earns_what_its_weights_earn_by_hand(kind, action):
    env = planted(kind, action=action)
    bars = planted_bars(3, 20, ("A", "B", "C"), seed=5, kind=kind)
    weights = planted_target_weights(planted_law(kind), bars.ohlcv, bars.columns.get("signal"))
    values = play(env, task_of(env).domain.best(env))[0]
    change = bars.ohlcv[:, 1:, :, CLOSE] / bars.ohlcv[:, :-1, :, CLOSE] - 1
    grown = 1 + (weights[:, :-1] * change).sum(-1)
    for row, (path, start) in enumerate(zip(env.state.path.tolist(), env.state.start_day.tolist(), strict=True)):
        # Prices of the account are whole ticks.
        assert float(values[-1, row]) == pytest.approx(1e6 * float(grown[path, start : start + 10].prod()), rel=1e-4)
    assert (values[-1] / values[0]).std() > 1e-3


def test_no_best_rule_is_known_with_costs_limits_or_shorts_or_without_a_law():
    assert list(baseline_agents(planted("momentum"), ["hold"])) == ["hold", "best_rule"]
    costs, limits = ({"commission": 0.001}, {"slippage": 0.001}), ({"action": "shares"}, {"stop_loss": 0.1})
    for overrides in (*costs, *limits, {"shorting": True}):
        env = planted("momentum", **overrides)
        assert task_of(env).domain.best(env) is None, overrides
    assert "best_rule" not in baseline_agents(env, ["hold"])
    env = make([[10.0], [11.0], [12.0]], action="tilt", commission=0.0)
    assert task_of(env).domain.best(env) is None


def test_buy_and_hold_by_hand():
    """Half of the cash each: floor(5000 / 10.1) = 495 of A, floor(5000 / 40.4) = 123 of B, 200 a day at most."""
    closes = [[10.0, 40.0], [9.5, 40.0], [9.0, 30.0], [13.0, 50.0], [9.0, 60.0]]
    values, held = play(make(closes, initial_cash=10_000.0, commission=0.01, hmax=200.0), BuyAndHold())
    assert held[1:, 0].tolist() == [[200, 123], [400, 123], [495, 123], [495, 123]]
    cash = 10_000 - 1.01 * np.array([0, 6_920, 8_820, 9_675, 9_675])
    worth = (held[:, 0].double() * torch.tensor(closes)).sum(-1)
    assert values[:, 0].tolist() == pytest.approx(cash + worth.numpy(), abs=1e-6)
    # What cannot be traded at the start is left out, and what is held is kept.
    env = make([[10.0, math.nan], [10.0, 5.0], [10.0, 5.0]], initial_cash=1_000.0, hmax=1_000.0)
    assert play(env, BuyAndHold())[1][-1].tolist() == [[99.0, 0.0]]
    env = make([[10.0, 10.0]] * 4, initial_cash=1_000.0, initial_holdings=(7.0, 0.0), commission=0.0)
    assert play(env, BuyAndHold())[1][-1].tolist() == [[57.0, 50.0]]
    # In weights, with costs: 49 of A at 10.1 and 12 of B at 40.4; no cash buys what has fallen. A fully invested
    # account cannot be held exactly: once, up to a commission's share is sold.
    rules = {"initial_cash": 1_000.0, "commission": 0.01, "action": "weights", "dtype": "float64"}
    closes = [[10.0, 40.0], [9.0, 40.0], [5.0, 20.0], [9.0, 60.0]]
    held = play(make(closes, **rules), BuyAndHold())[1][1:, 0]
    assert held.tolist() == [[49.0, 12.0], [48.0, 12.0], [48.0, 12.0]]
    held = play(make(closes, whole_shares=False, **rules), BuyAndHold())[1][1:, 0]
    assert held[0].tolist() == pytest.approx([500 / 10.1, 500 / 40.4], rel=1e-4)
    assert held[2].tolist() == pytest.approx(held[0].tolist(), rel=0.02) and held[2][0] <= held[0][0]


@pytest.mark.parametrize("action", ["shares", "weights"])
@pytest.mark.parametrize("fill", ["close", "next_open"])
def test_order_of_the_agents_on_a_market(action, fill):
    tape = MarketTape.from_bars(synthetic_bars(num_paths=4, num_days=60, symbols=6, seed=3), ("daily_change",))
    settings = {"action": action, "fill": fill, "random_start": True, "episode_length": 20, "initial_cash": 1e5}
    env = make(tape, 8, **settings)
    env.reset_groups(8, 1, 0)
    bound = return_bound(env)
    returns = {name: play(env, agent())[0][-1] / 1e5 - 1 for name, agent in BASELINES.items()}
    assert all(bool((values <= bound + 1e-6).all()) for values in returns.values())
    assert bool((returns["hold"] == 0).all())
    for name in ("hold", "random", "buy_and_hold", "equal_weight"):
        assert bool((returns["oracle"] > returns[name] + 0.01).all()), name


def test_oracle_finds_the_obvious_above_its_costs_in_each_market():
    closes = [[10.0, 20.0], [10.0, 22.0], [12.0, 22.0], [12.0, 22.0], [12.0, 11.0], [12.0, 11.0]]
    values, held = play(make(closes, initial_cash=1_000.0, commission=0.001, hmax=1_000.0), Oracle())
    assert held[1:3, 0].tolist() == [[0.0, 49.0], [109.0, 0.0]] and not bool(held[2:, 0, 1].any())
    assert float(values[-1]) == pytest.approx(1000 * 1.1 * 1.2, rel=0.02)
    env = make([[10.0], [10.05], [10.0], [10.05], [10.0]], initial_cash=1e3, commission=0.01, hmax=1e3)
    assert bool((play(env, Oracle())[0] == 1e3).all())
    agent, markets = Oracle(), ([[10.0], [11.0], [12.0]], [[12.0], [11.0], [10.0]])
    rising, falling = (float(play(make(closes), agent)[0][-1]) for closes in markets)
    assert rising > 1e6 == falling


def test_gain_ahead_discounts_future_returns_from_the_price_that_is_paid():
    closes, log = [[1.0], [2.0], [8.0]], np.log
    assert gain_ahead(make(closes), 2.0).flatten().tolist() == pytest.approx([log(2.0) + 0.5 * log(4.0), log(4.0), 0.0])
    late = gain_ahead(make(closes, fill="next_open"), 1.0)
    assert late.flatten().tolist() == pytest.approx([log(4.0), 0.0, 0.0])
    # A symbol that lists on the second day gains nothing before.
    listed = gain_ahead(make([[1.0, math.nan], [1.0, 2.0], [1.0, 4.0]]), 1.0)
    assert listed[0, :, 1].tolist() == pytest.approx([0.0, log(2.0), 0.0])


def test_days_to_be_invested_and_who_is_served_first():
    # 100 shares of a third of 60 a day: 2,000 of 10,000.
    for cash, action, days in ((1e4, "shares", 5.0), (100.0, "shares", 1.0), (1e6, "shares", 20.0), (1e6, "tilt", 1.0)):
        env = make([[20.0, 40.0]] * 3, hmax=100.0, initial_cash=cash, action=action)
        assert days_to_trade(env) == pytest.approx(days)
    amount = fill_up(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([[10.0]]))
    assert amount.tolist() == [[0.0, 6.0, 4.0]]


def test_return_bound_by_hand():
    """With orders: at most 10 shares after the first day, 20 after the second: 10 (11 - 10), then 20 (12 - 11)."""
    closes = [[10.0, 10.0], [11.0, 10.0], [12.0, 9.0]]
    fallen = tape_of([[10.0], [12.0]])
    fallen.ohlcv[0, 1, 0, OPEN] = 8.0
    for env, bound in (
        (make(closes, initial_cash=1_000.0, hmax=10.0), 0.03),
        # With weights all is in the first; at the next open, which is the close here, the first rise is missed or not.
        (make(closes, action="weights"), 0.2),
        (make(closes, action="weights", fill="next_open"), 0.2),
        # What is held at the start counts, in value and in what can be held.
        (make(closes, initial_cash=900.0, initial_holdings=(10.0, 0.0), hmax=10.0), (20 + 30) / 1_000),
        # Of a fall to the next open and a rise from it only the rise is taken.
        (make(fallen, action="weights", fill="next_open"), 0.5),
    ):
        assert float(return_bound(env)) == pytest.approx(bound)
    short = make([[10.0], [11.0]], shorting=True)
    assert task_of(short).domain.bound(short) is None
    with pytest.raises(ValueError, match="long-only"):
        return_bound(short)
