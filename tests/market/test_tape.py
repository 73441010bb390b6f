"""The tape: gaps, listings, warm-up, spans of days, subsets of symbols, its name, and the tick of its prices."""

import itertools
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from vecenv.market.bars import CLOSE, VOLUME, Bars, periods_per_year
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.planted import planted_bars
from vecenv.market.symbol_subsets import drawn_subsets, symbol_subsets
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.market.ticks import choose_tick, price_bits
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.stock_trading.scenario import MAX_CASH_TICKS, StockTrading, StockTradingConfig

NAN = float("nan")
TENSORS = ("ohlcv", "tradable", "features", "context")
NO_DAYS = ((0, 10), (0, 0), (30, 20), (-1, 50), (120, 130), (3, 9))


def flat_bars(closes: list[list[float]], around: float = 0.0, **more) -> Bars:
    """Return bars of one path from closes per day and symbol; high and low lie around them, NaN is no bar."""
    close = torch.tensor(closes, dtype=torch.float64)[None]
    volume = torch.where(close.isnan(), NAN, 500.0)
    ohlcv = torch.stack([close, close * (1 + around), close * (1 - around), close, volume], dim=-1)
    days, symbols = close.shape[1:]
    dates = np.datetime64("2024-01-01") + np.arange(days)
    return Bars(tuple("ABCDEFGHIJ"[:symbols]), dates, ohlcv, source="flat", **more)


def walk_bars(num_days: int = 120, num_symbols: int = 3, num_paths: int = 1) -> Bars:
    rng = np.random.default_rng(0)
    close = 50 * np.exp(rng.normal(0, 0.02, (num_paths, num_days, num_symbols)).cumsum(1))
    open_ = close * np.exp(rng.normal(0, 0.01, close.shape))
    stacked = [open_, np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99, close, close * 0 + 1e4]
    dates = np.datetime64("2024-01-01") + np.arange(num_days)
    symbols = tuple("ABCDEF"[:num_symbols])
    return Bars(symbols, dates, torch.from_numpy(np.stack(stacked, -1)), source="walk")


@pytest.fixture(scope="module")
def tape() -> MarketTape:
    """120 days of three symbols with a ten-day feature, a column of the data and a series of the market."""
    bars = walk_bars()
    bars.columns["score"] = torch.arange(360.0).view(1, 120, 3)
    bars.context["vix"] = torch.arange(120.0)[None]
    return MarketTape.from_bars(bars, ("momentum_10", "score"), ("vix",))


def test_a_gap_carries_the_last_close_and_a_column_its_last_value():
    """A late listing waits for its own warm-up: of ten days of momentum, B, listed on day 30, is ready on day 40."""
    tape = MarketTape.from_bars(flat_bars([[10.0], [20.0], [NAN], [NAN], [30.0]], 0.1), ())
    assert tape.ohlcv[0, :, 0, CLOSE].tolist() == [10, 20, 20, 20, 30]
    assert tape.ohlcv[0, 2:4, 0].tolist() == [[20.0, 20.0, 20.0, 20.0, 0.0]] * 2
    assert tape.tradable[0, :, 0].tolist() == [True, True, False, False, True]
    assert tape.ohlcv[0, :, 0, VOLUME].tolist() == [500, 500, 0, 0, 500]
    bars = flat_bars([[10.0, NAN], [11.0, NAN], [12.0, 7.0], [13.0, NAN]], columns={"score": torch.ones(1, 4, 2)})
    late = MarketTape.from_bars(bars, ("score",))
    assert late.features[0, :, 1, 0].tolist() == [0, 0, 1, 1]
    assert not late.ohlcv[0, :2, 1].any() and late.ohlcv[0, 3, 1, CLOSE] == 7.0 and late.first_day == 0
    assert late.tradable[0, :, 1].tolist() == [False, False, True, False]
    bars = flat_bars([[1.0]] * 5, columns={"score": torch.tensor([[[NAN], [3.0], [NAN], [NAN], [4.0]]])})
    tape = MarketTape.from_bars(bars, ("score",))
    assert tape.features[0, :, 0, 0].tolist() == [0, 3, 3, 3, 4]
    assert tape.first_day == 1 and tape.tradable[0, :, 0].tolist() == [False, True, True, True, True]
    bars = flat_bars([[1.0]] * 4, context={"vix": torch.tensor([[NAN, 20.0, NAN, 21.0]])})
    with pytest.warns(MarketDataWarning, match="vix is unknown on the first 1 days, and shown as 0"):
        assert MarketTape.from_bars(bars, (), ("vix",)).context[0, :, 0].tolist() == [0.0, 20.0, 20.0, 21.0]
    with pytest.warns(MarketDataWarning, match="turbulence is unknown on the first 4 days, and shown as 0"):
        assert not MarketTape.from_bars(bars, (), ("turbulence",)).context.any()
    assert MarketTape.from_bars(bars, ()).context.shape == (1, 4, 0)
    bars = walk_bars(num_symbols=2)
    bars.ohlcv[:, :30, 1] = NAN
    tape = MarketTape.from_bars(bars, ("momentum_10",))
    assert tape.first_day == 10 and not tape.features[0, :10, 0].any() and tape.features[0, 10:, 0].all()
    assert not tape.features[0, :40, 1].any() and tape.features[0, 40:, 1].all()
    assert tape.tradable[0, :, 0].int().argmax() == 10 and tape.tradable[0, :, 1].int().argmax() == 40
    assert tape.tradable[0, 40:, 1].all()
    whole = MarketTape.from_bars(walk_bars(num_symbols=2), ("momentum_10",))
    assert torch.equal(tape.features[0, 40:, 1], whole.features[0, 40:, 1])


