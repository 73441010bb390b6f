"""``vecenv collect``: conversations that an environment understands, of training days alone."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

import vecenv
from vecenv.market.synthetic import synthetic_bars
from vecenv.registry import make_spoken
from vecenv.tasks.commands.cli import BAD_INPUT, main
from vecenv.tasks.commands.comparison import compared_config
from vecenv.tasks.commands.market_settings import MarketSettings
from vecenv.tasks.tiers.text.parse import parse_orders, symbol_slots
from vecenv.tasks.tiers.text.prompt import system_prompt
from vecenv.text.door import TextDoor

EPISODES, DAYS = 6, 25
MARKET = {"market": "synthetic", "num_paths": 4, "num_days": 330}


def collect(out, *words):
    market = [word for name, value in MARKET.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    task = [] if "--task" in words else ["--task", "multi_stock_3"]
    return main(["collect", *task, *market, "--episodes", str(EPISODES), "--out", str(out), *words])


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("collected") / "all.jsonl"
    assert collect(path, "--seed", "5") == 0
    return lines_of(path)


@pytest.mark.assembly
def test_a_line_is_an_episode_as_a_chat(written):
    assert [line["agent"] for line in written] == ["rule_based"] * EPISODES + ["oracle"] * EPISODES
    for line in written:
        system, *days = line["messages"]
        assert system["role"] == "system" and "Symbols: RELIANCE, INFY, TCS" in system["content"]
        assert [said["role"] for said in days] == ["user", "assistant"] * DAYS
        assert days[0]["content"].startswith(f"Day 1 of {DAYS}") and f"for {DAYS} days" in system["content"]
    rules, oracle = written[:EPISODES], written[EPISODES:]
    assert [line["messages"][1] for line in rules] == [line["messages"][1] for line in oracle]
    assert sum(line["grade"] for line in oracle) > sum(line["grade"] for line in rules) + EPISODES * 0.2


@pytest.mark.assembly
def test_what_was_said_played_again_is_the_same_episode(written):
    """Every answer is valid, and the market shows the same days; fractions have four decimals."""
    settings = MarketSettings(**MARKET, device="cpu")
    config = compared_config("multi_stock_3")
    training = settings.training(settings.tape(config))
    env = vecenv.make("multi_stock_3", EPISODES, market=training, compile=False, config=config)
    rows = range(EPISODES)
    for agent in (written[:EPISODES], written[EPISODES:]):
        env.reset_groups(EPISODES, 1, 5)
        for day in range(DAYS):
            asked = [line["messages"][1 + 2 * day]["content"].splitlines() for line in agent]
            shown = [text.splitlines() for text in TextDoor(env).render(rows)]
            assert [text[2] for text in shown] == [text[2] for text in asked]
            actions, valid = TextDoor(env).parse([line["messages"][2 + 2 * day]["content"] for line in agent], rows)
            assert bool(valid.all())
            env.advance(actions)
        grade = env.grade().double()
        torch.testing.assert_close(grade, torch.tensor([line["grade"] for line in agent]).double(), atol=0.02, rtol=0)


@pytest.mark.assembly
def test_days_alone_and_good_episodes_alone(written, tmp_path):
    path, result = tmp_path / "days.jsonl", tmp_path / "result.json"
    bar = sorted(line["grade"] for line in written)[EPISODES]
    words = ("--seed", "5", "--conversation", "day", "--min-grade", repr(bar), "--json", str(result))
    assert collect(path, *words) == 0
    kept = [line for line in written if line["grade"] >= bar]
    days = lines_of(path)
    assert 0 < len(kept) < len(written) and len(days) == DAYS * len(kept)
    assert [said["role"] for said in days[0]["messages"]] == ["system", "user", "assistant"]
    assert [line["day"] for line in days[:DAYS]] == list(range(1, DAYS + 1))
    assert days[DAYS - 1]["messages"][1:] == kept[0]["messages"][-2:]
    told = json.loads(result.read_text())["agents"]
    assert sum(count["conversations"] for count in told.values()) == len(days)


@pytest.mark.assembly
def test_no_day_of_the_test_is_in_it(tmp_path):
    bars, file, out = synthetic_bars(1, 600, 1, seed=1), tmp_path / "prices.parquet", tmp_path / "train.jsonl"
    table = pd.DataFrame(bars.ohlcv[0, :, 0].numpy(), columns=["open", "high", "low", "close", "volume"])
    table.assign(date=np.asarray(bars.dates), symbol="ONE").to_parquet(file)
    end, start = str(bars.dates[399]), str(bars.dates[430])
    words = ("--market", str(file), "--symbols", "ONE", "--train-end", end, "--test-start", start, "--episodes", "64")
    assert main(["collect", "--task", "single_stock", *words, "--out", str(out)]) == 0
    last = [line["dates"][1] for line in lines_of(out)]
    assert len(last) == 128 and str(bars.dates[380]) < max(last) <= end


def test_the_prompt_s_examples_are_orders():
    names = ("RELIANCE", "INFY")
    prompt = system_prompt(names, 20)
    examples = [line.strip().split("  ")[0] for line in prompt.splitlines() if line.startswith("  ")]
    assert examples == ["HOLD", "BUY RELIANCE 0.5", "SELL RELIANCE 30%"]
    assert all(parse_orders(example, symbol_slots(names)) is not None for example in examples)
    assert parse_orders("BUY RELIANCE; SELL INFY", symbol_slots(names)) is not None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--task", "stock_trading"), "task 'stock_trading' has no text"),
        (("--out", "answers.txt"), "a file that ends in .jsonl"),
        (("--agents", "guru"), "guru"),
        (("--episodes", "0"), "episodes must be at least 1"),
        (("--min-grade", "1.1"), "no episode has a grade of 1.1 or more"),
    ],
)
def test_what_cannot_be_collected_is_refused_and_leaves_no_file(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    assert collect(tmp_path / "out.jsonl", *words) == BAD_INPUT
    assert told in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_file_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "out.jsonl"
    path.write_text("mine")
    assert collect(path) == BAD_INPUT
    assert "exists already" in capsys.readouterr().err and path.read_text() == "mine"


@pytest.mark.assembly
def test_conversations_of_a_simulated_market(tmp_path):
    """The reference by default, of episodes of the training; every answer can be read."""
    path = tmp_path / "execution.jsonl"
    assert main(["collect", "--task", "execution", "--env.max-ticks", "90", "--episodes", "3", "--out", str(path)]) == 0
    lines = lines_of(path)
    assert [line["agent"] for line in lines] == ["twap"] * 3 and [line["env_id"] for line in lines] == [0, 1, 2]
    env = make_spoken("execution", 1, max_ticks=90)
    for line in lines:
        system, *turns = line["messages"]
        assert system["content"].split("\n")[1].startswith(("Buy 1,000", "Sell 1,000")) and len(turns) == 6
        answers = [said["content"] for said in turns[1::2]]
        assert all(bool(env.scenario.text.parse([answer], env.state)[1]) for answer in answers)
        assert any(answer.split("; ")[-1].startswith(("BUY", "SELL")) for answer in answers)
    single = tmp_path / "days.jsonl"
    words = ["--task", "execution", "--env.max-ticks", "60", "--episodes", "2", "--conversation", "day"]
    assert main(["collect", *words, "--out", str(single)]) == 0
    assert [line["step"] for line in lines_of(single)] == [1, 2, 1, 2]
