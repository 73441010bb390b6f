"""Scores of documents: the day from which each counts, and files that are refused by name, row and column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from vecenv.market.decision_days import MarketClose
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.panels import NEUTRAL, Panels
from vecenv.market.validation import MarketDataError

# A Thursday and a Friday, then a Monday to Wednesday: the weekend is no trading day.
GOOD = {"symbol": "A", "date": "2024-05-31", "sentiment": 4}
DAYS = ["2024-05-30", "2024-05-31", "2024-06-03", "2024-06-04", "2024-06-05"]


def market(symbols=("A", "B"), **columns) -> pd.DataFrame:
    """A long table with flat prices, and further columns given by symbol."""
    rows = [
        {"date": day, "symbol": name, "open": 10.0, "high": 10.0, "low": 10.0, "close": 10.0, "volume": 1.0}
        | {column: values[name][place] for column, values in columns.items()}
        for name in symbols
        for place, day in enumerate(DAYS)
    ]
    return pd.DataFrame(rows)


def panels_of(table, **options) -> Panels:
    tape = load_market(table, MarketOptions(features=(), scores=True, **options))
    assert tape.panels is not None
    return tape.panels


def written(folder, rows, name="scores.csv") -> str:
    path = folder / name
    pd.DataFrame(rows).to_csv(path, index=False)
    return str(path)


def sentiments(panels, symbol=0):
    return panels.scores[0, :, symbol, 0].tolist()


def test_a_score_with_a_date_alone_counts_from_the_next_trading_day(tmp_path):
    table = market(sentiment={"A": [1.0, np.nan, 4.0, np.nan, 5.0], "B": [np.nan] * 5})
    panels = panels_of(table)
    assert sentiments(panels) == [NEUTRAL, 1.0, NEUTRAL, 4.0, NEUTRAL]
    assert panels.known[0, :, 0, 0].tolist() == [False, True, False, True, False]
    assert not panels.known[..., 1].any() and not panels.known[0, :, 1].any()
    assert sentiments(panels_of(table, score_delay=0)) == [1.0, NEUTRAL, 4.0, NEUTRAL, 5.0]
    assert sentiments(panels_of(table, score_delay=3)) == [NEUTRAL, NEUTRAL, NEUTRAL, 1.0, NEUTRAL]
    file = written(tmp_path, [{"symbol": "A", "date": DAYS[1], "sentiment": 4}])
    for delay in (0, 1, 3):
        told = sentiments(panels_of(market(), score_files=(file,), score_delay=delay))
        assert told == [4.0 if day == 1 + delay else NEUTRAL for day in range(5)]
    # Those carried over from earlier days are missing.
    flags = {"A": [1, 0, 0, 1, 0], "B": [0] * 5}
    table = market(sentiment={"A": [2, 2.2, 2.4, 5, 4.5], "B": [3.0] * 5}, news_flag=flags)
    assert sentiments(panels_of(table, score_delay=0)) == [2.0, NEUTRAL, NEUTRAL, 5.0, NEUTRAL]


def test_what_is_published_after_the_close_belongs_to_the_next_day(tmp_path):
    """The close itself is in time, a weekend is for Monday, and the zone is the market's."""
    for minute, expected in (
        ("15:59", [5.0, NEUTRAL, 2.0, NEUTRAL, NEUTRAL]),
        ("16:01", [NEUTRAL, 5.0, 2.0, NEUTRAL, NEUTRAL]),
    ):
        rows = [
            {"symbol": "A", "published_at": f"2024-05-30T{minute}:00-04:00", "sentiment": 5},
            {"symbol": "A", "published_at": "2024-06-03T09:00:00-04:00", "sentiment": 2},
            {"symbol": "B", "published_at": "2024-06-04T12:00Z", "sentiment": 1},
        ]
        panels = panels_of(market(), score_files=(written(tmp_path, rows),))
        assert sentiments(panels) == expected
        assert sentiments(panels, 1) == [NEUTRAL, NEUTRAL, NEUTRAL, 1.0, NEUTRAL]
    rows = [
        {"symbol": "A", "published_at": "2024-05-30T10:00:00Z", "sentiment": 5},  # 15:30 in India: the close
        {"symbol": "A", "published_at": "2024-06-01T23:00:00+05:30", "sentiment": 1},  # a Saturday
        {"symbol": "B", "published_at": "2024-05-30T10:00:01Z", "sentiment": 2},
        {"symbol": "B", "published_at": "2024-06-05T10:01:00Z", "sentiment": 4},  # after the last close
    ]
    panels = panels_of(market(), score_files=(written(tmp_path, rows),), market_close="15:30 Asia/Kolkata")
    assert sentiments(panels) == [5.0, NEUTRAL, 1.0, NEUTRAL, NEUTRAL]
    assert sentiments(panels, 1) == [NEUTRAL, 2.0, NEUTRAL, NEUTRAL, NEUTRAL]


