"""Records of episodes: what they hold, that a replay finds every number again, and the report page."""

from __future__ import annotations

import json
import re
from html import escape

import numpy as np
import pandas as pd
import pytest
import torch
from tensordict import TensorDict

import vecenv
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.replay import read_jsonl
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.recorder import EpisodeRecorder
from vecenv.tasks.tiers.recording import TierRecording
from vecenv.tasks.tiers.reward_components import COMPONENTS, MISTAKES
from vecenv.text.door import TextDoor
from vecenv.text.recording import write_parquet
from vecenv.text.records import write_jsonl

RECORDING = TierRecording()
GENERATED = {"num_paths": 2, "num_days": 320}
ORIGIN = {"market": "random_walk", "seed": 0, **GENERATED}
DAYS = 6
TEXTS = (
    *("BUY RELIANCE 0.3; BUY INFY 40%", "sell reliance .5", "", "buy nothing", "<answer>SELL INFY</answer>"),
    *("<script>alert('&')</script> \u2028 \ud800", "HOLD", "BUY TCS 1e9", "BUY INFY; BUY INFY; SELL TCS"),
)


def environment(num_envs, task="multi_stock_3", **changes):
    return vecenv.make(
        task,
        num_envs,
        market="random_walk",
        compile=False,
        market_options=GENERATED,
        **{"days": DAYS, "action": "orders", **changes},
    )


