"""News and scores of documents: what is read from which columns, the day from which each counts, what is refused."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
import torch

from vecenv.market.decision_days import MarketClose
from vecenv.market.document_files import read_closes, read_news
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.panels import NEUTRAL, Panels
from vecenv.market.parquet_files import write_parquet
from vecenv.market.validation import MarketDataError, MarketDataWarning

# A Thursday and a Friday, then a Monday to Wednesday: the weekend is no trading day.
GOOD = {"symbol": "A", "date": "2024-05-31", "sentiment": 4}
DAYS = ["2024-05-30", "2024-05-31", "2024-06-03", "2024-06-04", "2024-06-05"]


def market(symbols=("A", "B"), **columns) -> pd.DataFrame:
    """A long table with flat prices, and further columns given by symbol."""
    prices = dict.fromkeys(("open", "high", "low", "close", "volume"), 10.0)
    told = [{column: values[name] for column, values in columns.items()} for name in symbols]
    frames = [
        pd.DataFrame({"date": DAYS, "symbol": name, **prices, **own}) for name, own in zip(symbols, told, strict=True)
    ]
    return pd.concat(frames, ignore_index=True)


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


def test_the_day_from_which_a_score_counts(tmp_path):
    """With a date alone the next trading day; the close itself is in time, a weekend is for Monday."""
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
    for unknown in (0, np.nan):
        flags = {"A": [1, 0, unknown, 1, 0], "B": [unknown] * 5}
        table = market(sentiment={"A": [2, 2.2, 2.4, 5, 4.5], "B": [3.0] * 5}, news_flag=flags)
        assert sentiments(panels_of(table, score_delay=0)) == [2.0, NEUTRAL, NEUTRAL, 5.0, NEUTRAL]
    for minute, day in (("15:59", 0), ("16:00", 0), ("16:01", 1)):
        rows = [{"symbol": "B", "published_at": f"2024-05-30T{minute}:00-04:00", "sentiment": 5}]
        panels = panels_of(market(), score_files=(written(tmp_path, rows),))
        assert sentiments(panels, 1) == [5.0 if each == day else NEUTRAL for each in range(5)]
        assert sentiments(panels) == [NEUTRAL] * 5
    rows = [
        {"symbol": "A", "published_at": "2024-05-30T10:00:00Z", "sentiment": 5},  # 15:30 in India: the close
        {"symbol": "A", "published_at": "2024-06-01T23:00:00+05:30", "sentiment": 1},  # a Saturday
        {"symbol": "B", "published_at": "2024-05-30T10:00:01Z", "sentiment": 2},
        {"symbol": "B", "published_at": "2024-06-05T10:01:00Z", "sentiment": 4},  # after the last close
    ]
    panels = panels_of(market(), score_files=(written(tmp_path, rows),), market_close="15:30 Asia/Kolkata")
    assert sentiments(panels) == [5.0, NEUTRAL, 1.0, NEUTRAL, NEUTRAL]
    assert sentiments(panels, 1) == [NEUTRAL, 2.0, NEUTRAL, NEUTRAL, NEUTRAL]


@pytest.mark.parametrize("form", [None, "%d/%m/%Y"])
def test_what_is_published_after_an_early_close_counts_on_the_next_session(form, tmp_path):
    """Friday closes at 13:00, and Monday at 18:15."""
    friday, monday = ("2024-05-31", "2024-06-03") if form is None else ("31/05/2024", "03/06/2024")
    closes = written(tmp_path, [{"Date": friday, "Time": "13:00"}, {"Date": monday, "Time": "18:15:30"}], "closes.csv")
    for time, day in {"05-31T13:00:00": 1, "05-31T13:00:01": 2, "06-03T18:15:30": 2, "06-03T18:16:00": 3}.items():
        rows = [{"symbol": "A", "published_at": f"2024-{time}-04:00", "sentiment": 5, "text": "x"}]
        file = written(tmp_path, rows)
        panels = panels_of(market(), score_files=(file,), text_file=file, early_closes=closes, date_format=form)
        assert sentiments(panels) == [5.0 if each == day else NEUTRAL for each in range(5)]
        assert (panels.text[0, :, 0] >= 0).tolist() == panels.known[0, :, 0, 0].tolist()
    dated = written(tmp_path, [{"symbol": "A", "date": friday, "sentiment": 5}])
    assert sentiments(panels_of(market(), score_files=(dated,), date_format=form)).index(5.0) == 2


def test_bad_files_of_closes_are_refused_by_row_and_column(tmp_path):
    clock = "is not a time of the day such as 13:00"
    for text, told in (
        ("date,time\n2024-05-31,1pm\n", f"row 1, column time: '1pm' {clock}"),
        ("date,time\n2024-05-31,13:00-04:00\n", clock),
        ("date,time\n2024-05-31,13:00\n2024-05-31,12:00\n", "row 2, column date: '2024-05-31' is there twice"),
        ("date,time\n05/06/2024,13:00\n", r"'05/06/2024' is 2024-05-06 or 2024-06-05: .*--date-format"),
        ("date,close\n2024-05-31,13:00\n", "missing column time; there are 2: date, close"),
    ):
        with pytest.raises(MarketDataError, match=rf"\.csv: .*{told}"):
            read_closes(csv_file(tmp_path, text))


def test_scores_of_a_day_are_averaged_and_texts_are_its_lines(tmp_path):
    """Left out are zeros of FinRL-DeepSeek, symbols left out on purpose, and days before the first that is read."""
    times = [f"2024-05-31T{hour}:00:00-04:00" for hour in ("09", "10", "11")]
    rows = {"symbol": "A", "published_at": times, "sentiment": [1, 4, None], "risk": [2, None, 5]}
    panels = panels_of(market(), score_files=(written(tmp_path, rows),))
    assert sentiments(panels) == [NEUTRAL, 2.5, NEUTRAL, NEUTRAL, NEUTRAL]
    assert panels.scores[0, 1, 0, 1] == 3.5 and panels.known[0, 1, 0].tolist() == [True, True]
    table = market(llm_sentiment={"A": [0, 5, 0, 0, 0], "B": [0] * 5}, llm_risk={"A": [0, 0, 4, 0, 0], "B": [0] * 5})
    panels = panels_of(table, score_delay=0)
    assert sentiments(panels) == [NEUTRAL, 5.0, NEUTRAL, NEUTRAL, NEUTRAL]
    assert panels.known[0, :, 0].tolist() == [[False, False], [True, False], [False, True], *[[False, False]] * 2]
    file = written(tmp_path, [{"tic": name, "date": DAYS[0], "llm_sentiment": 2 * (name == "B")} for name in "AB"])
    assert panels_of(market(), score_files=(file,)).known[0, 1, :, 0].tolist() == [False, True]
    file = written(tmp_path, [GOOD, GOOD | {"symbol": "B", "sentiment": 1}])
    panels = panels_of(market(), symbols=("A",), score_files=(file,))
    assert sentiments(panels) == [NEUTRAL, NEUTRAL, 4.0, NEUTRAL, NEUTRAL] and panels.scores.shape == (1, 5, 1, 2)
    times = ["2024-05-31T09:00:00-04:00", "2024-06-03T09:00:00-04:00"]
    rows = {"symbol": ["A", "B"], "published_at": times, "sentiment": [5, 1]}
    panels = panels_of(market(), start="2024-06-03", score_files=(written(tmp_path, rows),))
    assert sentiments(panels) == [NEUTRAL] * 3 and sentiments(panels, 1) == [1.0, NEUTRAL, NEUTRAL]
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


def test_news_of_weekends_count_on_monday_those_of_a_day_are_averaged_and_both_are_told(tmp_path):
    """Friday's, Saturday's and Sunday's were all known before Monday's close."""
    days = {"2024-05-31": 2, "2024-06-01": 5, "2024-06-02": 5}
    file = written(tmp_path, [GOOD | {"date": day, "sentiment": score} for day, score in days.items()])
    weekend = "2 of 3 rows are dated on days without trading: they count on the next session"
    for delay, expected in ((0, {1: 2.0, 2: 5.0}), (1, {2: 4.0}), (2, {3: 4.0})):
        with pytest.warns(MarketDataWarning) as told:
            panels = panels_of(market(), score_files=(file,), score_delay=delay)
        assert sentiments(panels) == [expected.get(day, NEUTRAL) for day in range(5)]
        several = f"{3 if delay else 2} of 3 rows are not alone with their symbol and day: their mean is its score"
        assert [str(warning.message) for warning in told] == [f"{file}: {weekend}", f"{file}: {several}"]
    with pytest.raises(
        MarketDataError, match="sentiment: no such file; a column of the market that is called so needs no"
    ):
        panels_of(market(sentiment={"A": [3.0] * 5, "B": [3.0] * 5}), score_files=("sentiment",))


def test_bad_scores_are_refused_by_row_and_column(tmp_path):
    for rows, message in (
        ([GOOD, GOOD | {"symbol": "B", "sentiment": 5.5}], r"row 2, symbol B, column sentiment: 5\.5: outside 1 to 5"),
        ([GOOD | {"sentiment": "good"}], "row 1, column sentiment: 'good' is not a number"),
        ([GOOD, GOOD | {"symbol": "C"}], "row 2, symbol C, column symbol: C: the market has no such symbol"),
        ([GOOD, GOOD | {"date": "2103-06-03"}], "row 2, symbol A, column date: 2103-06-03: outside the market's days"),
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
    wrong = {"A": [3.0] * 5, "B": [3, 3, 0.5, 3, 3]}
    nothing = "none of its 1 rows counts for a symbol of the market from 2024-0"
    for columns, options, message in (
        ({"sentiment": wrong}, {}, "symbol B, date 2024-06-03, column sentiment: 0.5 is outside 1 to 5"),
        ({"sentiment": neutral}, {"score_files": (file,)}, "column sentiment: the market has scores of that name"),
        ({"sentiment": neutral, "llm_sentiment": neutral}, {}, "both columns sentiment and llm_sentiment"),
        ({}, {}, r"no scores: columns sentiment, risk \(or llm_sentiment, llm_risk\) are needed"),
        ({}, {"symbols": ("A",), "score_files": (late,)}, nothing),
        ({}, {"start": "2024-06-04", "score_files": (late,)}, nothing),
    ):
        with pytest.raises(MarketDataError, match=message):
            panels_of(market(**columns), **options)
    for text in ("16:00", "New York", "25:00 America/New_York", "16:00 Mars/Base"):
        with pytest.raises(ValueError, match="a market's close is written as '16:00 America/New_York', a time and a z"):
            MarketClose.parse(text)


def test_scores_stay_with_their_days_symbols_and_paths():
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
    for path, symbol in itertools.product(range(2), range(3)):
        here, own, moved = (each[path, :, symbol] for each in (where, text, source))
        assert torch.equal(moved[~here], own[~here])
        assert torch.equal(moved[here].sort().values, own[here]) and not torch.equal(moved[here], own[here])
    assert torch.equal(panels.shuffled(where, seed=1).scores, shuffled.scores)
    assert not torch.equal(panels.shuffled(where, seed=2).scores, shuffled.scores)
    options = MarketOptions(features=(), scores=True, num_paths=3, num_days=30, symbols=["A", "B", "C"])
    tape, other = load_market("news", options), load_market("news", options)
    part = tape.days(5, 20).select(["C", "A"]).paths(1, 3)
    assert torch.equal(part.panels.scores, tape.panels.scores[1:3, 5:20][:, :, [2, 0]])
    assert torch.equal(part.panels.text, tape.panels.text[1:3, 5:20][:, :, [2, 0]])
    assert part.panels.texts == tape.panels.texts
    single = tape.symbols_as_paths()
    assert torch.equal(single.panels.scores[4, :, 0], tape.panels.scores[1, :, 1])
    assert other.fingerprint() == tape.fingerprint()
    other.panels.scores[0, 3, 0, 0] += 1
    assert other.fingerprint() != tape.fingerprint()


def csv_file(folder, text):
    path = folder / "news.csv"
    path.write_text(text)
    return path


def test_which_columns_and_times_are_read_as_what(tmp_path):
    rows = '2024-01-02,NA,"Sales rise, ""again""\nin May",7\n2024-01-02, TRUE ,,\n2024-01-03,000001,nan,x\n'
    news = read_news(csv_file(tmp_path, f"date,symbol,text,votes\n{rows}"))
    assert list(news.columns) == ["date", "symbol", "text"] and news["date"].dtype == "datetime64[s]"
    assert news["date"].tolist() == [pd.Timestamp(day) for day in ("2024-01-02", "2024-01-02", "2024-01-03")]
    assert news["symbol"].tolist() == ["NA", "TRUE", "000001"]
    assert news["text"].tolist() == ['Sales rise, "again"\nin May', "", "nan"]
    for header, row in (
        ("date,tic,title", "2024-01-02,A,Sales rise"),
        ("Date,Stock_symbol,Article_title", "2024-01-02 23:30:00 UTC,A,Sales rise"),
        (",Date,Article_title,Stock_symbol,Url,Article", "0.0,2024-01-02 23:30:00 UTC,Sales fall,A,http,Sales rise"),
        ("DATE,Symbol,Summary", "20240102,A,Sales rise"),
        ("published_at,symbol,text", "2024-01-02T23:30:00-05:00,A,Sales rise"),
        ("date,symbol,text,title,summary", "2024-01-02,A,Sales rise,Sales fall,Sales drop"),
        ("date,symbol,text,title,summary", "2024-01-02,A, ,Sales rise,"),
    ):
        news = read_news(csv_file(tmp_path, f"{header}\n{row}\n"))
        assert news["date"].tolist() == [pd.Timestamp("2024-01-02")]
        assert (news["symbol"].tolist(), news["text"].tolist()) == (["A"], ["Sales rise"])
    rows = "2024-01-02,A,Sales rise,In May\n2024-01-02,A,Sales rise!,In May\n2024-01-02,A,,In May\n"
    news = read_news(csv_file(tmp_path, f"date,symbol,title,summary\n{rows}"))
    assert news["text"].tolist() == ["Sales rise. In May", "Sales rise! In May", "In May"]
    times = ["2024-01-02T23:30:00-05:00", "2024-07-02 00:15:00.25Z", "2024-01-02 10:00 +0530", "2024-01-02 10:00 UTC"]
    rows = "".join(f"{time},A,x\n" for time in times)
    news = read_news(csv_file(tmp_path, f"published_at,symbol,text\n{rows}"))
    utc = ["2024-01-03 04:30", "2024-07-02 00:15:00.25", "2024-01-02 04:30", "2024-01-02 10:00"]
    assert news["published_at"].tolist() == [pd.Timestamp(time, tz="UTC") for time in utc]
    assert news["published_at"].dtype == "datetime64[us, UTC]"
    days = ["2024-01-02", "2024-07-02", "2024-01-02", "2024-01-02"]
    assert news["date"].tolist() == [pd.Timestamp(day) for day in days]
    news = read_news(csv_file(tmp_path, f"date,published_at,symbol,text\n2024-01-05,{times[0]},A,x\n"))
    assert news["date"].tolist() == [pd.Timestamp("2024-01-05")]
    times = pd.to_datetime(["2024-01-02 23:30", "2024-01-03 10:00"]).tz_localize("America/New_York")
    table = pd.DataFrame({"published_at": times, "tic": pd.Categorical(["B", "A"]), "title": ["Sales rise", None]})
    write_parquet(table, tmp_path / "news.parquet")
    news = read_news(tmp_path / "news.parquet")
    assert news["published_at"].tolist() == list(times.tz_convert("UTC"))
    assert news["date"].tolist() == [pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-03")]
    assert (news["symbol"].tolist(), news["text"].tolist()) == (["B", "A"], ["Sales rise", ""])
    for days in (times, times.tz_localize(None), [day.date() for day in times], np.array([20240102, 20240103])):
        write_parquet(pd.DataFrame({"date": days, "symbol": "A", "text": "x"}), tmp_path / "days.parquet")
        assert read_news(tmp_path / "days.parquet")["date"].tolist() == news["date"].tolist()


def test_what_is_wrong_is_named_in_one_sentence(tmp_path):
    for text, what in (
        ("", "the file is empty, it has no header"),
        ("date,symbol,text\n", "the file is empty, it has no rows"),
        ("symbol,text\nA,x\n", "missing column date or published_at; there are 2: symbol, text"),
        ("date,symbol,words\n2024-01-02,A,x\n", "missing column text or title or summary; there are 3: date, symbol"),
        ("date,tic,symbol,text\n2024-01-02,A,A,x\n", "duplicate columns symbol"),
        ("date,symbol,text,text\n2024-01-02,A,x,y\n", "duplicate columns text"),
        ("date,symbol,text\n2024-01-02,A,x,y\n", "row 1 has 4 fields, more than the header's 3: '2024-01-02,A,x,y'"),
        ("date,symbol,text\n2024-01-02,A,x\n2024-01-02, ,x\n", "column symbol: the symbol is missing, row 2"),
        ("date,symbol,text\n2024-01-02,A,x\n,A,x\n,A,x\n", "row 2, column date: it is missing (2 rows in all)"),
        ("Date,symbol,text\n01/02/2024,A,x\n", "row 1, column Date: '01/02/2024' is 2024-01-02 or 2024-02-01: its"),
        ("published_at,symbol,text\n,A,x\n", "row 1, column published_at: it is missing (1 row in all)"),
        ("published_at,symbol,text\n2024-01-02,A,x\n", "row 1, column published_at: '2024-01-02' has no time zone"),
        ("published_at,symbol,text\nnoon,A,x\n", "row 1, column published_at: 'noon' is not a time with a zone"),
    ):
        path = csv_file(tmp_path, text)
        with pytest.raises(MarketDataError, match=re.escape(what)) as refused:
            read_news(path)
        assert str(refused.value).startswith(f"{path}: ") and "\n" not in str(refused.value)
    path = tmp_path / "news.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    (tmp_path / "news.txt").write_text("x")
    for name, what in (
        ("none.csv", "there is no such file"),
        ("news.txt", "unknown extension .txt; known are .parquet, .csv"),
        ("news.parquet", "cannot be read as .parquet: damaged or not Parquet"),
    ):
        with pytest.raises(MarketDataError, match=re.escape(what)):
            read_news(tmp_path / name)
    for column, values, what in (
        ("published_at", pd.to_datetime(["2024-01-02 10:00", "2024-01-02 11:00"]), "has no time zone"),
        ("published_at", pd.to_datetime(["2024-01-02", None]).tz_localize("UTC"), "row 2, column published_at: it is"),
        ("date", ["2024-01-02", None], "row 2, column date: it is missing"),
    ):
        write_parquet(pd.DataFrame({column: values, "symbol": "A", "text": "x"}), path)
        with pytest.raises(MarketDataError, match=what):
            read_news(path)