def test_scores_of_a_day_are_averaged_and_those_that_say_nothing_left_out(tmp_path):
    """Zeros of FinRL-DeepSeek, symbols left out on purpose, and days before the first that is read."""
    times = ("09:00", "10:00", "11:00")
    rows = [
        {"symbol": "A", "published_at": f"2024-05-31T{time}:00-04:00", "sentiment": value, "risk": risk}
        for time, value, risk in zip(times, (1, 4, None), (2, None, 5), strict=True)
    ]
    panels = panels_of(market(), score_files=(written(tmp_path, rows),))
    assert sentiments(panels) == [NEUTRAL, 2.5, NEUTRAL, NEUTRAL, NEUTRAL]
    assert panels.scores[0, 1, 0, 1] == 3.5 and panels.known[0, 1, 0].tolist() == [True, True]
    table = market(llm_sentiment={"A": [0, 5, 0, 0, 0], "B": [0] * 5}, llm_risk={"A": [0, 0, 4, 0, 0], "B": [0] * 5})
    panels = panels_of(table, score_delay=0)
    assert sentiments(panels) == [NEUTRAL, 5.0, NEUTRAL, NEUTRAL, NEUTRAL]
    assert panels.known[0, :, 0].tolist() == [[False, False], [True, False], [False, True], *[[False, False]] * 2]
    file = written(
        tmp_path, [{"tic": name, "date": DAYS[0], "llm_sentiment": score} for name, score in (("A", 0), ("B", 2))]
    )
    assert panels_of(market(), score_files=(file,)).known[0, 1, :, 0].tolist() == [False, True]
    file = written(tmp_path, [GOOD, GOOD | {"symbol": "B", "sentiment": 1}])
    panels = panels_of(market(), symbols=("A",), score_files=(file,))
    assert sentiments(panels) == [NEUTRAL, NEUTRAL, 4.0, NEUTRAL, NEUTRAL] and panels.scores.shape == (1, 5, 1, 2)
    rows = [
        {"symbol": "A", "published_at": "2024-05-31T09:00:00-04:00", "sentiment": 5},
        {"symbol": "B", "published_at": "2024-06-03T09:00:00-04:00", "sentiment": 1},
    ]
    panels = panels_of(market(), start="2024-06-03", score_files=(written(tmp_path, rows),))
    assert sentiments(panels) == [NEUTRAL] * 3 and sentiments(panels, 1) == [1.0, NEUTRAL, NEUTRAL]


def test_texts_of_a_day_are_its_lines(tmp_path):
    rows = [
        {"symbol": "A", "published_at": "2024-05-31T09:00:00-04:00", "title": "Sales rise", "summary": "By a tenth."},
        {"symbol": "A", "published_at": "2024-05-31T10:00:00-04:00", "title": "Chief resigns", "summary": None},
        {"symbol": "B", "published_at": "2024-05-31T17:00:00-04:00", "title": "Sales rise", "summary": "By a tenth."},
        {"symbol": "A", "published_at": "2024-06-04T09:00:00-04:00", "title": None, "summary": None},
    ]
    table = market(sentiment={"A": [3.0] * 5, "B": [3.0] * 5})
    panels = panels_of(table, text_file=written(tmp_path, rows, "news.csv"))
    told = [[panels.texts[i] if i >= 0 else "" for i in day] for day in panels.text[0].tolist()]
    assert told[1] == ["Sales rise. By a tenth.\nChief resigns", ""] and told[2] == ["", "Sales rise. By a tenth."]
    assert not any(any(day) for day in (told[0], told[3], told[4]))
    # A document without a text is none.
    assert (panels.text[0, 3] == -1).all() and len(panels.texts) == 2


