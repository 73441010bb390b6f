"""Batched generation with kept keys and values draws what a model without any of it draws for each row alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.language.tiny import ALONE, signal_env, small_chat, small_model
from vecenv.language.agent import LanguageAgent
from vecenv.language.generation import GenerationContext, drawn, left_padded, positions
from vecenv.language.log_probs import flattened, packed, segment_log_probs

STOP, PAD, MOST = frozenset(range(4, 400, 3)), 0, 5


def alone(model, tokens, uniforms, temperature):
    """Draw an answer by whole forward passes over one row, in float64 from the logits on."""
    answer, log_probs = [], []
    for uniform in uniforms:
        with torch.no_grad():
            logits = model(torch.tensor([tokens + answer]), use_cache=False).logits[0, -1].double()
        if temperature == 0:
            token, log_prob = int(logits.argmax()), 0.0
        else:
            probability = (logits / temperature).softmax(-1)
            token = int((probability.cumsum(-1) < uniform).sum())
            log_prob = float(probability[token].log())
        answer.append(token)
        log_probs.append(log_prob)
        if token in STOP:
            break
    return answer, log_probs


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_turns_of_rows_of_unequal_length(temperature):
    """Four turns; rows read stretches of unequal length, in pieces, some stop early, and some have no turn."""
    model, tokenizer = small_model(scale=3.0)
    generator = torch.Generator().manual_seed(3)
    rows, lengths = 5, []
    context, tokens = GenerationContext(model, rows, PAD), [[] for _ in range(rows)]
    for turn in range(4):
        idle = {0: set(), 1: {2}, 2: {0, 2}, 3: {1}}[turn]
        sizes = [0 if row in idle else 4 + 7 * ((row + turn) % 3) for row in range(rows)]
        chunks = [torch.randint(5, len(tokenizer), (size,), generator=generator).tolist() for size in sizes]
        uniforms = torch.rand(MOST, rows, generator=generator, dtype=torch.float64)
        for part in (slice(None, 3), slice(3, None)):
            context.read([chunk[part] for chunk in chunks])
        active = torch.tensor([row not in idle for row in range(rows)])
        written = context.write(lambda number, uniforms=uniforms: uniforms[number], STOP, MOST, temperature, active)
        assert not bool(written.mask[~active].any())
        for row in range(rows):
            if row in idle:
                continue
            tokens[row] += chunks[row]
            answer, log_probs = alone(model, tokens[row], uniforms[:, row].tolist(), temperature)
            count = int(written.mask[row].sum())
            assert written.tokens[row, :count].tolist() == answer and not bool(written.mask[row, count:].any())
            assert written.log_prob[row, :count].tolist() == pytest.approx(log_probs, abs=2e-5)
            tokens[row] += answer
            lengths.append(count)
    assert len(set(lengths)) > 1


def test_draws_follow_the_probabilities():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -30.0]).expand(40_000, 5)
    uniform = (torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000
    for temperature in (1.0, 0.7):
        token, log_prob = drawn(logits, uniform, temperature)
        expected = (logits[0].double() / temperature).softmax(-1)
        share = torch.bincount(token, minlength=5).double() / 40_000
        assert torch.allclose(share, expected, atol=5e-5)
        assert torch.allclose(log_prob.double(), expected.log()[token], atol=1e-6)
    token, log_prob = drawn(logits, uniform, 0.0)
    assert bool((token == 3).all()) and not bool(log_prob.any())
    # Whatever a row holds that does not write, a token comes out.
    token, _ = drawn(torch.full((2, 5), torch.nan), uniform[:2], 1.0)
    assert bool((token < 5).all())


def test_padding_is_on_the_left_and_counts_no_place():
    tokens, mask = left_padded([[7, 8, 9], [], [5]], PAD, torch.device("cpu"))
    assert tokens.tolist() == [[7, 8, 9], [0, 0, 0], [0, 0, 5]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 1]]
    assert positions(torch.tensor([[0, 1, 0, 1, 1]])).tolist() == [[0, 0, 0, 1, 2]]


@pytest.mark.parametrize(("temperature", "context_tokens"), [(1.0, 900), (0.6, 2048)])
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
