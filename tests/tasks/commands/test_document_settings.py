"""Scores and texts of documents by the command line: what reaches the market, and what a record names."""

from __future__ import annotations

import pandas as pd
import pytest

from vecenv.tasks.commands.market_settings import MarketSettings, market_origin
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.stock_trading.config import StockTradingConfig

DAYS = ["2024-05-30", "2024-05-31", "2024-06-03"]


@pytest.fixture
def files(tmp_path):
    """Prices with sentiment and without, and a score published at 16:00 in India."""
    rows = {"symbol": "A", "open": 10.0, "high": 10.0, "low": 10.0, "close": 10.0, "volume": 1.0}
    plain = pd.DataFrame([{"date": day, **rows} for day in DAYS])
    plain.to_parquet(tmp_path / "plain.parquet")
    plain.assign(sentiment=[5.0, 3.0, 3.0]).to_parquet(tmp_path / "scored.parquet")
    score = {"symbol": "A", "published_at": "2024-05-30T16:00:00+05:30", "sentiment": 1, "text": "Bad news"}
    pd.DataFrame([score]).to_csv(tmp_path / "scores.csv", index=False)
    return tmp_path


def sentiments(settings):
    return settings.tape(SignalsConfig(features=())).panels.scores[0, :, 0, 0].tolist()


def test_the_delay_reaches_the_market(files):
    market = str(files / "scored.parquet")
    assert sentiments(MarketSettings(market=market)) == [3.0, 5.0, 3.0]
    assert sentiments(MarketSettings(market=market, score_delay=0)) == [5.0, 3.0, 3.0]


def test_files_and_the_close_reach_the_market(files):
    given = {"market": str(files / "plain.parquet"), "scores": (str(files / "scores.csv"),)}
    # Half an hour after the close in India, hours before that in New York.
    assert sentiments(MarketSettings(**given)) == [1.0, 3.0, 3.0]
    assert sentiments(MarketSettings(**given, market_close="15:30 Asia/Kolkata")) == [3.0, 1.0, 3.0]
    panels = MarketSettings(**given, news=str(files / "scores.csv")).tape(SignalsConfig(features=())).panels
    assert panels.texts == ("Bad news",) and panels.text[0, :, 0].tolist() == [0, -1, -1]


def test_tasks_that_read_no_scores_get_none(files):
    assert MarketSettings(market=str(files / "scored.parquet")).tape(StockTradingConfig(features=())).panels is None


def test_a_record_names_what_differs_from_the_defaults():
    names = {"score_files", "text_file", "score_delay", "market_close"}
    assert not names & set(market_origin(MarketSettings()))
    assert market_origin(MarketSettings(score_delay=0))["score_delay"] == 0
    settings = MarketSettings(scores=("s.csv",), news="n.csv", score_delay=3, market_close="15:30 Asia/Kolkata")
    told = market_origin(settings)
    assert {name: told[name] for name in names} == {
        "score_files": ("s.csv",), "text_file": "n.csv", "score_delay": 3, "market_close": "15:30 Asia/Kolkata",
    }  # fmt: skip
