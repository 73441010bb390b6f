"""Language models trade in the agent-based market: they answer, are trained by groups, and groups share a market."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vecenv.language.config import LanguageConfig
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.models import chat_format
from vecenv.language.supervised import SupervisedConfig
from vecenv.language.supervised_training import fine_tune, segments_of
from vecenv.language.tiny_config import TinyConfig
from vecenv.language.tiny_model import tiny_model
from vecenv.learn.grpo_config import EpisodeReward
from vecenv.registry import make_spoken
from vecenv.text.door import TextDoor

GROUP, ROWS, STEPS = 4, 8, 3
SHORT = {"max_ticks": 30 * STEPS, "seed": 2, "room": 32}
CONFIG = LanguageConfig(
    context_tokens=2_500,
    answer_tokens=8,
    history_days=0,
    minibatches=1,
    learning_rate=1e-3,
    total_frames=STEPS * ROWS,
    reward=EpisodeReward(grade=0.0, total_return=0.0, steps=1.0, invalid=0.1),
)
ANSWERS = ("BUY", "SELL", "HOLD", "CANCEL")


def taught(task: str):
    """A tiny model that has learned to give one of the shortest answers, whatever it is shown."""
    env = make_spoken(task, ROWS, **SHORT)
    door, ids = TextDoor(env), range(ROWS)
    shown, told = door.render(ids), door.instructions(ids)
    model, tokenizer = tiny_model(
        (*shown, *told, *ANSWERS), TinyConfig(hidden=32, layers=1, heads=2, vocabulary=400), 0
    )
    roles = ("system", "user", "assistant")
    days = zip(told, shown, ANSWERS * (ROWS // len(ANSWERS)), strict=True)
    messages = [[{"role": role, "content": text} for role, text in zip(roles, day, strict=True)] for day in days]
    chat = chat_format(model, tokenizer)
    training = SupervisedConfig(epochs=30, batch_size=ROWS, learning_rate=1e-2, held_out=0.0)
    fine_tune(model, segments_of(messages, chat, CONFIG), chat.pad, training)
    return model, chat


@pytest.mark.nightly
@pytest.mark.parametrize("task", ["agent_market", "execution", "market_making"])
def test_a_model_is_trained_by_groups_that_share_a_market(task):
    model, chat = taught(task)
    learner = LanguageGRPO(make_spoken(task, ROWS, **SHORT), model, chat, replace(CONFIG), GROUP)
    before = [parameter.detach().clone() for parameter in learner.parameters]
    learner.update()
    state = learner.env.state
    assert int(state.invalid.sum()) < STEPS * ROWS / 2
    firsts = state.first_mid.reshape(-1, GROUP)
    assert bool((firsts == firsts[:, :1]).all()) and int(firsts[0, 0]) != int(firsts[1, 0])
    assert bool((state.traded > 0).any())
    changed = [not torch.equal(old, new) for old, new in zip(before, learner.parameters, strict=True)]
    assert any(changed)
