"""``vecenv data`` inspects, converts, fetches and scores; ``collect`` writes conversations; ``play`` asks a person."""

import io
import json
import re
from dataclasses import replace

import pandas as pd
import pytest
import torch

from tests.tasks.commands.small_runs import DAYS, bars, changed
from vecenv.market import fetch, parquet_files
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.commands import cli, collect
from vecenv.tasks.commands.collect import CollectSettings
from vecenv.tasks.commands.data import NewsSettings, _ragged, main
from vecenv.tasks.commands.replaying import read_jsonl
from vecenv.tasks.experiment.markets import ByDates
from vecenv.tasks.signals.news import headlines, lexicon
from vecenv.tasks.tiers.language import OrderLanguage
from vecenv.tasks.tiers.text import system_prompt
from vecenv.text.symbol_names import slots_by_name


def data(*words) -> int:
    return cli.main(["data", *map(str, words)])


def test_data_inspect_convert_and_fetch(place, tmp_path, capsys, monkeypatch):
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
    # Ragged symbols are listed, up to ten.
    span, gaps = ["2020-01-01", "2020-12-31"], "days missing between"
    short = {"first": "2020-02-01", "last": span[1], "missing": 3}
    whole = {"first": span[0], "last": span[1], "missing": 0}
    listed = _ragged({"span": span, "listings": {"A": whole, "B": short, "C": whole | {"missing": 1}}})
    assert listed == [f"B: 2020-02-01 to 2020-12-31, 3 {gaps}", f"C: 2020-01-01 to 2020-12-31, 1 {gaps}"]
    many = {count: _ragged({"span": span, "listings": dict.fromkeys(range(count), short)}) for count in (10, 12)}
    assert len(many[10]) == 10 and len(many[12]) == 11 and many[12][-1] == "and 2 more"
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