def test_features_in_the_order_asked_for_once_all_of_a_symbol_are_ready(tape):
    """A column wins over an indicator of its name; a symbol without any bar stays empty and changes no other."""
    assert not tape.features[0, :10].any() and not tape.tradable[0, :10].any() and tape.tradable[0, 10:].all()
    assert torch.equal(tape.features[0, 10:, :, 1], torch.arange(360.0).view(120, 3)[10:])
    bars = walk_bars()
    bars.columns["macd"] = torch.full((1, 120, 3), 42.0)
    first, second = ("momentum_10", "macd", "gap"), ("gap", "momentum_10", "macd")
    one, other = MarketTape.from_bars(bars, first), MarketTape.from_bars(bars, second)
    for name in first:
        assert torch.equal(one.features[..., first.index(name)], other.features[..., second.index(name)])
    assert (one.features[0, 10:, :, 1] == 42.0).all() and MarketTape.from_bars(bars, ("macd",)).first_day == 0
    bars = walk_bars()
    bars.ohlcv[:, :, 1] = NAN
    some = MarketTape.from_bars(bars, ("momentum_10",))
    assert not any(getattr(some, name)[:, :, 1].any() for name in ("ohlcv", "tradable", "features"))
    alone = MarketTape.from_bars(replace(bars, ohlcv=bars.ohlcv[:, :, [0, 2]], symbols=("A", "C")), ("momentum_10",))
    assert torch.equal(some.features[:, :, [0, 2]], alone.features)


def test_faults_are_named(tape):
    """A bar with a close and without an open would be a price of NaN in the account."""
    bars, torn = walk_bars(num_days=30), walk_bars(num_days=30)
    torn.ohlcv[0, 12, 1, 0] = NAN
    for call, words in (
        (lambda: MarketTape.from_bars(bars, ("macdd",)), r"walk: unknown features \['macdd'\]; its .*\[\].*'macd'"),
        (lambda: MarketTape.from_bars(bars, (), ("vix",)), r"walk: unknown market series 'vix'; it has \[\]"),
        (lambda: MarketTape.from_bars(bars, ("regime_50_200",)), "walk: no symbol has regime_50_200 on any of its 30"),
        (lambda: MarketTape.from_bars(torn, ()), r"walk: B on 2024-01-13 has no finite positive open \(path 0; 1 such"),
        (lambda: tape.select(["A", "X"]), r"unknown symbols \['X'\]; it has A, B, C"),
        (lambda: tape.paths(0, 1).split_paths(), "one path cannot be split"),
        *((partial(tape.split, *parts), "hold no day") for parts in ((1.0, 20), (0.0, 0), (0.5, 60))),
        *((partial(tape.days, *span), "after the warm-up of 10 days in a market of 120") for span in NO_DAYS),
    ):
        with pytest.raises(MarketDataError, match=words):
            call()


