"""Language agents in an environment: what they see and say, alone or among others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.language.tiny import ALONE, DAYS, signal_env, small_chat, small_model
from vecenv.language.agent import LanguageAgent
from vecenv.language.config import AnswerConfig
from vecenv.learn.evaluation import evaluate
from vecenv.tasks.commands.comparison import held_out_environment
from vecenv.tasks.tiers.records import TierRecording
from vecenv.text.door import TextDoor

MODEL, TOKENIZER = small_model()
CHAT = small_chat()
CONFIGS = {
    "alone": ALONE,
    "growing": replace(ALONE, history_days=None, context_tokens=2048),
    "sliding": replace(ALONE, history_days=None, context_tokens=900),
}


def played(config: AnswerConfig, num_envs: int, ids=None):
    """Return what was said each day, and the agent after an episode."""
    env = signal_env(num_envs, seed=3)
    agent = LanguageAgent(MODEL, CHAT, config, ids)
    rows = list(range(num_envs)) if ids is None else ids
    said = []
    while not bool(env.rows.done.all()):
        action = env.action_spec.zero()
        action[rows] = agent.act(env)
        said.append(agent.said)
        env.advance(action)
    return said, agent


@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_is_shown_the_day_after_the_instructions(name):
    env = signal_env(3, seed=3)
    agent = LanguageAgent(MODEL, CHAT, CONFIGS[name])
    shown = []
    for _ in range(DAYS):
        texts = TextDoor(env).render(range(3))
        shown.append(texts)
        env.advance(agent.act(env))
        for row, conversation in enumerate(agent.conversations):
            segment = conversation.segments[-1]
            context = TOKENIZER.decode(segment.tokens[: [place for place in segment.drawn][-1]])
            assert context.startswith(f"<|system|>{TextDoor(env).instructions([row])[0]}<|end|><|user|>Day ")
            assert f"<|user|>{texts[row]}<|end|><|assistant|>" in context
            kept = [day for day in range(len(shown)) if shown[day][row] in context]
            assert kept == list(range(kept[0], len(shown)))
            if name == "alone":
                assert len(kept) == 1
            if name == "growing":
                assert len(kept) == len(shown)
    assert name != "sliding" or any(1 < len(one.segments) < DAYS for one in agent.conversations)


@pytest.mark.parametrize("name", ["alone", "sliding"])
def test_a_row_says_the_same_alone_as_among_others(name):
    among, agent = played(CONFIGS[name], 6)
    part, some = played(CONFIGS[name], 6, [4, 1])
    assert [[day[4], day[1]] for day in among] == part
    for one, own in zip((agent.conversations[4], agent.conversations[1]), some.conversations, strict=True):
        assert [segment.tokens for segment in one.segments] == [segment.tokens for segment in own.segments]
        for here, there in zip(one.segments, own.segments, strict=True):
            assert here.log_prob == pytest.approx(there.log_prob, abs=1e-4)
    assert len({text for day in among for text in day}) > 6


def test_members_of_a_group_see_the_same_and_say_different_things():
    env = signal_env(8)
    env.reset_groups(2, 4, seed=1)
    agent = LanguageAgent(MODEL, CHAT, ALONE)
    agent.act(env)
    contexts = [one.segments[0].tokens[: one.segments[0].drawn[0]] for one in agent.conversations]
    assert contexts[:4] == [contexts[0]] * 4 and contexts[4:] == [contexts[4]] * 4 and contexts[0] != contexts[4]
    assert len(set(agent.said[:4])) > 1


def test_rows_that_are_over_say_nothing_and_new_episodes_begin_anew():
    env = signal_env(3, seed=3)
    agent = LanguageAgent(MODEL, CHAT, CONFIGS["growing"])
    mask = torch.tensor([True, False, True])
    for _ in range(DAYS):
        env.advance(agent.act(env), mask)
    assert env.rows.done.tolist() == [True, False, True]
    before = agent.conversations[1]
    action = agent.act(env)
    assert agent.said[0] == agent.said[2] == ""
    # The row that was held back is asked on the same day again, then the others begin their next episodes.
    assert agent.conversations[1] is not before and agent.conversations[1].turns == 1
    env.advance(action)
    env.restart(env.rows.done)
    agent.act(env)
    assert [one.turns for one in agent.conversations] == [1, 2, 1]


def test_it_is_evaluated_and_recorded_like_any_agent():
    env, _ = held_out_environment("single_stock_costs", signal_env(1).scenario.tape, signal_env(1).scenario.config, 4)
    agent = LanguageAgent(MODEL, CHAT, ALONE)
    evaluation = evaluate(env, {"model": agent, "hold": env.scenario.task.agents["hold"]()}, seed=2)
    assert set(evaluation.records) == {"model", "hold"}
    records = TierRecording().record(env, agent, [2, 0], seed=2)
    assert [len(record.days) for record in records] == [DAYS, DAYS]
    written = [agent.conversations[row].segments[-1] for row in (2, 0)]
    for record, segment in zip(records, written, strict=True):
        assert (
            record.days[-1].messages[1]["content"]
            == CHAT.texts([[segment.tokens[place] for place in segment.drawn]])[0]
        )


def test_a_context_that_is_too_small_is_refused_at_the_first_day():
    env = signal_env(2)
    with pytest.raises(ValueError, match="context_tokens 100 are too few"):
        LanguageAgent(MODEL, CHAT, replace(ALONE, context_tokens=100)).act(env)
