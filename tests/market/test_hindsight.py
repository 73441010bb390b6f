"""Hindsight against every possible plan, its tables against a simulation of its plans, and hand-worked examples."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from vecenv.market.hindsight import hindsight_holdings, hindsight_tables, sleeves


def random_market(seed: int, paths: int = 2, days: int = 14, symbols: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Closes with gaps in trading, days on which nothing can be bought, and a symbol that lists late."""
    generator = torch.Generator().manual_seed(seed)
    steps = 0.03 * torch.randn(paths, days, symbols, generator=generator)
    close = 100.0 * steps.cumsum(1).exp()
    tradable = torch.rand(paths, days, symbols, generator=generator) > 0.2
    close[:, :4, -1] = 0.0
    tradable[:, :4, -1] = False
    open_days = torch.rand(paths, days, 1, generator=generator) > 0.3
    return close, tradable, tradable & open_days


def plan_wealth(
    prices: list[float], may_sell: list[bool], may_buy: list[bool], held: tuple[bool, ...], cost: float
) -> float | None:
    """Wealth of an account of 1 that is invested on the days of ``held``; None if the plan is not allowed."""
    wealth, before = 1.0, False
    for day, now in enumerate(held):
        if now != before and not (may_buy[day] if now else may_sell[day]):
            return None
        wealth *= 1.0 - cost * (now != before)
        if now and prices[day] > 0:
            wealth *= prices[day + 1] / prices[day]
        before = now
    return wealth


def best_plan(prices: list[float], may_sell: list[bool], may_buy: list[bool], cost: float) -> tuple[float, int]:
    """Try all plans; return the highest wealth and its days invested."""
    best = (1.0, 0)
    for held in itertools.product([False, True], repeat=len(prices) - 1):
        wealth = plan_wealth(prices, may_sell, may_buy, held, cost)
        if wealth is not None and wealth > best[0] * (1.0 + 1e-12):
            best = (wealth, sum(held))
    return best


@pytest.mark.parametrize(("seed", "cost"), [(0, 0.0), (1, 0.002), (2, 0.03)])
def test_tables_equal_the_best_of_all_plans(seed, cost, monkeypatch):
    """In blocks of few paths too."""
    days, shares = 7, (0.5, 0.1)
    market = random_market(seed)
    tables = hindsight_tables(*market, days, cost, shares)
    for path, start in itertools.product(range(2), range(14 - days)):
        for length in range(1, days + 1):
            window = slice(start, start + length + 1)
            plans = [best_plan(*(part[path, window, k].tolist() for part in market), cost) for k in range(3)]
            best = sorted(plans, reverse=True)[: len(shares)]
            gain = sum(share * (wealth - 1.0) for share, (wealth, _) in zip(shares, best, strict=True))
            exposure = sum(share * invested for share, (_, invested) in zip(shares, best, strict=True)) / length
            assert tables.total_return[path, start, length].item() == pytest.approx(gain, rel=1e-5, abs=1e-7)
            assert tables.exposure[path, start, length].item() == pytest.approx(exposure, rel=1e-5, abs=1e-7)
    monkeypatch.setattr("vecenv.market.hindsight.MAX_BLOCK_ELEMENTS", 1)
    assert all(map(torch.equal, hindsight_tables(*market, days, cost, shares), tables))


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.1), (0.3, 0.3, 0.3, 0.1)])
@pytest.mark.parametrize("cost", [0.0, 0.002, 0.02])
def test_playing_the_holdings_earns_what_the_tables_say(shares, cost):
    days = 9
    market = random_market(seed=7, days=20)
    tables = hindsight_tables(*market, days, cost, shares)
    starts = list(itertools.product(range(2), range(20 - days)))
    windows = [torch.stack([part[path, start : start + days + 1] for path, start in starts]) for part in market]
    holdings = hindsight_holdings(*windows, cost, shares)

    assert holdings.shape == (len(starts), days, 3)
    assert (holdings.sum(-1) <= sum(shares) + 1e-6).all()
    for row, ((path, start), held) in enumerate(zip(starts, holdings.tolist(), strict=True)):
        gain = exposure = 0.0
        for symbol in range(3):
            share = max(day[symbol] for day in held)
            invested = tuple(day[symbol] > 0 for day in held)
            assert all(day[symbol] in (0.0, share) for day in held)
            wealth = plan_wealth(*(part[row, :, symbol].tolist() for part in windows), invested, cost)
            assert wealth is not None, "the plan sells what is not tradable, or buys what is not open"
            gain += share * (wealth - 1.0)
            exposure += share * sum(invested) / days
        assert tables.total_return[path, start, days].item() == pytest.approx(gain, rel=1e-5, abs=1e-7)
        assert tables.exposure[path, start, days].item() == pytest.approx(exposure, rel=1e-5, abs=1e-7)