def test_parts_of_a_tape_keep_its_numbers(tape):
    """Days, dates, paths, symbols; a split leaves an embargo: of 110 usable days the last 22 are the test."""
    part = tape.days(4, 60)
    assert part.first_day == 6 and part.num_days == 56 and part.dates[0] == tape.dates[4]
    for name in TENSORS:
        assert torch.equal(getattr(part, name), getattr(tape, name)[:, 4:60])
    assert tape.days(50, 10_000).num_days == 70 and tape.days(50, 10_000).first_day == 0
    assert tape.days(0, 11).num_days == 11 and tape.days(3, 11).first_day == 7
    part = tape.between("2024-02-01", "2024-02-10")
    assert (str(part.dates[0]), str(part.dates[-1])) == ("2024-02-01", "2024-02-10")
    assert tape.between(end="2024-02-10").num_days == 41 and tape.between(start="2024-02-01").num_days == 89
    assert tape.between().fingerprint() == tape.fingerprint()
    mondays = np.datetime64("2024-01-01") + 7 * np.arange(40)
    weekly = MarketTape.from_bars(replace(walk_bars(num_days=40), dates=mondays), ())
    assert [str(day) for day in weekly.between("2024-01-09", "2024-01-28").dates] == ["2024-01-15", "2024-01-22"]
    with pytest.raises(MarketDataError, match="no day between 2024-01-09 and 2024-01-14; its days run from 2024-01-01"):
        weekly.between("2024-01-09", "2024-01-14")
    train, test = tape.split(0.2, embargo=20)
    assert (train.num_days, test.num_days) == (78, 22)
    assert train.first_day == 10 and test.first_day == 0
    assert (tape.dates == test.dates[0]).argmax() - (tape.dates == train.dates[-1]).argmax() == 21
    assert torch.equal(test.features, tape.features[:, 98:])
    several = MarketTape.from_bars(walk_bars(80, 2, 5))
    for fraction, sizes in ((0.2, (4, 1)), (0.4, (3, 2)), (0.0, (4, 1)), (1.0, (1, 4))):
        train, test = several.split_paths(fraction)
        assert (train.num_paths, test.num_paths) == sizes
        assert torch.equal(torch.cat([train.ohlcv, test.ohlcv]), several.ohlcv)
        assert train.first_day == test.first_day == several.first_day
        assert train.path_span == (0, sizes[0]) and test.path_span == (sizes[0], 5)
    assert several.path_span is None and test.paths(1, 9).path_span == (2, 5)
    bars = walk_bars(num_paths=3)
    together = MarketTape.from_bars(bars, ("rsi_14", "volatility_20"), ("turbulence",))
    assert together.num_paths == 3 and together.ohlcv.shape == (3, 120, 3, 5)
    alone = MarketTape.from_bars(replace(bars, ohlcv=bars.ohlcv[1:2]), ("rsi_14", "volatility_20"), ("turbulence",))
    for name in TENSORS:
        torch.testing.assert_close(getattr(together, name)[1:2], getattr(alone, name))
    part = tape.select(["C", "A"])
    assert part.symbols == ("C", "A") and torch.equal(part.context, tape.context)
    for name in ("ohlcv", "tradable", "features"):
        assert torch.equal(getattr(part, name), getattr(tape, name)[:, :, [2, 0]])


def test_warm_ups_and_best_weights_stay_with_their_days():
    """Indicators of later days still see its prices; the best rule's weights stay with their days and paths."""
    bars = walk_bars(120, 2, 2)
    plain, later = (MarketTape.from_bars(each) for each in (bars, replace(bars, warm_up=100)))
    assert later.first_day == 100 and plain.first_day < 100
    assert not bool(later.tradable[:, :100].any()) and bool(later.tradable[:, 100:].all())
    assert torch.equal(later.features[:, 100:], plain.features[:, 100:]) and not bool(later.features[:, :100].any())
    assert MarketTape.from_bars(replace(bars, warm_up=10)).first_day == plain.first_day
    bars = synthetic_bars(2, 12, 3)
    values = torch.rand(2, 12, 3, dtype=torch.float64)
    bars = replace(bars, columns={"score": values}, context={"vix": values[..., 0]}, warm_up=5)
    cut = bars.days(3, 9)
    assert list(cut.dates) == list(bars.dates[3:9]) and torch.equal(cut.ohlcv, bars.ohlcv[:, 3:9])
    assert torch.equal(cut.columns["score"], values[:, 3:9]) and torch.equal(cut.context["vix"], values[:, 3:9, 0])
    assert cut.warm_up == 2 and bars.days(6, 12).warm_up == 0
    assert cut.source == f"{bars.source} to {bars.dates[8]}"
    bars = planted_bars(4, 30, 3, seed=1, kind="momentum")
    tape, best = MarketTape.from_bars(bars, ("daily_change",)), bars.best_weights.float()
    assert torch.equal(tape.best_weights, best)
    assert torch.equal(tape.split_paths(0.25)[1].best_weights, best[3:])
    assert torch.equal(tape.days(5, 20).to("cpu").best_weights, best[:, 5:20])
    assert torch.equal(bars.to("cpu").days(5, 20).best_weights.float(), best[:, 5:20])
    assert torch.equal(tape.select(["SYN02", "SYN00", "SYN01"]).best_weights, best[..., [2, 0, 1]])
    # Some symbols have another best rule, and too weak a law has none.
    assert tape.select(["SYN02", "SYN00"]).best_weights is None and tape.symbols_as_paths().best_weights is None
    assert planted_bars(2, 30, 3, kind="momentum", strength=1e-6).best_weights is None
    assert not planted_bars(2, 30, 3, kind="momentum", strength=0.0).best_weights.any()


