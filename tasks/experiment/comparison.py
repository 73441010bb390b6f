"""Comparison of trained agents, alone or as an ensemble, with baselines on the days of the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vecenv.core.env import VecEnv
from vecenv.learn.domain import BEST_RULE, domain_of
from vecenv.learn.ensemble import (
    Combination,
    Diversity,
    Kind,
    NoEnsembleError,
    diversity,
    draws_actions,
    load_ensemble,
    validation_sharpes,
)
from vecenv.learn.evaluation import Agent, Evaluation, PolicyAgent, evaluate
from vecenv.learn.policies import load_policy
from vecenv.learn.report import write_task_figures
from vecenv.registry import Task, task_named, task_of
from vecenv.tasks.experiment.checkpoints import read_checkpoint, trained_config
from vecenv.tasks.experiment.splits import FIRST
from vecenv.text.interaction import Interaction
from vecenv.text.records import write_jsonl
from vecenv.text.transcripts import ConversationRecord

TRAINED = "trained"
"""Name of the trained agent in tables and files."""

UNTRAINED = "untrained"
"""Name in tables and files of the policy of the seed, which no run has changed."""

ENSEMBLE = "ensemble"
"""Name of the mean of several trained policies in tables and files."""

CONVERSATIONS = "conversations.jsonl"
"""File of the test episodes of a conversation, which ``vecenv replay`` reads."""

COMPARING = "Comparing agents on {} episodes …"
"""Status message during the episodes of the test."""

SHOWN_BESIDE = ("equal_weight",)
"""Baselines shown on the worst days of an agent beside the reference."""

ALL = "all"
"""Stands for all baselines of a task."""

BY_SHARPE: tuple[Kind, ...] = ("weighted", "select")
"""Combinations by the Sharpe ratios of the validations."""


def compared_rules(record: Task, config: Any = None, of_text: bool = False) -> Any:  # noqa: ANN401
    """Return a config of a task, its default if None, as all agents are compared under it, perhaps by texts."""
    if of_text:
        config = record.spoken(record.default_text_config() if config is None else config)
    return record.domain.compared(record.config() if config is None else config)


def chosen_agents(task: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the chosen baselines, with `ALL` expanded, a ValueError if some are unknown."""
    known = task_named(task).agents
    if tuple(names) == (ALL,):
        return tuple(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown agents {', '.join(unknown)}; there are {', '.join(known)}, or {ALL}")
    return tuple(names)


def compared(env: VecEnv | Interaction, agents: Mapping[str, Any], seed: int, folder: Path) -> Evaluation:
    """Play the test episodes, one a row, with agents and all baselines, and write the pictures of the family.

    Of a conversation `CONVERSATIONS` is written in their place: what the last of the agents said and was told.
    """
    if isinstance(env, Interaction):
        found, said = compared_conversations(env, agents, seed)
        write_jsonl(folder / CONVERSATIONS, said)
    else:
        agents = {**agents, **baseline_agents(env, chosen_agents(task_of(env).name, (ALL,)))}
        found = evaluate(env, agents, seed)
        write_task_figures(folder, env, agents, seed)
    return replace(found, part="test")


def compared_conversations(
    world: Interaction, agents: Mapping[str, Any], seed: int
) -> tuple[Evaluation, list[ConversationRecord]]:
    """Play the test episodes of a conversation, one a row, and return also what the last agent said and was told."""
    from vecenv.language.groups import ConversationGroups, evaluate_conversations

    agent = next(iter(agents.values()))
    groups = ConversationGroups(world, agent.config, agent.model.device)
    found = evaluate_conversations(groups, agents, FIRST["test"] + torch.arange(world.num_rows), seed)
    return found, [record for record in groups.dialogue.records if record is not None]


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


def baseline_agents(env: VecEnv, names: Sequence[str]) -> dict[str, Agent]:
    """Return baselines of the environment's task, and the best rule if the market knows it, by name."""
    known, best = task_of(env).agents, domain_of(env).best(env)
    return {name: known[name]() for name in names} | ({} if best is None else {BEST_RULE: best})
