"""The tape: gaps, listings, warm-up, ticks, spans of days, and the name of a market."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.planted import planted_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.market.validation import MarketDataError

NAN = float("nan")
TENSORS = ("ohlcv", "tradable", "features", "context")


def flat_bars(closes: list[list[float]], **more) -> Bars:
    """Return bars of one path from closes per day and symbol; high and low lie a tenth around, NaN is no bar."""
    close = torch.tensor(closes, dtype=torch.float64)[None]
    ohlcv = torch.stack([close, close * 1.1, close * 0.9, close, torch.where(close.isnan(), NAN, 500.0)], dim=-1)
    days, symbols = close.shape[1:]
    dates = np.datetime64("2024-01-01") + np.arange(days)
    return Bars(tuple("ABCDEF"[:symbols]), dates, ohlcv, source="flat", **more)


def walk_bars(num_days: int = 120, num_symbols: int = 3, num_paths: int = 1, seed: int = 0) -> Bars:
    rng = np.random.default_rng(seed)
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


def test_a_gap_carries_the_last_close_as_a_flat_bar():
    tape = MarketTape.from_bars(flat_bars([[10.0], [20.0], [NAN], [NAN], [30.0]]), ())
    assert tape.ohlcv[0, :, 0, CLOSE].tolist() == [10, 20, 20, 20, 30]
    for day in (2, 3):
        assert tape.ohlcv[0, day, 0].tolist() == [20.0, 20.0, 20.0, 20.0, 0.0]
    assert tape.tradable[0, :, 0].tolist() == [True, True, False, False, True]
    assert tape.ohlcv[0, :, 0, VOLUME].tolist() == [500, 500, 0, 0, 500]
    late = MarketTape.from_bars(flat_bars([[10.0, NAN], [11.0, NAN], [12.0, 7.0], [13.0, NAN]]), ())
    assert not late.ohlcv[0, :2, 1].any() and late.ohlcv[0, 3, 1, CLOSE] == 7.0 and late.first_day == 0
    assert late.tradable[0, :, 1].tolist() == [False, False, True, False]


def test_a_late_listing_waits_for_its_own_warm_up():
    """Ten days of momentum: A is ready on day 10, B, listed on day 30, on day 40; until then its features are 0."""
    bars = walk_bars(num_symbols=2)
    bars.ohlcv[:, :30, 1] = NAN
    tape = MarketTape.from_bars(bars, ("momentum_10",))
    assert tape.first_day == 10
    assert not tape.features[0, :10, 0].any() and tape.features[0, 10:, 0].all()
    assert not tape.features[0, :40, 1].any() and tape.features[0, 40:, 1].all()
    assert tape.tradable[0, :, 0].int().argmax() == 10 and tape.tradable[0, :, 1].int().argmax() == 40
    assert tape.tradable[0, 40:, 1].all()
    whole = MarketTape.from_bars(walk_bars(num_symbols=2), ("momentum_10",))
    assert torch.equal(tape.features[0, 40:, 1], whole.features[0, 40:, 1])


def test_nothing_of_a_tape_is_not_a_number():
    bars = walk_bars()
    bars.ohlcv[:, :20, 0] = NAN
    bars.ohlcv[:, 50:60] = NAN
    bars.columns["score"] = torch.full((1, 120, 3), NAN)
    bars.columns["score"][:, 5] = 1.0
    bars.context["vix"] = torch.full((1, 120), NAN)
    bars.context["vix"][:, 70] = 9.0
    tape = MarketTape.from_bars(bars, ("macd", "rsi_14", "score"), ("vix", "turbulence"))
    assert all(getattr(tape, name).isfinite().all() for name in ("ohlcv", "features", "context"))


def test_a_column_of_the_data_is_carried_and_waited_for():
    bars = flat_bars([[1.0]] * 5, columns={"score": torch.tensor([[[NAN], [3.0], [NAN], [NAN], [4.0]]])})
    tape = MarketTape.from_bars(bars, ("score",))
    assert tape.features[0, :, 0, 0].tolist() == [0, 3, 3, 3, 4]
    assert tape.first_day == 1 and tape.tradable[0, :, 0].tolist() == [False, True, True, True, True]
    bars = flat_bars([[1.0]] * 4, context={"vix": torch.tensor([[NAN, 20.0, NAN, 21.0]])})
    assert MarketTape.from_bars(bars, (), ("vix",)).context[0, :, 0].tolist() == [0.0, 20.0, 20.0, 21.0]
    assert MarketTape.from_bars(bars, ()).context.shape == (1, 4, 0)


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
    assert some.num_symbols == 3
    assert not any(getattr(some, name)[:, :, 1].any() for name in ("ohlcv", "tradable", "features"))
    alone = MarketTape.from_bars(replace(bars, ohlcv=bars.ohlcv[:, :, [0, 2]], symbols=("A", "C")), ("momentum_10",))
    assert torch.equal(some.features[:, :, [0, 2]], alone.features)


def test_prices_are_whole_ticks_of_at_least_one():
    bars = flat_bars([[10.12 + 1e-6], [0.01 - 1e-6]])
    bars.ohlcv[..., :VOLUME] = bars.ohlcv[..., CLOSE:VOLUME]
    tape = MarketTape.from_bars(bars, (), tick_size=0.01)
    assert tape.price_ticks()[0, :, 0].tolist() == [1012.0, 1.0]
    assert tape.ohlcv[0, :, 0, CLOSE].tolist() == pytest.approx([10.12, 0.01])


def test_ticks_survive_float32_up_to_where_it_is_exact():
    """Prices are kept in float32 and read back as the same number of ticks."""
    ticks = torch.cat([torch.arange(1, 2000), torch.arange(2**23 - 2000, 2**23)])
    closes = (ticks.double() * 1e-4)[:, None]
    ohlcv = torch.stack([closes] * 4 + [torch.ones_like(closes)], dim=-1)[None]
    dates = np.datetime64("2000-01-01") + np.arange(len(ticks))
    tape = MarketTape.from_bars(Bars(("A",), dates, ohlcv), (), tick_size=1e-4)
    assert torch.equal(tape.price_ticks()[0, :, 0], ticks.float()) and tape.price_bits == 24


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
        *(
            (lambda fraction=fraction, gap=gap: tape.split(fraction, gap), "hold no day")
            for fraction, gap in ((1.0, 20), (0.0, 0), (0.5, 60))
        ),
        *(
            (lambda span=span: tape.days(*span), "hold no day after the warm-up of 10 days in a market of 120")
            for span in ((0, 10), (0, 0), (30, 20), (-1, 50), (120, 130), (3, 9))
        ),
    ):
        with pytest.raises(MarketDataError, match=words):
            call()


def test_paths_share_dates_and_know_nothing_of_each_other():
    bars = walk_bars(num_paths=3)
    together = MarketTape.from_bars(bars, ("rsi_14", "volatility_20"), ("turbulence",))
    assert together.num_paths == 3 and together.ohlcv.shape == (3, 120, 3, 5)
    alone = MarketTape.from_bars(replace(bars, ohlcv=bars.ohlcv[1:2]), ("rsi_14", "volatility_20"), ("turbulence",))
    for name in TENSORS:
        torch.testing.assert_close(getattr(together, name)[1:2], getattr(alone, name))


def test_days_keep_the_numbers_and_move_the_warm_up(tape):
    assert tape.first_day == 10
    part = tape.days(4, 60)
    assert part.first_day == 6 and part.num_days == 56 and part.dates[0] == tape.dates[4]
    for name in TENSORS:
        assert torch.equal(getattr(part, name), getattr(tape, name)[:, 4:60])
    assert tape.days(50, 10_000).num_days == 70 and tape.days(50, 10_000).first_day == 0
    assert tape.days(0, 11).num_days == 11 and tape.days(3, 11).first_day == 7


def test_between_counts_both_dates_and_takes_the_days_inside(tape):
    part = tape.between("2024-02-01", "2024-02-10")
    assert (str(part.dates[0]), str(part.dates[-1])) == ("2024-02-01", "2024-02-10")
    assert tape.between(end="2024-02-10").num_days == 41 and tape.between(start="2024-02-01").num_days == 89
    assert tape.between().fingerprint() == tape.fingerprint()
    weekly = MarketTape.from_bars(
        replace(walk_bars(num_days=40), dates=np.datetime64("2024-01-01") + 7 * np.arange(40)), ()
    )
    assert [str(day) for day in weekly.between("2024-01-09", "2024-01-28").dates] == ["2024-01-15", "2024-01-22"]
    with pytest.raises(MarketDataError, match="no day between 2024-01-09 and 2024-01-14; its days run from 2024-01-01"):
        weekly.between("2024-01-09", "2024-01-14")


def test_a_split_leaves_an_embargo_between_training_and_test(tape):
    """110 usable days: the last 22 are the test, the 20 before them nobody's."""
    train, test = tape.split(0.2, embargo=20)
    assert (train.num_days, test.num_days) == (78, 22)
    assert train.first_day == 10 and test.first_day == 0
    assert (tape.dates == test.dates[0]).argmax() - (tape.dates == train.dates[-1]).argmax() == 21
    assert torch.equal(test.features, tape.features[:, 98:])


