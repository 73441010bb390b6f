"""Messages as tokens by the tokenizer's template, and conversations that keep their budget and drop the oldest days."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.language.tiny import small_chat, small_model, words
from vecenv.language.chat import ChatFormat
from vecenv.language.config import AnswerConfig
from vecenv.language.conversation import Conversation, ask_all

CHAT = small_chat()
SYSTEM = "Trade well."

CHATML = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
THINKING = CHATML + "{% if add_generation_prompt and enable_thinking is false %}no thought{% endif %}"
TEMPLATES = {"own": None, "lines": CHATML, "no system": NO_SYSTEM + CHATML, "thinking": THINKING}


def tokenizer_with(template: str | None):
    _, tokenizer = small_model()
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_what_the_template_writes(name):
    tokenizer = tokenizer_with(TEMPLATES[name])
    chat = ChatFormat(tokenizer)
    system, days, answers = "Trade. \\1 {user}", [words()[0], words()[1]], ["BUY 0.5", "HOLD"]
    (tokens,) = chat.openings([system], [days[0]])
    (answer,) = chat.answers([answers[0]])
    (following,) = chat.followings([days[1]])
    tokens = [*tokens, *answer, *chat.joined(answer, following)]
    said = [{"role": "user", "content": days[0]}, {"role": "assistant", "content": answers[0]}]
    said.append({"role": "user", "content": days[1]})
    if name == "no system":
        said[0]["content"] = f"{system}\n\n{days[0]}"
    else:
        said.insert(0, {"role": "system", "content": system})
    whole = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    written = tokenizer.decode(tokens)
    if name == "thinking":
        # What the template put before the first answer was there when it was drawn, and stays.
        assert written.count("no thought") == 2 and written.replace("no thought", "", 1) == whole
    else:
        assert written == whole
    assert answer[-1] in chat.stop and chat.texts([answer]) == [answers[0]]


def test_other_tokenizers_and_templates():
    """An answer that was cut off is closed; roles are written where there is no template; other ends are stops too."""
    chat = ChatFormat(tokenizer_with(CHATML))
    (following,) = chat.followings([words()[0]])
    cut_off = chat.encode(["BUY 0.5"])[0]
    assert chat.joined(cut_off, following) == following
    assert following[: len(chat.closing)] == chat.closing and chat.closing[0] in chat.stop
    assert chat.joined([*cut_off, chat.closing[0]], following) == following[1:]
    tokenizer = tokenizer_with(None)
    tokenizer.chat_template = None
    chat = ChatFormat(tokenizer)
    assert tokenizer.decode(chat.openings(["S"], ["U"])[0]) == "system: S<|end|>\nuser: U<|end|>\nassistant:"
    assert tokenizer.decode(chat.followings(["V"])[0]) == "<|end|>\nuser: V<|end|>\nassistant:"
    with pytest.raises(ValueError, match="does not say each message once"):
        ChatFormat(tokenizer_with("{{ messages[-1].content }}"))
    chat = ChatFormat(tokenizer_with(None), stop=[7, 9])
    assert chat.stop == {7, 9, chat.tokenizer.eos_token_id}
    tokenizer = tokenizer_with(None)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no token that ends an answer"):
        ChatFormat(tokenizer)


def day_text(number: int, length: int) -> str:
    return f"Day {number}: " + "x" * length


def contexts(system, texts, answers, config):
    """Return the context before every answer as a reader of the rules would make it, by brute force."""
    followings = CHAT.followings(texts)

    def context(first, last):
        tokens = CHAT.openings([system], [texts[first]])[0]
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


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5), st.booleans()), min_size=1, max_size=9),
    st.integers(100, 260),
    st.sampled_from([None, 0, 1, 3]),
)
def test_budget_windows_and_answers(days, context_tokens, history):
    """Of two conversations that are asked together, of which the second begins with the second day."""
    config = AnswerConfig(context_tokens=context_tokens, answer_tokens=6, history_days=history)
    texts = [day_text(number, length) for number, (length, _, _) in enumerate(days)]
    end = CHAT.closing[:1]
    answers = [[40 + number] * count + (end if ends else []) for number, (_, count, ends) in enumerate(days)]
    systems = [SYSTEM, f"{SYSTEM} Or not."]
    conversations = [Conversation(CHAT, config, system) for system in systems]
    expected = [contexts(system, texts[late:], answers[late:], config) for late, system in enumerate(systems)]
    before = [-1, -1]
    for day, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        asked = [0, 1] if day else [0]
        added = ask_all([conversations[one] for one in asked], [text] * len(asked), [day] * len(asked))
        for one, more in zip(asked, added, strict=True):
            first, context = expected[one][day - one]
            assert conversations[one].segments[-1].tokens == context and len(context) + 6 <= context_tokens
            assert (more is None) == (first != before[one] or day == one or history == 0)
            assert more is None or context[-len(more) :] == more
            conversations[one].answered(answer, [0.5 * day] * len(answer))
            before[one] = first
    for late, conversation in enumerate(conversations):
        assert conversation.turns == len(days) - late
        drawn = [
            (turn + late, segment.tokens[place], log_prob)
            for segment in conversation.segments
            for place, turn, log_prob in zip(segment.drawn, segment.turn, segment.log_prob, strict=True)
        ]
        assert drawn == [(day, token, 0.5 * day) for day in range(late, len(days)) for token in answers[day]]
    assert ask_all([], [], []) == []


def test_days_that_cannot_fit_and_bad_settings_are_refused():
    conversation = Conversation(CHAT, AnswerConfig(context_tokens=60, answer_tokens=6), SYSTEM)
    with pytest.raises(ValueError, match="context_tokens 60 are too few: instructions and one day take"):
        ask_all([conversation], [day_text(0, 60)], [0])
    ask_all([conversation], [day_text(0, 2)], [0])
    conversation.answered([40], [0.0])
    with pytest.raises(ValueError, match="too few"):
        ask_all([conversation], [day_text(1, 60)], [1])
    bad = {"context_tokens": 1, "history_days": -1, "temperature": -0.1}
    for setting, value in (*bad.items(), ("answer_tokens", 0), ("answer_tokens", 2048)):
        with pytest.raises(ValueError, match=setting):
            AnswerConfig(**{setting: value})
