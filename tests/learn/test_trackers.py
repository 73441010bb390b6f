"""Trackers: what they are told, in one run of theirs; one that fails or hangs costs the training nothing."""

import importlib.machinery
import importlib.util
import json
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest

import vecenv
from tests.learn.small_tasks import SMALL_PPO, planted_env
from vecenv.learn import trackers
from vecenv.learn.trackers import MADE, TrackedRun, Tracking, flat_settings

RESULTS = {
    "evaluation": {"agents": {"trained": {"grade": {"mean": 0.5, "ci": None}, "sharpe": 1.0, "left": None}}},
    "verdicts": [{"part": "test", "agent": "trained", "told": "is better than hold"}],
}


class Memory:
    """Keeps what it is told; ``fails`` names the method that raises."""

    def __init__(self, run: TrackedRun, fails: str = "") -> None:
        self.run, self.fails, self.told = run, fails, []
        self.thread = threading.current_thread()

    def log(self, metrics: Mapping[str, float]) -> None:
        if self.fails == "log":
            raise OSError("no network\nand more")
        self.told.append(dict(metrics))

    def conclude(self, figures, verdicts) -> None:
        self.told.append((dict(figures), [*verdicts]))

    def close(self) -> None:
        self.told.append("closed")


def test_a_tracker_is_told_all_of_a_run(tmp_path):
    made: list[Memory] = []
    config, seen = replace(SMALL_PPO, total_frames=3 * 16 * SMALL_PPO.num_steps), []
    kept = vecenv.train(
        planted_env(), config, tmp_path, on_update=seen.append, tracker=lambda run: made.append(Memory(run)) or made[0]
    )
    assert len(seen) == 3 and made[0].told.pop() == "closed"
    # Without what is not known yet, which some refuse.
    told = [{name: value for name, value in row.items() if value == value} for row in kept.metrics]
    assert made[0].told == told and [row["update"] for row in told] == [1, 2, 3]
    assert made[0].run.settings["num_steps"] == config.num_steps and made[0].thread is not threading.main_thread()
    assert flat_settings({"a": {"b": (1, 2)}, "c": True, "d": None}) == {"a.b": "(1, 2)", "c": True, "d": "None"}
    with Tracking(lambda run: made.append(Memory(run)) or made[-1], TrackedRun(tmp_path, {})) as tracking:
        tracking.conclude(RESULTS)
    figures = {"trained/grade": 0.5, "trained/sharpe": 1.0}
    assert made[-1].told == [(figures, ["test: trained is better than hold"]), "closed"]


def test_one_that_fails_or_hangs_is_left_alone_after_a_warning(tmp_path, monkeypatch):
    ended, free = [], threading.Event()

    class Hanging(Memory):
        def log(self, metrics):
            free.wait(60)

    def away(run):
        raise ConnectionError("no server")

    def leaving(run):
        raise SystemExit("no key")

    def failing(run):
        return Memory(run, "log")

    monkeypatch.setattr(trackers, "LONGEST_WAIT", 0.2)
    config = replace(SMALL_PPO, total_frames=3 * 16 * SMALL_PPO.num_steps)
    for number, (tracker, told) in enumerate(
        (
            (failing, r"^the tracker failing has failed, and the run goes on without it: no network$"),
            (away, "away has failed, and the run goes on without it: no server"),
            (leaving, "leaving has failed, and the run goes on without it: no key"),
            (Hanging, "Hanging is 0.2 seconds behind: what it has not sent by now is lost"),
        )
    ):
        with pytest.warns(UserWarning, match=told) as warned:
            vecenv.train(planted_env(), config, tmp_path / str(number), on_update=ended.append, tracker=tracker)
        assert len([one for one in warned if "tracker" in str(one.message)]) == 1
    free.set()
    assert [row["update"] for row in ended] == [1, 2, 3] * 4


def test_what_is_not_there_is_told_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^a tracker needs the folder of the run$"):
        vecenv.train(planted_env(), SMALL_PPO, tracker="wandb")
    with pytest.raises(ValueError, match=r"^unknown tracker 'neptune'; there are tensorboard, wandb, mlflow, trackio$"):
        vecenv.train(planted_env(), SMALL_PPO, tmp_path, tracker="neptune")
    folder = importlib.machinery.ModuleSpec("wandb", None, is_package=True)
    monkeypatch.setattr(importlib.util, "find_spec", {"wandb": folder}.get)
    for name in MADE:
        with pytest.raises(ImportError, match=rf"the tracker {name} is not installed: pip install 'vecenv\[{name}\]'"):
            vecenv.train(planted_env(), SMALL_PPO, tmp_path, tracker=name)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", MADE)
def test_a_resumed_run_goes_on_in_one_run_of_the_tracker(name, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    # It is read when the package is imported.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip(name)
    folder = tmp_path / "run"
    only_judged = [(True, ())] if name == "tensorboard" else []
    for resumed, updates in ((False, (1, 2)), (True, (2, 3)), *only_judged):
        with Tracking(name, TrackedRun(folder, {"env.hmax": 5, "market": "a"}, resumed)) as tracking:
            for update in updates:
                tracking.log({"update": update, "share/loss": update / 4, "grade": float("nan")})
            tracking.conclude(RESULTS)
    known = {} if name == "tensorboard" else json.loads((folder / "tracker.json").read_text())
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder))
        events.Reload()
        assert [(one.step, one.value) for one in events.Scalars("share/loss")] == [(1, 0.25), (2, 0.5), (3, 0.75)]
        assert "test/trained/sharpe" in events.Tags()["scalars"] and "verdicts/text_summary" in events.Tags()["tensors"]
    elif name == "wandb":
        files = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
        assert [file.stem for file in files] == [f"run-{known['wandb']}"] * 2
    elif name == "mlflow":
        from mlflow import MlflowClient

        (client := MlflowClient()).get_run(known["mlflow"])
        (run,) = client.search_runs([client.get_experiment_by_name("vecenv").experiment_id])
        history = {one.step: one.value for one in client.get_metric_history(run.info.run_id, "share/loss")}
        assert history == {1: 0.25, 2: 0.5, 3: 0.75} and run.info.status == "FINISHED"
        assert run.data.params == {"env.hmax": "5", "market": "a"} and run.data.metrics["test/trained/sharpe"] == 1
    else:
        import trackio

        (run,) = trackio.Api().runs("vecenv")
        assert run.name == known["trackio"]
