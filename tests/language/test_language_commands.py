"""From conversations to a trained model by commands alone, and what they refuse."""

from __future__ import annotations

import errno
import json

import pytest

from vecenv.language.models import load_model
from vecenv.language.supervised import SupervisedConfig
from vecenv.language.tiny_config import TINY_RATE, TinyConfig
from vecenv.tasks.commands import sft
from vecenv.tasks.commands.cli import BAD_INPUT, main
from vecenv.tasks.commands.sft import SftSettings, read_conversations

MARKET = ("--market", "planted", "--num-paths", "4", "--num-days", "330")
RULES = ("--task", "single_stock_costs", "--env.context", "signal", "--env.days", "4")
ASKED = ("--language.context-tokens", "900", "--language.answer-tokens", "16", "--language.history-days", "0")
TINY = TinyConfig(hidden=16, layers=1, heads=2, vocabulary=400)
GOOD = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "HOLD"}]}


@pytest.mark.assembly
def test_a_model_learns_from_conversations_trains_goes_on_and_is_evaluated(tmp_path, capsys):
    data, model, run = tmp_path / "conversations.jsonl", tmp_path / "model", tmp_path / "run"
    collect = ["collect", *RULES, *MARKET, "--episodes", "8", "--conversation", "day", "--out", str(data)]
    assert main(collect) == 0
    sizes = ["--tiny.hidden", "32", "--tiny.layers", "1", "--tiny.heads", "2", "--tiny.vocabulary", "500"]
    steps = ["--learning-rate", "0.01", "--batch-size", "8", "--epochs", "2", "--device", "cpu"]
    assert main(["sft", "--data", str(data), "--folder", str(model), *sizes, *steps, *ASKED]) == 0
    told = json.loads((model / "training.json").read_text())
    assert told["conversations"] == told["answers"] == told["contexts"] == 2 * 8 * 4
    loaded, tokenizer = load_model(str(model))
    assert sum(parameter.numel() for parameter in loaded.parameters()) == told["parameters"] and len(tokenizer) <= 500

    groups = ("--num-groups", "2", "--group-size", "4", "--language.minibatches", "1", "--language.total-frames", "64")
    small = (*MARKET, *RULES, *ASKED, *groups, "--no-compile", "--episodes", "4", "--device", "cpu")
    beside = ("--language.groups", "1", "--language.others", "rule_based", "--language.lora-rank", "2")
    words = ["train", "--algorithm", "grpo", "--model", str(model), *small, *beside, "--folder"]
    assert main([*words, str(run)]) == 0
    for name in ("checkpoint.pt", "metrics.json", "settings.yaml", "learning_curve.png", "model"):
        assert (run / name).exists()
    document = json.loads((run / "metrics.json").read_text())
    assert {"trained", "buy_and_hold", "oracle"} <= set(document["evaluation"]["agents"])
    rows = (run / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 64 // 16
    assert {"grade", "invalid", "answer_tokens", "cut_off", "no_spread"} <= set(rows[0].split(","))
    assert main(["train", "--resume", str(run), "--language.total-frames", "80"]) == 0
    assert len((run / "metrics.csv").read_text().splitlines()) == 6

    said, result = tmp_path / "said.jsonl", tmp_path / "result.json"
    evaluate = ["evaluate", "--model", str(run), "--agents", "hold", "--episodes", "2", "--device", "cpu"]
    assert main([*evaluate, "--record", str(said), "--json", str(result)]) == 0
    told = json.loads(result.read_text())
    assert set(told["agents"]) == {"model", "hold"} and told["model"] == str(run)
    first = json.loads(said.read_text().splitlines()[0])
    # Its own words were recorded; an invalid answer shows that they are not written anew from its orders.
    assert len(first["days"]) == 4 and any(day["messages"][1]["content"] for day in first["days"])
    assert main(["evaluate", "--checkpoint", str(run), "--episodes", "4"]) == BAD_INPUT
    assert "holds no policy" in capsys.readouterr().err


def settings(path, **given) -> SftSettings:
    return SftSettings(data=(path,), tiny=TINY, device="cpu", **given)


def test_a_tiny_model_is_trained_at_its_own_rate_and_a_full_disk_leaves_no_folder(tmp_path, monkeypatch, capsys):
    path, rates = tmp_path / "data.jsonl", []
    path.write_text(f"{json.dumps(GOOD)}\n" * 2)

    def tuned(model, segments, pad, training, seed, show):
        rates.append((training.learning_rate, seed))
        show(1, 1, 0.5)
        return {"loss": 0.5, "held_out_loss": float("nan")}

    monkeypatch.setattr("vecenv.language.supervised_training.fine_tune", tuned)
    told = sft.main(settings(path, folder=tmp_path / "own", seed=3))
    sft.main(settings(path, folder=tmp_path / "b", training=SupervisedConfig(learning_rate=0.5)))
    assert rates == [(TINY_RATE, 3), (0.5, 0)]
    assert (told["conversations"], told["answers"], told["loss"]) == (2, 2, 0.5)
    assert "Data      2 conversations, 2 answers" in capsys.readouterr().out

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vecenv.language.models.save_model", full)
    folder = tmp_path / "runs" / "one"
    with pytest.raises(OSError, match=f"^{folder}: the disk is full; no model has been written$"):
        sft.main(settings(path, folder=folder))
    assert not folder.parent.exists()


def test_conversations_and_folders_that_cannot_be_taken(tmp_path):
    path, other = tmp_path / "data.jsonl", tmp_path / "other.jsonl"
    for line, error in (("{", "not JSON"), ("[]", "must be a list"), ('{"messages": []}', "must alternate")):
        path.write_text(f"{json.dumps(GOOD)}\n{line}\n")
        with pytest.raises(ValueError, match=f"{path}, line 2: .*{error}"):
            read_conversations([path])
    path.write_text("")
    with pytest.raises(ValueError, match=f"{path}, {path}: there is no conversation"):
        read_conversations([path, path])
    path.write_text(f"{json.dumps(GOOD)}\n")
    other.write_text(json.dumps(GOOD))
    assert read_conversations([path, other]) == [GOOD["messages"]] * 2
    with pytest.raises(ValueError, match="exists already and is not empty"):
        sft.main(settings(path, folder=tmp_path))
    with pytest.raises(ValueError, match="exists already and is no folder"):
        sft.main(settings(path, folder=path))
    with pytest.raises(ValueError, match="context_tokens 9000 are more than the model's 8192"):
        sft.main(settings(path, folder=tmp_path / "a", language=sft.AnswerConfig(context_tokens=9000)))
    assert SftSettings.defaults(["--model", "m", "--data", "a"]).model == "m"
