"""Agents of conversations that are programs, not language models: baselines, and teachers of language models.

`vecenv.Task.agents` of a conversation makes them. Each has one method, `answer`; `converse` plays one in the rows of a
dialogue, as a language model is played there.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from vecenv.text.dialogue import Dialogue
from vecenv.text.interaction import Episode, Interaction, Turn

RANDOM = "random"
"""Name in tables and files of the agent whose answers are random ones of the world's own."""


class ConversationAgent(Protocol):
    """Protocol of an agent: one is made for an episode in each row, of which it may keep what it likes."""

    def answer(self, world: Interaction, ids: Sequence[int], shown: Sequence[str]) -> Sequence[str]:
        """Return the next message in each of some rows, given what the world showed there last.

        That is its first text, and then its answer to the last message. The world may be read: an agent with hindsight
        reads the solution. Equal episodes are to get equal messages.
        """
        ...


class RandomAnswers:
    """Random answers of the world's own, `Interaction.random_answer`, by the seed and the row."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draws: dict[int, Random] = {}

    def answer(self, world: Interaction, ids: Sequence[int], shown: Sequence[str]) -> list[str]:
        draws = [self.draws.setdefault(row, Random(f"{self.seed} {row}")) for row in ids]
        return [world.random_answer(draw) for draw in draws]


def converse(
    dialogue: Dialogue, agent: ConversationAgent, episodes: Sequence[Episode], name: str = ""
) -> list[list[Turn]]:
    """Play an episode in each of the first rows, and return what the answers in each row came to.

    Tool calls are carried out, but are none of the turns; a row whose world failed at its beginning has none.

    Raises:
        ValueError: naming the agent and the task, if it fails or answers anything but a text for each row; or the world
            sets no limit of answers.
    """
    dialogue.interaction.check_longest()
    begun = dialogue.begin(range(len(episodes)), episodes)
    played: list[list[Turn]] = [[] for _ in episodes]
    going_on = {row: turn for row, turn in enumerate(begun) if not turn.done}
    while going_on:
        ids = list(going_on)
        said = _said(dialogue.interaction, agent, ids, [turn.message for turn in going_on.values()], name)
        turns = dict(zip(ids, dialogue.answer(ids, said), strict=True))
        for row, turn in turns.items():
            if turn.outcomes is not None:
                played[row].append(turn)
        going_on = {row: turn for row, turn in turns.items() if not turn.done}
    return played


def _said(
    world: Interaction, agent: ConversationAgent, ids: Sequence[int], shown: Sequence[str], name: str
) -> list[str]:
    who = f"agent {name or type(agent).__name__!r} of task {world.task.name if world.task else type(world).__name__!r}"
    try:
        said = list(agent.answer(world, ids, shown))
    except Exception as error:
        raise ValueError(f"{who} fails with {type(error).__name__}: {error}") from error
    if len(said) != len(ids):
        raise ValueError(f"{who} returns {len(said)} messages for {len(ids)} rows")
    if wrong := [message for message in said if not isinstance(message, str)]:
        raise ValueError(f"{who} must answer a text, got {repr(wrong[0])[:100]}")
    return said
