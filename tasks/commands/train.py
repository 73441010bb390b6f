"""Train an agent on a market and compare it with baselines on held-out days."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from rich.console import Console

import vecenv
from vecenv.core.device import device_named
from vecenv.core.env import VecEnv
from vecenv.core.memory import check_memory
from vecenv.language.config import LanguageConfig
from vecenv.learn.agents import Agent
from vecenv.learn.evaluation import evaluate
from vecenv.learn.evaluation_table import evaluation_table
from vecenv.learn.grpo import GRPO, GRPOConfig, check_groups
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.report import write_run_folder
from vecenv.learn.run_files import telling_what_is_kept
from vecenv.learn.runs import Runnable, run
from vecenv.market.load import generator_of
from vecenv.system.preset_files import as_values, preset_path, read_values, with_values
from vecenv.system.write_lock import WriteLock
from vecenv.tasks.commands.comparison import (
    ALL,
    COMPARING,
    TRAINED,
    baseline_agents,
    chosen_agents,
    compared_config,
    config_of,
    held_out_environment,
    show_market,
    trained_agent,
    wide_console,
)
from vecenv.tasks.commands.fresh_paths import FreshPaths, first_round
from vecenv.tasks.commands.language_training import (
    check_language,
    language_learner,
    trained_model,
    with_seed,
    write_model,
)
from vecenv.tasks.commands.market_settings import MarketSettings
from vecenv.tasks.commands.options import PresetOption, early_options, with_preset
from vecenv.tasks.commands.progress import TrainingBar, working
from vecenv.tasks.commands.run_folder import (
    SETTINGS,
    check_resumable_folder,
    checkpoint_path,
    read_progress,
    write_settings,
)

if TYPE_CHECKING:
    from vecenv.language.grpo import LanguageGRPO

TaskConfig = TypeVar("TaskConfig")


@dataclass(frozen=True)
class TrainOptions(PresetOption):
    """Options that determine the defaults of the other settings."""

    task: str | None = None
    """Installed task to train on, by default that of the preset, else stock_trading."""
    task_preset: str | None = None
    """Preset of the rules only; overrides the other preset."""
    resume: Path | None = None
    """Folder of a run to resume with its settings."""


@dataclass(frozen=True)
class TrainSettings(MarketSettings, TrainOptions, Generic[TaskConfig]):
    """Settings of ``vecenv train``."""

    task: str = "stock_trading"
    """Installed task to train on, by default that of the preset, else stock_trading."""
    algorithm: Literal["ppo", "grpo"] = "ppo"
    """ppo, or grpo and its variants, which compare episodes with the same start and need no critic."""
    model: str | None = None
    """grpo: language model to train instead of a policy, a folder or a name on the Hugging Face hub."""
    num_envs: int = 2048
    """ppo: number of parallel sub-environments."""
    num_groups: int = 128
    """grpo: number of groups, whose sub-environments share path and start."""
    group_size: int = 16
    """grpo: sub-environments per group."""
    seed: int = 0
    """Seed of the episodes; it is added to the learner's seed, so that it determines the whole run."""
    compile: bool = True
    """Compile the step and the update."""
    refresh_every: int | None = None
    """Number of updates between regenerations of a generated market's training paths; by default never."""
    episodes: int = 256
    """Held-out episodes of the comparison."""
    folder: Path | None = None
    """Folder of the run, runs/TASK-TIME by default."""
    env: TaskConfig = field(kw_only=True)
    """Rules of the task."""
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(num_steps=16))
    """Settings of PPO. Short rollouts: more updates per frame, and an earlier first update."""
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    """Settings of GRPO, whose rollouts are whole episodes."""
    language: LanguageConfig = field(default_factory=LanguageConfig)
    """Settings of GRPO for a language model, instead of those under grpo."""

    def rows(self) -> int:
        """Return the number of sub-environments.

        Raises:
            ValueError: the groups are invalid, or the task or model cannot be trained.
            ImportError: the packages for language models are not installed.
        """
        if self.algorithm == "ppo":
            if self.model is not None:
                raise ValueError("a language model learns by --algorithm grpo")
            return self.num_envs
        rows = self.num_groups * self.group_size
        check_groups(rows, self.group_size, self.grpo if self.model is None else self.language)
        if self.model is not None:
            check_language(self.task, self.model)
        return rows

    def inapplicable(self) -> dict[str, str]:
        """Return the settings without effect: see `commands.applicable`."""
        names = super().inapplicable()
        if self.algorithm == "ppo":
            names |= dict.fromkeys(("num_groups", "group_size", "grpo"), "--algorithm grpo")
        else:
            names |= dict.fromkeys(("num_envs", "ppo"), "--algorithm ppo")
        if self.algorithm == "grpo" and self.model is not None:
            names["grpo"] = "--algorithm grpo without --model"
        else:
            names["language"] = "--algorithm grpo with --model"
        if generator_of(self.market) is None:
            names["refresh_every"] = "a generated market"
        if self.resume is not None:
            names |= dict.fromkeys(("preset", "task_preset", "folder"), "a new run")
        return names

    @classmethod
    def defaults(cls, args: Sequence[str]) -> TrainSettings:
        """Return the defaults of the command line: those of the run to resume, or of the presets.

        Raises:
            ValueError: there is no such task, run or preset, or one does not fit the settings.
        """
        options = early_options(TrainOptions, args)
        path, task_preset = None, options.task_preset
        if options.resume is not None:
            path = options.resume / SETTINGS
            if not path.is_file():
                raise ValueError(f"{options.resume}: not the folder of a run, it has no {SETTINGS}")
            task_preset = None
        elif options.preset is not None:
            path = preset_path("train", options.preset)
        values = {} if path is None else read_values(path)
        known = str(values.get("task", cls.task))
        task = options.task or known
        if options.resume is not None and task != known:
            raise ValueError(f"{options.resume} is a run of the task {known!r}, not of {task!r}")
        settings = with_values(cls(task=task, env=config_of(task)), values | {"task": task}, str(path), _NOT_IN_FILES)
        return replace(settings, env=with_preset(settings.env, "task", task_preset))


