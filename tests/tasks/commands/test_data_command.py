"""``vecenv data``: inspects, converts and fetches bars, and scores news."""

import json

import pandas as pd
import pytest

from tests.tasks.commands.small_runs import DAYS, bars
from vecenv.market import fetch, parquet_files
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.data import NewsSettings, _ragged, main
from vecenv.tasks.signals.news import headlines, lexicon


def data(*words) -> int:
    return cli.main(["data", *map(str, words)])


def test_data_inspect_and_convert(place, tmp_path, capsys):
    target, summary, split = tmp_path / "finrl.csv", tmp_path / "summary.json", tmp_path / "split.csv"
    assert data("convert", place / "market.parquet", target) == 0
    assert data("inspect", target, "--json", summary) == 0
    result = json.loads(summary.read_text())
    assert (result["days"], result["symbols"], result["rows"]) == (DAYS, 3, 3 * DAYS)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{DAYS}, 2020-01-01 to 2020-08-11" in shown and "none: every symbol has a bar on every day" in shown
    # A large move is told in one line.
    table = bars(1, 30)
    table.loc[table.index >= 20, ["open", "high", "low", "close"]] /= 2
    table.to_csv(split, index=False)
    assert data("inspect", split) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ") and "symbol S0, date 2020-01-29" in line


def test_ragged_symbols_are_listed_up_to_ten():
    span, gaps = ["2020-01-01", "2020-12-31"], "days missing between"
    short = {"first": "2020-02-01", "last": span[1], "missing": 3}
    whole = {"first": span[0], "last": span[1], "missing": 0}
    listed = _ragged({"span": span, "listings": {"A": whole, "B": short, "C": whole | {"missing": 1}}})
    assert listed == [f"B: 2020-02-01 to 2020-12-31, 3 {gaps}", f"C: 2020-01-01 to 2020-12-31, 1 {gaps}"]
    many = {count: _ragged({"span": span, "listings": dict.fromkeys(range(count), short)}) for count in (10, 12)}
    assert len(many[10]) == 10 and len(many[12]) == 11 and many[12][-1] == "and 2 more"


def test_data_fetch(tmp_path, monkeypatch):
    asked, dates, told = [], ["2020-01-01", "2020-01-07"], tmp_path / "told.json"

    def fetched(symbols, start, end, suffix):
        asked.append((tuple(symbols), start, end, suffix))
        return bars(2, 5)

    monkeypatch.setattr(fetch, "fetch_bars", fetched)
    span = ["--start", dates[0], "--end", dates[1], "--out", str(tmp_path / "bars.parquet")]
    assert data("fetch", "--symbols", "S0", "S1", *span, "--json", told) == 0
    expected = {"file": span[-1], "rows": 10, "symbols": ["S0", "S1"], "span": dates}
    assert json.loads(told.read_text()) == expected
    assert data("fetch", "--universe", "nifty25", *span) == 0
    assert asked == [(("S0", "S1"), *dates, ""), (fetch.UNIVERSES["nifty25"].symbols, *dates, ".NS")]
    table = pd.read_parquet(tmp_path / "bars.parquet")
    assert len(table) == 10 and set(table["currency"]) == {"INR"}
    assert data("fetch", *span) == data("fetch", "--universe", "dow30", *span[:-1], "bars.xls") == 2
    assert len(asked) == 2


def news_file(folder, rows=60):
    days = pd.date_range("2024-01-01", periods=rows, freq="12h").strftime("%Y-%m-%d")
    texts, path = [*headlines.HEADLINES[: rows - 1], ""], folder / "news.csv"
    pd.DataFrame({"date": days, "symbol": ["A", "B", "B"] * (rows // 3), "title": texts}).to_csv(path, index=False)
    return path


def test_data_news(tmp_path, capsys):
    out, told = tmp_path / "panel.parquet", tmp_path / "told.json"
    words = ["news", "--news", news_file(tmp_path), "--out", out, "--cache", tmp_path / "scores", "--json", told]
    assert data(*words) == 0
    said = capsys.readouterr().out
    assert "60 of 60 texts" in said and "60, 60 distinct, 0 from the cache" in said and "20 texts on 20 days" in said
    result = json.loads(told.read_text())
    assert (result["texts"], result["cached"], result["unreadable_share"]) == (60, 0, 1 / 60)
    panel = parquet_files.read_parquet(out)
    assert len(panel) == result["rows"] and panel["texts"].sum() == 60 and panel["unreadable"].sum() == 1
    own = lexicon.LexiconScorer().score([headlines.HEADLINES[0]])
    first = panel[(panel["date"] == "2024-01-01") & (panel["symbol"] == "A")]
    assert (first["sentiment"].item(), first["risk"].item()) == (own.sentiment[0], own.risk[0])
    assert data(*words) == 0
    assert "60, 60 distinct, 60 from the cache" in capsys.readouterr().out
    pd.testing.assert_frame_equal(parquet_files.read_parquet(out), panel)


def test_news_that_cannot_be_scored_are_refused_and_nothing_is_written(tmp_path):
    news, out = news_file(tmp_path), tmp_path / "panel.parquet"
    for changes, what in (
        ({"out": tmp_path / "panel.csv"}, "a file that ends in .parquet"),
        ({"out": tmp_path / "none" / "panel.parquet"}, "a file that ends in .parquet, in a folder that exists"),
        ({"cache": out}, "--news, --out and --cache must be different files"),
        ({"scorer": str(tmp_path)}, f"{tmp_path}: no language model could be loaded"),
        ({"scorer": "x", "batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"cache": tmp_path / "none" / "scores"}, "there is no folder"),
    ):
        with pytest.raises((ValueError, OSError), match=what):
            main(NewsSettings(**{"news": news, "out": out} | changes))
    news.write_text("date,symbol,text\n2024-13-01,A,x\n")
    with pytest.raises(ValueError, match=f"{news}: row 1, column date: '2024-13-01' is not a date"):
        main(NewsSettings(news, out))
    assert [path.name for path in tmp_path.iterdir()] == ["news.csv"]
