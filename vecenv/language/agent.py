"""Language models that act for rows of an environment: one batched generation for all of them, a day at a time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from vecenv.engine import ACTION_STREAM
from vecenv.env import VecEnv
from vecenv.language.chat import ChatFormat
from vecenv.language.config import AnswerConfig
from vecenv.language.conversation import Conversation, ask_all
from vecenv.language.generation import GenerationContext
from vecenv.random import episode_key, open_uniform, random_bits


class LanguageAgent:
    """A language model in every one of some rows, which keep conversations of their own.

    A row's conversation begins anew with its episode. Draws come from each episode's own key.

    Args:
        model: a causal language model.
        chat: form of its conversations.
        config: how it is asked.
        ids: rows of the environment that it acts for, by default all. Shape: (B,).

    Attributes:
        conversations: of the rows' episodes. B of them.
        said: what it wrote last, nothing where an episode is over. B of them.
    """

    def __init__(
        self, model: PreTrainedModel, chat: ChatFormat, config: AnswerConfig, ids: Sequence[int] | None = None
    ) -> None:
        self.model, self.chat, self.config = model, chat, config
        self.ids = None if ids is None else list(ids)
        self.conversations: list[Conversation] = []
        self.said: list[str] = []
        self._context: GenerationContext | None = None

    def act(self, env: VecEnv) -> Tensor:
        """Return what the model orders in its rows, anything where an episode is over. Shape: (B, *action).

        Raises:
            ValueError: a day does not fit into the budget of tokens.
        """
        ids = list(range(env.num_envs)) if self.ids is None else self.ids
        self.said = self.answer(env, ids)
        return env.parse_text(self.said, ids)[0]

    def answer(self, env: VecEnv, ids: Sequence[int]) -> list[str]:
        """Show the rows their day and return what the model says, nothing where an episode is over."""
        rows, numbers = env.rows_of(ids)
        running, fresh = (~rows.done).tolist(), (rows.elapsed == 0).tolist()
        places = [place for place, goes_on in enumerate(running) if goes_on]
        if not places:
            return [""] * len(ids)
        self._begin(env, ids, fresh)
        asked = [self.conversations[place] for place in places]
        added = dict(zip(places, ask_all(asked, env.render_text([ids[place] for place in places])), strict=True))
        anew = self._context is None or None in added.values()
        if anew:
            self._context = GenerationContext(self.model, len(ids), self.chat.pad)
            added = {place: self.conversations[place].segments[-1].tokens for place in places}
        assert self._context is not None
        self._context.read([added.get(place) or [] for place in range(len(ids))])
        key = episode_key(env.seed_tensor, env.env_ids[numbers], rows.episode)
        first = rows.elapsed * self.config.answer_tokens
        written = self._context.write(
            lambda token: open_uniform(random_bits(key, ACTION_STREAM, first + token)[0]),
            self.chat.stop,
            self.config.answer_tokens,
            self.config.temperature,
            ~rows.done,
        )
        return self._take(written.tokens.tolist(), written.log_prob.tolist(), written.mask.sum(-1).tolist(), running)

    def _begin(self, env: VecEnv, ids: Sequence[int], fresh: Sequence[bool]) -> None:
        """Begin the conversations of rows whose episodes begin."""
        begun = [place for place, begins in enumerate(fresh) if begins or len(self.conversations) != len(ids)]
        if len(begun) == len(ids):
            self.conversations, self._context = [], None
        systems = env.instructions([ids[place] for place in begun])
        for place, system in zip(begun, systems, strict=True):
            self.conversations[place : place + 1] = [Conversation(self.chat, self.config, system)]

    def _take(
        self, tokens: list[list[int]], log_prob: list[list[float]], lengths: list[int], running: Sequence[bool]
    ) -> list[str]:
        """Take answers into the conversations and return what they say."""
        answers = [tokens[place][: lengths[place]] for place in range(len(lengths))]
        for place, goes_on in enumerate(running):
            if goes_on:
                self.conversations[place].answered(answers[place], log_prob[place][: lengths[place]])
        # Nothing is active that does not run, so the answers of the others are empty.
        return self.chat.texts(answers)
