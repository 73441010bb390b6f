"""Supervised training: the contexts of a rollout, answers alone learned from, and commands that train and evaluate."""

import errno
import json
import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests.language.tiny import ALONE, DAYS, signal_env, small_chat, small_model
from vecenv.language.conversation import Conversation, ask_all
from vecenv.language.supervised import SupervisedConfig, checked_messages
from vecenv.language.supervised_training import fine_tune, segments_of
from vecenv.language.tiny_config import TINY_RATE, TinyConfig
from vecenv.tasks.commands import sft
from vecenv.tasks.commands.cli import BAD_INPUT, main
from vecenv.tasks.commands.fine_tuning import read_conversations
from vecenv.tasks.commands.sft import SftSettings
from vecenv.text.door import TextDoor

CHAT = small_chat()
GROWING = replace(ALONE, history_days=None, context_tokens=900)


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_contexts_are_those_that_a_model_would_have_answered_in():
    """Conversations of unequal length, with instructions or without, each as it grows by itself."""
    env = signal_env(4)
    conversations = [[said("system", text)] for text in TextDoor(env).instructions(range(3))] + [[]]
    own = [Conversation(CHAT, GROWING, messages[0]["content"] if messages else "") for messages in conversations]
    for day in range(DAYS):
        for row, text in enumerate(TextDoor(env).render(range(4))):
            if day < DAYS - row:
                answer = ("BUY 0.5", "HOLD")[(day + row) % 2]
                conversations[row] += [said("user", text), said("assistant", answer)]
                ask_all([own[row]], [text], [day])
                (tokens,) = CHAT.answers([answer])
                own[row].answered(tokens, [0.0] * len(tokens))
        env.advance(env.action_spec.zero())
    assert segments_of(conversations, CHAT, GROWING) == [conversation.segments for conversation in own]
    assert any(len(conversation.segments) > 1 for conversation in own)


def day_segments(count: int):
    """Return the contexts of days that are answered by BUY and SELL in turn."""
    shown = TextDoor(signal_env(count)).render(range(count))
    answered = zip(shown, ("BUY", "SELL") * count, strict=False)
    return segments_of([[said("user", text), said("assistant", answer)] for text, answer in answered], CHAT, ALONE)


def test_the_same_seed_gives_the_same_weights_and_parts_the_gradients_of_the_whole():
    segments, steps = day_segments(9), []
    config = SupervisedConfig(epochs=2, batch_size=3, learning_rate=5e-3, test_fraction=0.25)
    found, losses = [], []
    for seed, at_once in ((0, 10**6), (0, 10**6), (0, 600), (1, 10**6)):
        (model, _), own = small_model(), replace(config, tokens_at_once=at_once)
        told = fine_tune(model, segments, CHAT.pad, own, seed, lambda *given: steps.append(given))
        found.append([parameter.detach().clone() for parameter in model.parameters()])
        losses.append(told)
    # Two of nine are the test, so that an epoch has three steps.
    assert [(step, whole) for step, whole, _ in steps] == [(step, 6) for step in range(1, 7)] * 4
    assert losses[0] == losses[1] and all(map(torch.equal, found[0], found[1])) and losses[3] != losses[0]
    assert losses[0]["loss"] == pytest.approx(sum(loss for *_, loss in steps[3:6]) / 3)
    assert losses[2]["loss"] == pytest.approx(losses[0]["loss"], rel=1e-3)
    assert losses[0]["loss"] < steps[0][2] and losses[0]["test_loss"] < steps[0][2]


def test_steps_on_the_answers_alone_are_those_of_adamw_at_a_falling_rate():
    """On one context, beside a plain loop: gradients of a step are its own, clipped, and weights do not decay."""
    model, _ = small_model()
    plain, segment = deepcopy(model), day_segments(1)[0][0]
    config = SupervisedConfig(epochs=3, batch_size=1, learning_rate=1e-3, test_fraction=0.0)
    shown = []
    told = fine_tune(model, [[segment]], CHAT.pad, config, on_step=lambda *given: shown.append(given))
    tokens, answer = torch.tensor([segment.tokens]), torch.tensor(segment.drawn)
    optimiser = torch.optim.AdamW(plain.parameters(), weight_decay=0.0)
    for step in range(3):
        optimiser.param_groups[0]["lr"] = 1e-3 * (1 - step / 3)
        optimiser.zero_grad()
        log_probs = plain(tokens).logits[0, answer - 1].float().log_softmax(-1)
        loss = -log_probs.gather(-1, tokens[0, answer, None]).mean()
        assert shown[step] == (step + 1, 3, pytest.approx(float(loss.detach()), rel=1e-4))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), config.max_grad_norm)
        optimiser.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert told["loss"] == shown[-1][2] and math.isnan(told["test_loss"])


