"""Files of news: what is read from which columns, and which row is named where something is wrong."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from vecenv.market.document_files import read_news
from vecenv.market.parquet_files import write_parquet
from vecenv.market.validation import MarketDataError


def csv_file(folder, text):
    path = folder / "news.csv"
    path.write_text(text)
    return path


def test_which_columns_are_read_as_what(tmp_path):
    news = read_news(
        csv_file(
            tmp_path,
            "date,symbol,text,votes\n"
            '2024-01-02,NA,"Sales rise, ""again""\nin May",7\n'
            "2024-01-02, TRUE ,,\n"
            "2024-01-03,000001,nan,x\n",
        )
    )
    assert list(news.columns) == ["date", "symbol", "text"]
    assert news["date"].tolist() == [pd.Timestamp(day) for day in ("2024-01-02", "2024-01-02", "2024-01-03")]
    assert news["date"].dtype == "datetime64[s]"
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


def test_times_are_kept_in_utc_and_days_are_those_written(tmp_path):
    times = [
        "2024-01-02T23:30:00-05:00",
        "2024-07-02 00:15:00.25Z",
        "2024-01-02 10:00 +0530",
        "2024-01-02 10:00:00 UTC",
    ]
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
        (
            "date,symbol,words\n2024-01-02,A,x\n",
            "missing column text or title or summary; there are 3: date, symbol, words",
        ),
        ("date,text\n2024-01-02,x\n", "missing columns symbol"),
        ("date,tic,symbol,text\n2024-01-02,A,A,x\n", "duplicate columns symbol"),
        ("date,symbol,text\n2024-01-02,A,x,y\n", "a row has more fields than the header"),
        ("date,symbol,text\n2024-01-02,A,x\n2024-01-02, ,x\n", "column symbol: the symbol is missing, row 2"),
        ("date,Stock_symbol,text\n2024-01-02,A,x\n2024-01-02\n", "column Stock_symbol: the symbol is missing, row 2"),
        ("date,symbol,text\n2024-01-02,A,x\n,A,x\n,A,x\n", "row 2, column date: it is missing (2 rows in all)"),
        ("Date,symbol,text\n01/02/2024,A,x\n", "row 1, column Date: '01/02/2024' is not a date of the form YYYY-MM-DD"),
        ("date,symbol,text\n2024-02-30,A,x\n", "row 1, column date: '2024-02-30' is not a date"),
        ("published_at,symbol,text\n,A,x\n", "row 1, column published_at: it is missing (1 row in all)"),
        (
            "published_at,symbol,text\n2024-01-02T10:00Z,A,x\n2024-01-02T10:00,A,x\n",
            "row 2, column published_at: '2024-01-02T10:00' has no time zone",
        ),
        ("published_at,symbol,text\n2024-01-02,A,x\n", "row 1, column published_at: '2024-01-02' has no time zone"),
        ("published_at,symbol,text\n2024-01-02T25:00Z,A,x\n", "'2024-01-02T25:00Z' is not a time with a zone"),
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
        ("published_at", [1.7e9, 1.8e9], "is not a time with a zone|has no time zone"),
        ("date", ["2024-01-02", None], "row 2, column date: it is missing"),
    ):
        write_parquet(pd.DataFrame({column: values, "symbol": "A", "text": "x"}), path)
        with pytest.raises(MarketDataError, match=what):
            read_news(path)
