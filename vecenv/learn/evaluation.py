"""Agents, and their evaluation on the same episodes: grades, outcomes and rewards with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor

from vecenv.core.collector import Policy
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.learn.domain import AgentRecord, domain_of
from vecenv.learn.intervals import (
    Interval,
    bootstrap_interval,
    interval_json,
    interval_text,
    jackknife_interval,
    of_grades,
    or_none,
    scaled_text,
    short_text,
)
from vecenv.system.memory import check_memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Agent(Protocol):
    """Protocol of an agent: stateless, so that one may play any number of environments, in any order."""

    def act(self, env: VecEnv) -> Tensor:
        """Return an action for every row of ``env``. Shape: ``(N, *action)``."""
        ...


class PolicyAgent:
    """A `vecenv.core.collector.Policy` as an agent: it plays with the parameters that it has now, without gradients."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @torch.no_grad()
    def act(self, env: VecEnv) -> Tensor:
        return self.policy.act(self.policy.parameters, env.observations(), env.episode_keys, env.elapsed)[0]


class Random:
    """Draws uniform actions, reproducible by the episodes' keys."""

    def act(self, env: VecEnv) -> Tensor:
        return random_action(env.scenario.action_spec, env.episode_keys, env.elapsed)


MOST_OUTCOMES = 6
"""Outcomes in the table of a task without a domain of its own, at most: the first ones. The JSON has the others."""


@dataclass(frozen=True)
class Evaluation:
    """Records of agents that all played the same N episodes.

    Attributes:
        metadata: of the task and its market, from the scenario.
        reference: name of the agent to which differences are taken, if it played.
        hindsight: name of the agent that sees the future.
        units: of the outcomes, by name: ``currency``, ``share`` or ``count``.
        blocks: of each episode; those of one block are not independent. Shape: (N,), int64.
        scale: what values of the grade mean.
        judged_by: measure by which agents are better than others, `vecenv.Domain.judged_by`.
        part: of the data that the episodes are of, such as ``test``, where it is known.
    """

    metadata: dict[str, Any]
    seed: int
    num_episodes: int
    records: Mapping[str, Any]
    reference: str
    hindsight: str
    units: Mapping[str, str]
    blocks: Tensor
    scale: str = ""
    judged_by: str = "grade"
    part: str = ""

    def with_record(self, name: str, record: AgentRecord) -> Self:
        """Return the evaluation with another agent that played the same episodes."""
        return replace(self, records={**self.records, name: record})

    @cached_property
    def groups(self) -> Tensor:
        """Group of each step of each episode: those of one are not independent. Shape: (T, N) or (1, N)."""
        return self.blocks.unsqueeze(0)

    def interval(self, values: Tensor, *agents: str) -> Interval:
        """Return the mean of values of the episodes, with its interval: by the bootstrap. Shape: (N,).

        A family whose episodes have days uses what the ``agents`` whose values they are did on them.
        """
        return bootstrap_interval(values, self.groups[0].to(values.device))

    @cached_property
    def grades(self) -> dict[str, dict[str, Interval]]:
        """Mean grades with intervals, by agent and grader."""
        return {
            name: {grader: of_grades(self.interval(grade, name)) for grader, grade in record.grades.items()}
            for name, record in self.records.items()
        }

    @cached_property
    def outcomes(self) -> dict[str, dict[str, Interval]]:
        """Mean outcomes with intervals, by agent and name."""
        return {
            name: {outcome: self.interval(values.double(), name) for outcome, values in record.outcomes.items()}
            for name, record in self.records.items()
        }

    @cached_property
    def reward_differences(self) -> dict[str, Interval]:
        """Mean reward of an episode minus the reference's, with intervals, by agent."""
        reference = self.records.get(self.reference)
        if reference is None:
            return {}
        others = {name: record for name, record in self.records.items() if name != self.reference}
        return {name: self.interval(record.reward - reference.reward, name) for name, record in others.items()}

    def worth_above(self, names: Sequence[str], benchmark: str) -> Tensor:
        """Return the mean grade of agents less a benchmark's, by the task's first grader. Shape: (N,), float64."""
        worth = [next(iter(self.records[name].grades.values())).double() for name in (benchmark, *names)]
        return torch.stack(worth[1:]).mean(0) - worth[0]

    def above(self, names: Sequence[str], benchmark: str) -> Interval:
        """Return how much better agents were than a benchmark on the same episodes, on average, by `judged_by`.

        The 95% interval is the jackknife's, which allows for few groups.
        """
        above = self.worth_above(names, benchmark)
        return jackknife_interval(above, self.groups[0].to(above.device))

    @property
    def measures(self) -> dict[str, dict[str, Interval]]:
        """What policies are compared by beside their grades, by name and agent."""
        return {}

    def title(self) -> str:
        """Return what was played, for pictures."""
        return str(self.metadata["task"])

    def episodes(self) -> str:
        """Return number and part of the episodes, such as ``256 test episodes``."""
        return " ".join(filter(None, (str(self.num_episodes), self.part, "episodes")))

    def lengths(self) -> str:
        """Return how long the episodes are, such as `` of 100 days``; empty where they have no unit."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the comparison: grades, figures of the domain and differences to the reference, with 95% intervals."""
        result: dict[str, Any] = {"num_episodes": self.num_episodes, "seed": self.seed, **self.metadata}
        result |= {"agents": {}, **self.figures_json()}
        for name, grades in self.grades.items():
            entry: dict[str, Any] = {
                grader: {"mean": interval.mean, "ci": _bounds(interval)} for grader, interval in grades.items()
            }
            if parts := self.records[name].grade_parts:
                entry["grade_parts"] = {part: float(values.double().mean()) for part, values in parts.items()}
            result["agents"][name] = entry | self.agent_json(name)
        return result

    def figures_json(self) -> dict[str, Any]:
        """Return what the domain tells of all agents, JSON-able."""
        return {}

    def agent_json(self, name: str) -> dict[str, Any]:
        """Return what is told of an agent beside its grades, JSON-able."""
        told = {outcome: interval_json(interval) for outcome, interval in self.outcomes[name].items()}
        entry: dict[str, Any] = {"reward": interval_json(self.interval(self.records[name].reward, name)), **told}
        if name in self.reward_differences:
            entry[f"minus_{self.reference}"] = {"reward": interval_json(self.reward_differences[name])}
        return entry

    def headers(self) -> list[str]:
        """Return the headers of the table's columns behind those of the grades."""
        above = [f"Reward above\n{self.reference}"] if self.reward_differences else []
        first = next(iter(self.records))
        told = [self.header(name) for name in list(self.outcomes[first])[:MOST_OUTCOMES]]
        return ["Reward", "95%\ninterval", *above, *told]

    def cells(self, name: str) -> list[str]:
        """Return an agent's cells below `headers`."""
        reward, above = self.interval(self.records[name].reward, name), self.reward_differences
        cells = [short_text(reward.mean), interval_text(reward, 1.0, 2)]
        if above:
            cells.append(interval_text(above[name], 1.0, 2) if name in above else "")
        told = list(self.outcomes[name].items())[:MOST_OUTCOMES]
        return cells + [scaled_text(interval.mean, self.factor(outcome)) for outcome, interval in told]

    def caption(self) -> str:
        """Return what the columns mean, in sentences."""
        return "Means over episodes, with 95% bootstrap intervals; differences on the same episodes."

    def notes(self) -> list[str]:
        """Return what is to be known of this comparison alone, in sentences."""
        return []

    def header(self, outcome: str) -> str:
        """Return the header of an outcome, a word a line; shares are in percent."""
        return "\n".join(outcome.capitalize().split("_")) + ("\n%" if self.factor(outcome) > 1 else "")

    def factor(self, outcome: str) -> float:
        return 100.0 if self.units[outcome] == "share" else 1.0

    def pictures(self, agent: str, beside: Sequence[str]) -> tuple[dict[str, Any], dict[str, Figure]]:
        """Return what a picture tells in numbers, JSON-able, and the pictures by file name.

        Some are of one agent alone, or of it and the agents ``beside``.
        """
        from vecenv.learn.report import rewards_figure

        return {}, {"rewards": rewards_figure(self)}