def test_bad_scores_are_refused_by_row_and_column(tmp_path):
    for rows, message in (
        ([GOOD, GOOD | {"symbol": "B", "sentiment": 5.5}], r"row 2, symbol B, column sentiment: 5\.5: outside 1 to 5"),
        ([GOOD | {"sentiment": 0}], "row 1, symbol A, column sentiment: 0: outside 1 to 5"),
        ([GOOD | {"sentiment": "good"}], "row 1, column sentiment: 'good' is not a number"),
        ([GOOD, GOOD | {"symbol": "C"}], "row 2, symbol C, column symbol: C: the market has no such symbol"),
        ([GOOD, GOOD | {"date": "2024-06-01"}], "row 2, symbol A, column date: 2024-06-01: not a trading day"),
        ([GOOD, GOOD | {"date": "2103-06-03"}], "row 2, symbol A, column date: 2103-06-03: outside the market's days"),
        ([GOOD, GOOD | {"symbol": "B"}, GOOD], "row 3, symbol A, column date: 2024-05-31: there is a row"),
        ([{"symbol": "A", "published_at": "2024-05-31T09:00:00", "sentiment": 4}], "row 1, column publi.*zone"),
        ([{"symbol": "A", "date": "2024-05-31", "mood": 4}], "missing column sentiment or risk"),
        ([{"symbol": "A", "date": "2024-05-31", "sentiment": 4, "llm_sentiment": 4}], "both columns sent"),
    ):
        file = written(tmp_path, rows)
        with pytest.raises(MarketDataError, match=message) as told:
            panels_of(market(), score_files=(file,))
        assert str(told.value).startswith(file)
    file = written(tmp_path, [GOOD])
    late = written(tmp_path, [{"symbol": "B", "published_at": "2024-05-31T09:00:00-04:00", "sentiment": 5}], "late.csv")
    neutral = {"A": [3.0] * 5, "B": [3.0] * 5}
    wrong = [{"A": [3.0] * 5, "B": [3, 3, value, 3, 3]} for value in (7.0, 0.5)]
    nothing = "none of its 1 rows counts for a symbol of the market from 2024-0"
    for columns, options, message in (
        ({"sentiment": wrong[0]}, {}, "symbol B, date 2024-06-03, column sentiment: 7 is outside 1 to 5"),
        ({"sentiment": wrong[1]}, {}, "symbol B, date 2024-06-03, column sentiment: 0.5 is outside 1 to 5"),
        (
            {"sentiment": neutral},
            {"score_files": (file,)},
            "column sentiment: the market has scores of that name already",
        ),
        ({"sentiment": neutral, "llm_sentiment": neutral}, {}, "both columns sentiment and llm_sentiment"),
        ({}, {}, r"no scores: columns sentiment, risk \(or llm_sentiment, llm_risk\) are needed"),
        ({}, {"symbols": ("A",), "score_files": (late,)}, nothing),
        ({}, {"start": "2024-06-04", "score_files": (late,)}, nothing),
    ):
        with pytest.raises(MarketDataError, match=message):
            panels_of(market(**columns), **options)
    for text in ("16:00", "New York", "25:00 America/New_York", "16:00 Mars/Base"):
        with pytest.raises(
            ValueError, match="a market's close is written as '16:00 America/New_York', a time and a zone"
        ):
            MarketClose.parse(text)


def test_shuffled_scores_are_the_same_scores_on_other_days():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(2, 40, 3, 2, generator=generator) * 4 + 1
    text = torch.arange(240).view(2, 40, 3)
    where = torch.rand(2, 40, 3, generator=generator) < 0.8
    panels = Panels(scores, scores > 2, text)
    shuffled = panels.shuffled(where, seed=1)
    # Scores, masks and texts of a day stay together, and each symbol of a path keeps its own.
    source = shuffled.text
    flat = source.flatten()
    assert torch.equal(shuffled.scores.flatten(0, 2), scores.flatten(0, 2)[flat])
    assert torch.equal(shuffled.known.flatten(0, 2), (scores > 2).flatten(0, 2)[flat])
    for path in range(2):
        for symbol in range(3):
            here = where[path, :, symbol]
            own, moved = text[path, :, symbol], source[path, :, symbol]
            assert torch.equal(moved[~here], own[~here])
            assert torch.equal(moved[here].sort().values, own[here]) and not torch.equal(moved[here], own[here])
    assert torch.equal(panels.shuffled(where, seed=1).scores, shuffled.scores)
    assert not torch.equal(panels.shuffled(where, seed=2).scores, shuffled.scores)


def test_tapes_of_fewer_days_symbols_and_paths_keep_their_scores():
    options = MarketOptions(features=(), scores=True, num_paths=3, num_days=30, symbols=["A", "B", "C"])
    tape = load_market("news", options)
    part = tape.days(5, 20).select(["C", "A"]).paths(1, 3)
    assert torch.equal(part.panels.scores, tape.panels.scores[1:3, 5:20][:, :, [2, 0]])
    assert torch.equal(part.panels.text, tape.panels.text[1:3, 5:20][:, :, [2, 0]])
    assert part.panels.texts == tape.panels.texts
    single = tape.symbols_as_paths()
    assert torch.equal(single.panels.scores[4, :, 0], tape.panels.scores[1, :, 1])
    other = load_market("news", options)
    assert other.fingerprint() == tape.fingerprint()
    other.panels.scores[0, 3, 0, 0] += 1
    assert other.fingerprint() != tape.fingerprint()
