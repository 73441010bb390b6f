"""A conversation keeps its budget, drops the oldest days, and has every answer drawn once, after what the model saw."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.language.tiny import small_chat
from vecenv.language.config import AnswerConfig
from vecenv.language.conversation import Conversation, ask_all

CHAT = small_chat()
SYSTEM = "Trade well."


def day_text(number: int, length: int) -> str:
    return f"Day {number}: " + "x" * length


def contexts(texts, answers, config):
    """Return the context before every answer as a reader of the rules would make it, by brute force."""
    system_and = lambda first: CHAT.openings([SYSTEM], [texts[first]])[0]  # noqa: E731
    followings = CHAT.followings(texts)

    def context(first, last):
        tokens = system_and(first)
        for number in range(first + 1, last + 1):
            tokens = tokens + answers[number - 1] + CHAT.joined(answers[number - 1], followings[number])
        return tokens

    most, half, first, found = config.context_tokens - config.answer_tokens, config.context_tokens // 2, 0, []
    for day in range(len(texts)):
        if config.history_days is not None and day - first > config.history_days:
            first, limit = day - config.history_days, most
        else:
            limit = most if len(context(first, day)) <= most else most - half
        while first < day and len(context(first, day)) > limit:
            first += 1
        found.append((first, context(first, day)))
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5), st.booleans()), min_size=1, max_size=9),
    st.integers(90, 260),
    st.sampled_from([None, 0, 1, 3]),
)
def test_budget_windows_and_answers(days, context_tokens, history):
    config = AnswerConfig(context_tokens=context_tokens, answer_tokens=6, history_days=history)
    texts = [day_text(number, length) for number, (length, _, _) in enumerate(days)]
    end = CHAT.closing[:1]
    answers = [[40 + number] * count + (end if ends else []) for number, (_, count, ends) in enumerate(days)]
    conversation = Conversation(CHAT, config, SYSTEM)
    expected = contexts(texts, answers, config)
    before = -1
    for day, (text, answer, (first, context)) in enumerate(zip(texts, answers, expected, strict=True)):
        (added,) = ask_all([conversation], [text], [day])
        assert conversation.segments[-1].tokens == context and len(context) + 6 <= context_tokens
        assert (added is None) == (first != before or day == 0 or history == 0)
        if added is not None:
            assert context[-len(added) :] == added
        conversation.answered(answer, [0.5 * day] * len(answer))
        before = first
    assert conversation.turns == len(days)
    drawn = [
        (turn, segment.tokens[place], log_prob)
        for segment in conversation.segments
        for place, turn, log_prob in zip(segment.drawn, segment.turn, segment.log_prob, strict=True)
    ]
    assert drawn == [(day, token, 0.5 * day) for day, answer in enumerate(answers) for token in answer]


def test_conversations_are_asked_together_as_alone():
    config = AnswerConfig(context_tokens=120, answer_tokens=6)
    alone = [Conversation(CHAT, config, f"{SYSTEM} {number}") for number in range(4)]
    together = [Conversation(CHAT, config, f"{SYSTEM} {number}") for number in range(4)]
    for day in range(6):
        texts = [day_text(day, 9 * number) for number in range(4)]
        # One begins two days late.
        asked = [number for number in range(4) if number or day > 1]
        answers = {number: [50 + number] * (number + 1) for number in asked}
        added = ask_all([together[number] for number in asked], [texts[number] for number in asked], [day] * len(asked))
        for number, tokens in zip(asked, added, strict=True):
            assert ask_all([alone[number]], [texts[number]], [day]) == [tokens]
            for conversation in (alone[number], together[number]):
                conversation.answered(answers[number], [0.0] * len(answers[number]))
    assert [one.segments for one in alone] == [one.segments for one in together]
    assert any(len(one.segments) > 1 for one in alone)
    assert ask_all([], [], []) == []


def test_a_day_that_cannot_fit_is_refused():
    config = AnswerConfig(context_tokens=60, answer_tokens=6)
    conversation = Conversation(CHAT, config, SYSTEM)
    with pytest.raises(ValueError, match="context_tokens 60 are too few: instructions and one day take"):
        ask_all([conversation], [day_text(0, 60)], [0])
    ask_all([conversation], [day_text(0, 2)], [0])
    conversation.answered([40], [0.0])
    with pytest.raises(ValueError, match="too few"):
        ask_all([conversation], [day_text(1, 60)], [1])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("context_tokens", 1), ("answer_tokens", 0), ("history_days", -1), ("temperature", -0.1), ("answer_tokens", 2048)],
)
def test_bad_settings_are_refused(setting, value):
    with pytest.raises(ValueError, match=setting):
        AnswerConfig(**{setting: value})
