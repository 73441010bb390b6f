"""The learner of language models where its model is: draws, likelihoods and accounts agree on a CPU and on a GPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.language.tiny import ALONE, DAYS, signal_env, small_chat, talking_model
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.log_probs import segment_log_probs
from vecenv.learn.grpo_config import EpisodeReward
from vecenv.text.door import TextDoor

GROUP, ROWS = 4, 8
CONFIG = replace(ALONE, minibatches=2, learning_rate=1e-3, total_frames=DAYS * ROWS, reward=EpisodeReward())
MISSING = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, MISSING])]


def learner(device: str) -> LanguageGRPO:
    model, _ = talking_model()
    return LanguageGRPO(signal_env(ROWS, device=device), model.to(device), small_chat(), CONFIG, GROUP)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.assembly
def test_what_was_drawn_has_the_likelihood_that_is_told(device):
    one = learner(device)
    with torch.no_grad():
        episodes = one.collect()
        for said in episodes.said:
            told = torch.tensor([value for part in said for value in part.log_prob])
            found = torch.cat([segment_log_probs(one.model, [part], 0, 1.0) for part in said]).float().cpu()
            # A GPU multiplies in bfloat16, which has eight bits.
            assert torch.allclose(told, found, atol=1e-4 if device == "cpu" else 0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.assembly
def test_accounts_are_those_of_the_same_answers_on_a_cpu(device):
    one = learner(device)
    env = one.env
    env.reset_groups(ROWS // GROUP, GROUP, 3)
    other = signal_env(ROWS)
    other.reset_groups(ROWS // GROUP, GROUP, 3)
    while not bool(env.rows.done.all()):
        orders = one.agent.act(env)
        rewards = env.advance(orders), other.advance(TextDoor(other).parse(one.agent.said, range(ROWS))[0])
        assert torch.allclose(rewards[0].cpu(), rewards[1], atol=1e-6)
        assert TextDoor(env).render(range(ROWS)) == TextDoor(other).render(range(ROWS))
    assert torch.equal(env.state.cash.cpu(), other.state.cash)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.assembly
def test_an_update(device):
    one = learner(device)
    before = [parameter.detach().clone() for parameter in one.parameters]
    metrics = one.update()
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(parameter.device.type == device for parameter in one.parameters)
    assert not all(map(torch.equal, before, one.parameters))
