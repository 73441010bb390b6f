"""Records of the agent-based market: texts as they were said, orders as they were carried out, and the table."""

from __future__ import annotations

import pandas as pd
import pytest

from vecenv.registry import make_spoken, task_named
from vecenv.tasks.agent_market.records import MarketRecording
from vecenv.text.recording import write_parquet, write_report
from vecenv.text.records import read_lines

RECORDING = MarketRecording()


def test_texts_are_recorded_as_they_were_said(tmp_path):
    """Nonsense, reasoning and a text that is none: invalid holds, and numbers of every step."""
    env = make_spoken("agent_market", 1, seed=2, max_ticks=120)
    recorder = RECORDING.recorder(env, [0])
    with pytest.raises(ValueError, match="no step of the episode has been played"):
        write_report(tmp_path / "a.html", RECORDING, *recorder.episodes() * 2, "hold", env.scenario)
    for said in ("BUY 30", "buy everything", None, "<think>no</think> SELL 10 AT 1,003"):
        recorder.step(env.scenario.text.parse([said], env.state)[0], [said])
    (record,), info = recorder.episodes(), env.info()
    first, *_, last = record.turns
    assert [(turn.valid, turn.action) for turn in record.turns][1:3] == [(False, "buy everything"), (False, "")]
    assert (first.valid, first.bought, first.sold, first.shares, first.tick) == (True, 30, 0, 30, 30)
    assert first.orders == [{"kind": "BUY", "price": None, "shares": 30}]
    assert last.orders == [{"kind": "SELL_LIMIT", "price": 100_300, "shares": 10}]
    assert last.quotes == [[0, 0], [100_300, 10]] and last.ladder == env.state.ladder[0].transpose(0, 1).tolist()
    assert record.finished and record.parent == [0, 0] and record.grades == {"grade": float(env.grade()[0])}
    assert record.total_return == float(info["total_return"][0]) and last.equity == float(info["equity"][0])
    assert last.outcomes == {name: float(info[name][0]) for name in task_named("agent_market").outcomes}
    told = RECORDING.told(first, env.scenario)
    assert told[0] == ("Bought 30 shares", "green") and told[-1][0].endswith(f"| reward {first.reward:+.3f}")
    write_parquet(tmp_path / "a.parquet", RECORDING, [record])
    table = pd.read_parquet(tmp_path / "a.parquet")
    for name in ("tick", "bought", "sold", "shares", "cash", "equity", "mid", "reward", "valid"):
        assert table[name].tolist() == [getattr(turn, name) for turn in record.turns]
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.jsonl: not a text file"):
        read_lines(tmp_path / "a.jsonl")


def test_a_simulated_market_is_not_replaced():
    env = make_spoken("execution", 1, seed=2, max_ticks=60)
    (record,) = RECORDING.record(env, task_named("execution").agents["twap"](), [0])
    assert record.parent == env.state.parent[0].tolist() != [0, 0]
    with pytest.raises(ValueError, match="execution simulates its own market, so --market planted cannot be used"):
        RECORDING.scenario(record, "planted")
    assert RECORDING.scenario(RECORDING.read(record.to_json())).config == env.scenario.config