COMPILING = "compiling, which takes a minute the first time …"
"""Status message until the first update, whose rollout and gradients are compiled."""

_LEAST_BYTES = 64
"""Minimum bytes per step of a sub-environment: number, day, path, cash, reward, one holding."""

# Settings that only the command line may set.
_NOT_IN_FILES = ("preset", "task_preset", "resume", "folder")


def main(settings: TrainSettings) -> dict[str, Any]:
    """Train an agent on a market and compare it with baselines on held-out days."""
    rows = settings.rows()
    _check_size(settings, rows)
    folder = _run_folder(settings)
    with WriteLock(folder) as lock:
        _check_folder(settings, folder)
        return _run(settings, rows, folder, lock)


def _run(settings: TrainSettings, rows: int, folder: Path, lock: WriteLock) -> dict[str, Any]:
    """Train in a locked folder, and compare."""
    console = wide_console()
    config = settings.with_symbols(settings.env)
    # A language model acts by order lists.
    config = config if settings.model is None else compared_config(settings.task, config)
    with working(console, f"Making the market {settings.market} …"):
        if settings.refresh_every is None:
            tape = settings.tape(config)
        else:
            settings, tape = first_round(settings, config)
    training, test = settings.training(tape), settings.test(tape)
    test_env, note = held_out_environment(
        settings.task, test, compared_config(settings.task, config), settings.episodes
    )
    env = vecenv.make(
        settings.task,
        rows,
        market=training,
        seed=settings.seed,
        device=tape.device,
        compile=settings.compile,
        config=config,
    )
    show_market(console, tape, {"Training": training, "Test": test})
    if note:
        console.print(note)
    console.print(f"Run       {folder}", soft_wrap=True)
    fresh = None if settings.refresh_every is None else FreshPaths(settings, config, env, settings.refresh_every)
    learner = _learner(settings, env)
    seconds = _train(settings, learner, folder, console, fresh, lock)
    trained: Agent
    if isinstance(learner, PPO | GRPO):
        trained = trained_agent(checkpoint_path(folder), test_env)
    else:
        with telling_what_is_kept(checkpoint_path(folder), "the last update"):
            write_model(learner, folder)
        trained = trained_model(learner)
    agents = {TRAINED: trained} | baseline_agents(test_env, chosen_agents(settings.task, (ALL,)))
    with working(console, COMPARING.format(settings.episodes)):
        evaluation = evaluate(test_env, agents, settings.seed)
    history = read_progress(folder)
    metadata = {
        "command": "train",
        "seed": settings.seed,
        "training_seconds": seconds,
        "training_market": env.scenario.metadata()["market"],
        "settings": as_values(settings, _NOT_IN_FILES),
    }
    with telling_what_is_kept(checkpoint_path(folder), "the last update"):
        document = write_run_folder(folder, metadata, evaluation, history, TRAINED)
    console.print(evaluation_table(evaluation))
    written = sorted(path.name for path in folder.iterdir() if path != lock.file)
    console.print(f"Written to {folder}: {', '.join(written)}", soft_wrap=True)
    return {"folder": str(folder), **document}


