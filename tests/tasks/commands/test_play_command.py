"""An episode played through the terminal."""

from __future__ import annotations

import io
import json

import pytest

from vecenv.registry import task_named
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.replay import read_jsonl

ARGS = ["play", "--market", "random_walk", "--num-paths", "1", "--num-days", "320", "--env.days", "3"]


@pytest.fixture
def play(monkeypatch, capsys):
    """Return a function that plays with given lines of input and returns exit code, output and errors."""

    def played(lines, *more, args=ARGS):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = cli.main([*args, *more])
        return code, *capsys.readouterr()

    return played


def test_an_episode_is_played_recorded_and_replayed(play, tmp_path):
    record, result = tmp_path / "played.jsonl", tmp_path / "played.json"
    lines = ["BUY 0.5", "?", "buy everything", "<think>sell", "hold", "<think>all of it?</think> sell"]
    code, out, _ = play(lines, "--task", "single_stock_costs", "--record", str(record), "--json", str(result))
    assert code == 0
    assert "Day 1 of 3" in out and "Day 3 of 3" in out and "Left after" not in out
    assert out.count("BUY RELIANCE 0.5") == 3 and out.count("These are no valid orders.") == 2
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


@pytest.mark.parametrize("lines", [["HOLD"], ["HOLD", "", "Q"]])
def test_the_end_of_the_input_and_quit_end_politely(play, tmp_path, lines):
    record = tmp_path / "left.jsonl"
    code, out, err = play(lines, "--record", str(record))
    assert (code, err) == (0, "")
    assert "Left after 1 days" in out and "buy_and_hold" in out
    (episode,) = read_jsonl(record)
    assert not episode.finished and len(episode.days) == 1


def test_several_symbols_must_be_named_and_refused_orders_are_told(play):
    code, out, _ = play(["BUY 0.5", "BUY INFY 1; SELL TCS", "quit"], "--task", "multi_stock_3")
    assert code == 0
    assert out.count("Every order names its symbol.") == 1 and "Symbols: RELIANCE, INFY, TCS" in out
    assert "Bought" in out and "SELL TCS: nothing was traded" in out
    assert "Mistakes: position limit x1" in out and "sell unheld -0.050" in out


def test_bad_input_is_refused_before_the_first_day(play, tmp_path):
    for more, word in (
        (
            ["--task", "stock_trading"],
            "so it cannot be played; there are agent_market, curriculum, execution, full_auto",
        ),
        (["--record", str(tmp_path / "nowhere" / "a.jsonl")], f"a.jsonl: there is no folder {tmp_path / 'nowhere'}"),
        (["--symbols", "RELIANCE", "--env.days", "400"], "fewer"),
    ):
        code, out, err = play(["HOLD"], *more)
        assert code == 2 and out == "" and word in err, err


@pytest.mark.parametrize("task", ["agent_market", "execution"])
def test_a_person_trades_in_a_simulated_market(play, tmp_path, task):
    """The ladder is shown, orders are filled, and the record replays."""
    lines = ["BUY 20; SELL 20", "?", "what", "BID 10 AT 999.50; ASK 10 AT 1000.50", "HOLD"]
    record, small = tmp_path / "played.jsonl", ["play", "--task", task, "--env.max-ticks", "90", "--seed", "3"]
    code, out, _ = play(lines, "--record", str(record), args=small)
    assert code == 0 and "Step 1 of 3" in out and "Step 3 of 3" in out and "     bids" in out
    assert "Bought 20 shares" in out or "Sold 20 shares" in out
    assert out.count("BID 0 cancels it") == 2 and out.count("These are no valid orders.") == 1
    assert " you " in out and f" {task_named(task).reference} " in out
    (episode,) = read_jsonl(record)
    assert [turn.action for turn in episode.turns][2] == "HOLD" and episode.finished
    assert cli.main(["replay", str(record)]) == 0


def test_a_quote_that_would_trade_is_told_and_a_person_may_leave_before_the_first_step(play):
    small = ["play", "--task", "market_making", "--env.max-ticks", "30"]
    _, out, _ = play(["BID 10 AT 1500; ASK 10 AT 1600"], args=small)
    assert "Your bid is not in the book" in out and "Your ask is not" not in out
    code, out, _ = play([], args=small)
    assert code == 0 and "Left after 0 steps" in out
