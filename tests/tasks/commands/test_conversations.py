"""Conversations in the commands: their agents are compared, recorded and drawn."""

import json
from dataclasses import replace

import pytest

from tests.guess_number import guessing
from vecenv import registry
from vecenv.learn.report import empty_figure
from vecenv.tasks.commands import cli

DRAWN = []


def drawn(said):
    DRAWN.append(said)
    return {"guesses": empty_figure(1, 1, (2.0, 2.0), "x")[0]}


def of_world(world, agents, seed):
    return {f"world_{world.num_rows}_{len(agents)}": empty_figure(1, 1, (2.0, 2.0), "x")[0]}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    record = guessing()
    own = {"talk_pictures": drawn, "pictures": of_world, "best": lambda world: record.agents["knows"]()}
    record = guessing(domain=replace(record.domain, **own))
    monkeypatch.setattr(registry, "_registered", {"guess_number": record})
    DRAWN.clear()


def test_agents_of_a_conversation_are_compared_recorded_and_drawn(capsys, tmp_path):
    folder, file = tmp_path / "compared", tmp_path / "said.jsonl"
    words = ["evaluate", "--task", "guess_number", "--episodes", "6", "--seed", "4"]
    assert cli.main([*words, "--folder", str(folder), "--record", str(file)]) == 0
    told = json.loads((folder / "metrics.json").read_text())["evaluation"]
    assert list(told["agents"]) == ["halving", "knows", "best_rule", "random"] and told["num_episodes"] == 6
    assert told["agents"]["knows"]["tries"]["mean"] == 1.0 and "minus_halving" in told["agents"]["random"]
    assert {"guesses.png", "world_6_3.png", "rewards.png"} <= {path.name for path in folder.iterdir()}
    (said,) = DRAWN
    assert list(said) == list(told["agents"])
    for records in said.values():
        assert [(one.seed, one.index) for one in records] == [(4, 2**31 + row) for row in range(6)]
    assert file.read_text() == (folder / "conversations.jsonl").read_text()
    for name in ("conversations", "conversations_knows", "conversations_random"):
        assert cli.main(["replay", str(folder / f"{name}.jsonl")]) == 0
    assert "Reward" in capsys.readouterr().out
    assert cli.main([*words, "--agents", "moon"]) == cli.BAD_INPUT
    assert "unknown agents moon; there are halving, knows, or all" in capsys.readouterr().err
    registry._registered["guess_number"] = guessing(agents={})
    assert cli.main([*words, "--agents", "moon"]) == cli.BAD_INPUT
    assert "unknown agents moon; task 'guess_number' has none" in capsys.readouterr().err
