"""Comparison of trained agents, alone or as an ensemble, with baselines on the days of the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vecenv.core.env import VecEnv
from vecenv.learn.conversations import ConversationEvaluation, evaluate_conversations
from vecenv.learn.domain import BEST_RULE
from vecenv.learn.ensemble import (
    Diversity,
    NoEnsembleError,
    diversity,
    draws_actions,
    load_ensemble,
    validation_sharpes,
)
from vecenv.learn.evaluation import Agent, Evaluation, PolicyAgent, evaluate
from vecenv.learn.policies import load_policy
from vecenv.learn.report import write_task_figures
from vecenv.learn.settings.ensemble import Combination, Kind
from vecenv.registry import Task, task_named, task_of
from vecenv.tasks.experiment.checkpoints import read_checkpoint, trained_config
from vecenv.tasks.experiment.kinds import ALL
from vecenv.tasks.experiment.splits import FIRST
from vecenv.text.interaction import Episode, Interaction
from vecenv.text.records import EpisodeRecord, Record, write_jsonl

if TYPE_CHECKING:
    from vecenv.language.agent import LanguageAgent

TRAINED = "trained"
"""Name of the trained agent in tables and files."""

UNTRAINED = "untrained"
"""Name in tables and files of the policy of the seed, which no run has changed."""

ENSEMBLE = "ensemble"
"""Name of the mean of several trained policies in tables and files."""

CONVERSATIONS = "conversations.jsonl"
"""File of the first talking agent's test episodes, which ``vecenv replay`` reads."""

SPOKEN = 8
"""Test episodes of a task of tensors whose conversations are written: a language model plays them once more."""

COMPARING = "Comparing agents on {} episodes …"
"""Status message during the episodes of the test."""

SHOWN_BESIDE = ("equal_weight",)
"""Baselines shown on the worst days of an agent beside the reference."""

BY_SHARPE: tuple[Kind, ...] = ("weighted", "select")
"""Combinations by the Sharpe ratios of the validations."""


