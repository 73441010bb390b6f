"""`Interaction`: worlds that agents talk to, some rows at a time, and the form of worlds that take their time.

A row is one conversation at a time. An author writes `Interaction.begin` and `Interaction.answer`; everything that is
the same in all worlds, such as tool calls and refusals, is the loop's (`vecenv.text.dialogue`). A task of tensors has
one by its text (`vecenv.text.tensor_interaction`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from vecenv.text.dress import without_marks
from vecenv.text.reasoning import without_reasoning
from vecenv.text.tool_calls import FAILURE, ToolCall, Tools

LOG = logging.getLogger("vecenv.text")

Result = TypeVar("Result")


class Episode(NamedTuple):
    """Name of an episode: equal names are equal episodes, in any row. A seed in [0, 2^63), an index in [0, 2^32)."""

    seed: int
    index: int  # type: ignore[assignment]  # in place of the method of tuples


class Turn(NamedTuple):
    """What a message of an agent comes to, or the beginning of an episode.

    Attributes:
        shown: the world's next text.
        reward: of the message.
        terminated: whether the episode is over by the rules of the world.
        truncated: whether it is over for another reason, such as a limit of turns, or because the world failed.
        fault: why the message was invalid, as the rest of a sentence; empty if it was valid.
        acted: whether it did more than wait.
        outcomes: of the episode so far, by name, NaN where unknown; None after a tool call, which answers nothing.
        grade: of the episode in [0, 1], once it is over, else None: before, it might reveal what is to come.
        failed: whether the world failed, so that the episode is over without a grade. That is no failure of the agent:
            trainers leave the episode out, and count it. The outcomes are the last that were known.
    """

    shown: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    fault: str = ""
    acted: bool = True
    outcomes: Mapping[str, float] | None = MappingProxyType({})
    grade: float | None = None
    failed: bool = False

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated

    @property
    def valid(self) -> bool:
        """Whether the message was valid."""
        return not self.fault

    @property
    def message(self) -> str:
        """What the agent is sent: the world's text, and below it why its message was invalid."""
        refusal = f"\nYour last answer was invalid and did nothing: {self.fault}." if self.fault else ""
        return self.shown + refusal


def json_outcomes(outcomes: Mapping[str, float]) -> dict[str, float | None]:
    """Return outcomes as JSON has them: None for those that are unknown or not finite."""
    return {name: float(value) if math.isfinite(value) else None for name, value in outcomes.items()}


