"""The one loop of turns between agents and worlds: tool calls, limits, refusals and rewards, for any `Interaction`.

Whoever is served, trained or plays by hand takes turns by a `Dialogue`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from operator import index
from typing import Annotated, Any, NamedTuple, SupportsIndex, TypeVar
from weakref import finalize

from vecenv.system.settings import Count, Settings, When, Within
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.interaction import AsyncInteraction, Episode, Interaction, Turn
from vecenv.text.records import many
from vecenv.text.tool_calls import CallName, Form, Said, ToolCall, read_answer, read_call

Result = TypeVar("Result")


@dataclass(frozen=True)
class TextRules(Settings):
    """Reward and tool settings of text agents."""

    grade: float = 1.0
    """Weight of the grade in [0, 1], paid on the last day."""
    steps: float = 0.0
    """Weight of the task's daily reward."""
    format_penalty: Annotated[float, Within(high=0)] = 0.0
    """Reward of an invalid answer, at most 0."""
    tools: tuple[str, ...] = ()
    """Tools that may be called before a day's answer: names, families, or all, by default none; further words choose,
    draw or fail them, see the page of the tools."""
    tool_form: Annotated[Form, When("tools")] = "json"
    """Tool-call format: json or react."""
    turns: Annotated[Count, When("tools")] = 4
    """With tools: maximum turns per day, the answer included."""


class Answer(NamedTuple):
    """A message that is no tool call: its text, and what is wrong with it if it turns out to be invalid."""

    text: str
    fault: str = ""


