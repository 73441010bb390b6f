"""Supervised training: the contexts of a rollout, answers alone learned from, the same seed the same weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.language.tiny import ALONE, DAYS, signal_env, small_chat, small_model
from vecenv.language.conversation import Conversation, ask_all
from vecenv.language.supervised import SupervisedConfig, checked_messages
from vecenv.language.supervised_training import fine_tune, segments_of
from vecenv.text.door import TextDoor

CHAT = small_chat()
GROWING = replace(ALONE, history_days=None, context_tokens=900)


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("config", [ALONE, GROWING])
def test_contexts_are_those_that_a_model_would_have_answered_in(config):
    """Conversations of unequal length, with instructions or without, each as it grows by itself."""
    env = signal_env(4)
    conversations = [[said("system", text)] for text in TextDoor(env).instructions(range(3))] + [[]]
    own = [Conversation(CHAT, config, messages[0]["content"] if messages else "") for messages in conversations]
    for day in range(DAYS):
        for row, text in enumerate(TextDoor(env).render(range(4))):
            if day < DAYS - row:
                answer = ("BUY 0.5", "HOLD")[(day + row) % 2]
                conversations[row] += [said("user", text), said("assistant", answer)]
                ask_all([own[row]], [text], [day])
                (tokens,) = CHAT.answers([answer])
                own[row].answered(tokens, [0.0] * len(tokens))
        env.advance(env.action_spec.zero())
    assert segments_of(conversations, CHAT, config) == [conversation.segments for conversation in own]
    assert any(len(conversation.segments) > 1 for conversation in own)


def signal_segments():
    """Return contexts whose answer is BUY where the signal is positive and SELL where it is not."""
    env = signal_env(48)
    shown = TextDoor(env).render(range(48))
    right = ["BUY" if "signal 1" in text else "SELL" for text in shown]
    assert 10 < right.count("BUY") < 38
    conversations = [[said("user", text), said("assistant", answer)] for text, answer in zip(shown, right, strict=True)]
    return segments_of(conversations, CHAT, ALONE)


@pytest.mark.nightly
def test_answers_are_learned_the_same_way_by_every_seed_of_its_own():
    segments, config = signal_segments(), SupervisedConfig(epochs=6, batch_size=8, learning_rate=5e-3, held_out=0.25)
    found, losses, steps = [], [], []
    for seed, at_once in ((0, 10**6), (0, 10**6), (0, 600), (1, 10**6)):
        model, _ = small_model()
        told = fine_tune(
            model,
            segments,
            CHAT.pad,
            replace(config, tokens_at_once=at_once),
            seed,
            lambda step, all_of_them, loss: steps.append((step, all_of_them, loss)),
        )
        found.append([parameter.detach().clone() for parameter in model.parameters()])
        losses.append(told)
    assert losses[0] == losses[1] and all(map(torch.equal, found[0], found[1]))
    # Gradients that are added up in parts are those of the whole, up to rounding that six epochs amplify.
    assert losses[2]["loss"] == pytest.approx(losses[0]["loss"], rel=0.05)
    assert losses[3]["loss"] != losses[0]["loss"]
    assert [step for step, _, _ in steps[:30]] == list(range(1, 31)) and {count for _, count, _ in steps} == {30}
    assert steps[0][2] > 3 > 0.7 > losses[0]["loss"] and losses[0]["held_out_loss"] < 1.0


def test_nothing_but_answers_is_learned():
    """One step on one context moves the likelihood of its answer far more than that of its question."""
    model, _ = small_model()
    segment = signal_segments()[0][0]
    tokens = torch.tensor([segment.tokens])

    def log_probs():
        with torch.no_grad():
            logits = model(tokens).logits[0, :-1].log_softmax(-1)
        return logits.gather(-1, tokens[0, 1:, None]).squeeze(-1)

    before = log_probs()
    told = fine_tune(model, [[segment]], CHAT.pad, SupervisedConfig(batch_size=1, learning_rate=1e-3, held_out=0.0))
    gained = log_probs() - before
    answer = torch.zeros(len(gained), dtype=torch.bool)
    answer[torch.tensor(segment.drawn) - 1] = True
    assert float(gained[answer].min()) > 0.3 > float(gained[~answer].mean())
    assert told["loss"] == pytest.approx(-float(before[answer].mean()), rel=1e-4)
    assert told["held_out_loss"] != told["held_out_loss"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (None, "must be a list"),
        ("text", "must be a list"),
        ([{"role": "user"}], "must be a list"),
        ([{"role": "user", "content": 3}], "must be a list"),
        ([], "alternate, but roles are none"),
        ([said("system", "s")], "alternate"),
        ([said("user", "u")], "alternate"),
        ([said("assistant", "a"), said("user", "u")], "alternate"),
        ([said("user", "u"), said("assistant", "a"), said("tool", "t"), said("assistant", "a")], "alternate"),
    ],
)
def test_what_is_no_conversation_is_named(messages, words):
    with pytest.raises(ValueError, match=f"^line 7: .*{words}"):
        checked_messages(messages, "line 7")


def test_what_cannot_be_learned_is_refused():
    messages = [said("user", "u"), said("assistant", "BUY " * 20)]
    with pytest.raises(ValueError, match="more than answer_tokens 6"):
        segments_of([messages], CHAT, ALONE)
    with pytest.raises(ValueError, match="no conversation to learn from"):
        fine_tune(small_model()[0], [], CHAT.pad, SupervisedConfig())
    for name, value in (("epochs", 0), ("batch_size", 0), ("learning_rate", 0), ("held_out", 1)):
        with pytest.raises(ValueError, match=name):
            SupervisedConfig(**{name: value})