def test_a_split_by_paths_shares_none():
    tape = MarketTape.from_bars(walk_bars(80, 2, 5))
    for fraction, sizes in ((0.2, (4, 1)), (0.4, (3, 2)), (0.0, (4, 1)), (1.0, (1, 4))):
        train, test = tape.split_paths(fraction)
        assert (train.num_paths, test.num_paths) == sizes
        assert torch.equal(torch.cat([train.ohlcv, test.ohlcv]), tape.ohlcv)
        assert train.first_day == test.first_day == tape.first_day
        assert train.path_span == (0, sizes[0]) and test.path_span == (sizes[0], 5)
    assert tape.path_span is None and test.paths(1, 9).path_span == (2, 5)


def test_nothing_is_traded_in_a_warm_up():
    """Indicators of later days still see its prices."""
    bars = walk_bars(120, 2, 2)
    plain, later = (MarketTape.from_bars(each) for each in (bars, replace(bars, warm_up=100)))
    assert later.first_day == 100 and plain.first_day < 100
    assert not bool(later.tradable[:, :100].any()) and bool(later.tradable[:, 100:].all())
    assert torch.equal(later.features[:, 100:], plain.features[:, 100:]) and not bool(later.features[:, :100].any())
    short = MarketTape.from_bars(replace(bars, warm_up=10))
    assert short.first_day == plain.first_day


