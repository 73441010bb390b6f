"""Train an agent on a market and compare it with baselines on the days of the test."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

import vecenv
from vecenv.core.checks import device_named
from vecenv.core.compiling import toolchain_prepared
from vecenv.core.env import VecEnv
from vecenv.finance.trading import tape_of
from vecenv.learn import algorithm_named
from vecenv.learn.ensemble import Diversity, diversity_line
from vecenv.learn.learner import Learner
from vecenv.learn.members import Members, ensemble_of, row_seeds
from vecenv.learn.policies import make_network
from vecenv.learn.report import evaluation_table, parts_table
from vecenv.learn.runs import Runnable, telling_what_is_kept
from vecenv.learn.runs import run as run_learner
from vecenv.learn.validation import ValidatedEnsemble, ValidatedLearner, Validation
from vecenv.market.load import generator_of
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named
from vecenv.system.files import WriteLock
from vecenv.tasks.commands.comparison import (
    COMPARING,
    compared_config,
    comparison_environment,
    show_market,
    text_config,
    validation_environment,
    wide_console,
)
from vecenv.tasks.commands.fresh_paths import FreshPaths, first_round
from vecenv.tasks.commands.known_before import tell_known_before
from vecenv.tasks.commands.language_training import language_learner, with_seed
from vecenv.tasks.commands.other_runs import check_beside_on, policies_beside, start_from_initial
from vecenv.tasks.commands.progress import TrainingBar, working
from vecenv.tasks.commands.run_folder import checkpoint_path
from vecenv.tasks.commands.seeds import (
    SeedRun,
    check_folder,
    keep_interrupted,
    over_seeds_line,
    runs_of_seeds,
    trainings,
    write_seed_settings,
)
from vecenv.tasks.commands.simulated import VALIDATION, is_simulated, show_simulation, split_environment
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.commands.training_checks import check_training
from vecenv.tasks.commands.training_report import (
    AnyLearner,
    compare_agents,
    compare_with_training,
    generalisation_line,
    write_initial_policy,
    write_members,
    write_report,
)

LOCKSTEP = 0.5
"""Share of the distinct market days of independent rows below which a batch counts as marching in step."""

COMPILING = "compiling, which takes a minute the first time …"
"""Status message until the first update, whose rollout and gradients are compiled."""


@dataclass(frozen=True)
class _Shared:
    """What the runs of all seeds share; ``spans`` are Training, Test and, if there is one, Validation."""

    settings: TrainSettings
    rows: int
    folder: Path
    first: Path
    lock: WriteLock
    console: Console
    config: Any
    spans: Mapping[str, MarketTape]


def main(settings: TrainSettings) -> dict[str, Any]:
    """Train an agent on a market and compare it with baselines on the days of the test."""
    rows = settings.rows()
    check_training(settings, rows)
    folder = _run_folder(settings)
    with WriteLock(folder) as lock:
        check_folder(settings, folder)
        return _run(settings, rows, folder, lock)


def _run(settings: TrainSettings, rows: int, folder: Path, lock: WriteLock) -> dict[str, Any]:
    console = wide_console()
    spans: dict[str, MarketTape] = {}
    tape, note = None, ""
    config = settings.with_symbols(settings.env)
    config = config if settings.model is None else text_config(settings.task, config)
    if is_simulated(settings.task):
        settings = replace(settings, env=config)
        test_env = split_environment(settings.task, config, settings.episodes, "test", settings.device)
    else:
        settings, tape = _market(settings, config, console)
        parts = (settings.training(tape), settings.validation(tape), settings.test(tape))
        named = zip(("Training", "Validation", "Test"), parts, strict=True)
        spans = {name: part for name, part in named if part is not None}
        compared = compared_config(settings.task, config)
        test_env, note = comparison_environment(settings.task, spans["Test"], compared, settings.episodes)
    check_beside_on(settings, test_env, tape, config)
    runs = runs_of_seeds(settings, folder)
    shared = _Shared(settings, rows, folder, runs[0].folder, lock, console, config, spans)
    env = _training_environment(shared, trainings(settings, folder)[0].settings)
    if tape is None:
        show_simulation(console, {"train": env, "test": test_env}, settings.seed)
    else:
        show_market(console, tape, spans)
        others = [*policies_beside(settings).values(), settings.initial]
        tell_known_before(console, settings.market, spans["Test"], others)
    if note:
        console.print(note)
    console.print(f"Run       {folder}", soft_wrap=True)
    return _trained_and_compared(shared, runs, env, test_env)


def _market(settings: TrainSettings, config: Any, console: Console) -> tuple[TrainSettings, MarketTape]:  # noqa: ANN401
    """Make the market; if its paths are drawn anew later, the settings fix its tick."""
    # Reading bars from a file is over before the thread would be of use.
    drawn = generator_of(settings.market) is not None
    with (
        toolchain_prepared(settings.compile and drawn and device_named(settings.device).type == "cpu"),
        working(console, f"Making the market {settings.market} …"),
    ):
        return (settings, settings.tape(config)) if settings.refresh_every is None else first_round(settings, config)


def _trained_and_compared(shared: _Shared, runs: Sequence[SeedRun], env: VecEnv, test_env: VecEnv) -> dict[str, Any]:
    settings, console, folder, lock = shared.settings, shared.console, shared.folder, shared.lock
    first, *others = trainings(settings, folder)
    learner, seconds = _train_seed(shared, first, env)
    del env
    for run in others:
        del learner
        # Learner and collector refer to each other: their memory is free before the next seed takes its own.
        gc.collect()
        learner, taken = _train_seed(shared, run)
        seconds += taken
    with working(console, COMPARING.format(settings.episodes)):
        evaluation = compare_agents(settings, learner, runs, test_env, folder)
        generalised: dict[str, Any] = {}
        if "Training" in shared.spans:
            training = shared.spans["Training"]
            generalised = compare_with_training(settings, learner, runs, training, shared.config, evaluation)
    document = write_report(settings, learner, folder, runs, evaluation, test_env, generalised, seconds)
    console.print(evaluation_table(evaluation))
    if (parts := parts_table(evaluation)) is not None:
        console.print(parts)
    if "seeds" in document:
        console.print(over_seeds_line(document["seeds"]), soft_wrap=True)
        if "diversity" in document["seeds"]:
            console.print(diversity_line(Diversity.from_json(document["seeds"]["diversity"])), soft_wrap=True)
    if generalised:
        console.print(generalisation_line(generalised), soft_wrap=True)
    written = sorted(path.name for path in folder.iterdir() if path != lock.file)
    console.print(f"Written to {folder}: {', '.join(written)}", soft_wrap=True)
    return {"folder": str(folder), **document}


def _training_rules(settings: TrainSettings, config: Any) -> Any:  # noqa: ANN401
    smooth = task_named(settings.task).domain.smooth
    return smooth(config) if smooth is not None and algorithm_named(settings.algorithm).smooth else config


def _training_environment(shared: _Shared, settings: TrainSettings) -> VecEnv:
    simulated = is_simulated(settings.task)
    if simulated and shared.rows > VALIDATION:
        raise ValueError(f"a training has at most {VALIDATION:,} sub-environments, got {shared.rows:,}")
    market: dict[str, Any] = {} if simulated else {"market": settings.subsets(shared.spans["Training"])}
    rows = shared.rows
    identity: dict[str, Any] = {"seed": settings.seed}
    if settings.ensemble is not None:
        identity = row_seeds(range(settings.seed, settings.seed + settings.ensemble), rows)
    return vecenv.make(
        settings.task,
        rows * (settings.ensemble or 1),
        **market,
        **identity,
        device=device_named(settings.device),
        compile=settings.compile,
        config=task_named(settings.task).domain.parted(_training_rules(settings, shared.config), "train"),
    )


def _train_seed(shared: _Shared, run: SeedRun, env: VecEnv | None = None) -> tuple[AnyLearner, float]:
    settings = run.settings
    try:
        with nullcontext(shared.lock) if run.folder == shared.folder else WriteLock(run.folder) as lock:
            if shared.settings.seeds > 1:
                shared.console.print(f"Seed      {settings.seed}")
            env = _training_environment(shared, settings) if env is None else env
            fresh = None
            if settings.refresh_every is not None:
                rules = _training_rules(settings, shared.config)
                fresh = FreshPaths(settings, rules, env, settings.refresh_every)
            learner = new_learner(settings, env)
            start_from_initial(settings, learner, run.folder, shared.first)
            trained = with_validation(settings, learner, shared.config, shared.spans)
            seconds = _train(shared, run, trained, fresh, lock)
            if isinstance(trained, Members | ValidatedEnsemble):
                write_members(trained, runs_of_seeds(settings, run.folder), run.folder)
            else:
                write_initial_policy(learner, run.folder)
            return learner, seconds
    except KeyboardInterrupt:
        keep_interrupted(shared.console, run, shared.settings, shared.folder)
        raise


def new_learner(settings: TrainSettings, env: VecEnv) -> AnyLearner:
    if settings.model is not None:
        return language_learner(env, settings.model, with_seed(settings.language, settings.seed), settings.group_size)
    algorithm, config = algorithm_named(settings.algorithm), settings.learner_config()
    if settings.ensemble is not None:
        return ensemble_of(algorithm.learner)(env, config, range(config.seed, config.seed + settings.ensemble))
    return algorithm.learner(env, config, *([settings.group_size] if algorithm.groups else []))


def with_validation(
    settings: TrainSettings,
    learner: Runnable,
    config: Any,  # noqa: ANN401
    spans: Mapping[str, MarketTape],
) -> Runnable:
    """Return the learner with validation, if there is a span for it; a ValueError if it cannot be validated."""
    simulated = is_simulated(settings.task) and settings.validation_fraction > 0
    if "Validation" not in spans and not simulated:
        return learner
    if not isinstance(learner, Learner):
        raise ValueError("a language model is trained without validation: set --validation-fraction 0")
    count = settings.validation_episodes
    if simulated:
        env = split_environment(settings.task, config, count, "validation", settings.device, settings.compile)
    else:
        env = validation_environment(settings.task, spans["Validation"], config, count, settings.compile)
    # Policies of symbols train on some of them and are validated on all.
    network = None if settings.symbols_per_path is None else make_network(env, learner.config)
    validation, often = Validation(env, settings.seed, network), (settings.evaluations, settings.patience)
    if isinstance(learner, Members):
        return ValidatedEnsemble(learner, validation, *often)
    return ValidatedLearner(learner, validation, *often)


def _run_folder(settings: TrainSettings) -> Path:
    if settings.resume is not None:
        return settings.resume
    return settings.folder or Path("runs") / f"{settings.task}-{datetime.now():%Y%m%d-%H%M%S}"


def tell_batch(console: Console, learner: Runnable, metrics: dict[str, float]) -> None:
    """Print how many days of the market a batch shows, and a warning if independent rows would show far more."""
    if "market_rows" not in metrics:
        return
    tape = tape_of(learner.env)
    steps, days = metrics["frames"], tape.num_paths * (tape.num_days - tape.first_day - 1)
    expected = days * (1 - math.exp(-steps / days))
    console.print(
        f"Batch     {steps:,.0f} steps on {metrics['market_rows']:,.0f} different days of the market, of {days:,}",
        soft_wrap=True,
    )
    if metrics["market_rows"] < LOCKSTEP * expected:
        console.print(
            f"The rows march in step: independent ones would show {expected:,.0f} days; start them apart with "
            f"--env.min-episode-length 10",
            soft_wrap=True,
        )


def _train(shared: _Shared, run: SeedRun, learner: Runnable, fresh: FreshPaths | None, lock: WriteLock) -> float:
    checkpoint, console = checkpoint_path(run.folder), shared.console
    bar = TrainingBar(console, learner.config.total_frames, COMPILING if learner.env.compiled else "starting …")

    def on_update(metrics: dict[str, float]) -> None:
        # Not before the first update: until then the learner may still reject settings.
        kept = "the updates before" if checkpoint.exists() else None
        with telling_what_is_kept(checkpoint, kept):
            write_seed_settings(run, shared.settings, shared.folder)
        bar.show(metrics)
        if metrics["update"] == 1:
            tell_batch(console, learner, metrics)

    def before_update(update: int) -> None:
        if fresh is not None and fresh.due(update):
            bar.say("drawing new paths …")
            fresh.before_update(update)

    started = time.perf_counter()
    with bar:
        run_learner(learner, run.folder, run.settings.resume is not None, on_update, before_update, lock)
    if isinstance(learner, ValidatedEnsemble):
        kept = ", ".join(str(best["update"]) for best in learner.bests)
        console.print(
            f"Kept      the policies of the updates {kept} of {learner.update_number}, each the best of its seed"
        )
    elif isinstance(learner, ValidatedLearner):
        kept, last = learner.best["update"], learner.update_number
        console.print(f"Kept      the policy of update {kept} of {last}, the best on the validation episodes")
    return time.perf_counter() - started
