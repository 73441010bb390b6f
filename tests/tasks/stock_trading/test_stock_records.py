"""Records of stock trading and of trading on scores: a file of them replays to the bit, and an altered one does not."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.registry import task_named
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.replaying import read_jsonl
from vecenv.text.recording import write_parquet
from vecenv.text.records import write_jsonl

MARKET = {"market": "synthetic", "num_paths": 2, "num_days": 120, "symbols": 3}
RULES = {"features": ("rsi_14",), "episode_length": 12, "slippage": 0.001, "hmax": 4_000.0, "stop_loss": 0.02}


class Wild:
    """Draws actions beyond the bounds, a few of which are no numbers."""

    def act(self, env: VecEnv) -> torch.Tensor:
        draw = torch.Generator().manual_seed(int(env.elapsed[0]))
        action = torch.rand(env.num_envs, *env.action_spec.shape[1:], generator=draw) * 2.6 - 1.3
        return torch.where(action > 1.2, float("nan"), action)


def records_of(task: str, agent, market=MARKET, **rules):
    options = {name: value for name, value in market.items() if name != "market"}
    given = {"market": market["market"], "market_options": options, "compile": False}
    env = vecenv.make(task, 3, seed=4, **given, **RULES | rules)
    return env, task_named(task).check_recording().record(env, agent, [0, 2], 4, market)


def replayed(records):
    task = task_named(records[0].task)
    return task.check_recording().replay(records, task.scenario_of(records[0]))


@pytest.mark.parametrize("action", ["shares", "weights", "tilt"])
def test_a_file_of_records_is_played_again_to_the_bit(action, tmp_path):
    news = {"market": "news", "num_paths": 2, "num_days": 120, "symbols": 3}
    for task, market in (("stock_trading", MARKET), ("signals", news)):
        # With tilts some agents act by weights, whose actions have another length.
        for agent in (Wild(), task_named(task).agents["equal_weight"]()):
            env, made = records_of(task, agent, market, action=action)
            write_jsonl(tmp_path / "a.jsonl", made)
            read = read_jsonl(tmp_path / "a.jsonl")
            recording = task_named(task).check_recording()
            for before, after in zip(read, replayed(read), strict=True):
                assert recording.difference(before, after) is None
            check_days(env, made)
    write_parquet(tmp_path / "a.parquet", recording, made)
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert table["reward"].tolist() == [day.reward for record in made for day in record.days]


def check_days(env: VecEnv, records) -> None:
    """Orders that were filled are what became of the holdings, and the last day is the environment's."""
    for row, record in zip((0, 2), records, strict=True):
        held = dict.fromkeys(record.market["symbols"], 0)
        for day in record.days:
            for order in day.orders:
                held[order["symbol"]] += order["filled"]
                assert order["reason"] or order["filled"] == order["wanted"]
            assert {name: shares for name, shares in held.items() if shares} == day.holdings
        assert record.days[-1].portfolio_value == env.info()["portfolio_value"][row]
        assert record.finished and record.grades["grade"] == env.grade()[row]


def test_what_is_altered_is_named():
    _, (record, _) = records_of("stock_trading", Wild())
    recording, (again,) = task_named("stock_trading").check_recording(), replayed([record])
    days = [day for day in record.days if day.orders]
    for change, told in (
        ({"cash": days[0].cash + 1}, "cash: recorded"),
        (
            {"orders": [{**days[0].orders[0], "reason": "luck"}, *days[0].orders[1:]]},
            "orders.0.reason: recorded 'luck'",
        ),
        ({"holdings": {}}, "holdings"),
    ):
        altered = replace(record, days=[replace(day, **change) if day is days[0] else day for day in record.days])
        assert told in recording.difference(altered, again)
    for text, told in (
        ("[1.0, 2.0]", "day 1: the action must be a list of 3 numbers"),
        ('["1.0", 0.0, 0.0]', "day 1: the action must be a list of 3 numbers"),
        ("SELL", "day 1: the action must be a list of 3 numbers"),
    ):
        said = [*record.days[0].messages[:-1], {"role": "assistant", "content": text}]
        altered = replace(record, days=[replace(record.days[0], messages=said), *record.days[1:]])
        with pytest.raises(ValueError, match=told):
            replayed([altered])
    other = [*record.days[0].messages[:-1], {"role": "assistant", "content": "[0.0, 0.0, 0.0]"}]
    altered = replace(record, days=[replace(record.days[0], messages=other), *record.days[1:]])
    assert recording.difference(altered, *replayed([altered])).startswith("day 1: ")


def test_the_command_shows_an_episode_on_a_page(tmp_path, capsys):
    _, made = records_of("stock_trading", Wild())
    write_jsonl(tmp_path / "a.jsonl", made)
    words = ["replay", str(tmp_path / "a.jsonl"), "--episode", "2", "--report", str(tmp_path / "a.html")]
    assert cli.main(words) == 0
    assert "12 days: ok" in capsys.readouterr().out
    page = (tmp_path / "a.html").read_text()
    assert page.count("<details>") == 13 and "buy and hold" in page
    filled = next(order for day in made[1].days for order in day.orders if order["filled"])
    assert f"{filled['filled']:+,.6g} {filled['symbol']}" in page
