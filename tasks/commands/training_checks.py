"""Checks of a training before its market is made."""

from __future__ import annotations

from dataclasses import replace

from vecenv.core.checks import check_memory, device_named, warn_of_slow_bfloat16
from vecenv.finance.trading import Trading
from vecenv.learn import algorithm_named
from vecenv.learn.members import check_stackable
from vecenv.learn.off_policy import OffPolicyConfig
from vecenv.learn.on_policy import OnPolicyConfig
from vecenv.learn.policies import NOT_FLAT
from vecenv.learn.runs import MAY_CHANGE, differences
from vecenv.market.load import generator_of
from vecenv.registry import task_named
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands.applicable import in_effect
from vecenv.tasks.commands.comparison import BY_SHARPE, asked_combination
from vecenv.tasks.commands.market_settings import OF_FILES
from vecenv.tasks.commands.other_runs import check_beside, check_initial
from vecenv.tasks.commands.train_settings import NOT_IN_FILES, TrainSettings, algorithms_that

MAY_CHANGE_OF_RUN = ("seeds", "patience", "episodes", "combine", "sharpe_temperature", "beside", "device", "compile")
"""Settings that a resumed run may have otherwise, beside the learner's `MAY_CHANGE`: how long it is, what it is
compared with at its end, and where it runs. Files may have been moved: the market is known by its content."""

_LEAST_BYTES = 64
"""Minimum bytes per step of a sub-environment: number, day, path, cash, reward, one holding."""


def check_training(settings: TrainSettings, rows: int) -> None:
    """Reject settings that can be seen to fail before the market is made.

    That is for lack of memory, a seed out of range, or a policy to train, start from or compare with that does not fit.
    """
    check_resumed(settings)
    check_ensemble(settings)
    _check_combining(settings)
    _check_size(settings, rows * (settings.ensemble or 1))
    if getattr(getattr(settings, settings.algorithm), "bf16", False):
        warn_of_slow_bfloat16(device_named(settings.device), f"--{settings.algorithm}.bf16")
    if settings.model is None:
        # The highest seed, which may be out of range.
        replace(settings, seed=settings.seed + settings.num_policies() - 1).learner_config()
    check_subsets(settings)
    _check_references(settings)
    check_initial(settings)
    check_beside(settings)


def check_resumed(settings: TrainSettings) -> None:
    """Reject other settings than those of the run to resume, which decide what it learns and which policy it keeps."""
    if settings.resume is None:
        return
    recorded = TrainSettings.defaults(["--resume", str(settings.resume)])
    free: tuple[str, ...] = (*NOT_IN_FILES, *MAY_CHANGE_OF_RUN)
    if generator_of(settings.market) is None and generator_of(recorded.market) is None:
        free += OF_FILES
    began, given = (as_values(in_effect(one), free) for one in (recorded, settings))
    if told := differences(began, given, MAY_CHANGE):
        changing = ", ".join(name.replace("_", "-") for name in (*MAY_CHANGE, *MAY_CHANGE_OF_RUN))
        raise ValueError(
            f"{settings.resume} is a run with other {told[0]}, and goes on as it began; what may change is {changing}"
        )


def check_ensemble(settings: TrainSettings) -> None:
    """Reject what cannot be trained as one batch, before the market is made."""
    if settings.ensemble is None:
        return
    if not algorithm_named(settings.algorithm).ensemble:
        known = " or ".join(algorithms_that(lambda one: one.ensemble))
        raise ValueError(f"--ensemble trains policies of --algorithm {known} as one batch, not of {settings.algorithm}")
    if settings.seeds > 1:
        raise ValueError("either --ensemble trains several policies as one batch, or --seeds one after the other")
    for name in ("initial", "symbols_per_path"):
        if getattr(settings, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option} cannot be given to policies of one batch: it needs a training without --ensemble"
            )
    check_stackable(getattr(settings, settings.algorithm))
    scheduled = [name for name in ("scheduler", "cost_ramp") if getattr(settings.env, name, None)]
    if scheduled:
        raise ValueError(
            f"--ensemble needs rules that stay: those of task {settings.task!r} follow a schedule (env.{scheduled[0]})"
        )


def _check_combining(settings: TrainSettings) -> None:
    if settings.num_policies() == 1 or asked_combination(settings.combine, settings.sharpe_temperature) is None:
        return
    task = task_named(settings.task)
    if task.domain.trained is not None:
        raise ValueError(f"policies of task {settings.task!r} are combined by --combine mean alone")
    if settings.combine not in BY_SHARPE:
        return
    if not settings.validation_fraction:
        raise ValueError(f"--combine {settings.combine} needs validations: set a --validation-fraction above 0")
    if not isinstance(task.domain, Trading):
        raise ValueError(f"--combine {settings.combine} needs accounts, which task {settings.task!r} does not have")


def _check_size(settings: TrainSettings, rows: int) -> None:
    """Reject rollout sizes beyond the memory before the market is made; the environment checks its own size."""
    steps = getattr(getattr(settings, settings.algorithm), "num_steps", 1)
    what = f"{steps:,} steps of {rows:,} sub-environments"
    device = device_named(settings.device)
    check_memory(rows * steps * _LEAST_BYTES, device, what)
    config = getattr(settings, settings.algorithm)
    if isinstance(config, OffPolicyConfig):
        check_memory(config.buffer_size * _LEAST_BYTES, device, f"{config.buffer_size:,} kept steps")
    check_memory(settings.episodes * _LEAST_BYTES, device, f"{settings.episodes:,} test episodes")


def _check_references(settings: TrainSettings) -> None:
    """Reject observations by reference for other policies than flat ones; the task is checked with its environment."""
    config = getattr(settings, settings.algorithm)
    if isinstance(config, OnPolicyConfig) and config.by_reference and (config.policy != "flat" or not config.hidden):
        raise ValueError(f"no observations by reference: {NOT_FLAT}, set --{settings.algorithm}.policy flat")


def check_subsets(settings: TrainSettings) -> None:
    """Reject random subsets of symbols for policies and tasks of fixed symbols, before the market is made."""
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
