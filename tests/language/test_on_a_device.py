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


@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.assembly), pytest.param("cuda", marks=[pytest.mark.gpu, MISSING])],
)
def test_accounts_likelihoods_and_an_update(device):
    model, _ = talking_model()
    one = LanguageGRPO(signal_env(ROWS, device=device), model.to(device), small_chat(), CONFIG, GROUP)
    env, other = one.env, signal_env(ROWS)
    for each in (env, other):
        each.reset_groups(ROWS // GROUP, GROUP, 3)
    while not bool(env.rows.done.all()):
        orders = one.agent.act(env)
        rewards = env.advance(orders), other.advance(TextDoor(other).parse(one.agent.said, range(ROWS))[0])
        assert torch.allclose(rewards[0].cpu(), rewards[1], atol=1e-6)
        assert TextDoor(env).render(range(ROWS)) == TextDoor(other).render(range(ROWS))
    assert torch.equal(env.state.cash.cpu(), other.state.cash)
    with torch.no_grad():
        for said in one.collect().said:
            told = torch.tensor([value for part in said for value in part.log_prob])
            found = torch.cat([segment_log_probs(one.model, [part], 0, 1.0) for part in said]).float().cpu()
            # A GPU multiplies in bfloat16, which has eight bits.
            assert torch.allclose(told, found, atol=1e-4 if device == "cpu" else 0.1)
    before = [parameter.detach().clone() for parameter in one.parameters]
    assert all(math.isfinite(value) for value in one.update().values())
    assert all(parameter.device.type == device for parameter in one.parameters)
    assert not all(map(torch.equal, before, one.parameters))
