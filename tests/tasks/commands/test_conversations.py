"""Conversations in the commands: their agents are compared, recorded and drawn."""

import json
from dataclasses import replace

import pytest

from tests.guess_number import guessing
from vecenv import Domain, registry
from vecenv.learn.runs import read_metrics
from vecenv.system.figures import empty_figure
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.fine_tuning import read_conversations

DRAWN = []


def drawn(said):
    DRAWN.append(said)
    return {"guesses": empty_figure(1, 1, 2.0)[0]}


def of_world(world, agents, seed):
    return {f"world_{world.num_rows}_{len(agents)}": empty_figure(1, 1, 2.0)[0]}


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
    assert told["agents"]["knows"]["tries"]["mean"] == 1.0
    above, halving = told["agents"]["knows"]["minus_halving"], told["agents"]["halving"]["grade"]["mean"]
    assert above["grade"]["mean"] == pytest.approx(0.9 - halving) and above["reward"]["mean"] == 0.0
    assert {"guesses.png", "world_6_3.png", "rewards.png", "grades.png"} <= {path.name for path in folder.iterdir()}
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


def test_what_agents_say_is_collected_from_training_episodes(capsys, tmp_path):
    file = tmp_path / "said.jsonl"
    words = ["collect", "--task", "guess_number", "--episodes", "5", "--seed", "4", "--out"]
    assert cli.main([*words, str(file)]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    # The teacher alone, on the first episodes, which no validation or test has.
    assert {(line["agent"], line["seed"]) for line in lines} == {("halving", 4)}
    assert [line["index"] for line in lines] == list(range(5))
    messages = read_conversations([file])
    assert messages[0][:3] == [
        {"role": "system", "content": "Answer with a whole number."},
        {"role": "user", "content": "Guess a number from 1 to 20."},
        {"role": "assistant", "content": "10"},
    ]
    turns = tmp_path / "turns.jsonl"
    assert cli.main([*words, str(turns), "--conversation", "day", "--agents", "knows", "--min-grade", "0.9"]) == 0
    alone = [json.loads(line) for line in turns.read_text().splitlines()]
    assert all(len(line["messages"]) == 3 and line["turn"] == 1 and line["grade"] == 0.9 for line in alone)
    capsys.readouterr()
    assert cli.main([*words, str(tmp_path / "a.jsonl"), "--device", "cpu"]) == cli.BAD_INPUT
    assert "--device belongs to a task of tensors: no effect with these settings" in capsys.readouterr().err
    registry._registered["guess_number"] = guessing(agents={}, domain=Domain())
    assert cli.main([*words, str(tmp_path / "b.jsonl")]) == cli.BAD_INPUT
    assert "task 'guess_number' has no agents" in capsys.readouterr().err


@pytest.mark.assembly
def test_a_conversation_is_learned_from_nothing(capsys, tmp_path):
    run = tmp_path / "run"
    words = "train --task guess_number --num-groups 2 --group-size 4 --episodes 4 --seed 5 --start-episodes 16"
    words += " --imitation.epochs 20 --tiny.hidden 32 --tiny.vocabulary 400 --learner.minibatches 2"
    words += " --learner.context-tokens 700 --learner.answer-tokens 6 --learner.reward.invalid 0.1"
    words += " --imitation.learning-rate 0.01 --imitation.batch-size 4"
    sizes = ["--folder", str(run), "--learner.total-frames"]
    assert cli.main([*words.split(), *sizes, "96"]) == 0
    shown = capsys.readouterr().out
    assert "a tiny model imitates halving in 16 training episodes each" in shown and "Data      16 conv" in shown
    told = json.loads((run / "metrics.json").read_text())["evaluation"]["agents"]
    assert list(told) == ["trained", "untrained", "halving", "knows", "best_rule", "random"]
    assert {"start", "model", "rewards.png", "guesses.png", "learning_curve.png", "conversations_untrained.jsonl"} <= {
        path.name for path in run.iterdir()
    }
    start = (run / "start" / "model.safetensors").read_bytes()
    assert (run / "model" / "model.safetensors").read_bytes() != start
    assert cli.main(["train", "--resume", str(run), "--learner.total-frames", "144", "--agents", "knows"]) == 0
    assert len(read_metrics(run / "metrics.csv")) == 3 and (run / "start" / "model.safetensors").read_bytes() == start
    assert cli.main(["train", "--resume", str(run), "--start-episodes", "8"]) == cli.BAD_INPUT
    assert "is a run with other start_episodes" in capsys.readouterr().err
    # Of a model that is given there is nothing to make.
    other, said = tmp_path / "other", tmp_path / "said.jsonl"
    given = (
        words[: words.index(" --start-episodes")]
        + words[words.index(" --learner.minibatches") : words.index(" --imitation.learning")]
    )
    assert cli.main([*given.split(), "--model", str(run / "start"), "--folder", str(other), sizes[2], "48"]) == 0
    told = json.loads((other / "metrics.json").read_text())["evaluation"]
    assert list(told["agents"]) == ["trained", "initial", "halving", "knows", "best_rule", "random"]
    evaluate = ["evaluate", "--model", str(other), "--episodes", "4", "--seed", "5", "--record"]
    assert cli.main([*evaluate, str(said)]) == 0 and said.read_text() == (other / "conversations.jsonl").read_text()
    assert cli.main(["replay", str(said)]) == 0
    capsys.readouterr()
    for wrong, why in (
        ([*evaluate, str(tmp_path / "said.parquet")], "episodes are written as .jsonl"),
        (["evaluate", "--checkpoint", str(other)], "is a conversation, which a language model plays: give --model"),
    ):
        assert cli.main(wrong) == cli.BAD_INPUT and why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--algorithm ppo", "task 'guess_number' is a conversation, and a language model learns by --algorithm grpo"),
        ("--agents moon", "unknown agents moon; there are halving, knows, or all"),
        ("--teachers moon", "unknown agents moon; there are halving, knows, or all"),
        ("--teachers", "task 'guess_number' names no teachers to imitate: give --teachers or --model"),
        ("--no-compile", "--compile belongs to a task of tensors: no effect with these settings"),
        ("--model tiny --start-episodes 3", "--start-episodes belongs to the training of a conversation without --mo"),
        ("--market planted", "--market belongs to a task on a market of bars"),
    ],
)
def test_what_a_training_of_a_conversation_does_not_take_is_named(words, told, capsys, tmp_path):
    folder = tmp_path / "run"
    assert cli.main(["train", "--task", "guess_number", "--folder", str(folder), *words.split()]) == cli.BAD_INPUT
    assert told in capsys.readouterr().err and not folder.exists()


@pytest.mark.parametrize(
    "words", ["play --device cpu", "serve --device cpu", "serve --no-compile", "evaluate --device cpu"]
)
def test_options_of_tensors_are_refused(words, capsys):
    command, *options = words.split()
    assert cli.main([command, "--task", "guess_number", *options]) == cli.BAD_INPUT
    assert f"{options[0].replace('no-', '')} belongs to a task of tensors" in capsys.readouterr().err
