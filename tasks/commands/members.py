"""Members of an ensemble in one batch: after the training each has a folder as the run of its seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.metrics_log import METRICS, MetricsLog, read_metrics
from vecenv.learn.ppo_ensemble import EnsemblePPO, metrics_of_member
from vecenv.learn.run_files import telling_what_is_kept
from vecenv.learn.validated_ensemble import ValidatedEnsemble
from vecenv.tasks.commands.run_folder import checkpoint_path, write_settings
from vecenv.tasks.commands.seeds import SeedRun
from vecenv.tasks.commands.train_settings import NOT_IN_FILES
from vecenv.tasks.commands.training_report import KEPT, write_untrained


def write_members(trained: EnsemblePPO | ValidatedEnsemble, runs: Sequence[SeedRun], folder: Path) -> None:
    """Write checkpoint, log, settings and untrained policy of every member into the folder of its seed.

    Args:
        trained: after its last update.
        runs: of the seeds, one for each member.
        folder: of the ensemble, with its log.

    Raises:
        RunStoppedError: a folder cannot be written.
    """
    learner = trained.learner if isinstance(trained, ValidatedEnsemble) else trained
    with telling_what_is_kept(checkpoint_path(folder), KEPT):
        rows = read_metrics(folder / METRICS)
        for number, run in enumerate(runs):
            run.folder.mkdir(exist_ok=True)
            save_checkpoint(trained.member_state(number), checkpoint_path(run.folder))
            # Without the best policy of the validation, which would be loaded instead of the untrained one.
            write_untrained(learner, learner.member_state(number), run.folder)
            write_settings(run.folder, run.settings, NOT_IN_FILES)
            log = MetricsLog(run.folder)
            for row in rows:
                log.write(metrics_of_member(row, learner.seeds[number]))
            log.close()
