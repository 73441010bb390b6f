"""Agents that talk, compared on the same conversations: what they reach, and what was said."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vecenv.learn.domain import AgentRecord, domain_of
from vecenv.learn.evaluation import Evaluation
from vecenv.learn.intervals import Interval, bootstrap_interval, interval_json, interval_text
from vecenv.learn.report import means_figure
from vecenv.text.agents import RANDOM, RandomAnswers, converse
from vecenv.text.dialogue import TextRules
from vecenv.text.interaction import Episode, Interaction, Turn
from vecenv.text.transcripts import ConversationRecord, RecordedDialogue
from vecenv.tools.offers import MOCK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = TextRules(grade=0.0, steps=1.0)
"""Rules of comparisons: rewards as the world gives them, grades apart."""


def world_failed(turns: Sequence[Turn]) -> bool:
    """Whether the world of an episode failed, given what its answers came to."""
    return not turns or turns[-1].failed


@dataclass(frozen=True)
class ConversationEvaluation(Evaluation):
    """Records of agents that talked in the same episodes; ``failed`` counts those whose world failed, left out.

    Attributes:
        conversations: what was said in each episode, by agent.
        draw: draws the pictures of the conversations, `vecenv.Domain.talk_pictures`.
        mocked: grades in the same episodes with mocks of the tools, by agent, if they were played.
    """

    failed: int = 0
    conversations: Mapping[str, Sequence[ConversationRecord]] = field(default_factory=dict)
    draw: Callable[[Mapping[str, Sequence[ConversationRecord]]], Mapping[str, Figure]] | None = None
    mocked: Mapping[str, Tensor] = field(default_factory=dict)

    def figures_json(self) -> dict[str, Any]:
        told = {
            agent: {
                str(number): interval_json(interval) | {"episodes": int((self._offered(agent) == number).sum())}
                for number, interval in grades.items()
            }
            for agent, grades in self.by_tools.items()
        }
        gaps = {agent: interval_json(interval) for agent, interval in self.gap.items()}
        found = {"by_tools_offered": told, "gap": gaps}
        return {"failed": self.failed} | {name: value for name, value in found.items() if value}

    def notes(self) -> list[str]:
        told = [f"Left out are {self.failed} episodes whose world failed."] if self.failed else []
        for agent, grades in self.by_tools.items():
            each = ", ".join(f"{number}: {interval.mean:.3f}" for number, interval in grades.items())
            told.append(f"Grade of {agent} by number of tools offered: {each}.")
        for agent, interval in self.gap.items():
            above = interval_text(interval, 1.0, 3)
            told.append(f"Grade of {agent} with the tools less that with their mocks: {above}.")
        return told

    def _offered(self, agent: str) -> Tensor:
        return self.records[agent].outcomes["tools_offered"]

    @cached_property
    def by_tools(self) -> dict[str, dict[int, Interval]]:
        """Mean grades with bootstrap intervals by agent and number of tools offered, where that differs by episode."""
        if "tools_offered" not in self.units:
            return {}
        found: dict[str, dict[int, Interval]] = {}
        for agent, record in self.records.items():
            for number in self._offered(agent).unique().tolist():
                chosen = self._offered(agent) == number
                interval = bootstrap_interval(record.grades["grade"][chosen], self.blocks[chosen])
                found.setdefault(agent, {})[int(number)] = interval
        return found

    @cached_property
    def gap(self) -> dict[str, Interval]:
        """Mean grade with the tools less that with their mocks in the same episodes, with bootstrap intervals."""
        return {
            name: self.interval(self.records[name].grades["grade"] - grades) for name, grades in self.mocked.items()
        }

    @cached_property
    def outcomes(self) -> dict[str, dict[str, Interval]]:
        """Mean outcomes with bootstrap intervals, by agent and name: over the episodes in which they are known."""
        return {
            name: {outcome: self._of_known(values) for outcome, values in record.outcomes.items()}
            for name, record in self.records.items()
        }

    def _of_known(self, values: Tensor) -> Interval:
        known = ~values.isnan()
        return bootstrap_interval(values[known], self.blocks[known]) if known.any() else Interval(*[math.nan] * 3)

    @cached_property
    def grade_differences(self) -> dict[str, Interval]:
        """Mean grade minus the reference's on the same episodes, with bootstrap intervals, by agent."""
        reference = self.records[self.reference].grades["grade"]
        others = {name: record for name, record in self.records.items() if name != self.reference}
        return {name: self.interval(record.grades["grade"] - reference) for name, record in others.items()}

    def agent_json(self, name: str) -> dict[str, Any]:
        entry = super().agent_json(name)
        if name in self.grade_differences:
            entry[f"minus_{self.reference}"]["grade"] = interval_json(self.grade_differences[name])
        return entry

    def headers(self) -> list[str]:
        return [f"Grade above\n{self.reference}", *super().headers()]

    def cells(self, name: str) -> list[str]:
        above = self.grade_differences.get(name)
        return ["" if above is None else interval_text(above, 1.0, 2), *super().cells(name)]

    def pictures(self, agent: str, beside: Sequence[str]) -> tuple[dict[str, Any], dict[str, Figure]]:
        told, pictures = super().pictures(agent, beside)
        grades = {name: record.grades["grade"] for name, record in self.records.items()}
        own = {} if self.draw is None else self.draw(self.conversations)
        return told, pictures | {"grades": means_figure(self, "grade", grades)} | dict(own)


