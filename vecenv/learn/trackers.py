"""Trackers show a run elsewhere: in TensorBoard, Weights & Biases, MLflow, trackio, or what has `Tracker`'s methods.

They are told of a run in a thread of their own: a network that is slow or away neither slows the training nor ends it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from vecenv.learn.settings.run import Trackers

PROJECT = "vecenv"
"""Project, or experiment, of all runs."""

KEPT = "tracker.json"
"""File, in the folder of a run, of the names by which trackers know it."""

LONGEST_WAIT = 60.0
"""Seconds that the end of a run waits for a tracker that is behind."""

VALUE_LETTERS = 500
"""Letters of the value of a setting that every version of MLflow takes."""


class Tracker(Protocol):
    """Shows one run. It may raise anything: then it is not called again. All calls are in one thread."""

    def log(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an update, ``update`` among them; all are finite."""
        ...

    def conclude(self, figures: Mapping[str, float], verdicts: Sequence[str]) -> None:
        """Show what came of the run: figures of the final table by ``AGENT/FIGURE``, and verdicts, a sentence each."""
        ...

    def close(self) -> None:
        """Send what is not sent yet."""
        ...


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows of a run before its first update.

    Attributes:
        folder: of the run.
        settings: by name, those of parts as ``part.name``.
        resumed: whether it goes on, in the tracker too.
    """

    folder: Path
    settings: Mapping[str, Any]
    resumed: bool = False

    def name(self, tracker: str, new: Callable[[], str]) -> str:
        """Return the name by which a tracker knows the run: that of before, if it is resumed, else a new one."""
        path = self.folder / KEPT
        known = json.loads(path.read_text()) if self.resumed and path.is_file() else {}
        if tracker not in known:
            known[tracker] = new()
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(known) + "\n")
        return str(known[tracker])

    def unique(self) -> str:
        """Return a name that no other run has, with that of the folder."""
        return f"{self.folder.resolve().name}-{uuid.uuid4().hex[:8]}"


class TensorBoard:
    """Event files in the folder of the run; a resumed run hides what it makes again."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        self._events: Any = None

    def log(self, metrics: Mapping[str, float]) -> None:
        update = int(metrics["update"])
        events = self._writer(update)
        for name, value in metrics.items():
            events.add_scalar(name, value, update)

    def conclude(self, figures: Mapping[str, float], verdicts: Sequence[str]) -> None:
        events = self._writer(None)
        for name, value in figures.items():
            events.add_scalar(f"test/{name}", value)
        events.add_text("verdicts", "  \n".join(verdicts))

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def _writer(self, update: int | None) -> Any:  # noqa: ANN401
        # A run that makes no update hides none.
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self._run.folder), purge_step=update)
            table = [f"| {name} | {value} |" for name, value in self._run.settings.items()]
            self._events.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *table]))
        return self._events


class WandB:
    """A run of Weights & Biases; its own variables of the environment hold, such as ``WANDB_MODE=offline``."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        name = run.name("wandb", run.unique)
        self._run = wandb.init(
            project=PROJECT, id=name, name=name.rpartition("-")[0], dir=str(run.folder), config=dict(run.settings),
            resume="allow", reinit="create_new", settings=wandb.Settings(silent=True),
        )  # fmt: skip
        # Updates that a resumed run makes again are earlier than the last step, which would be refused.
        self._run.define_metric("*", step_metric="update")

    def log(self, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics))

    def conclude(self, figures: Mapping[str, float], verdicts: Sequence[str]) -> None:
        told = {f"test/{name}": value for name, value in figures.items()}
        self._run.summary.update(told | {"verdicts": "\n".join(verdicts)})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, by its tracking URI: by default files in the present folder, or ``MLFLOW_TRACKING_URI``."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._client = Metric, MlflowClient()
        known = self._client.get_experiment_by_name(PROJECT)
        experiment = self._client.create_experiment(PROJECT) if known is None else known.experiment_id

        def new() -> str:
            return str(self._client.create_run(experiment, run_name=run.folder.resolve().name).info.run_id)

        self._id = run.name("mlflow", new)
        if run.resumed:
            self._client.update_run(self._id, status="RUNNING")
        else:
            params = [Param(name, str(value)[:VALUE_LETTERS]) for name, value in run.settings.items()]
            for place in range(0, len(params), 100):
                self._client.log_batch(self._id, params=params[place : place + 100])

    def log(self, metrics: Mapping[str, float]) -> None:
        self._log(metrics, int(metrics["update"]))

    def conclude(self, figures: Mapping[str, float], verdicts: Sequence[str]) -> None:
        self._log({f"test/{name}": value for name, value in figures.items()}, 0)
        self._client.set_tag(self._id, "verdicts", "\n".join(verdicts))

    def close(self) -> None:
        self._client.set_terminated(self._id)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self._id, [self._metric(name, value, now, step) for name, value in values.items()])


class Trackio:
    """A run of trackio, in its database of this machine, or in a Space by its own variables of the environment."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        name = run.name("trackio", run.unique)
        config = dict(run.settings)
        self._run = trackio.init(project=PROJECT, name=name, config=config, resume="allow", embed=False)

    def log(self, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=int(metrics["update"]))

    def conclude(self, figures: Mapping[str, float], verdicts: Sequence[str]) -> None:
        self._run.log({f"test/{name}": value for name, value in figures.items()} | {"verdicts": "\n".join(verdicts)})

    def close(self) -> None:
        self._run.finish()


