"""Records of the tiers: their numbers are the environment's, in every action space, and the command replays them."""

import json
import math
import re
from dataclasses import replace
from html import escape

import numpy as np
import pandas as pd
import pytest
import torch
from tensordict import TensorDict

import vecenv
from vecenv.registry import task_named
from vecenv.tasks.commands import cli
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.records import TierRecording
from vecenv.tasks.tiers.reward import COMPONENTS
from vecenv.tasks.tiers.reward_presets import MISTAKES
from vecenv.text.door import TextDoor
from vecenv.text.recording import write_parquet
from vecenv.text.records import write_jsonl

RECORDING = TierRecording()
GENERATED = {"num_paths": 2, "num_days": 320}
ORIGIN = {"market": "random_walk", "seed": 0, **GENERATED}
DAYS = 4


def environment(num_envs, task="multi_stock_3", **changes):
    rules = {"days": DAYS, "action": "orders", **changes}
    return vecenv.make(task, num_envs, market="random_walk", compile=False, market_options=GENERATED, **rules)


@pytest.fixture(scope="module")
def records():
    return RECORDING.record(environment(6), AGENTS["random"](), [1, 4], 5, ORIGIN)


def replayed(record):
    """Replay a record without a difference."""
    (again,) = RECORDING.replay([record], task_named(record.task).scenario_of(record))
    return RECORDING.difference(record, again) is None


def test_numbers_are_those_of_the_environment():
    env, agent = environment(4), AGENTS["random"]()
    (record,) = RECORDING.record(env, agent, [2], 5)
    env.reset_groups(4, 1, 5)
    for day in record.days:
        assert day.messages[0] == {"role": "user", "content": TextDoor(env).render([2])[0]}
        assert day.date == str(env.scenario.tape.dates[env.state.day[2]])
        action = agent.act(env)
        again, valid = TextDoor(env).parse([day.action], [2])
        step = env.step(TensorDict({"action": action}, batch_size=[4]))
        info = env.info()
        assert day.reward == float(step["next", "reward"][2]) and valid.all() == day.valid
        for name in ("cash", "portfolio_value", "traded", "costs"):
            assert getattr(day, name) == float(info[name][2])
        assert day.components == {name: float(info[f"reward/{name}"][2]) for name in COMPONENTS}
        assert sum(day.weighted.values()) == pytest.approx(day.reward, abs=1e-6)
        assert sum(order["shares"] for order in day.orders) == int(env.state.fills[2].sum())
        assert list(day.holdings.values()) == [int(held) for held in env.state.holdings[2] if held]
        asked = action[2, action[2, :, 0] > 0]
        torch.testing.assert_close(again[0, : len(asked)], asked, atol=5e-5, rtol=0)
        assert [order["side"] for order in day.orders] == ["BUY" if kind == 1 else "SELL" for kind in asked[:, 0]]
    assert record.finished and record.grades == {name: float(grade[2]) for name, grade in env.grades().items()}
    value = env.state.portfolio_value[2] / env.state.start_value[2] - 1
    assert record.total_return == float(value) and record.start_value == 150_000.0
    assert record.mistakes == {name: int(env.state.totals[2, COMPONENTS.index(name)]) for name in MISTAKES}
    tape, first = env.scenario.tape, int(env.state.day[2]) - DAYS
    assert record.dates == [str(tape.dates[first]), str(tape.dates[first + DAYS])]


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("multi_stock_3", {"action": "limit_weights", "tilt_gain": 2.0, "reward": "grade_potential"}),
        ("multi_stock_3", {"action": "weights", "reward": "aligned", "reward_weights": {"invalid": -2.0}}),
        ("single_stock", {"symbols": ("random",), "text_style": "compact", "dtype": "float64"}),
    ],
)
def test_replay_of_other_spaces_and_of_a_left_episode(task, changes):
    env = environment(3, task, **changes)
    recorder, agent = RECORDING.recorder(env, [2], ORIGIN), AGENTS["random"]()
    for _ in range(DAYS - 1):
        recorder.step(agent.act(env) if env.scenario.config.action == "orders" else env.action_spec.rand())
    (record,) = recorder.episodes()
    assert not record.finished and any(day.orders for day in record.days) and replayed(record)


