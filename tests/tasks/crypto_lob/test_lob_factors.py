"""Factors are those of their definitions, in pandas, by the rows up to theirs."""

import numpy as np
import pandas as pd
from random_books import book_table

from vecenv.tasks.crypto_lob.clock import clocked
from vecenv.tasks.crypto_lob.factors import FACTORS, LARGEST_VALUE, factor_table
from vecenv.tasks.crypto_lob.snapshot_files import snapshots_of_table

GAP = 5.0
BAR = 2
"""Rows of a bar of ten seconds."""


def lag(series: pd.Series, rows: int) -> pd.Series:
    """Before the table its first row."""
    return series.shift(rows).fillna(series.iloc[0])


def over(series: pd.Series, seconds: float) -> pd.api.typing.Rolling:
    return series.rolling(max(1, round(seconds / GAP)), min_periods=1)


def bars(series: pd.Series, count: int) -> pd.DataFrame:
    """The last bars of each row, the newest last."""
    return pd.concat({place: lag(series, place * BAR) for place in reversed(range(count))}, axis=1)


def delta(series: pd.Series, count: int) -> pd.Series:
    return series - lag(series, count * BAR)


def rank(series: pd.Series, count: int = 20) -> pd.Series:
    return bars(series, count).rank(axis=1, pct=True)[0]


def correlation(left: pd.Series, right: pd.Series, count: int) -> pd.Series:
    return bars(left, count).corrwith(bars(right, count), axis=1).fillna(0.0)


def factors(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Factors of a table of books without holes, by name."""
    bid, ask, bids, asks = (table[f"{name}_0"] for name in ("bid_px", "ask_px", "bid_qty", "ask_qty"))
    bought, sold, mid = table["buy_qty"], table["sell_qty"], (bid + ask) / 2
    log, traded = 1e4 * np.log(mid), bought + sold
    volume, high, low, first = over(traded, 10).sum(), over(mid, 10).max(), over(mid, 10).min(), lag(mid, BAR)
    vwap = (over(traded * mid, 10).sum() / volume).where(volume > 0, mid)
    flow = pd.Series(0.0, table.index)
    for price, size, sign in ((bid, bids, 1), (-ask, asks, -1)):
        came, went = size * (price >= price.shift()), size.shift() * (price <= price.shift())
        flow += sign * (came - went).fillna(0.0)

    def imbalance(levels: int) -> pd.Series:
        bid, ask = (sum(table[f"{side}_qty_{n}"] for n in range(min(levels, 4))) for side in ("bid", "ask"))
        return (bid - ask) / (bid + ask)

    windows = {
        "imbalance": imbalance,
        "mean_imbalance": lambda s: over(imbalance(5), s).mean(),
        "flow": lambda s: over(flow, s).sum() / (over((bids + asks) / 2, s).mean() * np.sqrt(max(1, round(s / GAP)))),
        "trades": lambda s: (over(bought - sold, s).sum() / over(traded, s).sum()).fillna(0.0),
        "volatility": lambda s: np.sqrt(over(log.diff().fillna(0.0) ** 2, s).mean().clip(lower=0.0) / GAP),
        "return": lambda s: log - lag(log, max(1, round(s / GAP))),
    }
    move, moves, long_move = delta(mid, 1) / mid * 1e4, bars(delta(mid, 1), 5), 1e4 * delta(mid, 10) / mid
    one_way = (moves.min(axis=1) > 0) | (moves.max(axis=1) < 0)
    above, below, width = high - mid, mid - low, high - low
    place = ((below - above) / below).clip(-10, 10).where(below > 1e-12, 0.0)
    single = {
        "stale": 0 * mid,
        "spread": 1e4 * (ask - bid) / mid,
        "microprice": 1e4 * ((bid * asks + ask * bids) / (bids + asks) - mid) / mid,
        "queue_change_bid": np.log(bids).diff().fillna(0.0),
        "queue_change_ask": np.log(asks).diff().fillna(0.0),
        "alpha_006": -correlation(first, volume, 10),
        "alpha_007": (-rank(delta(mid, 7).abs(), 60) * np.sign(delta(mid, 7))).where(
            bars(volume, 20).mean(axis=1) < volume, -1.0
        ),
        "alpha_009": move.where(one_way, -move),
        "alpha_012": -np.sign(delta(volume, 1)) * move,
        "alpha_023": (-1e4 * delta(high, 2) / mid).where(bars(high, 20).mean(axis=1) < high, 0.0),
        "alpha_026": -bars(correlation(rank(volume, 5), rank(high, 5), 5), 3).max(axis=1),
        "alpha_041": 1e4 * (np.sqrt(high * low) - vwap) / mid,
        "alpha_042": rank(vwap - mid) / rank(vwap + mid),
        "alpha_043": rank(volume / bars(volume, 20).mean(axis=1).clip(lower=1e-12)) * rank(-delta(mid, 7), 8),
        "alpha_049": (-move).where((lag(long_move, 10 * BAR) - long_move) / 10 >= -1, 1.0),
        "alpha_053": -delta(place, 9),
        "alpha_054": (-below * first**5 / (width * mid**5)).where(width > 0, 0.0),
        "alpha_101": ((mid - first) / width).where(width > 0, 0.0),
    }
    for name in FACTORS.keys() - single.keys():
        head, _, number = name.rpartition("_")
        single[name] = windows[head](int(number))
    return single


def table_of(table: pd.DataFrame, *names: str) -> np.ndarray:
    return factor_table(clocked(snapshots_of_table(table, "x"), GAP, GAP), names, GAP)


def test_factors_are_those_of_their_definitions():
    """Twelve minutes: all windows are full at the end, and cut at the beginning."""
    table = book_table(rows=150, levels=4, gap_ms=5_000, seed=3)
    # Alphas need some rows without trades, and mids that stand still.
    table.loc[table.index % 7 < 3, ["buy_qty", "sell_qty"]] = 0.0
    wanted = factors(table)
    assert wanted.keys() == FACTORS.keys()
    for name, got in zip(FACTORS, table_of(table, *FACTORS).T, strict=True):
        expected = wanted[name].clip(-LARGEST_VALUE, LARGEST_VALUE)
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-4, err_msg=name)
        assert name == "stale" or len(np.unique(got)) > 2
        assert np.array_equal(table_of(table[:77], name)[:, 0], got[:77]), "a factor knows what comes later"


def test_holes_show_the_last_book_and_their_age():
    table = book_table(rows=40, gap_ms=5_000, seed=1)
    table.loc[20:23, "age_ms"] = 60_000
    got = table_of(table, "stale", "imbalance_1", "microprice", "flow_10", "queue_change_bid")
    assert got[18:25, 0].tolist() == [0, 0, 5, 10, 15, 20, 0]
    assert (got[20:24, 1:3] == got[19, 1:3]).all()
    # No order flow is known into, in or out of a hole: only rows before it are in the window of two.
    assert (got[21:25, 3] == 0).all() and got[19, 3] != 0 and (got[20:24, 4] == 0).all()