DAYS = np.arange("2019-01-01", "2022-01-01", dtype="datetime64[D]")
WEEKDAY = (DAYS.astype(int) + 3) % 7  # Monday is 0
MONTHS = np.arange("2019-01", "2022-01", dtype="datetime64[M]").astype("datetime64[D]")
CALENDARS = {
    "an exchange": (DAYS[WEEKDAY < 5], 252),
    "with holidays and a Saturday now and then": (
        DAYS[(WEEKDAY < 5) & (DAYS.astype(int) % 26 > 0) | (DAYS.astype(int) % 250 < 8)],
        252,
    ),
    "one that is closed on Fridays and Saturdays": (DAYS[(WEEKDAY < 4) | (WEEKDAY == 6)], 252),
    "a week of one": (DAYS[6:11], 252),
    "two days": (DAYS[:2], 252),
    "coins": (DAYS, 365),
    "coins for eight days, one missing": (np.delete(DAYS[:14], 5), 365),
    "weeks": (DAYS[WEEKDAY == 4], 52),
    "weeks, on Thursday before a holiday": (np.sort(np.r_[DAYS[WEEKDAY == 4][1:], DAYS[WEEKDAY == 3][0]]), 52),
    "months": (MONTHS, 12),
    "ends of months": (MONTHS[1:] - 1, 12),
    "quarters": (MONTHS[::3], 4),
    "years": (MONTHS[::12], 1),
    "every other day": (DAYS[::2], 183),
}


@pytest.mark.parametrize(("dates", "year"), CALENDARS.values(), ids=list(CALENDARS))
def test_a_year_is_that_of_the_market_s_own_calendar_or_what_was_said(dates, year):
    """Also of a part of it; the volatility of a year is that of a bar times the root of the bars of a year."""
    assert periods_per_year(dates) == year
    if len(dates) < 60:
        return
    bars = replace(walk_bars(60), dates=dates[:60])
    tape = MarketTape.from_bars(bars, ("volatility_20",))
    assert tape.periods_per_year == tape.days(22, 26).periods_per_year == tape.metadata()["periods_per_year"] == year
    deviation = bars.ohlcv[0, -21:, :, CLOSE].log().diff(dim=0).std(dim=0)
    assert tape.features[0, -1, :, 0].tolist() == pytest.approx((year**0.5 * deviation).tolist(), rel=1e-3)
    given = load_market(tape, MarketOptions(periods_per_year=100))
    assert given.periods_per_year == 100 and MarketTape.from_bars(bars, year=99).periods_per_year == 99


def test_the_fingerprint_names_everything_that_an_agent_sees_or_trades(tape):
    prints = {tape.fingerprint()}
    assert replace(tape, source="elsewhere").fingerprint() in prints
    for name in TENSORS:
        changed = getattr(tape, name).clone()
        flat = changed.view(-1)
        flat[-1] = ~flat[-1] if changed.dtype == torch.bool else flat[-1] + 1
        prints.add(replace(tape, **{name: changed}).fingerprint())
    others = {"dates": tape.dates + 1, "symbols": ("A", "B", "D"), "first_day": 11, "tick_size": 1e-3}
    others |= {"feature_names": ("score", "momentum_10"), "context_names": ("turbulence",)}
    prints |= {replace(tape, **{name: value}).fingerprint() for name, value in others.items()}
    assert len(prints) == 1 + len(TENSORS) + len(others)
    assert (tape.num_paths, tape.num_days, tape.num_symbols, tape.device.type) == (1, 120, 3, "cpu")


