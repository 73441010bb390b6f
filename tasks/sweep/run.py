"""A sweep from its file to its report: trials are given to processes until there are enough, and the best one plays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from vecenv.system.files import WriteLock
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.sweep.processes import TEST, TRAIN, VALIDATION, Workers
from vecenv.tasks.sweep.report import Report, Trial
from vecenv.tasks.sweep.space import Sweep, SweepSettings, read_sweep
from vecenv.tasks.sweep.study import JOURNAL, OUTCOME, Trials
from vecenv.tasks.sweep.trials import Order


def run_sweep(settings: SweepSettings, prepare: Callable[[], None]) -> dict[str, Any]:
    """Run a sweep, or go on with one, and return its report.

    Args:
        settings: of the sweep.
        prepare: called in each process before its first trial, such as to register tasks; picklable.

    Raises:
        ValueError: the file is wrong, or the folder holds something else.
        BlockingIOError: another process runs this sweep.
        ChildProcessError: a trial could not be run, or its process was killed; the message has its number.
    """
    sweep, folder, console = read_sweep(settings), settings.place, wide_console()
    with WriteLock(folder) as lock:
        if not (folder / JOURNAL).is_file() and any(path != lock.file for path in folder.iterdir()):
            raise ValueError(f"{folder} is not empty, and no sweep: choose another --folder")
        trials = Trials(sweep, folder)
        left = sum(number not in trials.done for number in range(settings.trials))
        done, seeds = settings.trials - left, sweep.training.runs.seeds
        told = f"{settings.trials} trials, {done} of them done; seeds of each: {seeds}; at a time: {settings.processes}"
        console.print(f"Sweep     {settings.file}: {told}\nFolder    {folder}", soft_wrap=True)
        try:
            with Workers(max(1, min(settings.processes, left)), prepare) as workers:
                _train(sweep, trials, workers, console)
                report = Report(sweep, [_trial(sweep, trials, number) for number in range(settings.trials)])
                said = ""
                if report.winner is not None:
                    number = report.winner.number
                    with working(console, f"Playing the test with trial {number} …"):
                        order = Order(number, trial_folder(folder, number), {}, report.looks)
                        workers.give(workers.workers[0], TEST, order)
                        _, _, said, report.test = workers.receive()
        except KeyboardInterrupt:
            console.print("Interrupted: the same command goes on")
            raise
        return report.write(folder, console, said)


def _train(sweep: Sweep, trials: Trials, workers: Workers, console: Console) -> None:
    """Run all trials that are left."""
    while True:
        for worker in workers.idle():
            if (number := trials.due()) is None:
                break
            given = sweep.given(trials.begin(number))
            workers.give(worker, TRAIN, Order(number, trial_folder(sweep.settings.place, number), given))
        if len(workers.idle()) == len(workers.workers):
            return
        worker, kind, first, second = workers.receive()
        assert worker.order is not None
        number = worker.order.number
        if kind == VALIDATION:
            workers.send(worker, trials.report(number, first, second))
        else:
            worker.order = None
            trials.end(number, first, second)
            console.print(_trial(sweep, trials, number).line(), soft_wrap=True)


def _trial(sweep: Sweep, trials: Trials, number: int) -> Trial:
    done = trials.done[number]
    outcome, state = done.user_attrs[OUTCOME], done.state.name.lower().replace("fail", "failed")
    interrupted = trials.interrupted.get(number, 0)
    return Trial(number, state, sweep.chosen(done.params), outcome["seeds"], outcome.get("reason", ""), interrupted)


def trial_folder(folder: Path, number: int) -> Path:
    """Return the folder of a trial in that of its sweep."""
    return folder / f"trial_{number:03d}"