def test_replay_of_a_later_episode_with_parameters_of_its_own_and_of_a_former_version(records, tmp_path, capsys):
    env = environment(2)
    env.scenario.randomise({"commission": torch.tensor([[0.0], [0.03]], dtype=torch.float64)}, 2)
    env.reset()
    RECORDING.record(env, AGENTS["random"](), [])
    env.reset()
    (record,) = RECORDING.record(env, AGENTS["random"](), [1], market=ORIGIN)
    assert record.episode == 1 and record.params == {"commission": [0.03]}
    assert replayed(record) and any(day.costs for day in record.days)
    write_jsonl(tmp_path / "own.jsonl", [record])
    assert cli.main(["replay", str(tmp_path / "own.jsonl"), "--report", str(tmp_path / "own.html")]) == 0
    (tmp_path / "own.jsonl").write_text(json.dumps(record.to_json() | {"params": {"commission": [10**400]}}))
    assert cli.main(["replay", str(tmp_path / "own.jsonl")]) == 2
    assert "own.jsonl: line 1: params: commission must be numbers" in " ".join(capsys.readouterr().err.split())
    # What a replay need not reproduce: the package's version, where the market is read, the action space.
    line = records[0].to_json()
    line["versions"]["vecenv"], line["config"]["action"] = "0.0.9", "discrete"
    line["market"]["source"] = "another file"
    assert replayed(RECORDING.read(line))


def test_records_of_older_answers_replay_by_the_rules_of_their_time():
    """Shares were clamped, and dress made an answer invalid; today ten shares of a symbol are no answer."""
    said = ("BUY INFY 10; BUY TCS 0.5", "**SELL INFY**", "SELL TCS 150%", "HOLD")
    old = []
    for version in (1, 2):
        env = environment(1)
        env.scenario.text.answers_version = version
        recorder = RECORDING.recorder(env, [0], ORIGIN)
        for text in said:
            read = None if version == 1 and "*" in text else text
            recorder.step(TextDoor(env).parse([read], [0])[0], [text])
        old += [record.to_json() for record in recorder.episodes()]
    assert [[day["valid"] for day in line["days"]] for line in old] == [[1, 0, 1, 1], [0, 1, 0, 1]]
    assert old[0]["versions"].pop("answers") == 1 and old[0]["days"][0]["orders"][0]["fraction"] == 1.0
    assert all(replayed(RECORDING.read(line)) for line in old)
    old[0]["versions"]["answers"] = 3
    with pytest.raises(ValueError, match="answers of version 3 are unknown; there are 1 to 2"):
        replayed(RECORDING.read(old[0]))


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("versions",), [], "versions must be values by name, got []"),
        (("days",), [[]], "days must be a list of objects"),
        (("days", 1), {"reward": 0.0}, "days 2: messages, valid, date, orders, holdings"),
        (("days", 1, "messages"), [], "days 2: messages must end with the content of an answer"),
        (("days", 1, "messages", 1), {}, "days 2: messages must end with the content of an answer"),
        (("market", "origin"), {}, "market: origin must name a market, got None"),
        (("market", "loaded_symbols"), 3, "market: loaded_symbols must be a sequence, got 3"),
        (("market", "dates"), ["2020-01-01"], "market: dates must have 2 items"),
        (("market", "paths"), [5, 2], "random walk, seed 0: there are no paths 5 to 2; it has 2"),
        (("market", "paths"), [-3, 2], "random walk, seed 0: there are no paths -3 to 2; it has 2"),
    ],
)
def test_what_is_no_record_is_refused_by_the_name_of_its_place(records, place, value, told):
    line = records[0].to_json()
    at = line
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    with pytest.raises(ValueError) as error:
        replayed(RECORDING.read(line))
    assert told in str(error.value)


