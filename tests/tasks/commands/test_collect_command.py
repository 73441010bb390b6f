"""``vecenv collect``: conversations that an environment understands, of training days alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from vecenv.registry import make_spoken
from vecenv.tasks.commands.cli import BAD_INPUT
from vecenv.tasks.commands.cli import main as command_line
from vecenv.tasks.commands.collect import CollectSettings, main
from vecenv.tasks.tiers.text.parse import parse_orders, symbol_slots
from vecenv.tasks.tiers.text.prompt import system_prompt

EPISODES, DAYS = 3, 4


def settings(out, task: str = "multi_stock_3", **changes) -> CollectSettings:
    """Settings of short episodes on a small market."""
    given = CollectSettings.defaults(["--task", task])
    rules = replace(given.env, max_ticks=60) if task == "execution" else replace(given.env, days=DAYS)
    market = {"market": "synthetic", "num_paths": 4, "num_days": 290, "device": "cpu", "episodes": EPISODES}
    return replace(given, **{"out": out, "env": rules, "seed": 5} | market | changes)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("collected") / "all.jsonl"
    told = main(settings(path))
    assert list(told["agents"]) == ["rule_based", "oracle"] and told["file"] == str(path)
    assert told["agents"]["oracle"]["answers"] == EPISODES * DAYS
    return lines_of(path)


def test_a_line_is_an_episode_as_a_chat(written):
    assert [line["agent"] for line in written] == ["rule_based"] * EPISODES + ["oracle"] * EPISODES
    for line in written:
        system, *days = line["messages"]
        assert system["role"] == "system" and "Symbols: RELIANCE, INFY, TCS" in system["content"]
        assert [said["role"] for said in days] == ["user", "assistant"] * DAYS
        assert days[0]["content"].startswith(f"Day 1 of {DAYS}") and f"for {DAYS} days" in system["content"]
    rules, oracle = written[:EPISODES], written[EPISODES:]
    assert [line["messages"][1] for line in rules] == [line["messages"][1] for line in oracle]
    assert sum(line["grade"] for line in oracle) > sum(line["grade"] for line in rules)


def test_days_alone_and_good_episodes_alone(written, tmp_path):
    bar = sorted(line["grade"] for line in written)[EPISODES]
    told = main(settings(tmp_path / "days.jsonl", conversation="day", min_grade=bar))["agents"]
    kept, days = [line for line in written if line["grade"] >= bar], lines_of(tmp_path / "days.jsonl")
    assert 0 < len(kept) < len(written) and len(days) == DAYS * len(kept)
    assert [said["role"] for said in days[0]["messages"]] == ["system", "user", "assistant"]
    assert [line["day"] for line in days[:DAYS]] == list(range(1, DAYS + 1))
    assert days[DAYS - 1]["messages"][1:] == kept[0]["messages"][-2:]
    assert sum(count["conversations"] for count in told.values()) == len(days)
    assert sum(count["kept"] for count in told.values()) == len(kept)
    size = sum(len(said["content"]) for line in days for said in line["messages"])
    assert sum(count["characters"] for count in told.values()) == size


def test_episodes_are_of_training_days(tmp_path):
    given = settings(tmp_path / "train.jsonl", num_paths=1, num_days=700, agents=("rule_based",), episodes=40)
    tape = given.tape(given.env)
    edges = tuple(tape.dates[day].astype(object) for day in (400, 430))
    main(replace(given, train_end=edges[0], test_start=edges[1]))
    last = max(line["dates"][1] for line in lines_of(given.out))
    assert str(tape.dates[380]) < last <= str(edges[0])


def test_conversations_of_a_simulated_market(tmp_path):
    """The reference by default; every answer can be read."""
    told = main(settings(tmp_path / "execution.jsonl", "execution", conversation="episode", episodes=2))
    lines = lines_of(tmp_path / "execution.jsonl")
    assert list(told["agents"]) == ["twap"] and [line["env_id"] for line in lines] == [0, 1]
    env = make_spoken("execution", 1, max_ticks=60)
    for line in lines:
        system, *turns = line["messages"]
        assert system["content"].split("\n")[1].startswith(("Buy 1,000", "Sell 1,000")) and len(turns) == 4
        answers = [said["content"] for said in turns[1::2]]
        assert all(bool(env.scenario.text.parse([answer], env.state)[1]) for answer in answers)
        assert any(answer.split("; ")[-1].startswith(("BUY", "SELL")) for answer in answers)
    main(settings(tmp_path / "steps.jsonl", "execution", conversation="day", episodes=2))
    assert [line["step"] for line in lines_of(tmp_path / "steps.jsonl")] == [1, 2, 1, 2]


def test_the_examples_of_the_prompt_are_orders():
    names = ("RELIANCE", "INFY")
    prompt = system_prompt(names, 20)
    examples = [line.strip().split("  ")[0] for line in prompt.splitlines() if line.startswith("  ")]
    assert examples == ["HOLD", "BUY RELIANCE 0.5", "SELL RELIANCE 30%"]
    assert all(parse_orders(each, symbol_slots(names)) is not None for each in (*examples, "BUY RELIANCE; SELL INFY"))


def test_what_cannot_be_collected_is_refused_and_leaves_no_file(tmp_path, capsys):
    out, mine = tmp_path / "out.jsonl", tmp_path / "mine.jsonl"
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
            main(replace(settings(out), **changes))
    assert list(tmp_path.iterdir()) == [mine] and mine.read_text() == "mine"
    assert command_line(["collect", "--task", "stock_trading"]) == BAD_INPUT
    assert "vecenv collect: error: " in capsys.readouterr().err