def test_the_fingerprint_stays_that_of_saved_files():
    assert (
        MarketTape.from_bars(flat_bars([[10.0, 20.0], [11.0, NAN], [12.0, 21.0]]), ()).fingerprint()
        == "546a94782747a73c"
    )


@pytest.mark.parametrize("kind", [torch.no_grad, torch.inference_mode])
def test_the_fingerprint_follows_what_is_written(tape, kind):
    with kind():
        own = replace(tape, ohlcv=tape.ohlcv.clone())
        assert own.fingerprint() == tape.fingerprint()
        own.ohlcv[0, -1, 0, CLOSE] += 1
        assert own.fingerprint() != tape.fingerprint()


def test_ticks_follow_the_lowest_price_of_the_warm_up():
    """That of the first day where nothing has a warm-up; fine enough for a cheap stock beside a dear one."""
    chosen = {0.024: 1e-6, 0.04: 1e-5, 0.26: 1e-4, 3.5: 1e-4, 499: 1e-4, 501: 1e-3, 3318: 1e-3, 7e4: 0.1}
    for lowest, tick in chosen.items():
        assert choose_tick(lowest) == tick
        assert MarketTape.from_bars(flat_bars([[lowest, lowest * 9], [lowest / 2, 1.0]]), ()).tick_size == tick
    # A sixteen-millionth: both within the 24 bits of float32.
    closes = [[0.0412, 650_123.45], [0.0433, 651_000.05]]
    tape = MarketTape.from_bars(flat_bars(closes), ())
    moved = (tape.ohlcv[0, ..., CLOSE].double() / torch.tensor(closes, dtype=torch.float64) - 1).abs()
    assert tape.tick_size == 1e-5 and float(moved[:, 0].max()) < 2e-4 and float(moved[:, 1].max()) < 2**-23
    ticks = tape.price_ticks()[0]
    assert torch.equal(ticks, ticks.round()) and tape.price_bits == 37 == price_bits(float(ticks.max()))
    for headroom, bits in ((1.0, 24), (3.0, 25), (5.0, 26)):
        bars = flat_bars([[400.0], [420.0]])
        tape = MarketTape.from_bars(bars, (), headroom=headroom)
        assert tape.price_bits == bits
        assert torch.equal(tape.ohlcv, MarketTape.from_bars(bars, ()).ohlcv)
    # Exact below 2^23 ticks, where float32 currency is finer than a tick; above, three roundings to 24 bits.
    generator, tick = torch.Generator().manual_seed(0), 1e-2
    ticks = 2.0 ** (10 + 24 * torch.rand(20_000, generator=generator, dtype=torch.float64))
    tape = MarketTape.from_bars(flat_bars((ticks * tick)[:, None].tolist()), (), tick_size=tick)
    held, nearest = tape.price_ticks()[0, :, 0].double(), ticks.round()
    low = nearest < 2**23
    assert 1_000 < int(low.sum()) < 19_000 and torch.equal(held[low], nearest[low])
    moved = (held / nearest - 1).abs()
    assert 0 < float(moved.max()) <= 3 * 2**-24


