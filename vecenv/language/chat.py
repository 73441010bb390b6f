"""Tokenisation of conversations: a chat template split into the text before and after each message.

Sampled tokens are kept as they are and never decoded and re-encoded, which may give other tokens. So log-probabilities
of a whole conversation are those under which it was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Default template for tokenizers without one."""

_SYSTEM, _USER, _ANSWER = "@@system@@", "@@user@@", "@@answer@@"


class ChatFormat:
    """Token form of conversations: a system message, then alternating user and assistant messages.

    Further ``stop`` tokens are such as those of the model's generation settings; ``closing`` ones close a truncated
    answer.

    Raises:
        ValueError: the tokenizer has no stop token, or its template alters message contents.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, thinking: bool = False, stop: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self._options: dict[str, Any] = {"enable_thinking": thinking}
        if tokenizer.chat_template is None:
            self._options["chat_template"] = PLAIN_TEMPLATE
        said = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}]
        self._opening = self._form(*self._opening_parts())
        after = self._template([*said, {"role": "user", "content": _USER}], True).rpartition(_ANSWER)[2]
        self._following = self._form(after, _USER)
        own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.stop = frozenset([*own, *stop])
        if not self.stop:
            raise ValueError(f"{tokenizer.name_or_path}: the tokenizer has no token that ends an answer")
        self.pad = int(tokenizer.pad_token_id) if tokenizer.pad_token_id is not None else min(self.stop)
        self.closing = self.encode([self._template(said, False).rpartition(_ANSWER)[2]])[0]

    def _opening_parts(self) -> tuple[str, ...]:
        system, user = {"role": "system", "content": _SYSTEM}, {"role": "user", "content": _USER}
        from jinja2 import TemplateError

        try:
            return self._template([system, user], True), _SYSTEM, _USER
        except TemplateError:
            # Some templates have no system role: the user message carries it.
            joined = {"role": "user", "content": f"{_SYSTEM}\n\n{_USER}"}
            return self._template([joined], True), _SYSTEM, _USER

    def _template(self, messages: list[dict[str, str]], prompt: bool) -> str:
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt, **self._options
        )
        assert isinstance(text, str)
        return text

    def _form(self, text: str, *marks: str) -> str:
        if any(text.count(mark) != 1 for mark in marks):
            raise ValueError(f"{self.tokenizer.name_or_path}: the chat template does not say each message once")
        return text

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []

    def openings(self, systems: Sequence[str], users: Sequence[str]) -> list[list[int]]:
        """Return the tokens of conversations up to the start of the first answer."""
        return self.encode(
            [
                self._opening.replace(_SYSTEM, system).replace(_USER, user)
                for system, user in zip(systems, users, strict=True)
            ]
        )

    def followings(self, users: Sequence[str]) -> list[list[int]]:
        """Return the tokens from the end of one answer, its stop token included, to the start of the next."""
        return self.encode([self._following.replace(_USER, user) for user in users])

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of answers as a model would sample them, with the stop token."""
        end = self.closing[0] if self.closing and self.closing[0] in self.stop else min(self.stop)
        return [[*tokens, end] for tokens in self.encode(texts)]

    def texts(self, answers: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of answers, without stop tokens."""
        return list(self.tokenizer.batch_decode([list(answer) for answer in answers], skip_special_tokens=True))

    @staticmethod
    def joined(answer: Sequence[int], following: Sequence[int]) -> list[int]:
        """Return the tokens to append after an answer, whose last token may already be the first of them."""
        return list(following[1:] if answer and following and answer[-1] == following[0] else following)
