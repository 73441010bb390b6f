"""An experiment: a training of one seed or several, the comparison of what it learned, and the files of both."""

from __future__ import annotations

import gc
import math
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from vecenv.core.env import VecEnv
from vecenv.distributed.command import identity
from vecenv.finance.accounts import tape_of
from vecenv.learn.checkpoints import telling_what_is_kept
from vecenv.learn.ensemble import Diversity, diversity_line
from vecenv.learn.evaluation import Evaluation
from vecenv.learn.report import show_evaluation
from vecenv.learn.runs import Runnable, scenario_of
from vecenv.learn.runs import run as run_learner
from vecenv.learn.shards import ranks
from vecenv.learn.trackers import TrackedRun, Tracking, flat_settings
from vecenv.learn.validation import ValidatedEnsemble, ValidatedLearner
from vecenv.system.files import WriteLock
from vecenv.system.preset_files import as_values
from vecenv.tasks.experiment.checkpoints import read_progress
from vecenv.tasks.experiment.comparison import COMPARING, compared
from vecenv.tasks.experiment.language_training import collapsed, nothing_learned
from vecenv.tasks.experiment.other_runs import policies_beside
from vecenv.tasks.experiment.progress import TrainingBar, working
from vecenv.tasks.experiment.report import generalisation_line, generalised, trained_verdicts, write_report
from vecenv.tasks.experiment.run_files import checkpoint_path
from vecenv.tasks.experiment.seeds import (
    SeedRun,
    keep_interrupted,
    over_seeds_line,
    runs_of_seeds,
    trainings,
    write_seed_settings,
)
from vecenv.tasks.experiment.settings import NOT_IN_FILES, TrainSettings
from vecenv.tasks.experiment.splits import FreshPaths, Splits, TapeSplits
from vecenv.tasks.experiment.trainers import KEPT, Trainer

LOCKSTEP = 0.5
"""Share of the distinct market days of independent rows below which a batch counts as marching in step."""

Watcher = Callable[[dict[str, float]], None]
"""Is called with the metrics of each update, which are logged by then; what it raises ends the training."""

COMPILING = "compiling, the first time for minutes …"
"""Status message until the first update, whose rollout and gradients are compiled."""

FIRST_SIGN = "a minute, on a busy machine several, to the first update; --no-compile begins at once and learns slower"
"""What is told of it before a training."""