def test_the_table_has_every_number_of_every_day(records, tmp_path):
    write_parquet(tmp_path / "episodes.parquet", RECORDING, records)
    table = pd.read_parquet(tmp_path / "episodes.parquet")
    days = [(line, day, record) for line, record in enumerate(records, 1) for day in record.days]
    assert len(table) == len(days) == 2 * DAYS and table["day"].tolist() == [1, 2, 3, 4] * 2
    for row, (line, day, record) in zip(table.to_dict("records"), days, strict=True):
        amounts = ("cash", "portfolio_value", "traded", "costs", "reward", "valid")
        expected = {"line": line, "env_id": record.env_id, "seed": record.seed, "num_orders": len(day.orders)}
        expected |= {name: getattr(day, name) for name in amounts}
        for group, values in (("weighted", day.weighted), ("component", day.components), ("mistake", day.mistakes)):
            expected |= {f"{group}/{name}": value for name, value in values.items()}
        expected |= {f"shares/{name}": day.holdings.get(name, 0) for name in record.symbols}
        expected |= {"grade/calibrated": record.grades["calibrated"], "total_return": record.total_return}
        assert {name: row[name] for name in expected} == expected and str(row["date"].date()) == day.date
    with pytest.raises(ValueError, match="there is no episode to write"):
        write_parquet(tmp_path / "none.parquet", RECORDING, [])


def test_bad_input_is_refused():
    env = environment(64)
    recorder = RECORDING.recorder(env, [7, 9])
    with pytest.raises(ValueError, match="1 actions for 64 rows"):
        recorder.step(torch.zeros(1, 8, 3))
    with pytest.raises(ValueError, match="1 texts for 2 recorded rows"):
        recorder.step(torch.zeros(64, 8, 3), ["HOLD"])
    with pytest.raises(IndexError, match=r"rows \[64\]"):
        RECORDING.recorder(env, [64])
    with pytest.raises(ValueError, match="only episodes of the trading tiers are recorded, not of 'execution'"):
        RECORDING.recorder(vecenv.make("execution", 1, compile=False), [0])


def test_the_command_replays_a_file(records, tmp_path, capsys):
    path, target, page = (tmp_path / name for name in ("episodes.jsonl", "replay.json", "report.html"))
    write_jsonl(path, records)
    assert cli.main(["replay", str(path), "--json", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.endswith(": ok") for line in lines)
    told = json.loads(target.read_text())["episodes"]
    assert [entry["grades"] for entry in told] == [record.grades for record in records]
    assert cli.main(["replay", str(path), "--episode", "2", "--report", str(page)]) == 0
    assert "Report of episode 2 written to" in capsys.readouterr().out
    first = tmp_path / "first.html"
    assert cli.main(["replay", str(path), "--report", str(first)]) == 0
    assert "Report of episode 1, the first of 2 (--episode chooses another) written" in capsys.readouterr().out
    assert escape(records[0].instructions) in first.read_text(encoding="utf-8") and "BUY" in records[0].instructions
    # Records of former versions have no instructions.
    write_jsonl(tmp_path / "former.jsonl", [replace(records[0], instructions="")])
    assert cli.main(["replay", str(tmp_path / "former.jsonl")]) == 0
    parts, told = records[1].grade_parts, page.read_text(encoding="utf-8")
    assert math.prod(parts.values()) == pytest.approx(records[1].grades["calibrated"], abs=1e-6)
    assert f"{records[1].grades['calibrated']:.3f}" in told
    assert all(re.search(rf"{part:.3f}\D*>{name}, buy and hold \d", told) for name, part in parts.items()), parts
    changed = [json.loads(line) for line in path.read_text().splitlines()]
    changed[1]["days"][3]["cash"] = float(np.nextafter(changed[1]["days"][3]["cash"], np.inf))
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    (tmp_path / "text.jsonl").write_text(json.dumps({"task": "nothing"}))
    (tmp_path / "dates.jsonl").write_text(json.dumps(records[0].to_json() | {"dates": []}))
    capsys.readouterr()
    for args, words in (
        ([str(tmp_path / "bad.jsonl")], "bad.jsonl: 1 of 2 episodes are not reproduced; episode 2: day 4: cash: recor"),
        ([str(tmp_path / "dates.jsonl")], "1 of 1 episodes are not reproduced; episode 1: dates: recorded [],"),
        ([str(tmp_path / "text.jsonl")], "line 1: unknown task 'nothing'"),
        ([str(path), "--episode", "3"], "no episode 3; it has 1 to 2"),
        ([str(path), "--episode", "1", "--report", "nowhere/a.html"], "no folder nowhere"),
        ([str(path), "--market", str(tmp_path / "none.csv")], "none.csv"),
        ([str(path), "--market", "synthetic"], "line 1: synthetic is another market"),
    ):
        assert cli.main(["replay", *args]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
