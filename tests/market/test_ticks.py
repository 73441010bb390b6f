"""The tick that prices are counted in: chosen from the warm-up alone, fine enough for every symbol, refused if not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.tape import MarketTape
from vecenv.market.ticks import choose_tick, price_bits
from vecenv.market.validation import MarketDataError
from vecenv.tasks.stock_trading.scenario import MAX_CASH_TICKS, StockTrading, StockTradingConfig


def bars_of(closes: list[list[float]], symbols: str = "ABCDEFGHIJ", **more) -> Bars:
    """Return flat bars of one path from closes per day and symbol; NaN is no bar."""
    close = torch.tensor(closes, dtype=torch.float64)[None]
    volume = torch.where(close.isnan(), torch.nan, 500.0)
    dates = np.datetime64("2024-01-01") + np.arange(len(closes))
    ohlcv = torch.stack([close, close, close, close, volume], dim=-1)
    return Bars(tuple(symbols[: close.shape[2]]), dates, ohlcv, source="flat", **more)


@pytest.mark.parametrize(
    ("lowest", "tick"),
    [(0.024, 1e-6), (0.04, 1e-5), (0.26, 1e-4), (3.5, 1e-4), (499, 1e-4), (501, 1e-3), (3318, 1e-3), (7e4, 0.1)],
)
def test_ticks_follow_the_lowest_price_of_the_warm_up(lowest, tick):
    """The second day is not part of it: what a market without features shows first is the first day."""
    assert choose_tick(lowest) == tick
    assert MarketTape.from_bars(bars_of([[lowest, lowest * 9], [lowest / 2, 1.0]]), ()).tick_size == tick


def test_a_cheap_stock_beside_a_dear_one_keeps_its_price():
    """0.04 beside 650,000, a sixteen-millionth: both within the 24 bits of float32."""
    closes = [[0.0412, 650_123.45], [0.0433, 651_000.05]]
    tape = MarketTape.from_bars(bars_of(closes), ())
    moved = (tape.ohlcv[0, ..., CLOSE].double() / torch.tensor(closes, dtype=torch.float64) - 1).abs()
    assert tape.tick_size == 1e-5 and float(moved[:, 0].max()) < 2e-4 and float(moved[:, 1].max()) < 2**-23
    ticks = tape.price_ticks()[0]
    assert torch.equal(ticks, ticks.round()) and tape.price_bits == 37 == price_bits(float(ticks.max()))


@pytest.mark.parametrize("tick", [1e-4, 1e-2])
def test_prices_are_the_nearest_tick_or_one_part_in_five_million_of_it(tick):
    """Exact below 2^23 ticks, where float32 currency is finer than a tick; above, three roundings to 24 bits."""
    generator = torch.Generator().manual_seed(0)
    ticks = 2.0 ** (10 + 24 * torch.rand(20_000, generator=generator, dtype=torch.float64))
    tape = MarketTape.from_bars(bars_of((ticks * tick)[:, None].tolist()), (), tick_size=tick)
    held, nearest = tape.price_ticks()[0, :, 0].double(), ticks.round()
    low = nearest < 2**23
    assert 1_000 < int(low.sum()) < 19_000 and torch.equal(held[low], nearest[low])
    moved = (held / nearest - 1).abs()
    assert 0 < float(moved.max()) <= 3 * 2**-24


def test_prices_that_a_tick_moves_too_far_are_refused_with_their_symbols():
    bars = bars_of([[100.0, 5.0, 3.0], [100.0, 5.0, 3.0], [100.04, 4.96, 2.93]])
    assert MarketTape.from_bars(bars, ()).tick_size == 1e-4
    text = r"flat: a tick of 0.1 moves prices by more than 0.05%: C by 1.02% \(2.93 on 2024-01-03\), "
    with pytest.raises(MarketDataError, match=text + r"B by 0.81% \(4.96 on 2024-01-03\); use tick_size=0.0001"):
        MarketTape.from_bars(bars, (), tick_size=0.1)
    falls = bars_of([[300.0, 7.0], [300.0, 7.0], [300.0, 0.00912]])
    with pytest.raises(MarketDataError, match=r"B by 0.22% \(0.00912 on 2024-01-03\); use tick_size=1e-06"):
        MarketTape.from_bars(falls, ())
    apart = bars_of([[0.0, 7e4], [1e-4, 7e4]])
    apart.ohlcv[0, 0, 0, :VOLUME] = 1.0
    with pytest.raises(MarketDataError, match=r"A by 29.87% \(7.7e-05 on 2024-01-02\); leave them out"):
        MarketTape.from_bars(replace(apart, ohlcv=apart.ohlcv * torch.tensor([0.77, 1, 1, 0.77, 1])), ())
    many = bars_of([[1.00049 + 0.001 * k for k in range(10)]])
    with pytest.raises(MarketDataError, match=r"and \d more; use tick_size"):
        MarketTape.from_bars(many, (), tick_size=0.01)


def test_what_no_account_can_hold_is_refused_by_name():
    """One impossible price must not make the prices of the other symbols infinite."""
    full = bars_of([[50.0, 60.0], [50.0, 60.0]])
    full.ohlcv[0, 1, 1, VOLUME] = 1e39
    scores = {"score": torch.tensor([[[1.0, 1.0], [1e60, 1.0]]], dtype=torch.float64)}
    context = {"vix": torch.tensor([[20.0, -1e39]], dtype=torch.float64)}
    for bars, names, text in (
        (bars_of([[50.0, 60.0], [50.0, 1e39]]), (), r"open of B on 2024-01-02 is 1e\+39, more than float32 holds"),
        (bars_of([[50.0, 60.0], [50.0, 7e6]]), (), r"prices must be below 2\^36 ticks of 0.0001: B \(7e\+06 on 2024"),
        (full, (), r"volume of B on 2024-01-02 is 1e\+39, more than float32 holds"),
        (bars_of([[50.0, 60.0]] * 2, columns=scores), ("score",), r"score of A on 2024-01-02 is 1e\+60, more than"),
        (bars_of([[50.0, 60.0]] * 2, context=context), ("vix",), r"vix on 2024-01-02 is -1e\+39, more than float32"),
        (bars_of([[50.0], [0.0]]), (), "A on 2024-01-02 has no finite positive open"),
        (bars_of([[50.0], [-3.0]]), (), "A on 2024-01-02 has no finite positive open"),
    ):
        with pytest.raises(MarketDataError, match=f"flat: {text}"):
            MarketTape.from_bars(bars, *(((), names) if bars.context else (names,)))
    tape = MarketTape.from_bars(bars_of([[50.0, 6e6], [50.0, 6.5e6]]), ())
    assert tape.ohlcv[0, :, 0, CLOSE].tolist() == [50.0, 50.0]
    # Prices of whole units may be counted in units, however low they are.
    whole = MarketTape.from_bars(bars_of([[1.0, 7.0], [2.0, 9.0]]), (), tick_size=1.0)
    assert whole.price_ticks()[0].tolist() == [[1.0, 7.0], [2.0, 9.0]]


@pytest.mark.parametrize(("headroom", "bits"), [(1.0, 24), (3.0, 25), (5.0, 26)])
def test_headroom_widens_the_account_and_no_price(headroom, bits):
    bars = bars_of([[400.0], [420.0]])
    tape = MarketTape.from_bars(bars, (), headroom=headroom)
    assert tape.price_bits == bits
    assert torch.equal(tape.ohlcv, MarketTape.from_bars(bars, ()).ohlcv)


@pytest.mark.parametrize("initial_cash", [1.4e7, 2e8, 1e12])
def test_an_account_that_is_too_rich_is_told_a_tick_that_fits(initial_cash):
    """The tick named is the finest power of ten that fits."""
    bars = bars_of([[50.0, 60.0]] * 3)
    with pytest.raises(ValueError, match=r"exact accounts need fewer than 2\^37: use a tick_size of") as refused:
        StockTrading(MarketTape.from_bars(bars, ()), StockTradingConfig(initial_cash=initial_cash, episode_length=1))
    tick = float(str(refused.value).rsplit(" ", 1)[1])
    assert initial_cash / tick < MAX_CASH_TICKS <= 10 * initial_cash / tick
    StockTrading(
        MarketTape.from_bars(bars, (), tick_size=tick), StockTradingConfig(initial_cash=initial_cash, episode_length=1)
    )