class Interaction(ABC):
    """A world with N rows for conversations, each as if it were alone.

    Attributes:
        num_rows: number of rows, N.
        longest: most answers in an episode, after which the loop ends it; None for no limit.
        outcomes: names of what `Turn.outcomes` has, most important first, with their units.
        currency: code of the money of outcomes whose unit is ``currency``.
        description: of the agent's part, for the metadata of servers.
        called: what an answer is called, such as orders or moves.
        task: the task's record, a `vecenv.Task`, and its config, by `vecenv.registry.make_interaction`.
    """

    num_rows: int
    longest: int | None = None
    outcomes: Mapping[str, str] = MappingProxyType({})
    currency: str | None = None
    description: str = "An agent that talks to a world, in a row of its own"
    called: str = "answer"
    task: Any = None
    config: Any = None

    @abstractmethod
    def begin(self, ids: Sequence[int], episodes: Sequence[Episode]) -> Sequence[Turn] | Awaitable[Sequence[Turn]]:
        """Begin an episode in each of some rows, also where one runs, and return what is shown first."""

    @abstractmethod
    def answer(self, ids: Sequence[int], messages: Sequence[str]) -> Sequence[Turn] | Awaitable[Sequence[Turn]]:
        """Take one message in each of some rows with running episodes; never raises because of a message."""

    def instructions(self, ids: Sequence[int]) -> list[str]:
        """Return what agents of some rows are told before their first message; nothing by default."""
        return [""] * len(ids)

    def grammar(self, ids: Sequence[int]) -> list[str]:
        """Return what people may answer in some rows; the instructions by default."""
        return self.instructions(ids)

    def heard(self, message: str) -> str:
        """Return what `answer` is to be given of a message; by default what stands outside of reasoning."""
        return without_reasoning(without_marks(message)).strip()

    def faults(self, ids: Sequence[int], messages: Sequence[str]) -> list[str] | None:
        """Return why messages would be invalid, empty for valid ones; None where only `answer` can tell."""
        return None

    def examples(self) -> Sequence[str]:
        """Return short messages that are valid in any state, such as for buttons; none by default."""
        return ()

    def random_answer(self, draw: Random) -> str:
        """Return a random message that is valid in any state; by default one of the examples."""
        return draw.choice(list(self.examples()) or [""])

    def tools(self, names: Sequence[str]) -> Tools:
        """Return tools that agents may call before they answer; ValueError if there is no such tool."""
        raise ValueError(f"there are no tools; {', '.join(names)} cannot be called")

    def running(self, ids: Sequence[int]) -> Sequence[tuple[int, int, int]] | None:
        """Return seed, env_id and episode of the episodes that run in rows; None where they are as they were begun."""
        return None

    def call(
        self, tools: Tools, ids: Sequence[int], calls: Sequence[ToolCall]
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Return the results of tool calls in some rows; by default of tools that are given the rows' numbers."""
        return tools.results(ids, calls, _no_step)

    def settled(self, ids: Sequence[int], turns: Sequence[Turn]) -> Sequence[Turn] | Awaitable[Sequence[Turn]]:
        """Return the last turns of a rollout's episodes as the trainer is to count them; by default as they are.

        A trainer that compares episodes calls it once a rollout, when all are over. Members may be paid by each other,
        and what the world keeps between rollouts may change: `state_dict` has that, and `measures` tells it.
        """
        return turns

    def measures(self) -> dict[str, float]:
        """Return numbers that a training logs beside its own, the same names at all times; none by default."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the world keeps between rollouts of a training, JSON-able; nothing by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Go on from a `state_dict`."""

    def check_longest(self) -> int:
        """Return the most answers in an episode; ValueError of a world without a limit."""
        if self.longest is None:
            raise ValueError(f"{type(self).__name__} does not say how long an episode may be")
        return self.longest

    def metadata(self) -> dict[str, Any]:
        """Return what identifies the world in checkpoints, JSON-able: its task and config."""
        config = {} if self.config is None else asdict(self.config)
        return {"task": self.task and self.task.name, "task_version": self.task and self.task.version, "config": config}

    def recorded(self) -> dict[str, Any]:
        """Return the `metadata` under which episodes that begin now replay; by default those of the config."""
        return self.metadata()


def _no_step(places: Sequence[int], action: object) -> Any:  # noqa: ANN401
    raise NotImplementedError("there are no hypothetical steps without tensors")


class AsyncInteraction(Interaction):
    """A world that takes its time, such as a sandbox or a tool server: each row by a coroutine, within a deadline.

    A row that is late, or fails, ends with a sentence and without a grade, see `Turn.failed`; the result of a late tool
    call is a failure of the tool. The other rows go on. Coroutines are cancelled at the deadline and not waited for;
    none runs in a thread.

    Attributes:
        deadline: seconds for each beginning, answer and call.
        sleep: waits for seconds: the clock of the deadline.
    """

    deadline: float = 30.0
    sleep: Callable[[float], Awaitable[Any]] = staticmethod(asyncio.sleep)

    @abstractmethod
    async def begin_row(self, row: int, episode: Episode) -> Turn:
        """Begin an episode in a row."""

    @abstractmethod
    async def answer_row(self, row: int, message: str) -> Turn:
        """Take a message in a row."""

    async def call_row(self, tools: Tools, row: int, call: ToolCall) -> str:
        """Return the result of a tool call in a row."""
        return tools.results([row], [call], _no_step)[0]

    async def begin(self, ids: Sequence[int], episodes: Sequence[Episode]) -> Sequence[Turn]:
        """Begin an episode in each of some rows by `begin_row`, side by side."""
        return await self._in_time([self.begin_row(*asked) for asked in zip(ids, episodes, strict=True)], _ended)

    async def answer(self, ids: Sequence[int], messages: Sequence[str]) -> Sequence[Turn]:
        """Take one message in each of some rows by `answer_row`, side by side."""
        return await self._in_time([self.answer_row(*asked) for asked in zip(ids, messages, strict=True)], _ended)

    async def call(self, tools: Tools, ids: Sequence[int], calls: Sequence[ToolCall]) -> Sequence[str]:
        """Return the results of tool calls in some rows by `call_row`, side by side."""
        asked = [self.call_row(tools, row, call) for row, call in zip(ids, calls, strict=True)]
        return await self._in_time(asked, lambda why: f"{FAILURE}the tool {why}")

    async def _in_time(
        self, asked: Sequence[Coroutine[Any, Any, Result]], without: Callable[[str], Result]
    ) -> list[Result]:
        tasks = [asyncio.ensure_future(one) for one in asked]
        timer, running = asyncio.ensure_future(self.sleep(self.deadline)), set(tasks)
        try:
            while running and not timer.done():
                done, _ = await asyncio.wait({*running, timer}, return_when=asyncio.FIRST_COMPLETED)
                running -= done
        finally:
            for task in (*running, timer):
                task.cancel()
        return [
            without(f"did not answer within {self.deadline:g} s") if task in running else _result(task, without)
            for task in tasks
        ]


def _result(task: asyncio.Task[Result], without: Callable[[str], Result]) -> Result:
    # A row may cancel itself, such as by the library that it talks through; others are none of its business.
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is None:
        return task.result()
    LOG.error("a row failed", exc_info=error)
    return without(f"failed with {type(error).__name__}")


def _ended(why: str) -> Turn:
    return Turn(f"The world {why}: the episode is over.", truncated=True, failed=True)