MADE: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow, "trackio": Trackio,
}  # fmt: skip
"""Trackers by name, which is that of their package and of the extra that brings it."""

Asked = Trackers | Callable[[TrackedRun], Tracker]
"""A tracker by name, or what makes one of a run."""


def check_tracker(tracker: Asked) -> None:
    """Raise ImportError of a tracker whose package is not installed, and ValueError of one that is not known."""
    if callable(tracker) or tracker == "none":
        return
    if tracker not in MADE:
        raise ValueError(f"unknown tracker {tracker!r}; there are {', '.join(MADE)}")
    # A folder of that name, such as the one that wandb makes for its runs, is found too, but has no file.
    if getattr(importlib.util.find_spec(tracker), "origin", None) is None:
        raise ImportError(f"the tracker {tracker} is not installed: pip install 'vecenv[{tracker}]'")


class Tracking:
    """Tells a tracker of a run, as a context. One that fails is left alone after a warning; ``none`` is told nothing.

    Raises:
        ImportError, ValueError: as of `check_tracker`.
    """

    def __init__(self, tracker: Asked, run: TrackedRun) -> None:
        check_tracker(tracker)
        self._calls: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        self._name, self._thread = str(getattr(tracker, "__name__", tracker)), None
        if tracker != "none":
            made = tracker if callable(tracker) else MADE[tracker]
            self._thread = Thread(target=self._work, args=(made, run), name=f"tracker {self._name}", daemon=True)
            self._thread.start()

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, metrics: Mapping[str, float]) -> None:
        """Tell the finite ones of the metrics of an update."""
        told = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._tell(lambda tracker: tracker.log(told))

    def conclude(self, results: Mapping[str, Any]) -> None:
        """Tell the table and the verdicts of ``metrics.json``."""
        agents = results.get("evaluation", {}).get("agents", {})
        figures = {f"{agent}/{name}": value for agent, told in agents.items() for name, value in _means(told).items()}
        verdicts = [f"{one['part']}: {one['agent']} {one['told']}" for one in results.get("verdicts", [])]
        self._tell(lambda tracker: tracker.conclude(figures, verdicts))

    def close(self) -> None:
        """Wait until all is told, but not for ever."""
        if self._thread is None:
            return
        self._calls.put(None)
        self._thread.join(LONGEST_WAIT)
        if self._thread.is_alive():
            self._warn(f"is {LONGEST_WAIT:g} seconds behind: what it has not sent by now is lost")
        self._thread = None

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._calls.put(call)

    def _work(self, make: Callable[[TrackedRun], Tracker], run: TrackedRun) -> None:
        try:
            tracker = make(run)
            while (call := self._calls.get()) is not None:
                call(tracker)
            tracker.close()
        except BaseException as error:  # a thread would end on SystemExit without a word
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self._warn(f"has failed, and the run goes on without it: {reason}")

    def _warn(self, told: str) -> None:
        warnings.warn(f"the tracker {self._name} {told}", stacklevel=2)


def flat_settings(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return settings by name, those of parts as ``part.name``; what is no number, truth value or text as a text."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{before}{name}.")
        else:
            flat[before + name] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat


def _means(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an agent's figures, of those with an interval the means."""
    values = {name: value.get("mean") if isinstance(value, Mapping) else value for name, value in told.items()}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