def test_select_takes_symbols_in_the_order_given(tape):
    part = tape.select(["C", "A"])
    assert part.symbols == ("C", "A")
    for name in ("ohlcv", "tradable", "features"):
        assert torch.equal(getattr(part, name), getattr(tape, name)[:, :, [2, 0]])
    assert torch.equal(part.context, tape.context)


def test_the_weights_of_the_best_rule_stay_with_their_days_and_paths():
    bars = planted_bars(4, 30, 3, seed=1, kind="momentum")
    assert bars.best_weights is not None
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


def test_the_fingerprint_names_everything_that_an_agent_sees_or_trades(tape):
    prints = {tape.fingerprint()}
    assert replace(tape, source="elsewhere").fingerprint() in prints
    for name in TENSORS:
        changed = getattr(tape, name).clone()
        flat = changed.view(-1)
        flat[-1] = ~flat[-1] if changed.dtype == torch.bool else flat[-1] + 1
        prints.add(replace(tape, **{name: changed}).fingerprint())
    others = {
        "dates": tape.dates + 1,
        "symbols": ("A", "B", "D"),
        "feature_names": ("score", "momentum_10"),
        "context_names": ("turbulence",),
        "first_day": 11,
        "tick_size": 1e-3,
    }
    for name, value in others.items():
        prints.add(replace(tape, **{name: value}).fingerprint())
    assert len(prints) == 1 + len(TENSORS) + len(others)
    assert all(len(item) == 16 and int(item, 16) >= 0 for item in prints)
    assert (tape.num_paths, tape.num_days, tape.num_symbols, tape.device.type) == (1, 120, 3, "cpu")
    assert all(getattr(tape.to("meta"), name).device.type == "meta" for name in TENSORS)


def test_days_of_bars_cut_every_tensor_and_what_is_left_of_the_warm_up():
    bars = synthetic_bars(2, 12, 3)
    values = torch.rand(2, 12, 3, dtype=torch.float64)
    bars = replace(bars, columns={"score": values}, context={"vix": values[..., 0]}, warm_up=5)
    cut = bars.days(3, 9)
    assert list(cut.dates) == list(bars.dates[3:9]) and cut.symbols == bars.symbols
    assert torch.equal(cut.ohlcv, bars.ohlcv[:, 3:9])
    assert torch.equal(cut.columns["score"], values[:, 3:9]) and torch.equal(cut.context["vix"], values[:, 3:9, 0])
    assert cut.warm_up == 2 and bars.days(6, 12).warm_up == 0
    assert cut.source == f"{bars.source} to {bars.dates[8]}"
