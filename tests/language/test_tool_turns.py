"""Days of several turns: calls, what they say, and answers, in conversations that keep their budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.language.tiny import ALONE, DAYS, signal_env, small_chat
from vecenv.language import agent as agent_module
from vecenv.language.agent import LanguageAgent
from vecenv.language.conversation import NO_ROOM
from vecenv.language.generation import Written
from vecenv.text.door import TextDoor
from vecenv.text.tool_calls import FAULT

CHAT = small_chat()
LONG = replace(ALONE, history_days=None, context_tokens=8000, answer_tokens=60, tools=("all",), turns=3)
PRICES = '{"name": "price_history", "arguments": {"days": 2}}'
PLAN = '<tool_call>{"name": "what_if", "arguments": {"orders": "BUY"}}</tool_call>'


class Scripted:
    """Stands for the model: says what a script has for the row, and keeps what it reads."""

    def __init__(self, script) -> None:
        self.script, self.made, self.draws = script, [], []

    def __call__(self, model, rows, pad):
        self.read_so_far = [[] for _ in range(rows)]
        self.made.append(self)
        return self

    def read(self, chunks):
        for own, chunk in zip(self.read_so_far, chunks, strict=True):
            own.extend(chunk)

    def write(self, draws, stop, most, temperature, active):
        self.draws += [float(value) for number in range(3) for value in draws(number)[active]]
        tokens = torch.zeros(len(active), most, dtype=torch.int64)
        mask = torch.zeros(len(active), most, dtype=torch.bool)
        for row in active.nonzero().squeeze(-1).tolist():
            (answer,) = CHAT.answers([self.script(row, CHAT.tokenizer.decode(self.read_so_far[row]))])
            tokens[row, : len(answer)] = torch.tensor(answer)
            mask[row, : len(answer)] = True
            self.read_so_far[row].extend(answer)
        return Written(tokens, torch.zeros(len(active), most), mask)


@pytest.fixture
def scripted(monkeypatch):
    def install(script):
        stand_in = Scripted(script)
        monkeypatch.setattr(agent_module, "GenerationContext", stand_in)
        return stand_in

    return install


def calls_then(answer, *calls):
    """Return a script of one row: its calls first, one a turn of the day, then an answer."""

    def say(context):
        today = context.rpartition("<|user|>Day ")[2]
        turn = today.count("<|assistant|>") - 1
        return (*calls, answer)[min(turn, len(calls))]

    return say


def test_rows_call_what_they_want_and_answer_when_they_like(scripted):
    """One calls and answers, one answers, one calls for ever, one calls what there is not."""
    rows = [
        calls_then("BUY 0.5", PRICES),
        calls_then("BUY 0.25"),
        calls_then(PRICES, PRICES, PLAN),
        calls_then("HOLD", '{"name": "moon"}', PLAN),
    ]
    model = scripted(lambda row, context: rows[row](context))
    env = signal_env(4, seed=3)
    agent = LanguageAgent(None, CHAT, LONG)
    orders = TextDoor(env).parse(["BUY 0.5", "BUY 0.25", PRICES, "HOLD"], range(4))[0]
    for day in range(DAYS):
        action = agent.act(env)
        assert agent.said == ["BUY 0.5", "BUY 0.25", PRICES, "HOLD"] and torch.equal(action, orders)
        env.advance(action)
        for row, (conversation, turns) in enumerate(zip(agent.conversations, (2, 1, 3, 3), strict=True)):
            assert conversation.turns == turns * (day + 1)
            (segment,) = conversation.segments
            # What the model read and wrote, in pieces, is the conversation.
            assert model.read_so_far[row] == segment.tokens
            days = dict(zip(segment.turn, segment.day, strict=True))
            assert [days[turn] for turn in sorted(days)] == [number for number in range(day + 1) for _ in range(turns)]
    # No number is drawn twice: not in other rows, days, turns or places of an answer.
    assert len(model.made) == 1 and len(set(model.draws)) == len(model.draws) == 3 * DAYS * 9
    assert agent.calls == {"days": DAYS * 4, "calls": DAYS * 5, "faults": DAYS}
    texts = [CHAT.tokenizer.decode(tokens) for tokens in model.read_so_far]
    assert texts[0].count(f"<|assistant|>{PRICES}<|end|><|user|>RELIANCE, closes of the last 2 days") == DAYS
    assert f"<|user|>{FAULT}there is no tool 'moon'" in texts[3] and "<|user|>bought " in texts[3]
    assert "at most 2 a day" in texts[1] and "calculator" in texts[1]
    assert env.info()["invalid_actions"].tolist() == [0, 0, DAYS, 0]


def test_calls_of_the_other_form(scripted):
    script = calls_then("Thought: so be it\nFinal Answer: BUY 0.5", "Thought: look\nAction: position")
    model = scripted(lambda row, context: script(context))
    env = signal_env(2)
    agent = LanguageAgent(None, CHAT, replace(LONG, tool_form="react", tools=("account",)))
    agent.act(env)
    assert agent.said == [" BUY 0.5"] * 2
    text = CHAT.tokenizer.decode(model.read_so_far[0])
    assert "RELIANCE: no shares" in text and "Action Input: " in text and "price_history" not in text


@pytest.mark.parametrize(("history", "context_tokens"), [(None, 1060), (0, 1200), (1, 1200), (None, 1500)])
def test_budgets_hold_with_tools(scripted, history, context_tokens):
    """The day stays in view whatever its tools say, and contexts are what the model reads, whoever begins anew."""
    long = '{"name": "price_history", "arguments": {"days": 30}}'
    rows = [calls_then("BUY 0.5", long, PRICES), calls_then("HOLD"), calls_then("HOLD", PRICES)]
    model = scripted(lambda row, context: rows[row](context))
    env = signal_env(3, seed=3)
    config = replace(LONG, context_tokens=context_tokens, history_days=history)
    agent = LanguageAgent(None, CHAT, config)
    for _ in range(DAYS):
        shown = TextDoor(env).render(range(3))
        env.advance(agent.act(env))
        for row, conversation in enumerate(agent.conversations):
            tokens = conversation.segments[-1].tokens
            assert len(tokens) <= context_tokens and model.read_so_far[row] == tokens
            assert shown[row] in CHAT.tokenizer.decode(tokens)
    # A script that no longer sees its first call makes it again.
    turns = [one.turns for one in agent.conversations]
    assert turns[:2] == [3 * DAYS, DAYS] and 2 * DAYS <= turns[2] <= 3 * DAYS
    for one in agent.conversations:
        drawn = [turn for segment in one.segments for turn in segment.turn]
        assert drawn == sorted(drawn) and set(drawn) == set(range(one.turns))


def test_what_does_not_fit_beside_the_day_is_said_so(scripted):
    long = '{"name": "price_history", "arguments": {"days": 60}}'
    script = calls_then("HOLD", long)
    model = scripted(lambda row, context: "HOLD" if NO_ROOM in context else script(context))
    env = signal_env(1)
    config = replace(LONG, history_days=0)
    (system,) = TextDoor(env).instructions([0])
    tools = TextDoor(env).text.tools(["all"]).instructions("json", 2)
    (opening,) = CHAT.openings([f"{system}\n{tools}"], TextDoor(env).render([0]))
    agent = LanguageAgent(None, CHAT, replace(config, context_tokens=len(opening) + 60 + 50))
    agent.act(env)
    assert NO_ROOM in CHAT.tokenizer.decode(model.read_so_far[0]) and agent.said == ["HOLD"]
