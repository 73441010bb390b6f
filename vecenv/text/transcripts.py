"""Records of conversations: a dialogue that keeps what is said in its rows, and the replay of what it kept.

A line of a JSONL file is an episode: what names it, and its turns with messages, tool calls, refusals and rewards.
Tasks of tensors may have records of their own (`vecenv.text.recording`), read and written by the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import vecenv
from vecenv.system.report_page import conversation, page, shortened, values
from vecenv.system.settings import Items, Seed, Within
from vecenv.text.answer_lines import ANSWERS_VERSION, AnswerFault
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Episode, Interaction, Turn, json_outcomes
from vecenv.text.recording import recorded_config
from vecenv.text.records import Record, first_difference, many, place_in_split


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """A message and the `Turn` that it came to; the first is the beginning, before which nothing is said.

    Attributes:
        said: message of the agent, as it stands; empty if it was none.
        refused: why it was no message at all, such as for its length.
        heard: what the world was given of it, without reasoning; empty for a tool call.
        call: name of the tool that it calls; empty where the call is malformed.
        outcomes: None where unknown.
    """

    said: str
    refused: str = ""
    heard: str = ""
    call: str | None = None
    shown: str
    reward: float
    terminated: bool
    truncated: bool
    fault: str
    acted: bool
    outcomes: dict[str, float | None] | None
    grade: float | None
    failed: bool

    def check(self) -> None:
        """Refuse nothing: the types of the fields say all."""


@dataclass(frozen=True, kw_only=True)
class ConversationRecord(Record):
    """An episode of a conversation; ``seed`` and ``index`` name it, and ``rules`` are the `TextRules`."""

    versions: dict[str, Any]
    task: str
    config: dict[str, Any]
    rules: dict[str, Any]
    seed: Seed
    index: Annotated[int, Within(0, 2**32, below=True)]
    instructions: str
    turns: Annotated[list[TurnRecord], Items(least=1)]
    finished: bool

    steps_field: ClassVar[str] = "turns"
    step_type: ClassVar[type[Any]] = TurnRecord

    @property
    def shared(self) -> list[Any]:
        """Return what conversations must have in common to be replayed in one world, JSON-able: each has its own."""
        return [self.task, self.config, self.rules, self.seed, self.index]

    def result(self) -> dict[str, Any]:
        """Return what the episode came to, JSON-able."""
        last = self.turns[-1]
        told = [turn.outcomes for turn in self.turns if turn.outcomes is not None]
        return {
            "task": self.task,
            "seed": self.seed,
            "index": self.index,
            "finished": self.finished,
            "reward": sum(turn.reward for turn in self.turns),
            "grade": last.grade,
            "outcomes": told[-1] if told else {},
        }

    def messages(self) -> list[dict[str, str]]:
        """Return the conversation as chat templates take it, from the instructions to the last message of the agent."""
        said = [{"role": "system", "content": self.instructions}]
        for before, turn in zip(self.turns, self.turns[1:], strict=False):
            asked = Turn(before.shown, fault=before.fault).message
            said += [{"role": "user", "content": asked}, {"role": "assistant", "content": turn.said}]
        return said

    def difference(self, replayed: ConversationRecord) -> str | None:
        """Return the first difference to a replay, by turn and then in the rest, or None; all is compared exactly."""
        return first_difference(self, replayed, "turn", ("versions.vecenv",))

    @property
    def title(self) -> str:
        episode, length = place_in_split("episode", self.index), many(len(self.turns) - 1, "turn")
        return f"{self.task}, seed {self.seed}, {episode}, {length}" + (
            "" if self.finished else ", left before the end"
        )


class RecordedDialogue(Dialogue):
    """A dialogue that records the episodes of its rows, the last one of each.

    Attributes:
        records: of each row, None before its first episode.
    """

    def __init__(self, interaction: Interaction, rules: TextRules | None = None) -> None:
        super().__init__(interaction, rules)
        self.records: list[ConversationRecord | None] = [None] * interaction.num_rows

    async def begin_async(self, ids: Sequence[int], episodes: Sequence[Episode] | None = None) -> Sequence[Turn]:
        assert episodes is not None
        begun = await super().begin_async(ids, episodes)
        about = self.interaction.recorded()
        versions = {"vecenv": vecenv.__version__, "task": about["task_version"], "answers": ANSWERS_VERSION}
        for row, name, told, turn in zip(ids, episodes, self.instructions(ids), begun, strict=True):
            self.records[row] = ConversationRecord(
                versions=versions,
                task=about["task"],
                config=about["config"],
                rules=asdict(self.rules),
                seed=name.seed,
                index=name.index,
                instructions=told,
                turns=[_recorded(turn, said="")],
                finished=turn.done,
            )
        return begun

    async def answer_async(self, ids: Sequence[int], messages: Sequence[object]) -> list[Turn]:
        turns = await super().answer_async(ids, messages)
        for row, message, turn in zip(ids, messages, turns, strict=True):
            kept = self.records[row]
            assert kept is not None
            kept.turns.append(_recorded(turn, **self._said(message, turn)))
            if turn.done:
                self.records[row] = replace(kept, finished=True)
        return turns

    def _said(self, message: object, turn: Turn) -> dict[str, Any]:
        if not isinstance(message, str):
            return {"said": "", "refused": self._answer(message, "").fault}
        if turn.outcomes is not None:
            return {"said": message, "heard": self._answer(message, "").text}
        call = self._call(message)
        return {"said": message, "call": call and call.name}


def _recorded(turn: Turn, **said: Any) -> TurnRecord:  # noqa: ANN401
    outcomes = None if turn.outcomes is None else json_outcomes(turn.outcomes)
    return TurnRecord(**said, **(turn._asdict() | {"outcomes": outcomes}))


def replayed_conversation(record: ConversationRecord, world: Interaction) -> ConversationRecord:
    """Say a record's messages again in a new world of its task and config, and record what they come to.

    The failure of a world is not repeated: the turn in which it failed is as it was recorded.

    Raises:
        ValueError: the rules of texts are unknown or invalid.
    """
    dialogue = RecordedDialogue(world, recorded_config(TextRules(), record.rules, "rules"))
    begun, *later = record.turns
    if begun.failed:
        return record
    dialogue.begin([0], [Episode(record.seed, record.index)])
    for turn in later:
        (again,) = dialogue.records
        assert again is not None
        if turn.failed:
            return replace(again, turns=[*again.turns, turn], finished=True)
        if again.finished:
            break
        dialogue.answer([0], [AnswerFault(turn.refused) if turn.refused else turn.said])
    (again,) = dialogue.records
    assert again is not None
    return again


def write_conversation_report(path: Path | str, record: ConversationRecord) -> None:
    """Write a conversation as a self-contained HTML page."""
    told = record.result()
    cards = [(f"{told['reward']:.4g}", "reward")]
    cards += [] if told["grade"] is None else [(f"{told['grade']:.3f}", "grade")]
    for name, value in told["outcomes"].items():
        cards.append(("unknown" if value is None else f"{value:.4g}", name.replace("_", " ")))
    turns = "".join(_shown(number, turn) for number, turn in enumerate(record.turns))
    known = {item.name: getattr(record, item.name) for item in fields(record) if item.name not in ("turns", "finished")}
    sections = {"Turns": turns, "Metadata": values("Versions, rules and seed", known)}
    # Lone surrogates in an agent's text cannot be encoded.
    text = page(record.title, "a conversation", cards, sections)
    Path(path).write_text(text, encoding="utf-8", errors="xmlcharrefreplace")


def _shown(number: int, turn: TurnRecord) -> str:
    heading = f"Turn {number}: {shortened(turn.said)}" if number else "Beginning"
    marks = [name for name, is_so in (("invalid", turn.fault), ("failed", turn.failed)) if is_so]
    messages = [{"role": "assistant", "content": turn.said}] if number else []
    result = f"reward {turn.reward:+.3f}" + (f" · {turn.fault}" if turn.fault else "")
    return conversation(heading, marks, [*messages, {"role": "user", "content": turn.shown}], result)
