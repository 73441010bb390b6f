"""Turn-based stepping of any subset of rows for text agents: observations, tool calls and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from vecenv.core.engine import BoundEngine, RowCall
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.system.settings import Count, Settings, Within
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.door import TextDoor
from vecenv.text.tool_calls import Form, ToolCall, read_answer, read_call


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
    """Tools that may be called before a day's answer: names, families, or all; by default none."""
    tool_form: Form = "json"
    """Tool-call format: json or react."""
    turns: Count = 4
    """With tools: maximum turns per day, the answer included."""

    def inapplicable(self) -> dict[str, str]:
        return {} if self.tools else dict.fromkeys(("tool_form", "turns"), "tools")


class TextTurn(NamedTuple):
    """Result of one agent's turn.

    Attributes:
        shown: next text for the agent: its next day, after an invalid answer with why it was that, or a tool's result.
        valid: whether the text was valid.
        acted: whether the answer did more than wait.
        outcomes: of the episode so far, by name; None after a tool call.
        grade: in [0, 1] once the episode has ended, else None: before, it would reveal future days.
    """

    shown: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    acted: bool = False
    outcomes: dict[str, float] | None = None
    grade: float | None = None

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Outlook(NamedTuple):
    """Observations, outcomes and grades of N rows. Shapes: (N, D), float32, and (N,).

    A grade depends on all days of the episode, future ones included.
    """

    observation: Tensor
    outcomes: dict[str, Tensor]
    grade: Tensor


class Lookout:
    """Computes the outlook of all rows. If the steps of the environment are compiled, the first call compiles."""

    def __init__(self, env: VecEnv, outcomes: Sequence[str]) -> None:
        self._env, self._outcomes = env, tuple(outcomes)
        self._make_call()

    def _make_call(self) -> None:
        self._look = RowCall(self._env.engine, self._looked, lambda: self._env.compiled)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the compiled function, which a copy makes anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_look"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_call()

    def _looked(self, bound: BoundEngine, rows: Rows) -> dict[str, Tensor]:
        info = bound.info(rows) if self._outcomes else {}
        told = {f"info/{name}": info[name] for name in self._outcomes}
        return {"observation": torch.cat(bound.observe(rows), dim=-1), **told, "grade": bound.grade(rows)}

    @torch.no_grad()
    def look(self) -> Outlook:
        seen = self._look(self._env.rows)
        return Outlook(seen["observation"], {name: seen[f"info/{name}"] for name in self._outcomes}, seen["grade"])


class TextRows:
    """An environment whose rows are text agents, in the action space that texts are parsed into.

    Raises:
        ValueError: the task has no text, or a tool is unknown.
    """

    def __init__(self, env: VecEnv, rules: TextRules) -> None:
        self.env, self.rules, self._door = env, rules, TextDoor(env)
        self.tools = self._door.text.tools(rules.tools) if rules.tools else None
        self.turns = [0] * env.num_envs
        self._lookout = Lookout(env, tuple(env.scenario.outcomes))

    def instructions(self, ids: Sequence[int]) -> list[str]:
        told = self._door.instructions(ids)
        if self.tools is None:
            return told
        added = self.tools.instructions(self.rules.tool_form, self.rules.turns - 1)
        return [f"{text}\n{added}" for text in told]

    def begin(self, ids: Sequence[int]) -> list[tuple[str, dict[str, float]]]:
        """Return the first texts and the outcomes of some rows whose episodes have just begun."""
        for row in ids:
            self.turns[row] = 0
        return self._told(ids, self._lookout.look())

    def _told(self, ids: Sequence[int], outlook: Outlook) -> list[tuple[str, dict[str, float]]]:
        rows = torch.tensor(ids, device=self.env.device)
        shown = self._door.text.render(outlook.observation[rows], self._door.state(ids))
        columns = {name: told[rows].tolist() for name, told in outlook.outcomes.items()}
        return [(text, {name: told[place] for name, told in columns.items()}) for place, text in enumerate(shown)]

    @torch.no_grad()
    def answer(self, ids: Sequence[int], texts: Sequence[object]) -> list[TextTurn]:
        """Take a turn in some rows with running episodes: a tool call, or the day's answer and a step.

        No text raises: an unreadable answer is an invalid HOLD.
        """
        turns: list[TextTurn | None] = [None] * len(ids)
        calls, late = self._calls(ids, texts)
        if self.tools is not None and calls:
            results = self._door.tool_results(self.tools, list(calls.values()), [ids[place] for place in calls])
            for place, result in zip(calls, results, strict=True):
                turns[place] = TextTurn(result)
        days = [place for place in range(len(ids)) if place not in calls]
        if days:
            answered = self._step([ids[place] for place in days], [self._answer(texts[place]) for place in days], late)
            for place, turn in zip(days, answered, strict=True):
                turns[place] = turn
        return [turn for turn in turns if turn is not None]

    def _calls(self, ids: Sequence[int], texts: Sequence[object]) -> tuple[dict[int, ToolCall], dict[int, AnswerFault]]:
        """Count the turns of some rows; return their tool calls, by position, and what to tell of late ones, by row."""
        calls: dict[int, ToolCall] = {}
        late: dict[int, AnswerFault] = {}
        for place, (row, text) in enumerate(zip(ids, texts, strict=True)):
            self.turns[row] += 1
            if self.tools is None or not isinstance(text, str):
                continue
            if (call := read_call(text, self.rules.tool_form)) is None:
                continue
            if self.turns[row] < self.rules.turns:
                calls[place] = call
            else:
                late[row] = AnswerFault("it calls a tool, but no call was left")
        return calls, late

    def _answer(self, text: object) -> object:
        return text if self.tools is None or not isinstance(text, str) else read_answer(text, self.rules.tool_form)

    def _step(self, ids: Sequence[int], answers: Sequence[object], late: Mapping[int, AnswerFault]) -> list[TextTurn]:
        env, rules = self.env, self.rules
        orders, valid = self._door.parse(answers, ids)
        faults = self._door.faults([late.get(row, text) for row, text in zip(ids, answers, strict=True)], valid, ids)
        rows = torch.tensor(ids, device=env.device)
        action = orders.new_zeros(env.num_envs, *orders.shape[1:])
        action[rows] = orders
        chosen = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        chosen[rows] = True
        reward = rules.steps * env.advance(action, chosen)[rows]
        outlook = self._lookout.look()
        told, after = self._told(ids, outlook), env.rows
        for row in ids:
            self.turns[row] = 0
        acted = self._door.text.acted(self._door.state(ids))
        acted = torch.ones_like(valid) if acted is None else acted
        columns = (reward, after.terminated[rows], after.truncated[rows], valid, acted, outlook.grade[rows])
        turns = []
        for (text, outcomes), fault, paid, by_rules, cut_off, readable, executed, outcome in zip(
            told, faults, *(column.tolist() for column in columns), strict=True
        ):
            text = f"{text}\n{fault}" if fault else text
            grade = outcome if by_rules or cut_off else None
            paid += (0.0 if readable else rules.format_penalty) + (0.0 if grade is None else rules.grade * grade)
            turns.append(TextTurn(text, paid, by_rules, cut_off, readable, executed, outcomes, grade))
        return turns