def test_ticks_that_move_prices_too_far_and_what_no_account_can_hold_are_refused():
    bars = flat_bars([[100.0, 5.0, 3.0], [100.0, 5.0, 3.0], [100.04, 4.96, 2.93]])
    assert MarketTape.from_bars(bars, ()).tick_size == 1e-4
    text = r"flat: a tick of 0.1 moves prices by more than 0.05%: C by 1.02% \(2.93 on 2024-01-03\), "
    with pytest.raises(MarketDataError, match=text + r"B by 0.81% \(4.96 on 2024-01-03\); use tick_size=0.0001"):
        MarketTape.from_bars(bars, (), tick_size=0.1)
    falls = flat_bars([[300.0, 7.0], [300.0, 7.0], [300.0, 0.06254]])
    with pytest.raises(MarketDataError, match=r"B by 0.06% \(0.06254 on 2024-01-03\); use tick_size=1e-05"):
        MarketTape.from_bars(falls, ())
    apart = flat_bars([[0.0, 7e4], [1e-4, 7e4]])
    apart.ohlcv[0, 0, 0, :VOLUME] = 1.0
    with pytest.raises(MarketDataError, match=r"A by 29.87% \(7.7e-05 on 2024-01-02\); no tick_size fits A"):
        MarketTape.from_bars(replace(apart, ohlcv=apart.ohlcv * torch.tensor([0.77, 1, 1, 0.77, 1])), ())
    with pytest.raises(MarketDataError, match=r"and \d more; use tick_size"):
        MarketTape.from_bars(flat_bars([[1.00049 + 0.001 * k for k in range(10)]]), (), tick_size=0.01)
    full = flat_bars([[50.0, 60.0], [50.0, 60.0]])
    full.ohlcv[0, 1, 1, VOLUME] = 1e39
    scores = {"score": torch.tensor([[[1.0, 1.0], [1e60, 1.0]]], dtype=torch.float64)}
    context = {"vix": torch.tensor([[20.0, -1e39]], dtype=torch.float64)}
    for bars, names, text in (
        (flat_bars([[50.0, 60.0], [50.0, 1e39]]), (), r"open of B on 2024-01-02 is 1e\+39, more than float32 holds"),
        (flat_bars([[50.0, 60.0], [50.0, 7e6]]), (), r"prices must be below 2\^36 ticks of 0.0001: B \(7e\+06 on 2024"),
        (full, (), r"volume of B on 2024-01-02 is 1e\+39, more than float32 holds"),
        (flat_bars([[50.0, 60.0]] * 2, columns=scores), ("score",), r"score of A on 2024-01-02 is 1e\+60, more than"),
        (flat_bars([[50.0, 60.0]] * 2, context=context), ("vix",), r"vix on 2024-01-02 is -1e\+39, more than float32"),
        (flat_bars([[50.0], [0.0]]), (), "A on 2024-01-02 has no finite positive open"),
    ):
        with pytest.raises(MarketDataError, match=f"flat: {text}"):
            MarketTape.from_bars(bars, *(((), names) if bars.context else (names,)))
    # Prices of whole units may be counted in units, however low they are; none is below a tick.
    whole = MarketTape.from_bars(flat_bars([[1.0, 7.0], [2.0, 9.0]]), (), tick_size=1.0)
    assert whole.price_ticks()[0].tolist() == [[1.0, 7.0], [2.0, 9.0]]
    cents = MarketTape.from_bars(flat_bars([[10.12 + 1e-6], [0.01 - 1e-6]]), (), tick_size=0.01)
    assert cents.price_ticks()[0, :, 0].tolist() == [1012.0, 1.0]
    # The tick named is the finest power of ten that fits.
    for cash in (1.4e7, 2e8, 1e12):
        bars, config = flat_bars([[50.0, 60.0]] * 3), StockTradingConfig(initial_cash=cash, episode_length=1)
        with pytest.raises(ValueError, match=r"exact accounts need fewer than 2\^37: use a tick_size of") as refused:
            StockTrading(MarketTape.from_bars(bars, ()), config)
        tick = float(str(refused.value).rsplit(" ", 1)[1])
        assert cash / tick < MAX_CASH_TICKS <= 10 * cash / tick
        StockTrading(MarketTape.from_bars(bars, (), tick_size=tick), config)


@pytest.mark.parametrize("cash", [1e3, 1e6, 1e9])
def test_the_advice_of_every_message_is_accepted_by_the_next(cash):
    """Prices of 1e-8 to 1e6 and any first tick: two messages at most, or one that says what cannot stand together."""
    advice = (
        r"use (?:a )?(tick_size)(?:=| of )(\S+)$",
        r"fits the prices of A(?:, B)?: use (initial_cash) of (\S+) or less",
    )
    ends = set()
    for low, high in itertools.combinations_with_replacement((1.3e-8, 1.1e-5, 0.7, 110.0, 9.01e5), 2):
        for tick in (None, 1e-12, 1e-4, 10.0):
            bars, given, told = flat_bars([[low, high]] * 3), {"tick_size": tick, "initial_cash": cash}, []
            while True:
                try:
                    tape = MarketTape.from_bars(bars, (), tick_size=given["tick_size"])
                    StockTrading(tape, StockTradingConfig(initial_cash=given["initial_cash"], episode_length=1))
                    break
                except ValueError as refused:
                    told.append(str(refused))
                found = [match for pattern in advice if (match := re.search(pattern, told[-1]))]
                if not found:
                    assert "no tick_size fits A (" in told[-1] and "cannot stand in one market" in told[-1], told
                    assert high / low > 1e7
                    break
                given[found[0][1]] = float(found[0][2])
                assert len(told) <= 2, told
            ends.add(re.sub(r"[^ a-z_]", "", told[-1])[-30:] if told else "")
    assert len(ends) > 1


