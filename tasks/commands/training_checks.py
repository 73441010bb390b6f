"""Checks of a training before its market is made."""

from __future__ import annotations

from dataclasses import replace

from vecenv.core.device import device_named
from vecenv.core.memory import check_memory
from vecenv.learn.learner_config import OffPolicyConfig, OnPolicyConfig
from vecenv.learn.referencing_policy import NOT_FLAT
from vecenv.tasks.commands.beside import check_beside
from vecenv.tasks.commands.initial import check_initial
from vecenv.tasks.commands.train_settings import SAMPLING, TrainSettings

_LEAST_BYTES = 64
"""Minimum bytes per step of a sub-environment: number, day, path, cash, reward, one holding."""


def check_training(settings: TrainSettings, rows: int) -> None:
    """Reject settings that can be seen to fail before the market is made.

    Args:
        settings: of the training.
        rows: number of sub-environments.

    Raises:
        ValueError: they need more than the available memory, a seed is out of range, or the policy to train, to start
            from or to compare with does not fit.
    """
    _check_size(settings, rows)
    if settings.model is None:
        # The highest seed, which may be out of range.
        replace(settings, seed=settings.seed + settings.seeds - 1).learner_config()
    check_subsets(settings)
    _check_references(settings)
    check_initial(settings)
    check_beside(settings)


def _check_size(settings: TrainSettings, rows: int) -> None:
    """Reject rollout sizes beyond the memory before the market is made; the environment checks its own size.

    Raises:
        ValueError: they need more than the available memory.
    """
    steps = getattr(settings, settings.algorithm).num_steps if settings.algorithm in SAMPLING else 1
    what = f"{steps:,} steps of {rows:,} sub-environments"
    device = device_named(settings.device)
    check_memory(rows * steps * _LEAST_BYTES, device, what)
    config = getattr(settings, settings.algorithm)
    if isinstance(config, OffPolicyConfig):
        check_memory(config.buffer_size * _LEAST_BYTES, device, f"{config.buffer_size:,} kept steps")
    check_memory(settings.episodes * _LEAST_BYTES, device, f"{settings.episodes:,} held-out episodes")


def _check_references(settings: TrainSettings) -> None:
    """Reject observations by reference for other policies than flat ones; the task's are checked with its environment.

    Raises:
        ValueError: the policy has none.
    """
    config = getattr(settings, settings.algorithm)
    if isinstance(config, OnPolicyConfig) and config.by_reference and (config.policy != "flat" or not config.hidden):
        raise ValueError(f"no observations by reference: {NOT_FLAT}, set --{settings.algorithm}.policy flat")


def check_subsets(settings: TrainSettings) -> None:
    """Reject random subsets of symbols for policies and tasks of fixed symbols, before the market is made.

    Raises:
        ValueError: the policy or the task has fixed symbols.
    """
    if settings.symbols_per_path is None:
        return
    if settings.model is not None:
        raise ValueError(
            "a language model is trained on all symbols: symbols_per_path needs a training without --model"
        )
    policy = getattr(settings, settings.algorithm).policy
    if policy == "flat":
        raise ValueError(
            f"symbols_per_path needs a policy of any number of symbols: --{settings.algorithm}.policy symbol or "
            f"attention, not {policy}"
        )
    if hasattr(settings.env, "symbols"):
        raise ValueError(f"task {settings.task!r} trades symbols by name: it cannot be trained with symbols_per_path")
