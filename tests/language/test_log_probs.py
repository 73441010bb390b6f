"""What was drawn has the log-probability that it was drawn with when it is evaluated anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.language.tiny import ALONE, signal_env, small_chat, small_model
from vecenv.language.agent import LanguageAgent
from vecenv.language.log_probs import flattened, packed, segment_log_probs


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("context_tokens", [700, 900, 2048])
@pytest.mark.assembly
def test_evaluated_as_drawn(temperature, context_tokens):
    model, _ = small_model()
    config = replace(ALONE, history_days=None, context_tokens=context_tokens, temperature=temperature)
    env, chat = signal_env(5), small_chat()
    agent = LanguageAgent(model, chat, config)
    while not bool(env.rows.done.all()):
        env.advance(agent.act(env))
    segments = flattened([one.segments for one in agent.conversations])
    assert context_tokens == 2048 or len(segments) > 5
    drawn = [value for segment in segments for value in segment.log_prob]
    with torch.no_grad():
        again = segment_log_probs(model, segments, chat.pad, temperature)
    assert again.tolist() == pytest.approx(drawn, abs=1e-4) and min(drawn) < -3
    # Others at another temperature.
    assert again.tolist() != pytest.approx(segment_log_probs(model, segments, chat.pad, 2.0).tolist(), abs=0.1)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 100))
def test_parts_hold_everything_once_within_the_bound(sizes, most):
    parts = list(packed(sizes, most))
    assert sorted(place for part in parts for place in part) == list(range(len(sizes)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(sizes[place] for place in part) <= most
