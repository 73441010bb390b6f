"""Language agents: what they see and say, alone or among others, the tools that they call, and how they draw."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.language.tiny import ALONE, DAYS, signal_env, small_chat, small_model, talking_model
from vecenv.language import agent as agent_module
from vecenv.language.agent import AgentWithoutAdapters, LanguageAgent
from vecenv.language.conversation import NO_ROOM
from vecenv.language.generation import GenerationContext, Written, drawn
from vecenv.language.log_probs import packed
from vecenv.language.models import with_adapters
from vecenv.tasks.experiment.comparison import spoken_episodes
from vecenv.tasks.tiers.records import TierRecording
from vecenv.text.door import TextDoor
from vecenv.text.tool_calls import FAULT

MODEL, TOKENIZER = small_model()
CHAT = small_chat()
SLIDING = replace(ALONE, history_days=None, context_tokens=1050)
LONG = replace(ALONE, history_days=None, context_tokens=8000, answer_tokens=60, tools=("all",), turns=3)
PRICES = '{"name": "price_history", "arguments": {"days": 2}}'
PLAN = '<tool_call>{"name": "what_if", "arguments": {"orders": "BUY"}}</tool_call>'


def played(num_envs: int, ids=None):
    """Return what was said each day, and the agent after an episode in which it saw what it should."""
    env, said = signal_env(num_envs, seed=3), []
    agent = LanguageAgent(MODEL, CHAT, SLIDING, ids)
    rows, shown = list(range(num_envs)) if ids is None else ids, []
    while not bool(env.rows.done.all()):
        shown.append(TextDoor(env).render(rows))
        action = env.action_spec.zero()
        action[rows] = agent.act(env)
        said.append(agent.said)
        env.advance(action)
        for place, (row, conversation) in enumerate(zip(rows, agent.conversations, strict=True)):
            segment = conversation.segments[-1]
            context = TOKENIZER.decode(segment.tokens[: segment.drawn[-1]])
            assert context.startswith(f"<|system|>{TextDoor(env).instructions([row])[0]}<|end|><|user|>Day ")
            # After an invalid answer the day is followed by why it was that.
            asked = re.search(re.escape(f"<|user|>{shown[-1][place]}") + r"(\nYour last answer .*)?<\|end\|>", context)
            assert asked is not None
            kept = [day for day in range(len(shown)) if shown[day][place] in context]
            assert kept == list(range(kept[0], len(shown)))
    assert any(1 < len(one.segments) < DAYS for one in agent.conversations)
    return said, agent


def test_a_row_is_shown_its_days_and_says_the_same_alone_as_among_others():
    among, agent = played(6)
    part, some = played(6, [4, 1])
    assert [[day[4], day[1]] for day in among] == part
    for one, own in zip((agent.conversations[4], agent.conversations[1]), some.conversations, strict=True):
        for here, there in zip(one.segments, own.segments, strict=True):
            assert here.tokens == there.tokens and here.log_prob == pytest.approx(there.log_prob, abs=1e-4)
    assert len({text for day in among for text in day}) > 6


def test_rows_that_are_over_say_nothing_and_new_episodes_begin_anew():
    env = signal_env(3, seed=3)
    agent = LanguageAgent(MODEL, CHAT, replace(SLIDING, context_tokens=2048))
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


def test_its_own_words_are_recorded():
    agent = LanguageAgent(MODEL, CHAT, ALONE)
    records = TierRecording().record(signal_env(4), agent, [2, 0], seed=2)
    assert [len(record.days) for record in records] == [DAYS, DAYS]
    for record, row in zip(records, (2, 0), strict=True):
        segment = agent.conversations[row].segments[-1]
        (written,) = CHAT.texts([[segment.tokens[place] for place in segment.drawn]])
        assert record.days[-1].messages[1]["content"] == written


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


def scripted(monkeypatch, script):
    stand_in = Scripted(script)
    monkeypatch.setattr(agent_module, "GenerationContext", stand_in)
    return stand_in


def calls_then(answer, *calls):
    """Return a script of one row: its calls first, one a turn of the day, then an answer."""

    def say(context):
        today = context.rpartition("<|user|>Day ")[2]
        turn = today.count("<|assistant|>") - 1
        return (*calls, answer)[min(turn, len(calls))]

    return say


def test_rows_call_what_they_want_and_answer_when_they_like(monkeypatch):
    """One calls and answers, one answers, one calls for ever, one calls what there is not."""
    rows = [
        calls_then("BUY 0.5", PRICES),
        calls_then("BUY 0.25"),
        calls_then(PRICES, PRICES, PLAN),
        calls_then("HOLD", '{"name": "moon"}', PLAN),
    ]
    model = scripted(monkeypatch, lambda row, context: rows[row](context))
    env = signal_env(4, seed=3)
    agent = LanguageAgent(None, CHAT, LONG)
    answers = ["BUY 0.5", "BUY 0.25", PRICES, "HOLD"]
    orders = TextDoor(env).parse(answers, range(4))[0]
    for day in range(DAYS):
        action = agent.act(env)
        assert agent.said == answers and torch.equal(action, orders)
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
    assert agent.calls == {"days": DAYS * 4, "calls": DAYS * 5, "faults": DAYS, "invalid": DAYS}
    texts = [CHAT.tokenizer.decode(tokens) for tokens in model.read_so_far]
    assert texts[0].count(f"<|assistant|>{PRICES}<|end|><|user|>RELIANCE, closes of the last 2 days") == DAYS
    assert f"<|user|>{FAULT}there is no tool 'moon'" in texts[3] and "<|user|>bought " in texts[3]
    assert "at most 2 a day" in texts[1] and "calculator" in texts[1]
    assert env.info()["invalid_actions"].tolist() == [0, 0, DAYS, 0]
    # Calls of the other form.
    script = calls_then("Thought: so be it\nFinal Answer: BUY 0.5", "Thought: look\nAction: position")
    model, env = scripted(monkeypatch, lambda row, context: script(context)), signal_env(2)
    agent = LanguageAgent(None, CHAT, replace(LONG, tool_form="react", tools=("account",)))
    agent.act(env)
    assert agent.said == [" BUY 0.5"] * 2
    text = CHAT.tokenizer.decode(model.read_so_far[0])
    assert "RELIANCE: no shares" in text and "Action Input: " in text and "price_history" not in text


@pytest.mark.parametrize(("history", "context_tokens"), [(None, 1060), (0, 1200), (1, 1200)])
def test_budgets_hold_with_tools(monkeypatch, history, context_tokens):
    """The day stays in view whatever its tools say, and contexts are what the model reads, whoever begins anew."""
    long = '{"name": "price_history", "arguments": {"days": 30}}'
    rows = [calls_then("BUY 0.5", long, PRICES), calls_then("HOLD"), calls_then("HOLD", PRICES)]
    model, env = scripted(monkeypatch, lambda row, context: rows[row](context)), signal_env(3, seed=3)
    agent = LanguageAgent(None, CHAT, replace(LONG, context_tokens=context_tokens, history_days=history))
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


def test_what_does_not_fit_beside_the_day_is_said_so(monkeypatch):
    script = calls_then("HOLD", '{"name": "price_history", "arguments": {"days": 60}}')
    model = scripted(monkeypatch, lambda row, context: "HOLD" if NO_ROOM in context else script(context))
    env = signal_env(1)
    (system,), tools = TextDoor(env).instructions([0]), TextDoor(env).text.tools(["all"]).instructions("json", 2)
    (opening,) = CHAT.openings([f"{system}\n{tools}"], TextDoor(env).render([0]))
    agent = LanguageAgent(None, CHAT, replace(LONG, history_days=0, context_tokens=len(opening) + 60 + 50))
    agent.act(env)
    assert NO_ROOM in CHAT.tokenizer.decode(model.read_so_far[0]) and agent.said == ["HOLD"]


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


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 100))
def test_parts_hold_everything_once_within_the_bound(sizes, most):
    parts = list(packed(sizes, most))
    assert sorted(place for part in parts for place in part) == list(range(len(sizes)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(sizes[place] for place in part) <= most


def test_what_the_model_said_before_its_adapters_were_trained_is_recorded():
    """As in an evaluation of it, in the first rows of the test, and with the adapters otherwise."""
    env, (before, adapted) = signal_env(12), (talking_model()[0] for _ in range(2))
    adapted = with_adapters(adapted, 2)
    for name, tensor in adapted.named_parameters():
        if "lora_B" in name:
            tensor.data.normal_(generator=torch.Generator().manual_seed(1))
    kinds = ((LanguageAgent, before), (AgentWithoutAdapters, adapted), (LanguageAgent, adapted))
    agents = [kind(model, CHAT, ALONE) for kind, model in kinds]
    said = [spoken_episodes(env, agent, 3, {"market": "planted"}) for agent in agents]
    assert said[0] == said[1] != said[2] and len(said[0]) == 8
    whole = env.scenario.task.check_recording().record(env, agents[0], range(8), 3, {"market": "planted"})
    assert [record.steps for record in whole] == [record.steps for record in said[0]]