def play_texts(env, ids, seed=0):
    """Let the recorded rows write texts while the others hold."""
    env.reset_groups(env.num_envs, 1, seed)
    recorder, random = EpisodeRecorder(env, ids, ORIGIN), np.random.default_rng(seed)
    while not bool(env.rows.done.all()):
        texts = [TEXTS[random.integers(len(TEXTS))] for _ in ids]
        actions = torch.zeros(env.num_envs, env.scenario.config.max_orders, 3)
        actions[list(ids)] = TextDoor(env).parse(texts, ids)[0]
        recorder.step(actions, texts)
    return recorder.episodes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the records of a random agent and of texts, on a tier with costs."""
    folder, env = tmp_path_factory.mktemp("records"), environment(6)
    records = [*RECORDING.record(env, AGENTS["random"](), [1, 4], 5, ORIGIN), *play_texts(env, [2, 3, 5])]
    write_jsonl(folder / "episodes.jsonl", records)
    write_parquet(folder / "episodes.parquet", RECORDING, records)
    return folder


@pytest.mark.assembly
def test_jsonl_comes_back_as_it_was(place, tmp_path):
    records = read_jsonl(place / "episodes.jsonl")
    write_jsonl(tmp_path / "again.jsonl", records)
    assert (tmp_path / "again.jsonl").read_bytes() == (place / "episodes.jsonl").read_bytes()
    assert [record.env_id for record in records] == [1, 4, 2, 3, 5]
    assert any(not day.valid for day in records[2].days) and any(day.orders for day in records[2].days)


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
        assert (day.cash, day.portfolio_value) == (float(info["cash"][2]), float(info["portfolio_value"][2]))
        assert day.components == {name: float(info[f"reward/{name}"][2]) for name in COMPONENTS}
        assert sum(day.weighted.values()) == pytest.approx(day.reward, abs=1e-6)
        assert sum(order["shares"] for order in day.orders) == int(env.state.fills[2].sum())
        assert list(day.holdings.values()) == [int(held) for held in env.state.holdings[2] if held]
        asked = action[2, action[2, :, 0] > 0]
        torch.testing.assert_close(again[0, : len(asked)], asked, atol=5e-5, rtol=0)
    assert record.finished and record.grades == {name: float(grade[2]) for name, grade in env.grades().items()}
    value = env.state.portfolio_value[2] / env.state.start_value[2] - 1
    assert record.total_return == float(value)
    assert record.mistakes == {name: int(env.state.totals[2, COMPONENTS.index(name)]) for name in MISTAKES}


@pytest.mark.assembly
def test_replay_finds_every_number_again(place, tmp_path, capsys):
    target = tmp_path / "replay.json"
    assert cli.main(["replay", str(place / "episodes.jsonl"), "--json", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and all(line.endswith(": ok") for line in lines)
    records = read_jsonl(place / "episodes.jsonl")
    assert [entry["grades"] for entry in json.loads(target.read_text())["episodes"]] == [r.grades for r in records]


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("multi_stock_3", {"action": "discrete", "dtype": "float64"}),
        ("multi_stock_3", {"action": "weights", "reward": "aligned", "reward_weights": {"invalid": -2.0}}),
        ("multi_stock_3", {"action": "limit_weights", "tilt_gain": 2.0, "reward": "grade_potential"}),
        ("single_stock", {"symbols": ("random",), "text_style": "compact"}),
        ("full_autonomous", {}),
    ],
)
def test_replay_of_other_spaces_and_tiers(tmp_path, task, changes):
    env = environment(3, task, **changes)
    action = AGENTS["random"]().act if env.scenario.config.action == "orders" else _random
    recorder = EpisodeRecorder(env, [2], ORIGIN)
    for _ in range(3):
        recorder.step(action(env))
    assert not recorder.episodes()[0].finished and any(day.orders for day in recorder.steps[0])
    write_jsonl(tmp_path / "left.jsonl", recorder.episodes())
    assert cli.main(["replay", str(tmp_path / "left.jsonl")]) == 0


def _random(env):
    return env.action_spec.rand()


def test_replay_of_a_later_episode_with_parameters_of_its_own(tmp_path):
    env = environment(2)
    env.scenario.randomise({"commission": torch.tensor([[0.0], [0.03]], dtype=torch.float64)}, 2)
    env.reset()
    RECORDING.record(env, AGENTS["random"](), [])
    env.reset()
    (record,) = RECORDING.record(env, AGENTS["random"](), [1], market=ORIGIN)
    assert record.episode == 1 and record.params == {"commission": [0.03]}
    write_jsonl(tmp_path / "later.jsonl", [record])
    assert cli.main(["replay", str(tmp_path / "later.jsonl")]) == 0


def _add_cash(lines):
    lines[1]["days"][3]["cash"] += 0.01
    return ["episode 2: day 4: cash: recorded"]


def _other_order(lines):
    lines[0]["days"][2]["messages"][1]["content"] = "BUY RELIANCE 0.77"
    return ["episode 1: day 3: orders"]


def _other_component(lines):
    lines[4]["days"][0]["components"]["profit"] *= 1 + 1e-15
    lines[4]["days"][0]["components"]["profit"] += 1e-12
    return ["episode 5: day 1: components.profit: recorded"]


def _other_grade(lines):
    lines[3]["grades"]["calibrated"] = 0.999
    return ["episode 4: grades.calibrated: recorded 0.999, replayed"]


def _other_seed(lines):
    lines[0]["seed"] = 6
    return ["episode 1: day 1: date: recorded"]


def _more_days(lines):
    lines[0]["days"].append(lines[0]["days"][0])
    return ["episode 1: number of days: recorded 7, replayed 6"]


def _other_market(lines):
    for line in lines:
        line["market"]["origin"]["seed"] = 1
    return ["episode 1: random_walk is another market", "--market"]


def _no_origin(lines):
    del lines[0]["market"]["origin"]
    return ["episode 1: the record does not name its market", "origin"]


def _no_record(lines):
    del lines[2]["grades"]
    return ["line 3: not the record of an episode", "grades"]


def _no_text(lines):
    lines[1]["days"][1]["messages"] = []
    return ["line 2: not the record of an episode"]


def _unknown_task(lines):
    lines[0]["task"] = "nothing"
    return ["line 1: unknown task 'nothing'", "multi_stock_3"]


def _unknown_rule(lines):
    lines[0]["config"]["fee"] = 1
    return ["episode 1: unknown rules", "fee"]


@pytest.mark.parametrize(
    "change",
    [
        *(_add_cash, _other_order, _other_component, _other_grade, _other_seed, _more_days),
        *(_other_market, _no_origin, _no_record, _no_text, _unknown_task, _unknown_rule),
    ],
)
def test_a_tampered_record_is_refused(place, tmp_path, capsys, change):
    lines = [json.loads(line) for line in (place / "episodes.jsonl").read_text().splitlines()]
    words = change(lines)
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cli.main(["replay", str(tmp_path / "bad.jsonl")]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in ["bad.jsonl", *words]) and error.count("\n") == 1, error


def test_bad_input_is_refused(place, tmp_path, capsys):
    path, env = str(place / "episodes.jsonl"), environment(2)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "text.jsonl").write_text("BUY\n")
    for args, word in (
        ([path, "--episode", "6"], "no episode 6; it has 1 to 5"),
        ([path, "--report", "a.html"], "choose one with --episode"),
        ([path, "--episode", "1", "--report", "nowhere/a.html"], "no folder nowhere"),
        ([str(tmp_path / "empty.jsonl")], "there is no episode"),
        ([str(tmp_path / "text.jsonl")], "line 1"),
        ([str(tmp_path / "none.jsonl")], "none.jsonl"),
        ([path, "--market", str(tmp_path / "none.csv")], "none.csv"),
    ):
        assert cli.main(["replay", *args]) == 2
        assert word in capsys.readouterr().err
    recorder = EpisodeRecorder(env, [0])
    with pytest.raises(ValueError, match="1 actions for 2 rows"):
        recorder.step(torch.zeros(1, 8, 3))
    with pytest.raises(ValueError, match="2 texts for 1 recorded rows"):
        recorder.step(torch.zeros(2, 8, 3), ["HOLD", "HOLD"])
    recorder.step(torch.zeros(2, 8, 3))
    with pytest.raises(ValueError, match="moved"):
        EpisodeRecorder(env, [1])
    with pytest.raises(ValueError, match="no episode"):
        write_parquet(tmp_path / "none.parquet", RECORDING, [])
    stocks = vecenv.make("stock_trading", 1, market="random_walk", compile=False, market_options=GENERATED)
    with pytest.raises(ValueError, match="'stock_trading'"):
        EpisodeRecorder(stocks, [0])


def test_parquet_has_a_row_per_episode_and_day(place):
    table, records = pd.read_parquet(place / "episodes.parquet"), read_jsonl(place / "episodes.jsonl")
    days = [(line, day, record) for line, record in enumerate(records, 1) for day in record.days]
    assert len(table) == len(days) == 5 * DAYS
    for row, (line, day, record) in zip(table.to_dict("records"), days, strict=True):
        assert (row["line"], row["env_id"], row["seed"]) == (line, record.env_id, record.seed)
        assert (str(row["date"].date()), row["valid"], row["num_orders"]) == (day.date, day.valid, len(day.orders))
        assert all(row[name] == getattr(day, name) for name in ("cash", "portfolio_value", "traded", "costs", "reward"))
        assert all(row[f"weighted/{name}"] == value for name, value in day.weighted.items())
        assert all(row[f"mistake/{name}"] == count for name, count in day.mistakes.items())
        assert all(row[f"shares/{name}"] == day.holdings.get(name, 0) for name in record.symbols)
        assert row["grade/calibrated"] == record.grades["calibrated"]
    numbers = table.drop(columns=["task", "market", "date"])
    assert list(numbers.select_dtypes(["number", "bool"])) == list(numbers)


def test_only_the_recorded_rows_are_copied(monkeypatch):
    env, copied = environment(64), []
    rows_of = type(env).rows_of
    monkeypatch.setattr(type(env), "rows_of", lambda env, ids: copied.append(len(ids)) or rows_of(env, ids))
    recorder = EpisodeRecorder(env, [7, 9])
    recorder.step(AGENTS["random"]().act(env))
    recorder.episodes()
    assert set(copied) == {2}


@pytest.mark.assembly
def test_the_report_needs_nothing_else(place, tmp_path):
    path, records = place / "episodes.jsonl", read_jsonl(place / "episodes.jsonl")
    line = next(n for n, r in enumerate(records, 1) if any("<script>" in day.action for day in r.days))
    target = tmp_path / "report.html"
    assert cli.main(["replay", str(path), "--episode", str(line), "--report", str(target)]) == 0
    page, record = target.read_text(encoding="utf-8"), records[line - 1]
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page) and "<script" not in page
    assert not re.search(r"@import|url\((?!#)|<link|<iframe", page)
    assert page.count("<details>") == len(record.days) + 1
    assert page.count("<svg") == page.count("</svg>") >= 3 and "<?xml" not in page
    for day in record.days:
        assert escape(day.messages[0]["content"]) in page
    assert f"{record.grades['calibrated']:.3f}" in page and record.market["fingerprint"] in page


@pytest.mark.assembly
def test_the_report_of_an_episode_without_trades(tmp_path):
    (record,) = RECORDING.record(environment(1, days=1), AGENTS["hold"](), [0], 0, ORIGIN)
    write_jsonl(tmp_path / "hold.jsonl", [record])
    target = tmp_path / "hold.html"
    assert cli.main(["replay", str(tmp_path / "hold.jsonl"), "--report", str(target)]) == 0
    assert "RELIANCE" in target.read_text()
