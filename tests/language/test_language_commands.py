"""From conversations to a trained model by commands alone, and what they refuse."""

from __future__ import annotations

import errno
import json

import pytest

from vecenv.language.models import load_model
from vecenv.tasks.commands.cli import BAD_INPUT, main

# Whole runs of the command.
pytestmark = pytest.mark.nightly

MARKET = ("--market", "planted", "--num-paths", "4", "--num-days", "330")
RULES = ("--task", "single_stock_costs", "--env.context", "signal", "--env.days", "4")
ASKED = ("--language.context-tokens", "900", "--language.answer-tokens", "16", "--language.history-days", "0")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Conversations and a model that has learned from them, both made by commands."""
    folder = tmp_path_factory.mktemp("start")
    data, model = folder / "conversations.jsonl", folder / "model"
    collect = ["collect", *RULES, *MARKET, "--episodes", "24", "--conversation", "day", "--out", str(data)]
    assert main(collect) == 0
    tiny = ["--tiny.hidden", "32", "--tiny.layers", "1", "--tiny.heads", "2", "--tiny.vocabulary", "500"]
    words = [
        "--learning-rate",
        "0.01",
        "--batch-size",
        "16",
        "--epochs",
        "3",
        "--device",
        "cpu",
    ]
    assert main(["sft", "--data", str(data), "--folder", str(model), *tiny, *words, *ASKED]) == 0
    return data, model


def train(model, folder, *words):
    groups = ("--num-groups", "2", "--group-size", "4", "--language.minibatches", "1", "--language.total-frames", "64")
    settings = (*MARKET, *RULES, *ASKED, *groups, "--no-compile", "--episodes", "8", "--device", "cpu")
    return main(["train", "--algorithm", "grpo", "--model", str(model), "--folder", str(folder), *settings, *words])


def test_supervised_training_tells_what_it_did(start):
    _, model = start
    told = json.loads((model / "training.json").read_text())
    assert told["conversations"] == told["answers"] == told["contexts"] == 2 * 24 * 4
    assert told["loss"] < 1.5 and told["held_out_loss"] < 2.0
    loaded, tokenizer = load_model(str(model))
    assert sum(parameter.numel() for parameter in loaded.parameters()) == told["parameters"]
    assert len(tokenizer) <= 500


def test_a_full_disk_is_told_in_a_sentence_and_leaves_no_folder(start, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vecenv.language.models.save_model", full)
    folder, tiny = tmp_path / "runs" / "one", ("--tiny.hidden", "16", "--tiny.layers", "1", "--tiny.heads", "2")
    words = ("--tiny.vocabulary", "400", "--epochs", "1", "--batch-size", "200", "--device", "cpu")
    assert main(["sft", "--data", str(start[0]), "--folder", str(folder), *tiny, *words, *ASKED]) == BAD_INPUT
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"vecenv sft: error: {folder}: the disk is full; no model has been written"
    assert not list(tmp_path.iterdir())


def test_a_model_trains_goes_on_and_is_evaluated(start, tmp_path, capsys):
    _, model = start
    run = tmp_path / "run"
    assert train(model, run, "--language.learning-rate", "1e-3") == 0
    for name in ("checkpoint.pt", "metrics.json", "metrics.csv", "settings.yaml", "learning_curve.png", "model"):
        assert (run / name).exists()
    document = json.loads((run / "metrics.json").read_text())
    assert {"trained", "buy_and_hold", "oracle"} <= set(document["evaluation"]["agents"])
    rows = (run / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3 and {"grade", "invalid", "answer_tokens", "cut_off", "no_spread"} <= set(rows[0].split(","))
    assert main(["train", "--resume", str(run), "--language.total-frames", "96"]) == 0
    assert len((run / "metrics.csv").read_text().splitlines()) == 4

    said, result = tmp_path / "said.jsonl", tmp_path / "result.json"
    evaluate = ["evaluate", "--model", str(run), "--agents", "hold", "--episodes", "4", "--device", "cpu"]
    assert main([*evaluate, "--record", str(said), "--json", str(result)]) == 0
    told = json.loads(result.read_text())
    assert set(told["agents"]) == {"model", "hold"} and told["model"] == str(run)
    first = json.loads(said.read_text().splitlines()[0])
    assert first["task"] == "single_stock_costs" and len(first["days"]) == 4
    # Its own words were recorded; an invalid answer shows that they are not written anew from its orders.
    assert any(day["messages"][1]["content"] for day in first["days"])
    assert main(["evaluate", "--checkpoint", str(run), "--episodes", "4"]) == BAD_INPUT
    assert "holds no policy" in capsys.readouterr().err


def test_language_agents_beside_a_baseline(start, tmp_path):
    _, model = start
    words = ("--num-groups", "16", "--language.groups", "1", "--language.others", "rule_based")
    assert train(model, tmp_path / "run", *words, "--language.lora-rank", "2") == 0
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 1 + 64 // 16


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("train", "--model", "m"), "a language model learns by --algorithm grpo"),
        (("train", "--algorithm", "grpo", "--model", "tiny", "--task", "single_stock"), "make it with vecenv sft"),
        (("train", "--algorithm", "grpo", "--model", "m"), "task 'stock_trading' has no text"),
        (("train", "--algorithm", "grpo", "--model", "./m", "--task", "single_stock"), "./m: there is no folder"),
        (("evaluate", "--model", "runs/no/model", "--task", "single_stock"), "runs/no/model: there is no folder"),
        (("evaluate", "--model", "m", "--checkpoint", "c"), "not both"),
        (("evaluate", "--model", "m", "--task", "stock_trading"), "has no text"),
        (("sft", "--data", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_work(words, error, capsys):
    assert main(list(words)) == BAD_INPUT
    captured = capsys.readouterr()
    assert error in captured.err and not captured.out


def test_bad_conversations_are_named_by_line(tmp_path, capsys):
    path = tmp_path / "data.jsonl"
    good = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "HOLD"}]}
    for line, error in (("{", "not JSON"), ("[]", "must be a list"), ('{"messages": []}', "must alternate")):
        path.write_text(json.dumps(good) + "\n" + line + "\n")
        assert main(["sft", "--data", str(path), "--folder", str(tmp_path / "model")]) == BAD_INPUT
        told = capsys.readouterr().err
        assert f"{path}, line 2: " in told and error in told
    path.write_text("")
    assert main(["sft", "--data", str(path)]) == BAD_INPUT
    assert "no conversation" in capsys.readouterr().err
    path.write_text(json.dumps(good) + "\n")
    assert main(["sft", "--data", str(path), "--folder", str(tmp_path)]) == BAD_INPUT
    assert "not empty" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