def evaluate_conversations(
    world: Interaction,
    agents: Mapping[str, Any],
    episodes: Sequence[Episode],
    rules: TextRules = COMPARED,
    mocked: Interaction | None = None,
) -> ConversationEvaluation:
    """Play the same episodes, one a row, with every agent, and after them with `RANDOM` if none has its name.

    Each agent is a `vecenv.text.agents.ConversationAgent` or a language model (`vecenv.language.agent.LanguageAgent`).
    Differences are to the reference of the task's domain or, if it does not play, to `RANDOM`. In ``mocked``, a world
    of the task with mocks of its tools (`vecenv.tools.sourced.with_sources`), the agents play the same episodes too;
    so they do by rules whose tools have a mock, and then without it.

    Raises:
        ValueError: the world failed in every episode, or an agent fails.
    """
    seed, played, said = episodes[0].seed, dict[str, list[list[Turn]]](), dict[str, list[ConversationRecord | None]]()
    beside: dict[str, list[list[Turn]]] = {}
    mocks, real = rules, replace(rules, tools=tuple(name for name in rules.tools if not name.startswith(MOCK)))
    if real != mocks:
        mocked = mocked or world
    if mocked is not None:
        # A program may keep what it was told in an episode.
        copies = {name: agent if hasattr(agent, "talk") else deepcopy(agent) for name, agent in agents.items()}
        beside = {name: turns for name, turns, _ in _talks(RecordedDialogue(mocked, mocks), copies, episodes)}
    # One dialogue, since connections of a slow world live as long as its loop.
    dialogue = RecordedDialogue(world, real)
    for name, turns, records in _talks(dialogue, {RANDOM: RandomAnswers(seed)} | dict(agents), episodes):
        played[name], said[name] = turns, records
    every = [*played.values(), *beside.values()]
    kept = [row for row in range(len(episodes)) if not any(world_failed(turns[row]) for turns in every)]
    if not kept:
        raise ValueError(f"the world failed in all {len(episodes):,} episodes")
    names = dict.fromkeys((*agents, RANDOM))
    domain = domain_of(world)
    return ConversationEvaluation(
        metadata=world.metadata(),
        seed=seed,
        num_episodes=len(kept),
        records={name: _record([played[name][row] for row in kept], dialogue.outcomes) for name in names},
        reference=domain.reference if domain.reference in played else RANDOM,
        hindsight=domain.hindsight,
        units=dialogue.outcomes,
        blocks=torch.arange(len(kept)),
        scale=domain.scale,
        judged_by=domain.judged_by,
        failed=len(episodes) - len(kept),
        conversations={name: [record for row in kept if (record := said[name][row])] for name in names},
        draw=domain.talk_pictures,
        mocked={name: _record([turns[row] for row in kept], ()).grades["grade"] for name, turns in beside.items()},
    )


def recorded_conversations(
    world: Interaction,
    agents: Mapping[str, Any],
    episodes: Sequence[Episode],
    rules: TextRules = COMPARED,
) -> Iterator[tuple[str, list[ConversationRecord]]]:
    """Play the same episodes, one a row, with every agent; return by agent what was said where no world failed."""
    for name, played, records in _talks(RecordedDialogue(world, rules), agents, episodes):
        pairs = zip(records, played, strict=True)
        yield name, [record for record, turns in pairs if record is not None and not world_failed(turns)]


def _talks(
    dialogue: RecordedDialogue, agents: Mapping[str, Any], episodes: Sequence[Episode]
) -> Iterator[tuple[str, list[list[Turn]], list[ConversationRecord | None]]]:
    """Return the name, the turns and the records of every agent; language models talk by themselves."""
    for name, agent in agents.items():
        talk = getattr(agent, "talk", None)
        played = converse(dialogue, agent, episodes, name) if talk is None else talk(dialogue, episodes)
        yield name, played, list(dialogue.records)


def _record(played: Sequence[Sequence[Turn]], outcomes: Iterable[str]) -> AgentRecord:
    """Return the results of the turns of each episode."""
    last = [turns[-1] for turns in played]

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return AgentRecord(
        grades={"grade": column([turn.grade or 0.0 for turn in last])},
        outcomes={name: column([(turn.outcomes or {})[name] for turn in last]) for name in outcomes},
        reward=column([sum(turn.reward for turn in turns) for turns in played]),
        length=torch.tensor([len(turns) for turns in played]),
    )
