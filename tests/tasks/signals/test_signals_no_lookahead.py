"""Replacing every bar and every score after a day changes nothing that was seen, paid or rewarded up to it."""

from __future__ import annotations

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
CLOSE = pd.Timestamp(f"{DAYS[CUT].date()}T16:00:00-05:00")
"""New York's close in winter."""


def prices(seed: int) -> pd.DataFrame:
    """A long table of random bars."""
    rng = np.random.default_rng(seed)
    close = (50 * np.exp(rng.normal(0, 0.02, (len(DAYS), len(SYMBOLS))).cumsum(0))).round(2).ravel()
    wide = {"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": 1000.0}
    return pd.DataFrame({"date": DAYS.repeat(len(SYMBOLS)), "symbol": SYMBOLS * len(DAYS)} | wide)


def scores(seed: int, times: bool) -> pd.DataFrame:
    """Scores of documents at all hours of all days, weekends too, or one of each day and symbol with a date alone."""
    rng, table = np.random.default_rng(seed), prices(seed)[["date", "symbol"]]
    if times:
        first, last = (pd.Timestamp(f"{day.date()}T00:00:00-05:00") for day in (DAYS[0], DAYS[-1]))
        minutes = rng.choice(int((last - first).total_seconds() // 60), 400, replace=False)
        at = (first + pd.to_timedelta(minutes, unit="min")).strftime("%Y-%m-%dT%H:%M:%S%z")
        table = pd.DataFrame({"published_at": at, "symbol": rng.choice(SYMBOLS, 400)})
    shape = (2, len(table))
    drawn = np.where(rng.random(shape) < 0.8, rng.integers(1, 6, shape), np.nan)
    return table.assign(sentiment=drawn[0], risk=drawn[1])


def spliced(past: pd.DataFrame, future: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one table up to the day of the cut, up to its close, and of the other after it."""
    if "published_at" in past:
        early, late = (pd.to_datetime(table["published_at"], utc=True) <= CLOSE for table in (past, future))
    else:
        early, late = (table["date"] <= DAYS[CUT] for table in (past, future))
    return pd.concat([past[early], future[~late]], ignore_index=True)


def tape_of(bars: pd.DataFrame, table: pd.DataFrame, file: Path | None, delay: int) -> MarketTape:
    """Load a market with scores in its columns, or of a file."""
    options = {"features": ("daily_change",), "scores": True, "score_delay": delay, "tick_size": 0.0001}
    if file is None:
        return load_market(bars.merge(table, on=["date", "symbol"], how="left"), MarketOptions(**options))
    table.to_csv(file, index=False)
    return load_market(bars, MarketOptions(score_files=(str(file),), **options))


@pytest.fixture(scope="module", params=["columns", "columns after three days", "dates", "times"])
def tapes(request, tmp_path_factory) -> tuple[MarketTape, MarketTape]:
    """A market with scores, and the same with another future after the close of the day of the cut."""
    folder, times = tmp_path_factory.mktemp("scores"), request.param == "times"
    file = None if request.param.startswith("columns") else folder / "scores.csv"
    delay = {"columns after three days": 3, "times": 1}.get(request.param, 0)
    bars, given = (prices(1), prices(2)), (scores(3, times), scores(4, times))
    return tape_of(bars[0], given[0], file, delay), tape_of(spliced(*bars), spliced(*given), file, delay)


def rules_on(tape: MarketTape, **rules) -> SignalTrading:
    given = {
        "features": ("daily_change",), "observed": ("sentiment", "risk"), "sentiment_strength": 0.3,
        "risk_strength": 0.3, "episode_length": 20, "min_episode_length": 8, "initial_cash": 20_000.0,
    }  # fmt: skip
    return SignalTrading(tape, SignalsConfig(**(given | rules)))


def test_nothing_seen_paid_or_rewarded_knows_what_was_published_later(tapes):
    """Up to day t: what is seen and what orders of day t pay. What is rewarded: up to the step that ends on day t."""
    for name in ("scores", "known"):
        left, right = (getattr(tape.panels, name) for tape in tapes)
        assert same_bits(left[:, : CUT + 1], right[:, : CUT + 1]) and not same_bits(left, right), name
    # There is something to be changed: scores before the cut and after it.
    assert left[:, :CUT].any() and left[:, CUT + 2 :].any()
    one, other = (played_steps(rules_on(tape, action="tilt"), 48, 30) for tape in tapes)
    for names, last in ((SEEN, CUT), (PAID, CUT), (REWARDED, CUT - 1)):
        count, equal = compared(one, other, names, last)
        assert count > 300 and equal, names
    assert not compared(one, other, ("seen",), CUT + 1)[1]
    assert not compared(one, other, ("reward",), CUT)[1]


def test_only_the_scores_of_the_next_day_are_hidden():
    """With prices that stay and scores that change after the cut, the step over the day is the same too."""
    given = scores(3, False), scores(4, False)
    tapes = [tape_of(prices(1), table, None, 0) for table in (given[0], spliced(*given))]
    one, other = (played_steps(rules_on(tape), 32, 30) for tape in tapes)
    for names, last in ((SEEN, CUT), (PAID, CUT), (REWARDED, CUT)):
        assert compared(one, other, names, last)[1], names
    assert not compared(one, other, PAID, CUT + 1)[1]


def test_shuffled_scores_of_a_part_of_the_days_are_its_own():
    """Training days receive no score of test days: other scores there change nothing, and each part keeps its own."""
    options = MarketOptions(features=("daily_change",), scores=True, num_paths=2, num_days=80, symbols=SYMBOLS)
    tape = load_market("news", options)
    train, test = tape.split(0.25, embargo=5)
    for part in (train, test):
        shuffled = rules_on(part, shuffled=True, episode_length=10).panels
        usable = part.tradable.unsqueeze(-1).expand_as(shuffled.scores)
        own, moved = (torch.where(usable, one.scores, NEUTRAL) for one in (part.panels, shuffled))
        assert torch.equal(own.sort(dim=1).values, moved.sort(dim=1).values) and not torch.equal(own, moved)
    before = rules_on(train, shuffled=True).panels
    tape.panels.scores[:, train.num_days :] = 5.0
    again = rules_on(tape.split(0.25, embargo=5)[0], shuffled=True).panels
    assert torch.equal(before.scores, again.scores) and torch.equal(before.known, again.known)