class Dialogue:
    """Turns of some rows of a world at a time.

    Args:
        interaction: the world, with N rows.
        rules: of rewards and tools; by default the grade is the reward, and there are no tools.

    Attributes:
        turns: tool calls of each row since its last answer.
        moves: answers of each row in its episode.
        outcomes: names and units of the outcomes of its turns: the world's, and those of its tools.

    Raises:
        ValueError: a tool is unknown; of methods: rows are none or named twice, are not as many as the messages or
            episodes, or have no running episode to answer in.
    """

    def __init__(self, interaction: Interaction, rules: TextRules | None = None) -> None:
        self.interaction, self.rules = interaction, rules or TextRules()
        self.tools = interaction.tools(self.rules.tools) if self.rules.tools else None
        self.turns, self.moves = ([0] * interaction.num_rows for _ in range(2))
        self.outcomes = {**interaction.outcomes, **(self.tools.outcomes if self.tools else {})}
        self._over = [False] * interaction.num_rows
        # Of each row the name of its next call.
        self._next = [CallName(row, 0, 0, 0) for row in range(interaction.num_rows)]
        self._outcomes: list[Mapping[str, float]] = [{}] * interaction.num_rows
        self._loop: asyncio.AbstractEventLoop | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loop": None}

    def instructions(self, ids: Sequence[int]) -> list[str]:
        """Return what agents of some rows are told before their first message: of the world, and of its tools."""
        told = self.interaction.instructions(ids)
        if self.tools is None:
            return told
        added = self.tools.instructions_of(self.rules.tool_form, self.rules.turns - 1, self.names(ids))
        return [f"{text}\n{tools}" for text, tools in zip(told, added, strict=True)]

    def begin(self, ids: Sequence[int], episodes: Sequence[Episode] | None = None) -> Sequence[Turn]:
        """Begin episodes in some rows; without names, of a `TensorInteraction`, they have begun already."""
        return self.run(self.begin_async(ids, episodes))

    def hear(self, ids: Sequence[int], messages: Sequence[object]) -> list[Turn | Answer]:
        """Carry out the tool calls among messages, one of each row, and return the others as answers to be given.

        So too those calls that are answers themselves.
        """
        return self.run(self.hear_async(ids, messages))

    def answer(self, ids: Sequence[int], messages: Sequence[object]) -> list[Turn]:
        """Take a turn in some rows with running episodes. No message raises.

        A message is a text, an answer or a tool call; or a `ToolCall` of a client that does not write its calls.
        """
        return self.run(self.answer_async(ids, messages))

    def settled(self, ids: Sequence[int], turns: Sequence[Turn]) -> Sequence[Turn]:
        """Return the last turns of a rollout's episodes as the world's `Interaction.settled` has them."""
        return self.run(_awaited(self.interaction.settled(ids, turns)))

    def run(self, turn: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of an asynchronous form of a method, for callers without an event loop."""
        if isinstance(self.interaction, AsyncInteraction):
            # Connections of the world live as long as the loop.
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                finalize(self, self._loop.close)
            return self._loop.run_until_complete(turn)
        try:
            turn.send(None)
        except StopIteration as ended:
            return ended.value
        raise TypeError(f"{type(self.interaction).__name__} waits, but is no AsyncInteraction")

    async def begin_async(self, ids: Sequence[int], episodes: Sequence[Episode] | None = None) -> Sequence[Turn]:
        """Do what `begin` does, for callers with an event loop."""
        self._check(ids, [None] * len(ids) if episodes is None else episodes, "episode")
        if episodes is None and self.interaction.running(ids) is None:
            raise ValueError(f"{type(self.interaction).__name__} begins episodes by name: give an Episode for each row")
        for row, episode in zip(ids, episodes or (), strict=False):
            _check_episode(row, episode)
        begun = await _awaited(self.interaction.begin(ids, episodes))  # type: ignore[arg-type]
        for row in ids:
            self._next[row] = CallName(row, 0, 0, 0)
        for row, episode in zip(ids, episodes or (), strict=False):
            self._next[row] = CallName(row, episode.seed, episode.index, 0)
        begun = [self._counted(*each) for each in zip(ids, begun, strict=False)]
        for row, turn in zip(ids, begun, strict=False):
            self.turns[row], self.moves[row], self._over[row] = 0, 0, turn.done
            self._outcomes[row] = turn.outcomes or {}
        return begun

    def _check(self, ids: Sequence[int], given: object, what: str) -> None:
        """Raise ValueError where rows are none or named twice, or do not have one of what is given each."""
        rows, count = list(ids), self.interaction.num_rows
        for row in rows:
            if not isinstance(row, SupportsIndex) or not 0 <= index(row) < count:
                raise ValueError(f"there is no row {row!r}: rows are 0 to {count - 1}")
        if len(set(map(index, rows))) < len(rows):
            raise ValueError(f"rows {rows} name a row twice")
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ValueError(f"each row needs its {what} in a list, got {given!r}")
        if len(given) != len(rows):
            raise ValueError(f"{many(len(given), what)} for {many(len(rows), 'row')}: each row needs one")

    def names(self, ids: Sequence[int]) -> list[CallName]:
        """Return the names of the next calls in rows, the first ones where episodes have begun since the last."""
        running = self.interaction.running(ids)
        for row, name in zip(ids, running or (), strict=False):
            if self._next[row][1:4] != name:
                self._next[row] = CallName(row, *name)
        return [self._next[row] for row in ids]

    def _counted(self, row: int, turn: Turn) -> Turn:
        if self.tools is None or not self.tools.outcomes:
            return turn
        return turn._replace(outcomes={**(turn.outcomes or {}), **self.tools.counted(*self.names([row]))})

    async def hear_async(self, ids: Sequence[int], messages: Sequence[object]) -> list[Turn | Answer]:
        """Do what `hear` does, for callers with an event loop."""
        self._check(ids, messages, "message")
        if over := [row for row in ids if self._over[row]]:
            raise ValueError(f"the episode of row {over[0]} is over: begin another before it answers")
        heard: list[Any] = [None] * len(ids)
        calls: dict[int, ToolCall] = {}
        for place, (row, message) in enumerate(zip(ids, messages, strict=True)):
            call = self._call(message)
            self.turns[row] += 1
            if call is not None and self.turns[row] < self.rules.turns:
                calls[place] = call
                continue
            self.turns[row] = 0
            heard[place] = self._answer(message, "" if call is None else "it calls a tool, but no call was left")
        if self.tools is not None and calls:
            chosen = [ids[place] for place in calls]
            asked = [replace(call, at=name) for call, name in zip(calls.values(), self.names(chosen), strict=True)]
            for row in chosen:
                self._next[row] = self._next[row]._replace(number=self._next[row].number + 1)
            results = await _awaited(self.interaction.call(self.tools, chosen, asked))
            results = self._with_dropped(chosen, asked, results)
            for place, result in zip(calls, results, strict=True):
                if isinstance(result, Said):
                    self.turns[ids[place]] = 0
                    heard[place] = Answer(str(result))
                else:
                    heard[place] = Turn(result, acted=False, outcomes=None)
        return heard

    def _call(self, message: object) -> ToolCall | None:
        if self.tools is None:
            return None
        if isinstance(message, str):
            return read_call(message, self.rules.tool_form)
        return message if isinstance(message, ToolCall) else None

    def _answer(self, message: object, fault: str) -> Answer:
        if isinstance(message, ToolCall):
            return Answer("", fault or "there are no tools")
        if not isinstance(message, str):
            return Answer("", str(message) if isinstance(message, AnswerFault) else "an answer is a text")
        answer = message if self.tools is None else read_answer(message, self.rules.tool_form)
        return Answer(self.interaction.heard(answer), fault)

    def _with_dropped(self, ids: Sequence[int], calls: Sequence[ToolCall], results: Sequence[str]) -> list[str]:
        """Return results of calls with what else was in their messages, and is not carried out."""
        beside = [place for place, call in enumerate(calls) if call.beside]
        said = [calls[place].beside for place in beside]
        faults = self.interaction.faults([ids[place] for place in beside], said) if beside else None
        answered = {place for place, fault in zip(beside, faults or (), strict=False) if not fault}
        told: list[str] = []
        for place, (result, call) in enumerate(zip(results, calls, strict=True)):
            if isinstance(result, Said):
                told.append(result)
                continue
            if call.further:
                result += f"\nOnly the first of {call.further + 1} calls was made: call one tool at a time."
            told.append(result + ("\nThe answer beside the call was not carried out." if place in answered else ""))
        return told

    async def answer_async(self, ids: Sequence[int], messages: Sequence[object]) -> list[Turn]:
        """Do what `answer` does, for callers with an event loop."""
        heard = await self.hear_async(ids, messages)
        answers = {place: given for place, given in enumerate(heard) if isinstance(given, Answer)}
        if answers:
            chosen = [ids[place] for place in answers]
            turns = await _awaited(self.interaction.answer(chosen, [given.text for given in answers.values()]))
            for (place, given), turn in zip(answers.items(), turns, strict=True):
                heard[place] = self._paid(ids[place], given, turn)
        return heard  # type: ignore[return-value]

    def _paid(self, row: int, given: Answer, turn: Turn) -> Turn:
        """Return the turn of an answer with its reward, ended where the episode may not be longer."""
        rules = self.rules
        self.moves[row] += 1
        if turn.failed:
            self._over[row] = True
            return turn._replace(outcomes=self._outcomes[row])
        turn = self._counted(row, turn)
        self._outcomes[row] = turn.outcomes or {}
        if not turn.done and self.moves[row] == self.interaction.longest:
            turn = turn._replace(truncated=True, grade=turn.grade or 0.0)
        self._over[row] = turn.done
        reward = 0.0 if turn.valid else rules.format_penalty
        reward += 0.0 if turn.grade is None else rules.grade * turn.grade
        fault = turn.fault and (given.fault or turn.fault)
        return turn._replace(reward=rules.steps * turn.reward + reward, fault=fault)


def _check_episode(row: int, episode: object) -> None:
    if not isinstance(episode, Episode):
        raise ValueError(f"row {row} must begin an Episode(seed, index), got {episode!r}")
    for name, value, bits in zip(("seed", "index"), episode, (63, 32), strict=True):
        if not isinstance(value, SupportsIndex) or not 0 <= index(value) < 1 << bits:
            raise ValueError(f"row {row}: the {name} of an Episode is a whole number in [0, 2^{bits}), got {value!r}")


async def _awaited(given: Any) -> Any:  # noqa: ANN401
    return await given if isawaitable(given) else given
