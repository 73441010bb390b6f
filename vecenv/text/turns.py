"""Rows of an environment for agents that read and write text, any of them at a time: what each is shown and paid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from vecenv.core.env import VecEnv
from vecenv.text.outlook import Lookout, Outlook
from vecenv.text.tool_calls import Form, ToolCall, read_answer, read_call


@dataclass(frozen=True)
class TextRules:
    """How agents that write text are asked, and what they are paid."""

    grade: float = 1.0
    """Weight of the outcome in [0, 1], paid on the last day."""
    steps: float = 0.0
    """Weight of the task's own reward of each day."""
    format_penalty: float = 0.0
    """Added on a turn whose answer cannot be read; not positive."""
    tools: tuple[str, ...] = ()
    """Tools that may be called before a day's answer, families of them, or all; by default none."""
    tool_form: Form = "json"
    """How tools are called: json or react."""
    turns: int = 4
    """With tools: turns of a day, the answer among them."""

    def __post_init__(self) -> None:
        if self.format_penalty > 0:
            raise ValueError(f"format_penalty must not be positive, got {self.format_penalty}")
        if self.turns < 1:
            raise ValueError(f"turns must be at least 1, got {self.turns}")

    def inapplicable(self) -> dict[str, str]:
        """Return what each setting belongs to that does nothing beside the others."""
        return {} if self.tools else dict.fromkeys(("tool_form", "turns"), "tools")


class Account(NamedTuple):
    """What an account is worth, in the currency of the prices."""

    cash: float
    portfolio_value: float
    total_return: float


class TextTurn(NamedTuple):
    """What a turn of one agent came to.

    Attributes:
        shown: what the agent reads next: its next day, or what a tool said.
        reward: of the turn.
        terminated: whether the rules have ended the episode.
        truncated: whether the episode has been cut off.
        valid: whether the text could be read.
        traded: whether something was bought or sold.
        account: after the day; None where a tool was asked.
        grade: outcome in [0, 1] once the episode has ended, else None: before, it would tell of days to come.
    """

    shown: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    traded: bool = False
    account: Account | None = None
    grade: float | None = None

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


class TextRows:
    """An environment whose rows are agents that read and write text.

    Args:
        env: of a task that has text, with actions that are lists of orders.
        rules: how agents are asked and paid.

    Raises:
        ValueError: the task has no text, or there is no such tool.
    """

    def __init__(self, env: VecEnv, rules: TextRules) -> None:
        if not env.scenario.has_text():
            raise ValueError(f"task {env.scenario.name!r} has no text")
        self.env, self.rules = env, rules
        self.tools = env.scenario.tools(rules.tools) if rules.tools else None
        self.turns = [0] * env.num_envs
        self._lookout = Lookout(env)

    def instructions(self, ids: Sequence[int]) -> list[str]:
        """Return what the agents of some rows are told before their first day, of the tools too."""
        told = self.env.instructions(ids)
        if self.tools is None:
            return told
        added = self.tools.instructions(self.rules.tool_form, self.rules.turns - 1)
        return [f"{text}\n{added}" for text in told]

    def begin(self, ids: Sequence[int]) -> list[tuple[str, Account]]:
        """Return what the agents of some rows, whose episodes have just begun, are shown first, and their accounts."""
        for row in ids:
            self.turns[row] = 0
        return self._told(ids, self._lookout.look())

    def _told(self, ids: Sequence[int], outlook: Outlook) -> list[tuple[str, Account]]:
        """Return the day of some rows in words, and their accounts."""
        env, rows = self.env, torch.tensor(ids, device=self.env.device)
        shown = env.scenario.render(outlook.observation[rows], env.chosen_state(ids))
        cash, value, start = (part[rows] for part in (outlook.cash, outlook.portfolio_value, outlook.start_value))
        columns = [column.tolist() for column in (cash, value, value / start - 1.0)]
        return list(zip(shown, (Account(*amounts) for amounts in zip(*columns, strict=True)), strict=True))

    @torch.no_grad()
    def answer(self, ids: Sequence[int], texts: Sequence[object]) -> list[TextTurn]:
        """Take a turn in some rows, whose episodes go on: a tool is asked, or the day is answered and over.

        Whatever the texts hold, nothing raises: what cannot be read is an invalid HOLD.

        Args:
            ids: numbers of rows, each once. B of them.
            texts: what their agents say. B of them.
        """
        turns: list[TextTurn | None] = [None] * len(ids)
        calls = self._calls(ids, texts)
        if self.tools is not None and calls:
            results = self.env.tool_results(self.tools, list(calls.values()), [ids[place] for place in calls])
            for place, result in zip(calls, results, strict=True):
                turns[place] = TextTurn(result)
        days = [place for place in range(len(ids)) if place not in calls]
        if days:
            answered = self._step([ids[place] for place in days], [self._answer(texts[place]) for place in days])
            for place, turn in zip(days, answered, strict=True):
                turns[place] = turn
        return [turn for turn in turns if turn is not None]

    def _calls(self, ids: Sequence[int], texts: Sequence[object]) -> dict[int, ToolCall]:
        """Count the turns of some rows and return the calls of tools among them, by place."""
        calls: dict[int, ToolCall] = {}
        for place, (row, text) in enumerate(zip(ids, texts, strict=True)):
            self.turns[row] += 1
            if self.tools is None or self.turns[row] >= self.rules.turns or not isinstance(text, str):
                continue
            if (call := read_call(text, self.rules.tool_form)) is not None:
                calls[place] = call
        return calls

    def _answer(self, text: object) -> object:
        return text if self.tools is None or not isinstance(text, str) else read_answer(text, self.rules.tool_form)

    def _step(self, ids: Sequence[int], answers: Sequence[object]) -> list[TextTurn]:
        """Answer the day of some rows."""
        env, rules = self.env, self.rules
        orders, valid = env.parse_text(answers, ids)
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
        traded = env.chosen_state(ids).traded > 0
        columns = (reward, after.terminated[rows], after.truncated[rows], valid, traded, outlook.grade[rows])
        turns = []
        for (text, account), paid, by_rules, cut_off, readable, executed, outcome in zip(
            told, *(column.tolist() for column in columns), strict=True
        ):
            grade = outcome if by_rules or cut_off else None
            paid += (0.0 if readable else rules.format_penalty) + (0.0 if grade is None else rules.grade * grade)
            turns.append(TextTurn(text, paid, by_rules, cut_off, readable, executed, account, grade))
        return turns