def test_data_news(tmp_path, capsys):
    news, out, told = (tmp_path / name for name in ("news.csv", "panel.parquet", "told.json"))
    days = pd.date_range("2024-01-01", periods=60, freq="12h").strftime("%Y-%m-%d")
    texts = [*headlines.HEADLINES[:59], ""]
    pd.DataFrame({"date": days, "symbol": ["A", "B", "B"] * 20, "title": texts}).to_csv(news, index=False)
    words = ["news", "--news", news, "--out", out, "--cache", tmp_path / "scores", "--json", told]
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
    # What cannot be scored is refused, and nothing is written.
    written, other = sorted(tmp_path.iterdir()), tmp_path / "other.parquet"
    for changes, what in (
        ({"out": tmp_path / "panel.csv"}, "a file that ends in .parquet"),
        ({"out": tmp_path / "none" / "panel.parquet"}, "a file that ends in .parquet, in a folder that exists"),
        ({"cache": other}, "--news, --out and --cache must be different files"),
        ({"scorer": str(tmp_path)}, f"{tmp_path}: no language model could be loaded"),
        ({"scorer": "x", "batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"cache": tmp_path / "none" / "scores"}, "there is no folder"),
    ):
        with pytest.raises((ValueError, OSError), match=what):
            main(NewsSettings(**{"news": news, "out": other} | changes))
    news.write_text("date,symbol,text\n2024-13-01,A,x\n")
    with pytest.raises(ValueError, match=f"{news}: row 1, column date: '2024-13-01' is not a date"):
        main(NewsSettings(news, other))
    assert sorted(tmp_path.iterdir()) == written


EPISODES, LENGTH = 3, 4


def settings(out, task: str = "multi_stock_3", **changes) -> CollectSettings:
    given = CollectSettings.defaults(["--task", task, "--market", "synthetic"][: 2 if task == "execution" else 4])
    rules = replace(given.env, max_ticks=60) if task == "execution" else replace(given.env, days=LENGTH)
    market = {} if task == "execution" else {"num_paths": 4, "num_days": 290}
    return changed(
        given, **{"out": out, "env": rules, "seed": 5, "device": "cpu", "episodes": EPISODES} | market | changes
    )


def collected(given: CollectSettings) -> tuple[dict, list]:
    """What is told of the agents, and the lines that are written."""
    told = collect.main(given)
    assert told["file"] == str(given.out)
    return told["agents"], [json.loads(line) for line in given.out.read_text().splitlines()]


def test_a_line_is_an_episode_or_a_day_as_a_chat(tmp_path):
    told, written = collected(settings(tmp_path / "all.jsonl"))
    assert list(told) == ["rule_based", "oracle"] and told["oracle"]["answers"] == EPISODES * LENGTH
    assert [line["agent"] for line in written] == ["rule_based"] * EPISODES + ["oracle"] * EPISODES
    for line in written:
        system, *days = line["messages"]
        assert system["role"] == "system" and "Symbols: RELIANCE, INFY, TCS" in system["content"]
        assert [said["role"] for said in days] == ["user", "assistant"] * LENGTH
        assert days[0]["content"].startswith(f"Day 1 of {LENGTH}") and f"for {LENGTH} days" in system["content"]
    rules, oracle = written[:EPISODES], written[EPISODES:]
    assert [line["messages"][1] for line in rules] == [line["messages"][1] for line in oracle]
    assert sum(line["grade"] for line in oracle) > sum(line["grade"] for line in rules)
    bar = sorted(line["grade"] for line in written)[EPISODES]
    told, days = collected(settings(tmp_path / "days.jsonl", conversation="day", min_grade=bar))
    kept = [line for line in written if line["grade"] >= bar]
    assert 0 < len(kept) < len(written) and len(days) == LENGTH * len(kept)
    assert [said["role"] for said in days[0]["messages"]] == ["system", "user", "assistant"]
    assert [line["day"] for line in days[:LENGTH]] == list(range(1, LENGTH + 1))
    assert days[LENGTH - 1]["messages"][1:] == kept[0]["messages"][-2:]
    size = sum(len(said["content"]) for line in days for said in line["messages"])
    sums = [sum(count[name] for count in told.values()) for name in ("conversations", "kept", "characters")]
    assert sums == [len(days), len(kept), size]


def test_conversations_are_of_training_days_and_of_simulated_markets(tmp_path):
    given = settings(tmp_path / "train.jsonl", num_paths=1, num_days=700, agents=("rule_based",), episodes=40)
    tape = given.source.tape(given.env, torch.device("cpu"))
    edges = tuple(tape.dates[day].astype(object) for day in (400, 430))
    parts = ByDates(train_end=edges[0], test_start=edges[1])
    _, lines = collected(replace(given, source=replace(given.source, split=parts)))
    assert str(tape.dates[380]) < max(line["dates"][1] for line in lines) <= str(edges[0])
    # Of a simulated market the reference plays by default; every answer can be read.
    told, lines = collected(settings(tmp_path / "a.jsonl", "execution", conversation="episode", episodes=2))
    assert list(told) == ["twap"] and [line["env_id"] for line in lines] == [0, 1]
    env = make_spoken("execution", 1, max_ticks=60)
    for line in lines:
        system, *turns = line["messages"]
        assert system["content"].split("\n")[1].startswith(("Buy 1,000", "Sell 1,000")) and len(turns) == 4
        answers = [said["content"] for said in turns[1::2]]
        assert all(bool(env.scenario.text.parse([answer], env.state)[1]) for answer in answers)
        assert any(answer.split("; ")[-1].startswith(("BUY", "SELL")) for answer in answers)
    _, steps = collected(settings(tmp_path / "b.jsonl", "execution", conversation="day", episodes=2))
    assert [line["step"] for line in steps] == [1, 2, 1, 2]
    # The best rule of a task is no example that anybody has asked for.
    race = CollectSettings.defaults(["--task", "race"])
    few = {"seed": 5, "device": "cpu", "episodes": 2, "agents": ("to_the_finish",)}
    told, lines = collected(changed(race, out=tmp_path / "c.jsonl", **few))
    assert list(told) == ["to_the_finish"] and {line["agent"] for line in lines} == {"to_the_finish"}
    # The examples of the prompt are orders.
    names = ("RELIANCE", "INFY")
    examples = [line.strip().split("  ")[0] for line in system_prompt(names, 20).splitlines() if line.startswith("  ")]
    assert examples == ["HOLD", "BUY RELIANCE 0.5", "SELL RELIANCE 30%"]
    language = OrderLanguage(slots_by_name(names))
    assert all(language.parse(each) is not None for each in (*examples, "BUY RELIANCE; SELL INFY"))


def test_what_cannot_be_collected_is_refused_and_leaves_no_file(tmp_path, capsys):
    mine = tmp_path / "mine.jsonl"
    mine.write_text("mine")
    for changes, told in (
        ({"task": "stock_trading"}, "task 'stock_trading' has no text"),
        ({"out": tmp_path / "a.txt"}, "a.txt: a file that ends in .jsonl, in a folder that exists, is needed"),
        ({"out": tmp_path / "no" / "a.jsonl"}, "a.jsonl: a file that ends in .jsonl, in a folder that exists"),
        ({"agents": ("guru",)}, "unknown agents guru"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"min_grade": 1.1}, "no episode has a grade of 1.1 or more"),
        ({"out": mine}, f"{mine} exists already"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            collect.main(replace(settings(tmp_path / "out.jsonl"), **changes))
    assert list(tmp_path.iterdir()) == [mine] and mine.read_text() == "mine"
    assert cli.main(["collect", "--task", "stock_trading"]) == cli.BAD_INPUT
    assert "vecenv collect: error: " in capsys.readouterr().err


ON_BARS = "--market random_walk --num-paths 1 --num-days 320 --env.days 3"


@pytest.fixture
def play(monkeypatch, capsys):
    """Return a function that plays with given lines of input and returns exit code, output and errors."""

    def played(lines, words):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return cli.main(["play", *words.split()]), *capsys.readouterr()

    return played


def test_an_episode_is_played_recorded_and_replayed(play, tmp_path):
    record, result = tmp_path / "played.jsonl", tmp_path / "played.json"
    lines = ["BUY 0.5", "?", "buy everything", "<think>sell", "hold", "<think>all of it?</think> sell"]
    code, out, _ = play(lines, f"{ON_BARS} --task single_stock_costs --record {record} --json {result}")
    assert code == 0
    assert "Day 1 of 3" in out and "Day 3 of 3" in out and "Left after" not in out
    assert out.count("BUY RELIANCE 0.5") == 2 and out.count("No valid orders: ") == 2
    (episode,) = read_jsonl(record)
    assert [day.action for day in episode.days] == ["BUY 0.5", "hold", "<think>all of it?</think> sell"]
    shares = episode.days[0].orders[0]["shares"]
    assert f"Bought {shares:,} RELIANCE" in out and f"Sold {shares:,} RELIANCE" in out
    assert f"reward {episode.days[1].reward:+.3f}: " in out and "within limits +0.020" in out
    for words in (("you", f"{episode.total_return:+.2%}"), ("buy_and_hold",), ("oracle",)):
        assert any(all(word in line for word in words) for line in out.splitlines())
    values = json.loads(result.read_text())
    assert values["grades"] == episode.grades and values["finished"]
    assert set(values["references"]["oracle"]) == {"calibrated", "seed"}
    assert cli.main(["replay", str(record)]) == 0


def test_a_person_may_leave_and_is_told_of_what_is_refused(play, tmp_path):
    for lines in (["HOLD"], ["HOLD", "", "Q"]):
        code, out, err = play(lines, f"{ON_BARS} --record {tmp_path / 'left.jsonl'}")
        assert (
            (code, err) == (0, "Making the market random_walk …\n")
            and "Left after 1 day: " in out
            and "buy_and_hold" in out
        )
        (episode,) = read_jsonl(tmp_path / "left.jsonl")
        assert not episode.finished and len(episode.days) == 1
        (tmp_path / "left.jsonl").unlink()
    code, out, _ = play(["BUY 0.5", "BUY INFY 1; SELL TCS", "quit"], f"{ON_BARS} --task multi_stock_3")
    assert code == 0
    assert out.count("Every order names its symbol.") == 1 and "Symbols: RELIANCE, INFY, TCS" in out
    assert "Bought" in out and "SELL TCS: nothing was traded" in out
    assert "Mistakes: position limit x1" in out and "sell unheld -0.050" in out
    # Bad input is refused before the first day.
    for words, told in (
        ("--task stock_trading", "so it cannot be played; there are agent_market, code, code_rubric, code_tests, "),
        (f"--record {tmp_path}/nowhere/a.jsonl", f"a.jsonl: there is no folder {tmp_path / 'nowhere'}"),
        ("--symbols RELIANCE --env.days 400", "fewer"),
    ):
        code, out, err = play(["HOLD"], f"{ON_BARS} {words}")
        assert code == 2 and out == "" and told in err, err
    # A quote that would trade is told.
    small = "--task market_making --env.max-ticks 30"
    _, out, _ = play(["BID 10 AT 1500; ASK 10 AT 1600"], small)
    assert "Your bid is not in the book" in out and "Your ask is not" not in out
    code, out, _ = play([], small)
    assert code == 0 and "Left after 0 steps" in out


@pytest.mark.parametrize("task", ["agent_market", "execution"])
def test_a_person_trades_in_a_simulated_market(play, tmp_path, task):
    lines = ["BUY 20; SELL 20", "?", "what", "BID 10 AT 999.50; ASK 10 AT 1000.50", "HOLD"]
    record = tmp_path / "played.jsonl"
    code, out, _ = play(lines, f"--task {task} --env.max-ticks 90 --seed 3 --record {record}")
    assert code == 0 and "Step 1 of 3" in out and "Step 3 of 3" in out and "     bids" in out
    assert "Bought 20 shares" in out or "Sold 20 shares" in out
    assert out.count("BID 0 cancels it") == 2 and out.count("No valid orders: ") == 1
    assert " you " in out and f" {task_named(task).domain.reference} " in out
    (episode,) = read_jsonl(record)
    assert [turn.action for turn in episode.turns][2] == "HOLD" and episode.finished
    assert cli.main(["replay", str(record)]) == 0