def test_what_cannot_be_learned_is_refused():
    user, assistant = said("user", "u"), said("assistant", "a")
    for given, words in (
        (None, "must be a list"),
        ([{"role": "user"}], "must be a list"),
        ([{"role": "user", "content": 3}], "must be a list"),
        ([], "alternate, but roles are none"),
        ([said("system", "s")], "alternate"),
        ([user], "alternate"),
        ([assistant, user], "alternate"),
        ([user, assistant, said("tool", "t"), assistant], "alternate"),
    ):
        with pytest.raises(ValueError, match=f"^line 7: .*{words}"):
            checked_messages(given, "line 7")
    with pytest.raises(ValueError, match="more than answer_tokens 6"):
        segments_of([[user, said("assistant", "BUY " * 20)]], CHAT, ALONE)
    with pytest.raises(ValueError, match="no conversation to learn from"):
        fine_tune(small_model()[0], [], CHAT.pad, SupervisedConfig())
    for name, value in (("epochs", 0), ("batch_size", 0), ("learning_rate", 0), ("test_fraction", 1)):
        with pytest.raises(ValueError, match=name):
            SupervisedConfig(**{name: value})


MARKET = ("--market", "planted", "--num-paths", "4", "--num-days", "330")
RULES = ("--task", "single_stock_costs", "--env.context", "signal", "--env.days", "4")
ASKED = ("--language.context-tokens", "900", "--language.answer-tokens", "16", "--language.history-days", "0")
TINY = TinyConfig(hidden=16, layers=1, heads=2, vocabulary=400)
GOOD = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "HOLD"}]}


@pytest.mark.assembly
def test_a_model_learns_from_conversations_trains_goes_on_and_is_evaluated(tmp_path, capsys):
    data, model, run, said = (tmp_path / name for name in ("conversations.jsonl", "model", "run", "said.jsonl"))
    collect = ["collect", *RULES, *MARKET, "--episodes", "8", "--conversation", "day", "--out", str(data)]
    assert main(collect) == 0
    sizes = ["--tiny.hidden", "32", "--tiny.layers", "1", "--tiny.heads", "2", "--tiny.vocabulary", "500"]
    steps = ["--learning-rate", "0.01", "--batch-size", "8", "--epochs", "2", "--device", "cpu"]
    assert main(["sft", "--data", str(data), "--folder", str(model), *sizes, *steps, *ASKED]) == 0
    told = json.loads((model / "training.json").read_text())
    assert told["conversations"] == told["answers"] == told["contexts"] == 2 * 8 * 4

    groups = ("--num-groups", "2", "--group-size", "4", "--learner.minibatches", "1", "--learner.total-frames", "64")
    asked = [word.replace("--language.", "--learner.") for word in ASKED]
    small = (*MARKET, *RULES, *asked, *groups, "--no-compile", "--episodes", "4", "--device", "cpu")
    beside = ("--learner.groups", "1", "--learner.others", "rule_based", "--learner.lora-rank", "2")
    assert main(["train", "--algorithm", "grpo", "--model", str(model), *small, *beside, "--folder", str(run)]) == 0
    assert {"checkpoint.pt", "settings.yaml", "learning_curve.png", "model"} <= {path.name for path in run.iterdir()}
    document = json.loads((run / "metrics.json").read_text())
    assert {"trained", "buy_and_hold", "oracle"} <= set(document["evaluation"]["agents"])
    rows = (run / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 64 // 16 and {"grade", "answer_tokens", "no_spread"} <= set(rows[0].split(","))
    assert main(["train", "--resume", str(run), "--learner.total-frames", "80"]) == 0
    assert len((run / "metrics.csv").read_text().splitlines()) == 6

    evaluate = ["evaluate", "--model", str(run), "--agents", "hold", "--episodes", "2", "--device", "cpu"]
    assert main([*evaluate, "--record", str(said), "--json", str(tmp_path / "result.json")]) == 0
    told = json.loads((tmp_path / "result.json").read_text())
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

    def tuned(model, segments, pad, training, seed, show, *_):
        rates.append((training.learning_rate, seed))
        show(1, 1, 0.5)
        return {"loss": 0.5, "test_loss": float("nan")}

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
