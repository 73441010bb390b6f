"""The plan of a training: its settings, checked before any work and resolved once into an experiment."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from vecenv.core.checks import check_memory, device_named, warn_of_slow_bfloat16
from vecenv.core.compiling import toolchain_prepared
from vecenv.finance.trading import Trading
from vecenv.learn import NEEDED, algorithm_named
from vecenv.learn.group_episodes import check_groups
from vecenv.learn.members import check_stackable
from vecenv.learn.off_policy import OffPolicyConfig
from vecenv.learn.on_policy import OnPolicyConfig
from vecenv.learn.policies import NOT_FLAT
from vecenv.learn.runs import MAY_CHANGE, differences
from vecenv.registry import Task
from vecenv.system.files import WriteLock
from vecenv.system.preset_files import as_values
from vecenv.tasks.experiment.comparison import BY_SHARPE
from vecenv.tasks.experiment.experiment import Experiment
from vecenv.tasks.experiment.language_training import check_language
from vecenv.tasks.experiment.markets import OF_FILES, FileMarket, GeneratedMarket, Market, NoMarket
from vecenv.tasks.experiment.other_runs import check_beside, check_initial
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.seeds import check_folder
from vecenv.tasks.experiment.settings import NOT_IN_FILES, Groups, TrainSettings, resumed_settings
from vecenv.tasks.experiment.splits import HEADROOM, ConversationSplits, SeedSplits, Splits, TapeSplits
from vecenv.tasks.experiment.trainers import ModelTrainer, PolicyTrainer, Trainer

MAY_CHANGE_OF_RUN = ("seeds", "patience", "episodes", "combine", "sharpe_temperature", "beside", "device", "compile")
"""Settings that a resumed run may have otherwise, beside the learner's `MAY_CHANGE`: how long it is, what it is
compared with at its end, and where it runs. Files may have been moved: the market is known by its content."""

_LEAST_BYTES = 64
"""Minimum bytes per step of a sub-environment: number, day, path, cash, reward, one holding."""


def plan(settings: TrainSettings, console: Console | None = None) -> Experiment:
    """Check the settings of a training, and return its experiment, with its market made.

    It holds the lock of its folder until it is closed, as a context or by `Experiment.close`.

    Raises:
        ValueError: settings do not fit each other, the machine, the run to resume or the policies of other runs, or
            the market or its data are invalid.
        BlockingIOError: another run holds the folder's lock.
    """
    check_training(settings)
    console = console or wide_console()
    folder = settings.resume or settings.folder or Path("runs") / f"{settings.task}-{datetime.now():%Y%m%d-%H%M%S}"
    with ExitStack() as held:
        lock = held.enter_context(WriteLock(folder))
        check_folder(settings, folder)
        rules = settings.source.fitted(settings.record, settings.env)
        trainer = _trainer(settings, rules)
        settings, splits = _splits(settings, trainer.rules, console)
        return Experiment(settings, trainer, splits, folder, lock, console, held.pop_all())


def splits_of(
    record: Task,
    source: Market,
    config: Any,  # noqa: ANN401
    device: str,
    console: Console,
    **parts: Any,  # noqa: ANN401
) -> Splits:
    """Return the splits of a task, its market made; ``parts`` are further fields of `TapeSplits`."""
    if isinstance(source, NoMarket):
        kind = SeedSplits if record.interaction is None else ConversationSplits
        return kind(record, device_named(device))
    with working(console, f"Making the market {source.market} …"):
        tape = source.tape(config, device_named(device))
    return TapeSplits(record, source, tape, **parts)


def _trainer(settings: TrainSettings, rules: Any) -> Trainer:  # noqa: ANN401
    if settings.model is not None:
        return ModelTrainer(settings, rules)
    return PolicyTrainer(settings, rules, algorithm_named(settings.algorithm))


def _splits(settings: TrainSettings, rules: Any, console: Console) -> tuple[TrainSettings, Splits]:  # noqa: ANN401
    """Make the market; if its paths are drawn anew later, the settings fix its tick."""
    source, device = settings.source, device_named(settings.device)
    parts = {
        "validation_fraction": settings.validation.validation_fraction,
        "drawn_symbols": settings.subsets.of,
    }
    # Reading bars from a file is over before the thread would be of use.
    drawn = isinstance(source, GeneratedMarket)
    with toolchain_prepared(settings.compile and drawn and device.type == "cpu"):
        if settings.paths.refresh_every is None:
            return settings, splits_of(settings.record, source, rules, settings.device, console, **parts)
        with working(console, f"Making the market {source.market} …"):
            tape = source.tape(rules, device, HEADROOM)
    source = replace(source, tick_size=tape.tick_size)
    return replace(settings, source=source), TapeSplits(settings.record, source, tape, **parts)


def check_training(settings: TrainSettings) -> None:
    """Reject settings that can be seen to fail before the market is made.

    That is for lack of memory, a seed out of range, or a policy to train, start from or compare with that does not fit.
    """
    _check_learner(settings)
    check_resumed(settings)
    check_ensemble(settings)
    _check_combining(settings)
    _check_size(settings)
    if getattr(settings.learner, "bf16", False):
        warn_of_slow_bfloat16(device_named(settings.device), "--learner.bf16")
    # The highest seed, which may be out of range.
    last = settings.seed + settings.runs.number - 1
    replace(settings.learner, seed=settings.learner.seed + last)
    check_subsets(settings)
    _check_references(settings)
    check_initial(settings)
    check_beside(settings)


def _check_learner(settings: TrainSettings) -> None:
    """Check that groups, task or model fit the learner, as far as the task tells without its market."""
    task, algorithm, name = settings.record, algorithm_named(settings.algorithm), settings.algorithm
    if isinstance(settings.batch, Groups):
        check_groups(settings.batch.rows, settings.batch.group_size, settings.learner)
    if settings.model is not None:
        check_language(settings.task, settings.model)
        return
    if task.interaction is not None:
        raise ValueError(
            f"task {task.name!r} is a conversation, which a language model learns: give --algorithm grpo and --model"
        )
    if algorithm.smooth and task.domain.smooth is None:
        raise ValueError(f"task {task.name!r} has no smooth form, which --algorithm {name} needs")
    if not algorithm.learns(task.actions(settings.env)):
        chosen = f" with env.action {settings.env.action}" if hasattr(settings.env, "action") else ""
        raise ValueError(
            f"--algorithm {name} needs actions that are {NEEDED[algorithm.actions]}, which those of task "
            f"{task.name!r}{chosen} are not"
        )
    if isinstance(settings.learner, OffPolicyConfig):
        settings.learner.check_rollout(settings.batch.rows)
    weighs = getattr(settings.env, "weighs_trajectories", None)
    if weighs is False and getattr(settings.learner, "weigh_risk", False):
        raise ValueError(
            "learner.weigh_risk belongs to --env.risk-strength above 0 and --env.risk-form trajectory: no effect with "
            "these settings"
        )


def check_resumed(settings: TrainSettings) -> None:
    """Reject other settings than those of the run to resume, which decide what it learns and which policy it keeps."""
    if settings.resume is None:
        return
    recorded = resumed_settings(settings.resume)
    free: tuple[str, ...] = (*NOT_IN_FILES, *MAY_CHANGE_OF_RUN)
    if isinstance(settings.source, FileMarket) and isinstance(recorded.source, FileMarket):
        free += OF_FILES
    began, given = (as_values(one, free) for one in (recorded, settings))
    if told := differences(began, given, MAY_CHANGE):
        changing = ", ".join(name.replace("_", "-") for name in (*MAY_CHANGE, *MAY_CHANGE_OF_RUN))
        raise ValueError(
            f"{settings.resume} is a run with other {told[0]}, and goes on as it began; what may change is {changing}"
        )


def check_ensemble(settings: TrainSettings) -> None:
    """Reject what cannot be trained as one batch, before the market is made."""
    runs = settings.runs
    if runs.ensemble is None:
        return
    if runs.seeds > 1:
        raise ValueError("either --ensemble trains several policies as one batch, or --seeds one after the other")
    for name, value in (
        ("initial", runs.initial),
        ("symbols_per_path", getattr(settings.subsets, "symbols_per_path", None)),
    ):
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option} cannot be given to policies of one batch: it needs a training without --ensemble"
            )
    check_stackable(settings.learner)
    scheduled = [name for name in ("scheduler", "cost_ramp") if getattr(settings.env, name, None)]
    if scheduled:
        raise ValueError(
            f"--ensemble needs rules that stay: those of task {settings.task!r} follow a schedule (env.{scheduled[0]})"
        )


def _check_combining(settings: TrainSettings) -> None:
    if settings.runs.number == 1 or settings.runs.combining.asked() is None:
        return
    task, kind = settings.record, settings.runs.combining.combine
    if task.domain.trained is not None:
        raise ValueError(f"policies of task {settings.task!r} are combined by --combine mean alone")
    if kind not in BY_SHARPE:
        return
    if not settings.validation.validation_fraction:
        raise ValueError(f"--combine {kind} needs validations: set a --validation-fraction above 0")
    if not isinstance(task.domain, Trading):
        raise ValueError(f"--combine {kind} needs accounts, which task {settings.task!r} does not have")


def _check_size(settings: TrainSettings) -> None:
    """Reject rollout sizes beyond the memory before the market is made; the environment checks its own size."""
    rows = settings.batch.rows * (settings.runs.ensemble or 1)
    steps = getattr(settings.learner, "num_steps", 1)
    device = device_named(settings.device)
    check_memory(rows * steps * _LEAST_BYTES, device, f"{steps:,} steps of {rows:,} sub-environments")
    if isinstance(settings.learner, OffPolicyConfig):
        size = settings.learner.buffer_size
        check_memory(size * _LEAST_BYTES, device, f"{size:,} kept steps")
    check_memory(settings.episodes * _LEAST_BYTES, device, f"{settings.episodes:,} test episodes")


def _check_references(settings: TrainSettings) -> None:
    """Reject observations by reference for other policies than flat ones; the task is checked with its environment."""
    config = settings.learner
    if isinstance(config, OnPolicyConfig) and config.by_reference and (config.policy != "flat" or not config.hidden):
        raise ValueError(f"no observations by reference: {NOT_FLAT}, set --learner.policy flat")


def check_subsets(settings: TrainSettings) -> None:
    """Reject random subsets of symbols for policies and tasks of fixed symbols, before the market is made."""
    if getattr(settings.subsets, "symbols_per_path", None) is None:
        return
    if settings.learner.policy == "flat":
        raise ValueError(
            "symbols_per_path needs a policy of any number of symbols: --learner.policy symbol or attention, not flat"
        )
    if hasattr(settings.env, "symbols"):
        raise ValueError(f"task {settings.task!r} trades symbols by name: it cannot be trained with symbols_per_path")
