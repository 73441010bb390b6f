"""Messages as tokens: what the tokenizer's own chat template gives, whatever its form."""

from __future__ import annotations

import pytest

from tests.language.tiny import small_model, words
from vecenv.language.chat import ChatFormat

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


def test_an_answer_that_was_cut_off_is_closed():
    chat = ChatFormat(tokenizer_with(CHATML))
    (following,) = chat.followings([words()[0]])
    cut_off = chat.encode(["BUY 0.5"])[0]
    assert chat.joined(cut_off, following) == following
    assert following[: len(chat.closing)] == chat.closing and chat.closing[0] in chat.stop
    assert chat.joined([*cut_off, chat.closing[0]], following) == following[1:]


def test_without_a_template_roles_are_written():
    tokenizer = tokenizer_with(None)
    tokenizer.chat_template = None
    chat = ChatFormat(tokenizer)
    assert tokenizer.decode(chat.openings(["S"], ["U"])[0]) == "system: S<|end|>\nuser: U<|end|>\nassistant:"
    assert tokenizer.decode(chat.followings(["V"])[0]) == "<|end|>\nuser: V<|end|>\nassistant:"


def test_a_template_that_leaves_messages_out_is_refused():
    with pytest.raises(ValueError, match="does not say each message once"):
        ChatFormat(tokenizer_with("{{ messages[-1].content }}"))


def test_models_may_have_other_ends_than_the_tokenizer():
    chat = ChatFormat(tokenizer_with(None), stop=[7, 9])
    assert chat.stop == {7, 9, chat.tokenizer.eos_token_id}
    tokenizer = tokenizer_with(None)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no token that ends an answer"):
        ChatFormat(tokenizer)