def test_examples_by_hand_sleeves_and_bad_arguments():
    close = torch.tensor([100.0, 110.0, 107.8, 118.58]).reshape(1, 4, 1)
    market = (close, close > 0, close > 0)
    tables = hindsight_tables(*market, 3, 0.002, (1.0,))
    # Sold at the top once the fall is part of the episode, and bought again once the second rise is.
    expected = [0.0, 0.998 * 1.1 - 1.0, 0.998**2 * 1.1 - 1.0, 0.998**3 * 1.21 - 1.0]
    assert tables.total_return[0, 0].tolist() == pytest.approx(expected, abs=1e-6)
    assert tables.exposure[0, 0].tolist() == pytest.approx([0.0, 1.0, 1 / 2, 2 / 3])
    # At 6% a way, leaving costs more than the fall.
    dear = hindsight_tables(*market, 3, 0.06, (1.0,))
    assert dear.total_return[0, 0, 3].item() == pytest.approx(0.94 * 1.1858 - 1.0, abs=1e-6)
    assert dear.exposure[0, 0, 3].item() == 1.0
    # More sleeves than symbols, and starts beyond the end.
    tables = hindsight_tables(*random_market(seed=3, days=6), 10, 0.002, (0.2,) * 5)
    assert all(table.shape == (2, 6, 11) and table.isfinite().all() for table in tables)
    assert not tables.total_return[:, -1].any()
    assert torch.equal(tables.total_return[:, 2, 3], tables.total_return[:, 2, 9])
    for limits, expected in (
        ((1.0, 1.0, 1), [1.0]),
        ((0.5, 0.6, 3), [0.5, 0.1]),
        ((0.3, 0.4, 10), [0.3, 0.1]),
        ((0.15, 0.8, 25), [0.15] * 5 + [0.05]),
        ((0.2, 0.6, 10), [0.2] * 3),
        ((0.9, 0.4, 3), [0.4]),
    ):
        assert sleeves(*limits) == pytest.approx(tuple(expected))
        assert math.fsum(sleeves(*limits)) <= limits[1] + 1e-12
    close, tradable, buyable = random_market(seed=6)
    for call, words in (
        (lambda: hindsight_tables(close, tradable[:, 1:], buyable, 5, 0.0, (1.0,)), r"tradable \(2, 13, 3\)"),
        (lambda: hindsight_tables(close, tradable, buyable, 0, 0.0, (1.0,)), "at least 1 day, got days=0"),
        (lambda: hindsight_tables(close, tradable, buyable, 5, 1.0, (1.0,)), r"at least 0 and below 1, got 1\.0"),
        (lambda: hindsight_holdings(close, tradable, buyable, 0.0, ()), "at least one sleeve"),
        (lambda: hindsight_holdings(*(part[:, :1] for part in (close, tradable, buyable)), 0.0, (1.0,)), "got 1"),
        (lambda: sleeves(0.0, 0.8, 5), r"max_position .* got 0.0"),
        (lambda: sleeves(0.5, 1.5, 5), r"max_exposure .* got 1.5"),
        (lambda: sleeves(0.5, 0.5, 0), "num_symbols=0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
