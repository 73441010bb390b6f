"""Recorded episodes of the market's tasks: they replay exactly, tampering is told, reports need nothing else."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

import vecenv
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.agent_market.recording import MarketRecording
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.replay import read_jsonl
from vecenv.text.recording import write_parquet
from vecenv.text.records import write_jsonl

RECORDING = MarketRecording()
TASKS = {
    "agent_market": {"action": "limit", "max_ticks": 60, "ticks_per_step": 5},
    "execution": {"max_ticks": 60, "ticks_per_step": 10},
    "market_making": {"max_ticks": 60, "ticks_per_step": 10},
}
ALL = pytest.mark.parametrize("task", TASKS)


def played(task: str, agent: str, rows: int = 2):
    env = vecenv.make(task, rows, seed=4, compile=False, **TASKS[task])
    return env, RECORDING.record(env, task_named(task).agents[agent](), range(rows), 4)


@ALL
@pytest.mark.assembly
def test_actions_are_replayed_as_texts(task, tmp_path):
    """Random actions of tensors, written as orders: every number of the replay is the recorded one."""
    env, records = played(task, "random")
    assert sum(bool(turn.orders) for record in records for turn in record.turns) > 6
    write_jsonl(tmp_path / "a.jsonl", records)
    assert [record.to_json() for record in read_jsonl(tmp_path / "a.jsonl")] == [record.to_json() for record in records]
    assert cli.main(["replay", str(tmp_path / "a.jsonl")]) == 0
    for row, record in enumerate(records):
        last = record.turns[-1]
        assert last.shares == int(env.state.shares[row]) and record.finished
        assert sum(turn.bought + turn.sold for turn in record.turns) == int(env.state.traded[row].sum())
        assert record.grades["grade"] == float(env.grade()[row])


def test_texts_are_recorded_as_they_were_said(tmp_path):
    """Nonsense, reasoning and a text that is none: invalid holds, and a replay of them."""
    env = make_spoken("agent_market", 1, seed=2, max_ticks=120)
    recorder = RECORDING.recorder(env, [0])
    text = env.scenario.text
    for said in ("BUY 30", "buy everything", None, "<think>no</think> SELL 10 AT 1,003"):
        recorder.step(text.parse([said], env.state)[0], [said])
    (record,) = recorder.episodes()
    assert [turn.valid for turn in record.turns] == [True, False, False, True]
    assert [turn.action for turn in record.turns][1:3] == ["buy everything", ""]
    assert record.turns[0].orders == [{"kind": "BUY", "price": None, "shares": 30}] and record.turns[0].bought == 30
    assert record.turns[3].orders == [{"kind": "SELL_LIMIT", "price": 100_300, "shares": 10}]
    assert record.turns[3].quotes[1] == [100_300, 10]
    write_jsonl(tmp_path / "said.jsonl", [record])
    assert cli.main(["replay", str(tmp_path / "said.jsonl")]) == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda line: line["turns"][1].update(cash=1.0), "step 2: cash"),
        (lambda line: line["turns"][0]["orders"].clear(), "step 1: orders"),
        (lambda line: line["turns"].pop(), "finished: recorded True"),
        (lambda line: line.update(seed=9), "step 1: "),
        (lambda line: line["grades"].update(grade=0.5), "grades.grade"),
        (lambda line: line["config"].update(fee=1), "unknown rules"),
        (lambda line: line["config"].update(room=0), "room"),
        (lambda line: line["turns"][0].pop("mid"), "not the record of an episode"),
        (lambda line: line.pop("task"), "names no task"),
    ],
)
def test_a_tampered_record_is_refused(tmp_path, capsys, change, told):
    _, records = played("market_making", "fixed_spread_4", rows=1)
    line = records[0].to_json()
    change(line)
    (tmp_path / "bad.jsonl").write_text(json.dumps(line) + "\n")
    assert cli.main(["replay", str(tmp_path / "bad.jsonl")]) == 2
    assert told in capsys.readouterr().err


def test_a_market_of_bars_cannot_replace_a_simulated_one(tmp_path, capsys):
    write_jsonl(tmp_path / "a.jsonl", played("execution", "twap", rows=1)[1])
    assert cli.main(["replay", str(tmp_path / "a.jsonl"), "--market", "planted"]) == 2
    assert "execution simulates its own market" in capsys.readouterr().err


@ALL
@pytest.mark.assembly
def test_the_report_shows_book_account_and_texts(task, tmp_path):
    _, records = played(task, "random", rows=1)
    write_jsonl(tmp_path / "a.jsonl", records)
    target = tmp_path / "report.html"
    assert cli.main(["replay", str(tmp_path / "a.jsonl"), "--report", str(target)]) == 0
    page = target.read_text()
    assert page.count("<details>") == len(records[0].turns) + 1 and page.count("<svg") == 2
    assert task_named(task).reference.replace("_", " ") in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page) and "<script" not in page


@ALL
def test_numbers_of_every_step_are_a_table(task, tmp_path):
    _, records = played(task, "random")
    write_parquet(tmp_path / "a.parquet", RECORDING, records)
    table = pd.read_parquet(tmp_path / "a.parquet")
    turns = [(line, turn) for line, record in enumerate(records, 1) for turn in record.turns]
    assert table["line"].tolist() == [line for line, _ in turns]
    for name in ("tick", "shares", "cash", "mid", "reward"):
        assert table[name].tolist() == [getattr(turn, name) for _, turn in turns]
    first = next(iter(task_named(task).outcomes))
    assert table[f"outcome/{first}"].tolist() == [turn.outcomes[first] for _, turn in turns]


@pytest.mark.parametrize("task", ["single_stock", "execution"])
def test_only_episodes_of_its_own_family_are_recorded(task):
    """A recorder says so before anything is played."""
    other = {"single_stock": "execution", "execution": "single_stock"}[task]
    env = make_spoken(other, 1, market_options={"num_paths": 1, "num_days": 330}) if other == "single_stock" else None
    env = env or make_spoken(other, 1)
    recording = task_named(task).check_recording()
    with pytest.raises(ValueError, match=f"recorded, not of '{other}'"):
        recording.recorder(env, [0])
