"""Supervised training: the contexts of a rollout, answers alone learned from, the same seed the same weights."""

from __future__ import annotations

from copy import deepcopy
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


def test_the_same_seed_gives_the_same_weights_and_parts_the_gradients_of_the_whole():
    segments, steps = signal_segments()[:9], []
    config = SupervisedConfig(epochs=2, batch_size=3, learning_rate=5e-3, held_out=0.25)
    found, losses = [], []
    for seed, at_once in ((0, 10**6), (0, 10**6), (0, 600), (1, 10**6)):
        model, _ = small_model()
        show = lambda step, whole, loss: steps.append((step, whole, loss))  # noqa: E731
        told = fine_tune(model, segments, CHAT.pad, replace(config, tokens_at_once=at_once), seed, show)
        found.append([parameter.detach().clone() for parameter in model.parameters()])
        losses.append(told)
    # Two of nine are held out, so that an epoch has three steps.
    assert [(step, whole) for step, whole, _ in steps] == [(step, 6) for step in range(1, 7)] * 4
    assert losses[0] == losses[1] and all(map(torch.equal, found[0], found[1])) and losses[3] != losses[0]
    assert losses[0]["loss"] == pytest.approx(sum(loss for *_, loss in steps[3:6]) / 3)
    assert losses[2]["loss"] == pytest.approx(losses[0]["loss"], rel=1e-3)
    assert losses[0]["loss"] < steps[0][2] and losses[0]["held_out_loss"] < steps[0][2]


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


def test_steps_are_those_of_adamw_at_a_falling_rate():
    """On one context, beside a plain loop: gradients of a step are its own, clipped, and weights do not decay."""
    model, _ = small_model()
    plain, segment = deepcopy(model), signal_segments()[0][0]
    config = SupervisedConfig(epochs=3, batch_size=1, learning_rate=1e-3, held_out=0.0)
    fine_tune(model, [[segment]], CHAT.pad, config)
    tokens, answer = torch.tensor([segment.tokens]), torch.tensor(segment.drawn)
    optimiser = torch.optim.AdamW(plain.parameters(), weight_decay=0.0)
    for step in range(3):
        optimiser.param_groups[0]["lr"] = 1e-3 * (1 - step / 3)
        optimiser.zero_grad()
        log_probs = plain(tokens).logits[0, answer - 1].float().log_softmax(-1)
        (-log_probs.gather(-1, tokens[0, answer, None]).mean()).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), config.max_grad_norm)
        optimiser.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


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