def chosen_agents(task: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the chosen baselines, with `ALL` expanded, a ValueError if some are unknown."""
    known = task_named(task).agents
    if tuple(names) == (ALL,):
        return tuple(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        told = f"there are {', '.join(known)}, or {ALL}" if known else f"task {task!r} has none"
        raise ValueError(f"unknown agents {', '.join(unknown)}; {told}")
    return tuple(names)


def compared(
    env: VecEnv | Interaction,
    agents: Mapping[str, Any],
    names: Sequence[str],
    seed: int,
    folder: Path,
    origin: Mapping[str, Any] | None,
) -> Evaluation:
    """Play the test episodes, one a row, with agents and baselines by name, and write the pictures of the family.

    What was said is written too, by `write_conversations`: in a conversation by all agents, in a task of tensors by
    language models in the first `SPOKEN` episodes. ``origin`` is of the market, for their records.
    """
    agents = {**agents, **baseline_agents(env, chosen_agents(_task_of(env).name, names))}
    if isinstance(env, Interaction):
        talks = compared_conversations(env, agents, seed)
        write_conversations(folder, talks.conversations)
        found: Evaluation = talks
    else:
        found = evaluate(env, agents, seed)
        talking = {name: agent for name, agent in agents.items() if hasattr(agent, "talk")}
        if talking and task_of(env).is_recorded and env.traits.num_agents == 1:
            write_conversations(
                folder, {name: spoken_episodes(env, agent, seed, origin) for name, agent in talking.items()}
            )
    write_task_figures(folder, env, agents, seed)
    return replace(found, part="test")


def compared_conversations(world: Interaction, agents: Mapping[str, Any], seed: int) -> ConversationEvaluation:
    """Play the test episodes of a conversation, one a row, by the rules of turns of the language model if one plays."""
    rules = [agent.config.turn_rules for agent in agents.values() if hasattr(agent, "talk")]
    episodes = [Episode(seed, FIRST["test"] + row) for row in range(world.num_rows)]
    return evaluate_conversations(world, agents, episodes, *rules[:1])


def spoken_episodes(
    env: VecEnv, agent: LanguageAgent, seed: int, origin: Mapping[str, Any] | None
) -> list[EpisodeRecord]:
    """Return what a language model says in the first `SPOKEN` rows of a test; the other rows stand still."""
    ids = list(range(min(SPOKEN, env.num_envs)))
    env.reset_first(seed)
    recorder = task_of(env).check_recording().recorder(env, ids, origin)
    chosen = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    chosen[ids] = True
    agent.ids = ids
    while not bool(env.rows.done[ids].all()):
        own = agent.act(env)
        action = own.new_zeros(env.num_envs, *own.shape[1:])
        action[ids] = own
        recorder.step(action, agent.said, chosen)
    # It plays all rows again in pictures.
    agent.ids = None
    return recorder.episodes()


def write_conversations(folder: Path, conversations: Mapping[str, Sequence[Record]]) -> None:
    """Write what was said in a comparison, by agent: `CONVERSATIONS` of the first, a file of each other.

    Those have its name too, such as ``conversations_random.jsonl``; ``vecenv replay`` reads all. Such files of an
    earlier comparison are removed.
    """
    for old in folder.glob(f"{Path(CONVERSATIONS).stem}_*.jsonl"):
        old.unlink()
    for number, (name, records) in enumerate(conversations.items()):
        path = folder / CONVERSATIONS
        write_jsonl(path if number == 0 else path.with_stem(f"{path.stem}_{name}"), records)


def trained_agent(checkpoint: Path, env: VecEnv) -> Agent:
    """Return the agent of a checkpoint for a comparison, a ValueError if it does not fit the environment."""
    return _ensemble_agent([checkpoint], env)


def trained_agents(
    checkpoints: Mapping[str, Path], env: VecEnv, combination: Combination | None = None
) -> dict[str, Agent]:
    """Return the agents of checkpoints by name, and of several `ENSEMBLE`, their combination.

    Without a combination it is the mean of their actions, or the vote, where there is one. A policy of the exact
    gradient may stand beside one of PPO, but not be in an ensemble with it.

    Raises:
        ValueError: a checkpoint does not fit the environment, several were trained under different rules, or the
            combination is not that of their actions.
    """
    agents = {name: trained_agent(path, env) for name, path in checkpoints.items()}
    paths = list(checkpoints.values())
    rules = [trained_config(read_checkpoint(path)["scenario"], str(path)) for path in paths]
    smooth = task_of(env).domain.smooth or (lambda config: config)
    for path, config in zip(paths, rules, strict=True):
        if type(config) is not type(rules[0]) or smooth(config) != smooth(rules[0]):
            raise ValueError(f"{path} was trained under other rules than {paths[0]}: they cannot be compared")
    if len(paths) > 1 and all(config == rules[0] for config in rules):
        with suppress(NoEnsembleError) if combination is None else nullcontext():
            agents[ENSEMBLE] = _ensemble_agent(paths, env, combination)
    return agents


def _ensemble_agent(checkpoints: Sequence[Path], env: VecEnv, combination: Combination | None = None) -> Agent:
    made = task_of(env).domain.trained
    if made is None:
        return PolicyAgent(load_ensemble(checkpoints, env, combination))
    if combination is not None:
        raise ValueError(f"policies of task {task_of(env).name!r} are combined by --combine mean alone")
    first = checkpoints[0]
    return made(checkpoints, trained_config(read_checkpoint(first)["scenario"], str(first)), env)


def check_combination(combination: Combination | None, paths: Sequence[Path]) -> None:
    """Reject, before any work, too few checkpoints for a combination, or one without a validation's Sharpe ratio."""
    if combination is None:
        return
    if len(paths) < 2:
        raise ValueError(f"--combine {combination.kind} needs several checkpoints, got {len(paths)}")
    if combination.kind in BY_SHARPE:
        validation_sharpes(paths)


def policies_diversity(paths: Sequence[Path], env: VecEnv, seed: int) -> Diversity | None:
    """Return how much policies differ on episodes that all together play; the rows are overwritten.

    None of fewer than two, and of those whose actions are none of the environment's, or have no ensemble.
    """
    if len(paths) < 2 or task_of(env).domain.trained is not None:
        return None
    try:
        played = load_ensemble(paths, env)
    except NoEnsembleError:
        return None
    policies = [load_policy(path, env) for path in paths]
    return diversity(policies, played, env, seed, random=all(map(draws_actions, paths)))


def baseline_agents(env: VecEnv | Interaction, names: Sequence[str]) -> dict[str, Any]:
    """Return baselines of the environment's task, and the best rule if it is known, by name."""
    record = _task_of(env)
    best = record.domain.best(env)
    return {name: record.agents[name]() for name in names} | ({} if best is None else {BEST_RULE: best})


def _task_of(env: VecEnv | Interaction) -> Task:
    return env.task if isinstance(env, Interaction) else task_of(env)