def _bounds(interval: Interval) -> list[float | None]:
    return [or_none(interval.low), or_none(interval.high)]


def evaluate(env: VecEnv, agents: Mapping[str, Agent], seed: int = 0, eager: bool = False) -> Evaluation:
    """Play the same episodes with every agent, one per row of the environment, whose rows are overwritten.

    The episodes are the first of each row under ``seed``, without auto-reset.

    Args:
        env: the environment; its task declares the episode outcomes.
        agents: by name.
        seed: of the episodes and of random agents.
        eager: step eagerly even if the environment is compiled: faster than compiling for one pass.

    Raises:
        ValueError: there is no agent, or an agent does not act for every row, or the curves do not fit in memory.
    """
    if not agents:
        raise ValueError("there is no agent to evaluate")
    # Equity, turnover and cash of every day, in float64.
    needed = 24 * env.num_envs * (env.scenario.longest or 1) * len(agents)
    check_memory(needed, env.device, f"the curves of {env.num_envs:,} episodes of {len(agents)} agents")
    env.expect((env.scenario.longest or 0) * len(agents))
    env.reset_first(seed)
    domain, worlds = domain_of(env), torch.arange(env.num_envs) // env.traits.num_agents
    fields = dict[str, Any](
        metadata=env.scenario.metadata(),
        seed=seed,
        num_episodes=env.num_envs,
        reference=domain.reference,
        hindsight=domain.hindsight,
        units=env.scenario.outcomes,
        blocks=worlds if domain.blocks is None else domain.blocks(env.state).cpu(),
        scale=domain.scale,
        judged_by=domain.judged_by,
    )
    # Before the first step: bounds are computed at the start of episodes.
    made = domain.evaluation(env, **fields)
    records = {name: play(env, agent, seed, eager) for name, agent in agents.items()}
    return Evaluation(records=records, **fields) if made is None else made(records)


@torch.no_grad()
def play(env: VecEnv, agent: Agent, seed: int, eager: bool = False) -> AgentRecord:
    """Play the first episode of every row under ``seed`` to its end.

    Raises:
        ValueError: the agent does not act for every row, or its actions have another shape or type.
    """
    env.reset_first(seed)
    watch = domain_of(env).watch(env)
    rewards = torch.zeros(env.num_envs, dtype=torch.float64, device=env.ended.device)
    while bool((running := env.ended == 0).any()):
        action = agent.act(env)
        if len(action) != env.num_envs:
            raise ValueError(f"{type(agent).__name__} returned {len(action)} actions for {env.num_envs} rows")
        rewards += env.advance(action, eager=eager or not env.compiled).double()
        watch.step(env, running)
    info, length = env.info(), env.elapsed.clone()
    told = {name: info[name] for name in env.scenario.outcomes}
    return watch.record(AgentRecord(env.grades(), told, rewards, length, env.engine.bound().grade_parts(env.rows)))