@pytest.fixture(scope="module")
def synthetic() -> MarketTape:
    """Two paths of five symbols."""
    return MarketTape.from_bars(synthetic_bars(2, 80, 5, seed=3), ("daily_change", "momentum_10"), ("turbulence",))


def test_subsets_of_symbols(synthetic, monkeypatch):
    part = symbol_subsets(synthetic, 3, 4, seed=7)
    chosen = drawn_subsets(synthetic, 3, 4, seed=7).tolist()
    assert (part.num_paths, part.num_days, part.num_symbols) == (8, 80, 3)
    for number in range(8):
        path, subset = divmod(number, 4)
        assert torch.equal(part.context[number], synthetic.context[path])
        for place, symbol in enumerate(chosen[path][subset]):
            for name in ("ohlcv", "tradable", "features"):
                assert torch.equal(getattr(part, name)[number, :, place], getattr(synthetic, name)[path, :, symbol])
    assert part.symbols == ("*1", "*2", "*3") and part.feature_names == synthetic.feature_names
    for name in ("tick_size", "price_bits", "first_day"):
        assert getattr(part, name) == getattr(synthetic, name)
    assert torch.equal(part.price_ticks()[0, :, 0], synthetic.price_ticks()[0, :, chosen[0][0][0]])
    whole = symbol_subsets(synthetic, 5, 2, seed=0)
    for name in ("ohlcv", "tradable", "features", "context"):
        assert torch.equal(getattr(whole, name), getattr(synthetic, name).repeat_interleave(2, 0))
    same = [symbol_subsets(synthetic, 2, 6, seed).fingerprint() for seed in (1, 1, 2)]
    assert same[0] == same[1] != same[2]
    planted = MarketTape.from_bars(planted_bars(4, 30, 3, kind="momentum"), ("daily_change",)).split_paths(0.5)[0]
    assert planted.best_weights is not None and planted.path_span == (0, 2)
    part = symbol_subsets(planted, 2, 3, seed=0)
    assert part.best_weights is None and part.path_span is None
    for size, count, told in ((0, 1, "size"), (2, 0, "count")):
        with pytest.raises(ValueError, match=f"{told} of subsets must be at least 1, got 0"):
            symbol_subsets(synthetic, size, count, seed=0)
    # Of 7 numbers and a flag a day and symbol.
    asked = []
    monkeypatch.setattr(
        "vecenv.market.symbol_subsets.check_memory", lambda needed, device, what: asked.append((needed, what))
    )
    part = symbol_subsets(synthetic, 3, 4, seed=0)
    needed = sum(getattr(part, name).nbytes for name in ("ohlcv", "features", "tradable"))
    assert asked == [(needed, "8 paths of 3 symbols")]
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"2,000,000,000 paths of 3 symbols need .* GB of memory or more"):
        symbol_subsets(synthetic, 3, 10**9, seed=0)
    drawn = drawn_subsets(synthetic, 2, 4000, seed=0)
    assert bool((drawn[..., 0] < drawn[..., 1]).all())
    for path in drawn:
        counts = torch.bincount(path[:, 0] * 5 + path[:, 1], minlength=25)
        assert int((counts > 0).sum()) == 10
        assert float((counts[counts > 0] / 4000 - 0.1).abs().max()) < 5 * (0.1 * 0.9 / 4000) ** 0.5
    tradable = synthetic.tradable.clone()
    tradable[0, :, 1] = False
    tradable[1, :, 4] = False
    partly = replace(synthetic, tradable=tradable)
    drawn = drawn_subsets(partly, 4, 3, seed=0)
    assert drawn[0].tolist() == [[0, 2, 3, 4]] * 3 and drawn[1].tolist() == [[0, 1, 2, 3]] * 3
    with pytest.raises(MarketDataError, match="subsets of 5 symbols cannot be drawn: 4 of 5 trade on the training"):
        symbol_subsets(partly, 5, 1, seed=0)