def _learner(settings: TrainSettings, env: VecEnv) -> PPO | GRPO | LanguageGRPO:
    """Return the learner in its initial state."""
    if settings.model is not None:
        return language_learner(env, settings.model, with_seed(settings.language, settings.seed), settings.group_size)
    if settings.algorithm == "grpo":
        config = replace(settings.grpo, seed=settings.grpo.seed + settings.seed)
        return GRPO(env, config, settings.group_size)
    return PPO(env, replace(settings.ppo, seed=settings.ppo.seed + settings.seed))


def _check_size(settings: TrainSettings, rows: int) -> None:
    """Reject rollout sizes beyond the memory before the market is made; the environment checks its own size.

    Raises:
        ValueError: they need more than the available memory.
    """
    steps = settings.ppo.num_steps if settings.algorithm == "ppo" else 1
    what = f"{steps:,} steps of {rows:,} sub-environments"
    device = device_named(settings.device)
    check_memory(rows * steps * _LEAST_BYTES, device, what)
    check_memory(settings.episodes * _LEAST_BYTES, device, f"{settings.episodes:,} held-out episodes")


def _run_folder(settings: TrainSettings) -> Path:
    """Return the folder of the run."""
    if settings.resume is not None:
        return settings.resume
    return settings.folder or Path("runs") / f"{settings.task}-{datetime.now():%Y%m%d-%H%M%S}"


def _check_folder(settings: TrainSettings, folder: Path) -> None:
    """Reject a folder with another run, or without a run to resume.

    Raises:
        ValueError: it holds another run, or the run to resume has no checkpoint, or its files are damaged.
    """
    if settings.resume is not None:
        check_resumable_folder(folder)
    elif checkpoint_path(folder).exists():
        raise ValueError(f"{folder} already holds a run; resume it with --resume {folder}, or choose another --folder")


def _train(
    settings: TrainSettings,
    learner: Runnable,
    folder: Path,
    console: Console,
    fresh: FreshPaths | None,
    lock: WriteLock,
) -> float:
    """Run the learner behind a progress bar and return the seconds it took.

    Raises:
        KeyboardInterrupt: after a line that says how to resume.
    """
    bar = TrainingBar(console, learner.config.total_frames, COMPILING if learner.env.compiled else "starting …")

    def on_update(metrics: dict[str, float]) -> None:
        # Not before the first update: until then the learner may still reject settings.
        kept = "the updates before" if checkpoint_path(folder).exists() else None
        with telling_what_is_kept(checkpoint_path(folder), kept):
            write_settings(folder, settings, _NOT_IN_FILES)
        bar.show(metrics)

    def before_update(update: int) -> None:
        if fresh is not None and fresh.due(update):
            bar.say("drawing new paths …")
            fresh.before_update(update)

    started = time.perf_counter()
    try:
        with bar:
            run(learner, folder, settings.resume is not None, on_update, before_update, lock)
    except KeyboardInterrupt:
        if checkpoint_path(folder).exists():
            write_settings(folder, settings, _NOT_IN_FILES)
            console.print(f"Interrupted. Resume with: vecenv train --resume {shlex.quote(str(folder))}", soft_wrap=True)
        raise
    return time.perf_counter() - started
