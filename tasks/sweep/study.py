"""The trials of a sweep in Optuna's journal: which is next, with which settings, and when one is pruned.

What a trial is follows from the sweep's seed, its number, and what came of the trials that lie ``delay`` or more before
it: each has a study of its own, of these alone. So neither the number of processes, nor their speed, nor what was
killed in between is part of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vecenv.learn.runs import differences
from vecenv.tasks.sweep.space import Choices, Range, Sweep

try:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState
except ImportError as missing:
    raise ImportError("sweeps need Optuna: pip install 'vecenv[sweep]'") from missing

JOURNAL, STUDY = "journal.log", "sweep"
"""File of the journal in the folder of a sweep, and the name of the study in it."""

NUMBER, OUTCOME, IDENTITY = "trial", "outcome", "sweep"
"""Attributes in the journal: a trial's number, what came of it, and what decides the trials of the study."""

UNPRUNED = 0.2
"""Share of a training's validations before which it is not pruned: the first ones are of a policy that knows little."""

ENDS = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
"""What a trial ends as; one whose losses were not finite has failed."""


class _Held:
    """The journal's lock: the folder's is held, and unlike a file of Optuna's is not left by what is killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


@dataclass
class Trials:
    """The trials of a sweep, whose folder's lock is held.

    Attributes:
        done: trials that have ended, by number.
        interrupted: attempts at each trial that were killed, by number.
    """

    sweep: Sweep
    folder: Path
    done: dict[int, FrozenTrial] = field(default_factory=dict)
    interrupted: dict[int, int] = field(default_factory=dict)
    _begun: dict[int, FrozenTrial] = field(default_factory=dict)
    _running: dict[int, tuple[int, optuna.Trial]] = field(default_factory=dict)
    """Trials that run: their keys in the journal, and themselves in studies of their own."""

    def __post_init__(self) -> None:
        """Read the journal, or begin one; ValueError if it is of another sweep."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = self.folder / JOURNAL
        if path.is_file():
            # A line that was cut off would spoil the next one.
            whole = path.read_bytes()
            if not whole.endswith(b"\n"):
                path.write_bytes(whole[: whole.rfind(b"\n") + 1])
        held: Any = _Held()
        self._storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=held))
        study = optuna.create_study(storage=self._storage, study_name=STUDY, direction="maximize", load_if_exists=True)
        self._study = self._storage.get_study_id_from_name(STUDY)
        identity = self.sweep.identity()
        if told := differences(study.user_attrs.get(IDENTITY, identity), identity):
            raise ValueError(f"{self.folder} is a sweep with other {told[0]}, and goes on as it began")
        study.set_user_attr(IDENTITY, identity)
        self._distributions = {name: _distribution(space) for name, space in self.sweep.space.items()}
        for trial in self._storage.get_all_trials(self._study):
            number = trial.user_attrs[NUMBER]
            self._begun[number] = trial
            if trial.state is TrialState.RUNNING:
                self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            if OUTCOME in trial.user_attrs and trial.state is not TrialState.RUNNING:
                self.done[number] = trial
            else:
                self.interrupted[number] = self.interrupted.get(number, 0) + 1

    def due(self) -> int | None:
        """Return the number of the next trial; None if there is none, or one before it must end first."""
        settings = self.sweep.settings
        waiting = (n for n in range(settings.trials) if n not in self.done and n not in self._running)
        number = next(waiting, None)
        known = number is not None and all(n in self.done for n in self._before(number))
        return number if known else None

    def begin(self, number: int) -> dict[str, Any]:
        """Begin a trial, and return its parameters: those of an earlier attempt, if there was one."""
        settings = self.sweep.settings
        # Not seed + number: the trials of one sweep would be those of another, one later.
        drawn = int(np.random.SeedSequence((settings.seed, number)).generate_state(1)[0])
        warm_up = int(UNPRUNED * self.sweep.training.validation.evaluations)
        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=drawn, n_startup_trials=settings.random_trials),
            pruner=optuna.pruners.MedianPruner(settings.pruned_after, max(1, warm_up)),
        )
        study.add_trials([self.done[n] for n in self._before(number)])
        if number in self._begun:
            study.enqueue_trial(self._begun[number].params)
        trial = study.ask(self._distributions)
        kept: dict[str, Any] = {"distributions": self._distributions, "user_attrs": {NUMBER: number}}
        frozen = optuna.trial.create_trial(state=TrialState.RUNNING, params=trial.params, **kept)
        self._running[number] = (self._storage.create_new_trial(self._study, frozen), trial)
        return dict(trial.params)

    def report(self, number: int, step: int, value: float) -> bool:
        """Keep a validation of a trial, and return whether the trial is to be pruned."""
        key, trial = self._running[number]
        self._storage.set_trial_intermediate_value(key, step, value)
        trial.report(value, step)
        return self.sweep.settings.prune and trial.should_prune()

    def end(self, number: int, state: str, outcome: Mapping[str, Any]) -> None:
        """Keep what a trial ended as, and what came of it."""
        key, _ = self._running.pop(number)
        rewards = [seed.get("reward") for seed in outcome["seeds"]]
        value = [sum(rewards) / len(rewards)] if state == "complete" else None
        self._storage.set_trial_user_attr(key, OUTCOME, outcome)
        self._storage.set_trial_state_values(key, ENDS[state], value)
        self.done[number] = self._storage.get_trial(key)

    def _before(self, number: int) -> range:
        return range(number - self.sweep.settings.delay + 1)


def _distribution(space: Range | Choices) -> optuna.distributions.BaseDistribution:
    if isinstance(space, Choices):
        return CategoricalDistribution(list(space.by_label))
    if isinstance(space.low, int) and isinstance(space.high, int):
        return IntDistribution(space.low, space.high, log=space.log)
    return FloatDistribution(space.low, space.high, log=space.log)
