"""Language-model agents: batched generation of one action per row and environment step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeStream, episode_key, open_uniform, random_bits
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.language.chat import ChatFormat
from vecenv.language.config import AnswerConfig
from vecenv.language.conversation import Conversation, ask_all
from vecenv.language.generation import GenerationContext
from vecenv.text.door import TextDoor
from vecenv.text.tool_calls import FAULT, ToolCall, Tools, read_answer, read_call


class LanguageAgent:
    """A language model that acts in several rows, with one conversation per row.

    A row's conversation restarts with its episode. Tokens are sampled with the episode's key. With tools a day takes
    several turns: each tool call is followed by a turn that shows its result, until the model answers. A tool call in
    the day's last turn is an invalid answer.

    Attributes:
        conversations: one per row.
        said: last answer of each row, empty where an episode is over.
        calls: counts since the conversations began: ``days`` answered, tool ``calls``, and ``faults``, the invalid
            calls.
    """

    def __init__(
        self, model: PreTrainedModel, chat: ChatFormat, config: AnswerConfig, ids: Sequence[int] | None = None
    ) -> None:
        self.model, self.chat, self.config = model, chat, config
        self.ids = None if ids is None else list(ids)
        self.conversations: list[Conversation] = []
        self.said: list[str] = []
        self.calls = Counter[str]()
        self._faults: list[str] = []
        self._context: GenerationContext | None = None
        self._tools: tuple[Scenario, Tools] | None = None

    @property
    def turns(self) -> int:
        """Maximum number of turns per day."""
        return self.config.turns if self.config.tools else 1

    def act(self, env: VecEnv) -> Tensor:
        """Return the model's actions, arbitrary where an episode is over. Shape: (B, *action).

        Raises:
            ValueError: a day exceeds the token budget, a tool is unknown, or the task has no text.
        """
        ids = list(range(env.num_envs)) if self.ids is None else self.ids
        self.said = self.answer(env, ids)
        actions, valid = TextDoor(env).parse(self.said, ids)
        self._faults = TextDoor(env).faults(self.said, valid, ids)
        return actions

    def answer(self, env: VecEnv, ids: Sequence[int]) -> list[str]:
        """Prompt the rows with their day and return the model's answers, empty where an episode is over."""
        rows, numbers = env.rows_of(ids)
        said, tools, door = [""] * len(ids), self._tools_of(env), TextDoor(env)
        places = (~rows.done).nonzero().squeeze(-1).tolist()
        if not places:
            return said
        self._begin(env, ids, (rows.elapsed == 0).tolist(), tools)
        texts = door.render([ids[place] for place in places])
        elapsed = rows.elapsed.tolist()
        for number, place in enumerate(places):
            # Only where the invalid answer stays in view.
            if elapsed[place] and self._faults and self._faults[place]:
                told = f"{texts[number]}\n{self._faults[place]}"
                texts[number] = told if self.conversations[place].has_room(told) else texts[number]
        self.calls["days"] += len(places)
        for turn in range(self.turns):
            answers = self._say(env, rows, numbers, places, texts, turn)
            calls: dict[int, ToolCall] = {}
            for place, text in zip(places, answers, strict=True):
                call = None if tools is None else read_call(text, self.config.tool_form)
                said[place] = text if tools is None else read_answer(text, self.config.tool_form)
                if call is not None:
                    calls[place] = call
            places = list(calls)
            if tools is None or not places or turn + 1 == self.turns:
                break
            texts = door.tool_results(tools, list(calls.values()), [ids[place] for place in places])
            self.calls.update(calls=len(calls), faults=sum(text.startswith(FAULT) for text in texts))
        return said

    def _tools_of(self, env: VecEnv) -> Tools | None:
        if not self.config.tools:
            return None
        if self._tools is None or self._tools[0] is not env.scenario:
            self._tools = env.scenario, TextDoor(env).text.tools(self.config.tools)
        return self._tools[1]

    def _begin(self, env: VecEnv, ids: Sequence[int], fresh: Sequence[bool], tools: Tools | None) -> None:
        begun = [place for place, begins in enumerate(fresh) if begins or len(self.conversations) != len(ids)]
        if len(begun) == len(ids):
            self.conversations, self._context, self.calls = [], None, Counter()
        systems = TextDoor(env).instructions([ids[place] for place in begun])
        if tools is not None:
            added = tools.instructions(self.config.tool_form, self.turns - 1)
            systems = [f"{system}\n{added}" for system in systems]
        for place, system in zip(begun, systems, strict=True):
            self.conversations[place : place + 1] = [Conversation(self.chat, self.config, system)]

    def _say(
        self, env: VecEnv, rows: Rows, numbers: Tensor, places: Sequence[int], texts: Sequence[str], turn: int
    ) -> list[str]:
        days = rows.elapsed.tolist()
        asked = [self.conversations[place] for place in places]
        added = dict(zip(places, ask_all(asked, texts, [days[place] for place in places]), strict=True))
        if self._context is None or None in added.values():
            self._context = GenerationContext(self.model, len(days), self.chat.pad)
            # A new cache re-reads all running conversations, also of rows that do not generate now.
            going_on = (~rows.done).nonzero().squeeze(-1).tolist()
            heard = [place for place in going_on if self.conversations[place].segments]
            added = {place: self.conversations[place].segments[-1].tokens for place in heard}
        self._context.read([added.get(place) or [] for place in range(len(days))])
        active = torch.zeros_like(rows.done)
        active[places] = True
        config = self.config
        key = episode_key(env.seed_tensor, env.env_ids[numbers], rows.episode)
        first = (rows.elapsed * self.turns + turn) * config.answer_tokens
        written = self._context.write(
            lambda token: open_uniform(random_bits(key, EpisodeStream.ACTION, first + token)[0]),
            *(self.chat.stop, config.answer_tokens, config.temperature, active),
        )
        columns = (written.tokens[active], written.log_prob[active], written.mask[active].sum(-1))
        answers = []
        for place, tokens, log_prob, length in zip(places, *(column.tolist() for column in columns), strict=True):
            answers.append(tokens[:length])
            self.conversations[place].answered(answers[-1], log_prob[:length])
        return self.chat.texts(answers)
