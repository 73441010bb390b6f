"""Several trained policies as one agent: what a command asks for, and how much the policies differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vecenv.core.env import VecEnv
from vecenv.learn.combination import Combination, Kind, validation_sharpes
from vecenv.learn.diversity import Diversity, diversity, draws_actions
from vecenv.learn.ensemble import NoEnsembleError, load_ensemble
from vecenv.learn.policies import load_policy
from vecenv.registry import task_of

BY_SHARPE: tuple[Kind, ...] = ("weighted", "select")
"""Combinations by the Sharpe ratios of the validations."""


def asked_combination(kind: Kind, temperature: float) -> Combination | None:
    """Return the combination that is asked for, None for the mean, which is left out where there is none.

    Raises:
        ValueError: the temperature is not positive.
    """
    return None if kind == "mean" else Combination(kind, temperature)


def check_combination(combination: Combination | None, paths: Sequence[Path]) -> None:
    """Reject a combination of checkpoints that lack what it needs, before any work.

    Raises:
        ValueError: there are too few, or one has no Sharpe ratio of a validation.
    """
    if combination is None:
        return
    if len(paths) < 2:
        raise ValueError(f"--combine {combination.kind} needs several checkpoints, got {len(paths)}")
    if combination.kind in BY_SHARPE:
        validation_sharpes(paths)


def policies_diversity(paths: Sequence[Path], env: VecEnv, seed: int) -> Diversity | None:
    """Return how much policies differ on the held-out episodes that all together play.

    Args:
        paths: of their checkpoints.
        env: of the held-out episodes; its rows are overwritten.
        seed: of the episodes.

    Returns:
        None of fewer than two, and of those whose actions are none of the environment's, or have no ensemble.
    """
    if len(paths) < 2 or task_of(env).trained is not None:
        return None
    try:
        played = load_ensemble(paths, env)
    except NoEnsembleError:
        return None
    policies = [load_policy(path, env) for path in paths]
    return diversity(policies, played, env, seed, random=all(map(draws_actions, paths)))
