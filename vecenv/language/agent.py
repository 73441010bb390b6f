"""Language-model agents: batched generation of one message per row and turn, for any world that agents talk to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey, EpisodeStream, episode_key, open_uniform, random_bits
from vecenv.language.chat import ChatFormat
from vecenv.language.config import AnswerConfig
from vecenv.language.conversation import Conversation, ask_all
from vecenv.language.generation import GenerationContext
from vecenv.language.models import without_adapters
from vecenv.text.dialogue import Answer, Dialogue
from vecenv.text.door import TextDoor
from vecenv.text.interaction import Episode, Turn
from vecenv.text.tensor_interaction import TensorInteraction
from vecenv.text.tool_calls import FAULT


@dataclass
class Progress:
    """Where the conversations of B rows are.

    Attributes:
        key: random key of each row's episode. Shape of each word: (B,).
        days: answers that each row has given in its episode.
        over: whether each row's episode is over.
    """

    key: EpisodeKey
    days: list[int]
    over: list[bool]


class LanguageAgent:
    """A language model that talks in several rows, with one conversation per row.

    A row's conversation restarts with its episode. Tokens are sampled with the episode's key. With tools a day takes
    several turns: each tool call is followed by a turn that shows its result, until the model answers. A tool call in
    the day's last turn is an invalid answer.

    Attributes:
        on_turn: called before each turn, which takes a while.
        conversations: one per row.
        said: last answer of each row, empty where an episode is over.
        misread: invalid answers of each row in its episode of an environment.
        calls: counts since the conversations began: ``days`` answered, ``invalid`` answers among them, tool ``calls``,
            and ``faults``, the invalid calls.
    """

    def __init__(
        self, model: PreTrainedModel, chat: ChatFormat, config: AnswerConfig, ids: Sequence[int] | None = None
    ) -> None:
        self.model, self.chat, self.config = model, chat, config
        self.ids = None if ids is None else list(ids)
        self.on_turn: Callable[[], None] | None = None
        self.conversations: list[Conversation] = []
        self.said: list[str] = []
        self.misread: list[int] = []
        self.calls = Counter[str]()
        self._faults: list[str] = []
        self._context: GenerationContext | None = None
        self._rows: tuple[TensorInteraction, Dialogue] | None = None

    @property
    def turns(self) -> int:
        """Maximum number of turns per day."""
        return self.config.turns if self.config.tools else 1

    def act(self, env: VecEnv) -> Tensor:
        """Return the model's actions, arbitrary where an episode is over. Shape: ``(B, *action)``.

        Raises:
            ValueError: a day exceeds the token budget, a tool is unknown, or the task has no text.
        """
        ids = list(range(env.num_envs)) if self.ids is None else self.ids
        if self._rows is None or self._rows[0].env is not env:
            world = TensorInteraction(env)
            self._rows = world, Dialogue(world, self.config.turn_rules)
        door, dialogue = self._rows[0].door, self._rows[1]
        answers = self._answers(env, ids, door, dialogue)
        self.said = ["" if answer is None else answer.text for answer in answers]
        actions, valid = door.parse(self.said, ids)
        reasons = zip(answers, door.reasons(self.said, valid, ids), strict=True)
        self._faults = [why and (answer.fault or why) if answer else "" for answer, why in reasons]
        self.calls["invalid"] += sum(map(bool, self._faults))
        self.misread = [count + bool(why) for count, why in zip(self.misread, self._faults, strict=True)]
        return actions

    def _answers(self, env: VecEnv, ids: Sequence[int], door: TextDoor, dialogue: Dialogue) -> list[Answer | None]:
        """Prompt the rows with their day and return the model's answers, None where an episode is over."""
        rows, numbers = env.rows_of(ids)
        answers: list[Answer | None] = [None] * len(ids)
        progress = Progress(
            episode_key(env.seed_tensor, env.env_ids[numbers], rows.episode), rows.elapsed.tolist(), rows.done.tolist()
        )
        places = [place for place, over in enumerate(progress.over) if not over]
        if not places:
            return answers
        fresh = [place for place, day in enumerate(progress.days) if day == 0 or len(self.conversations) != len(ids)]
        self.begin(fresh, dialogue.instructions([ids[place] for place in fresh]), len(ids))
        shown = door.render([ids[place] for place in places])
        turns = {
            place: Turn(text, fault=self._faults[place] if progress.days[place] and self._faults else "")
            for place, text in zip(places, shown, strict=True)
        }

        def hear(places: Sequence[int], said: Sequence[str]) -> dict[int, Turn]:
            going_on: dict[int, Turn] = {}
            for place, heard in zip(places, dialogue.hear([ids[place] for place in places], said), strict=True):
                if isinstance(heard, Turn):
                    going_on[place] = heard
                else:
                    answers[place] = heard
            return going_on

        self.converse(turns, hear, progress)
        return answers

    def begin(self, places: Sequence[int], systems: Sequence[str], rows: int) -> None:
        """Begin the conversations of some of B rows, given their instructions."""
        if len(places) == rows:
            self.conversations, self._context, self.misread, self.calls = [], None, [], Counter()
        for place, system in zip(places, systems, strict=True):
            self.conversations[place : place + 1] = [Conversation(self.chat, self.config, system)]
            self.misread[place : place + 1] = [0]

    def talk(self, dialogue: Dialogue, episodes: Sequence[Episode], env_ids: Tensor | None = None) -> list[list[Turn]]:
        """Play an episode in each of the own rows of a world, by default the first ones.

        Return what the answers in each row came to. Tool calls are none of the turns; a row whose world failed at its
        beginning has none. ``env_ids`` are the rows' identities in the draws of tokens, by default their numbers.
        Shape: (N,).
        """
        rows, device = self.ids or list(range(len(episodes))), self.model.device
        env_ids = torch.tensor(rows, device=device) if env_ids is None else env_ids
        begun = dialogue.begin(rows, episodes)
        self.begin(range(len(rows)), dialogue.instructions(rows), len(rows))
        seed = torch.tensor(episodes[0].seed, device=device)
        progress = Progress(
            episode_key(seed, env_ids, torch.zeros_like(env_ids)), [0] * len(rows), [turn.done for turn in begun]
        )
        played: list[list[Turn]] = [[] for _ in rows]

        def hear(places: Sequence[int], said: Sequence[str]) -> dict[int, Turn]:
            turns = dict(zip(places, dialogue.answer([rows[place] for place in places], said), strict=True))
            for place, turn in turns.items():
                if turn.outcomes is not None:
                    played[place].append(turn)
                    self.calls["invalid"] += not turn.valid
                progress.days[place], progress.over[place] = dialogue.moves[rows[place]], turn.done
            return {place: turn for place, turn in turns.items() if not turn.done}

        self.converse({place: turn for place, turn in enumerate(begun) if not turn.done}, hear, progress)
        return played

    def converse(
        self,
        turns: Mapping[int, Turn],
        hear: Callable[[Sequence[int], Sequence[str]], Mapping[int, Turn]],
        progress: Progress,
    ) -> None:
        """Let the model answer turns by place, one batched generation for all, until ``hear`` returns no more turns.

        ``hear`` is given places and the model's messages; it keeps ``progress`` up to date.
        """
        called = [0] * len(progress.days)
        while turns:
            if self.on_turn is not None:
                self.on_turn()
            places = list(turns)
            self.calls["days"] += sum(not called[place] for place in places)
            texts = [self._question(place, turns[place]) for place in places]
            said = self._say(progress, places, texts, called)
            turns = hear(places, said)
            results = {place: turn.shown for place, turn in turns.items() if turn.outcomes is None}
            self.calls.update(calls=len(results), faults=sum(text.startswith(FAULT) for text in results.values()))
            called = [called[place] + 1 if place in results else 0 for place in range(len(called))]

    def _question(self, place: int, turn: Turn) -> str:
        # Only where the invalid answer stays in view.
        heard = turn.valid or self.conversations[place].has_room(turn.message)
        return turn.message if heard else turn.shown

    def _say(self, progress: Progress, places: Sequence[int], texts: Sequence[str], called: Sequence[int]) -> list[str]:
        asked, days = [self.conversations[place] for place in places], progress.days
        added = dict(zip(places, ask_all(asked, texts, [days[place] for place in places]), strict=True))
        if self._context is None or None in added.values():
            self._context = GenerationContext(self.model, len(days), self.chat.pad)
            # A new cache re-reads all running conversations, also of rows that do not generate now.
            going_on = (place for place, over in enumerate(progress.over) if not over)
            heard = [place for place in going_on if self.conversations[place].segments]
            added = {place: self.conversations[place].segments[-1].tokens for place in heard}
        self._context.read([added.get(place) or [] for place in range(len(days))])
        config, device = self.config, progress.key.episode.device
        active = torch.zeros(len(days), dtype=torch.bool, device=device)
        active[places] = True
        turn = torch.tensor([day * self.turns + done for day, done in zip(days, called, strict=True)], device=device)
        first = turn * config.answer_tokens
        written = self._context.write(
            lambda token: open_uniform(random_bits(progress.key, EpisodeStream.ACTION, first + token)[0]),
            *(self.chat.stop, config.answer_tokens, config.temperature, active),
        )
        columns = (written.tokens[active], written.log_prob[active], written.mask[active].sum(-1))
        answers = []
        for place, tokens, log_prob, length in zip(places, *(column.tolist() for column in columns), strict=True):
            answers.append(tokens[:length])
            self.conversations[place].answered(answers[-1], log_prob[:length])
        return self.chat.texts(answers)


class AgentWithoutAdapters(LanguageAgent):
    """A language model with adapters that answers as it did before they were trained."""

    def converse(
        self,
        turns: Mapping[int, Turn],
        hear: Callable[[Sequence[int], Sequence[str]], Mapping[int, Turn]],
        progress: Progress,
    ) -> None:
        with without_adapters(self.model):
            super().converse(turns, hear, progress)
