"""Nothing that an agent is shown or paid up to a row depends on later rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from random_books import random_tape

from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.state import LobState
from vecenv.tasks.crypto_lob.tape import BookTape
from vecenv.tasks.crypto_lob.text.lob_text import LobText

STEPS = 12


def with_another_future(tape: BookTape, row: int) -> BookTape:
    """Return a tape that is the same up to a row; later rows have other prices, sizes, trades and factors."""
    later = torch.arange(tape.num_rows) > row
    price = torch.where(later[:, None, None] & (tape.price > 0), tape.price + 37, tape.price)
    return replace(
        tape,
        price=price,
        size=torch.where(later[:, None, None] & (tape.size > 0), tape.size % 7 + 1, tape.size),
        taken=torch.where(later[:, None], tape.taken + 5, tape.taken),
        doubled_mid=torch.where(later, tape.doubled_mid + 74, tape.doubled_mid),
        factors=torch.where(later[:, None], -tape.factors, tape.factors),
    )


@pytest.mark.parametrize("latency", [0, 2])
@pytest.mark.parametrize("action", ["step", "target", "continuous", "limit"])
def test_nothing_that_is_shown_or_paid_knows_the_future(action, latency):
    """Observation, reward, account and text up to a row; at the next one they part."""
    draw = np.random.default_rng(latency)
    tape = random_tape(draw, rows=60)
    config = CryptoLobConfig(
        action=action, latency=latency, episode_steps=40, random_start=False, step_gap=0.5, max_gap=100.0, depth=2
    )
    first = CryptoLob(config, tape)
    start = int(first.shared["starts"][0])
    both = [first, CryptoLob(config, with_another_future(tape, start + STEPS))]
    envs = [VecEnv(scenario, 4, seed=3, compile=False) for scenario in both]
    texts = [LobText(scenario) for scenario in both]
    for step in range(STEPS + 1):
        actions = random_action(first.action_spec, envs[0].episode_keys, envs[0].rows.elapsed)
        rewards = [env.advance(actions, eager=True) for env in envs]
        shown = [env.observations() for env in envs]
        if step == STEPS:
            break
        assert torch.equal(*shown)
        assert torch.equal(*rewards)
        for name in LobState.__annotations__:
            assert torch.equal(*(getattr(env.state, name) for env in envs)), name
        told, same = (text.render(seen, env.state) for text, seen, env in zip(texts, shown, envs, strict=True))
        assert told == same
    assert not torch.equal(*shown)
