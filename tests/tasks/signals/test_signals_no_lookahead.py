"""Replacing every bar and every score after a day changes nothing that was seen, paid or rewarded up to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.small_env import same_bits
from tests.tasks.tiers.test_no_lookahead import PAID, REWARDED, SEEN, compared, played_steps
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.panels import NEUTRAL
from vecenv.market.tape import MarketTape
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.scenario import SignalTrading

DAYS = pd.bdate_range("2024-01-01", periods=60)
SYMBOLS = ("A", "B", "C")
CUT = 40
CLOSE = "T16:00:00-05:00"
"""New York's close in winter."""


def prices(seed: int) -> pd.DataFrame:
    """A long table of random bars."""
    rng = np.random.default_rng(seed)
    close = (50 * np.exp(rng.normal(0, 0.02, (len(DAYS), len(SYMBOLS))).cumsum(0))).round(2).ravel()
    wide = {"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": 1000.0}
    return pd.DataFrame({"date": DAYS.repeat(len(SYMBOLS)), "symbol": SYMBOLS * len(DAYS)} | wide)


def scores(seed: int, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: np.where(rng.random(count) < 0.8, rng.integers(1, 6, count), np.nan) for name in ("sentiment", "risk")
    }


def publications(seed: int) -> pd.DataFrame:
    """Scores of documents at all hours of all days, weekends too."""
    rng = np.random.default_rng(seed)
    first, last = (pd.Timestamp(f"{day.date()}T00:00:00-05:00") for day in (DAYS[0], DAYS[-1]))
    minutes = rng.choice(int((last - first).total_seconds() // 60), 400, replace=False)
    times = (first + pd.to_timedelta(minutes, unit="min")).strftime("%Y-%m-%dT%H:%M:%S%z")
    return pd.DataFrame({"published_at": times, "symbol": rng.choice(SYMBOLS, 400)} | scores(seed, 400))


def dated(seed: int) -> pd.DataFrame:
    """A score of each day and symbol, with a date alone."""
    table = prices(seed)[["date", "symbol"]]
    return table.assign(**scores(seed, len(table)))


def spliced(past: pd.DataFrame, future: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows of one table up to the day of the cut, up to its close, and of the other after it."""
    if column == "date":
        early, late = (table["date"] <= DAYS[CUT] for table in (past, future))
    else:
        close = pd.Timestamp(f"{DAYS[CUT].date()}{CLOSE}")
        early, late = (pd.to_datetime(table[column], utc=True) <= close for table in (past, future))
    return pd.concat([past[early], future[~late]], ignore_index=True)


@dataclass(frozen=True)
class Source:
    """Where scores come from.

    Attributes:
        own: of the market's columns.
        delay: of scores with a date.
        column: that tells when a score of a file counts.
    """

    own: bool = False
    delay: int = 1
    column: str = "date"


SOURCES = {
    "columns": Source(own=True),
    "columns, no delay": Source(own=True, delay=0),
    "columns, three days": Source(own=True, delay=3),
    "dates": Source(),
    "dates, no delay": Source(delay=0),
    "times": Source(column="published_at"),
}


def worlds(source: Source, folder: Path) -> tuple[MarketTape, MarketTape]:
    """Return a market with scores, and the same with another future after the close of the day of the cut."""
    market, make = (prices(1), prices(2)), publications if source.column == "published_at" else dated
    given = make(3), make(4)
    tapes = []
    for name, bars, table in (
        ("past", market[0], given[0]),
        ("other", spliced(*market, "date"), spliced(*given, source.column)),
    ):
        files: tuple[str, ...] = ()
        if source.own:
            bars = bars.merge(table, on=["date", "symbol"], how="left")
        else:
            files = (str(folder / f"{name}.csv"),)
            table.to_csv(files[0], index=False)
        options = MarketOptions(
            features=("daily_change",), scores=True, score_files=files, score_delay=source.delay, tick_size=0.0001
        )
        tapes.append(load_market(bars, options))
    return tapes[0], tapes[1]


@pytest.fixture(scope="module", params=SOURCES)
def tapes(request, tmp_path_factory):
    return worlds(SOURCES[request.param], tmp_path_factory.mktemp("scores"))


def test_the_panels_up_to_a_day_are_made_of_what_was_published_by_its_close(tapes):
    one, other = (tape.panels for tape in tapes)
    for name in ("scores", "known"):
        left, right = getattr(one, name), getattr(other, name)
        assert same_bits(left[:, : CUT + 1], right[:, : CUT + 1]) and not same_bits(left, right), name
    assert same_bits(tapes[0].ohlcv[:, : CUT + 1], tapes[1].ohlcv[:, : CUT + 1])
    # There is something to be changed: scores before the cut and after it.
    assert one.known[:, :CUT].any() and one.known[:, CUT + 2 :].any()


def rules_on(tape: MarketTape, **rules) -> SignalTrading:
    given = {
        "features": ("daily_change",), "observed": ("sentiment", "risk"), "sentiment_strength": 0.3,
        "risk_strength": 0.3, "episode_length": 20, "min_episode_length": 8, "initial_cash": 20_000.0,
    }  # fmt: skip
    return SignalTrading(tape, SignalsConfig(**(given | rules)))


@pytest.mark.parametrize("action", ["shares", "tilt"])
def test_nothing_seen_paid_or_rewarded_knows_later_scores(tapes, action):
    """Up to day t: what is seen and what orders of day t pay. What is rewarded: up to the step that ends on day t."""
    one, other = (played_steps(rules_on(tape, action=action), 64, 40) for tape in tapes)
    for names, last in ((SEEN, CUT), (PAID, CUT), (REWARDED, CUT - 1)):
        count, equal = compared(one, other, names, last)
        assert count > 500 and equal, names
    assert not compared(one, other, ("seen",), CUT + 1)[1]
    assert not compared(one, other, ("reward",), CUT)[1]


def test_only_the_scores_of_the_next_day_are_hidden(tmp_path):
    """With prices that stay and scores that change after the cut, the step over the day is the same too."""
    table, given = prices(1), (dated(3), dated(4))
    tapes = [
        load_market(
            table.merge(scored, on=["date", "symbol"]),
            MarketOptions(features=("daily_change",), scores=True, score_delay=0),
        )
        for scored in (given[0], spliced(*given, "date"))
    ]
    one, other = (played_steps(rules_on(tape), 48, 40) for tape in tapes)
    for names, last in ((SEEN, CUT), (PAID, CUT), (REWARDED, CUT)):
        assert compared(one, other, names, last)[1], names
    assert not compared(one, other, PAID, CUT + 1)[1]


def test_shuffled_scores_of_a_part_of_the_days_are_its_own():
    """Training days receive no score of test days: other scores there change nothing, and each part keeps its own."""
    options = MarketOptions(features=("daily_change",), scores=True, num_paths=2, num_days=80, symbols=SYMBOLS)
    tape = load_market("news", options)
    train, test = tape.split(0.25, embargo=5)
    for part in (train, test):
        assert part.panels is not None
        shuffled = rules_on(part, shuffled=True, episode_length=10).panels
        usable = part.tradable.unsqueeze(-1).expand_as(shuffled.scores)
        own, moved = (torch.where(usable, one.scores, NEUTRAL) for one in (part.panels, shuffled))
        assert torch.equal(own.sort(dim=1).values, moved.sort(dim=1).values) and not torch.equal(own, moved)
    before = rules_on(train, shuffled=True).panels
    assert tape.panels is not None
    tape.panels.scores[:, train.num_days :] = 5.0
    again = rules_on(tape.split(0.25, embargo=5)[0], shuffled=True).panels
    assert torch.equal(before.scores, again.scores) and torch.equal(before.known, again.known)