class Experiment:
    """A planned training, made by `vecenv.tasks.experiment.plan`: `fit`, then `compare`, then `write`.

    Attributes:
        settings: as they are written into the folder.
        trainer: of policies, or of a language model.
        splits: of the task.
        folder: of the run, whose lock is held until `close`.
        resumed_by: the command that goes on after an interruption.
        first: whether this is the first of several ranks, or the only one, which writes and compares.
        test: environment of the comparison, an episode a row.
        learner: of the last seed's run, once it is fitted.
        evaluation: of all agents on the test, once they are compared.
    """

    def __init__(
        self,
        settings: TrainSettings,
        trainer: Trainer,
        splits: Splits,
        folder: Path,
        lock: WriteLock | None,
        console: Console,
        held: ExitStack,
    ) -> None:
        self.settings, self.trainer, self.splits, self.folder = settings, trainer, splits, folder
        self.console, self._lock, self._held = console, lock, held
        self.first = lock is not None
        self.resumed_by = f"vecenv train --resume {shlex.quote(str(folder))}"
        self.runs = runs_of_seeds(settings, folder)
        compared = settings.record.domain.compared(trainer.rules)
        try:
            self.test, self._note = splits.episodes("test", settings.episodes, compared)
            trainer.check_shown(self.test, splits)
            self._env: VecEnv | None = self._environment(trainings(settings, folder)[0])
            if not ranks().alone:
                ranks().same(identity(settings, NOT_IN_FILES, task=scenario_of(self._env)))
        except BaseException:
            self.close()
            raise
        self._trackings: list[Tracking] = []
        self.learner: Any = None
        self.evaluation: Evaluation | None = None
        self.generalisation: dict[str, Any] = {}
        self._seconds = 0.0

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder."""
        self._held.close()

    def show(self) -> None:
        """Print what is trained and compared on what; RuntimeError after `fit`."""
        if self._env is None:
            raise RuntimeError("an experiment is shown before it is fitted, which uses its environment up")
        self.splits.show(self.console, {"train": self._env, "test": self.test}, self.settings.seed)
        others = [*policies_beside(self.settings).values(), self.settings.runs.initial]
        self.splits.tell_known_before(self.console, others)
        if self._note:
            self.console.print(self._note)
        self.console.print(f"Run       {self.folder}", soft_wrap=True)
        if isinstance(self._env, VecEnv) and self._env.compiled:
            self.console.print(f"Compiling {FIRST_SIGN}", soft_wrap=True, highlight=False)

    def fit(self, watch: Watcher | None = None) -> None:
        """Train all seeds; what is learned lies in the folder.

        Raises:
            ValueError: a checkpoint to resume does not fit.
            RunStoppedError: the folder cannot be written.
            FloatingPointError: the losses are not finite; the checkpoint is of the previous update.
        """
        for run in trainings(self.settings, self.folder):
            self.learner = None
            # Learner and collector refer to each other: their memory is free before the next seed takes its own.
            gc.collect()
            self._seconds += self._fit(run, watch)
        ranks().rest()

    def compare(self) -> Evaluation:
        """Play the test episodes with the agents of the runs, those shown beside them, and all baselines.

        RuntimeError before `fit`.
        """
        if self.learner is None:
            raise RuntimeError("an experiment is compared after it is fitted")
        settings, runs = self.settings, self.runs
        with working(self.console, COMPARING.format(settings.episodes)):
            agents = self.trainer.agents(self.learner, runs, self.test)
            with telling_what_is_kept(checkpoint_path(runs[-1].folder), KEPT):
                origin = settings.source.origin()
                self.evaluation = compared(self.test, agents, settings.agents, settings.seed, self.folder, origin)
            policies = self.trainer.policies(runs)
            if policies and self.splits.generalises:
                rules = settings.record.domain.compared(self.trainer.rules)
                training, _ = self.splits.episodes("train", self.evaluation.num_episodes, rules)
                self.generalisation = generalised(policies, training, self.evaluation)
        return self.evaluation

    def write(self, looks: int | None = None) -> dict[str, Any]:
        """Write ``metrics.json`` and the pictures, print the tables, and return the content of the former.

        ``looks`` are the validations among which the policy was chosen, by default those of its own run; of several
        trainings all. RuntimeError before `compare`.
        """
        if self.evaluation is None:
            raise RuntimeError("an experiment is written after it is compared")
        console, policies = self.console, self.trainer.policies(self.runs)
        histories = [read_progress(run.folder) for run in self.runs]
        judged = trained_verdicts(self.evaluation, self.runs, histories, looks)
        document = write_report(
            self.settings, self.learner, self.folder, self.runs, policies, self.evaluation, self.test,
            self.generalisation, self._seconds, histories, judged,
        )  # fmt: skip
        for tracking in self._trackings:
            tracking.conclude(document)
        show_evaluation(console, self.evaluation, judged)
        if "seeds" in document:
            console.print(over_seeds_line(document["seeds"]), soft_wrap=True)
            if "diversity" in document["seeds"]:
                differing = Diversity.from_json(document["seeds"]["diversity"])
                console.print(diversity_line(differing), soft_wrap=True)
        if self.generalisation:
            console.print(generalisation_line(self.generalisation), soft_wrap=True)
        written = sorted(path.name for path in self.folder.iterdir() if self._lock is None or path != self._lock.file)
        console.print(f"Written to {self.folder}: {', '.join(written)}", soft_wrap=True)
        return {"folder": str(self.folder), **document}

    def _environment(self, run: SeedRun) -> VecEnv:
        settings = run.settings
        identity = self.trainer.identity(settings)
        rows = settings.batch.rows // ranks().count * (settings.runs.ensemble or 1)
        env = self.splits.of_seed(settings.seed).training(rows, self.trainer.training_rules, settings.compile, identity)
        self.trainer.follow(env)
        return env

    def _fit(self, run: SeedRun, watch: Watcher | None) -> float:
        """Train one seed, or all of an ensemble, and return the seconds that it took."""
        settings = run.settings
        try:
            alone = run.folder == self.folder or not self.first
            with nullcontext(self._lock) if alone else WriteLock(run.folder) as lock:
                if self.settings.runs.seeds > 1:
                    self.console.print(f"Seed      {settings.seed}")
                env, self._env = self._environment(run) if self._env is None else self._env, None
                splits = self.splits.of_seed(settings.seed)
                fresh, every = None, settings.paths.refresh_every
                if every is not None:
                    assert isinstance(splits, TapeSplits)
                    fresh = FreshPaths(splits, self.trainer.training_rules, env, every)
                self.trainer.prepare(run, splits, self.console)
                self.learner = self.trainer.learner(env, run, self.runs[0].folder)
                trained = self.trainer.validated(self.learner, splits, settings.seed)
                seconds = self._train(run, trained, fresh, lock, watch)
                self.trainer.write_trained(trained, self.learner, run)
                return seconds
        except KeyboardInterrupt:
            if self.first:
                keep_interrupted(self.console, run, self.settings, self.folder, self.resumed_by)
            raise
        finally:
            self.trainer.release(self.learner)

    def _train(
        self,
        run: SeedRun,
        learner: Runnable,
        fresh: FreshPaths | None,
        lock: WriteLock | None,
        watch: Watcher | None,
    ) -> float:
        checkpoint, console = checkpoint_path(run.folder), self.console
        # The others have the same metrics.
        tracking = self._tracking(run) if self.first else None
        bar = TrainingBar(console, learner.config.total_frames, COMPILING if learner.env.compiled else "starting …")

        def on_update(metrics: dict[str, float]) -> None:
            # Not before the first update: until then the learner may still reject settings.
            kept = "the updates before" if checkpoint.exists() else None
            if self.first:
                with telling_what_is_kept(checkpoint, kept):
                    write_seed_settings(run, self.settings, self.folder)
            bar.show(metrics)
            if tracking is not None:
                tracking.log(metrics)
            if metrics["update"] == 1:
                tell_batch(console, learner, metrics)
                if (told := nothing_learned(metrics)) is not None:
                    console.print(told, soft_wrap=True)
            if watch is not None:
                watch(metrics)

        def before_update(update: int) -> None:
            if fresh is not None and fresh.due(update):
                bar.say("drawing new paths …")
                fresh.before_update(update)

        started = time.perf_counter()
        ranks().watch()
        with bar:
            run_learner(learner, run.folder, run.settings.resume is not None, on_update, before_update, lock)
        if self.first and (told := collapsed(read_progress(run.folder))) is not None:
            console.print(f"Warning   {told}", style="yellow", soft_wrap=True)
        if isinstance(learner, ValidatedEnsemble):
            kept = ", ".join(str(best["update"]) for best in learner.bests)
            console.print(
                f"Kept      the policies of the updates {kept} of {learner.update_number}, each the best of its seed"
            )
        elif isinstance(learner, ValidatedLearner):
            kept, last = learner.best["update"], learner.update_number
            console.print(f"Kept      the policy of update {kept} of {last}, the best on the validation episodes")
        return time.perf_counter() - started

    def _tracking(self, run: SeedRun) -> Tracking:
        """Return what tells the tracker of a run; it is open until the experiment is closed."""
        values = flat_settings(as_values(run.settings, NOT_IN_FILES))
        tracked = TrackedRun(run.folder, values, run.settings.resume is not None)
        self._trackings.append(self._held.enter_context(Tracking(self.settings.tracker, tracked)))
        return self._trackings[-1]


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
