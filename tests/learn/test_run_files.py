"""What a run writes survives full disks, interruptions, kills and a second writer."""

import errno
import os
import resource
import signal
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vecenv.learn import checkpoints, runs
from vecenv.learn.checkpoints import RunStoppedError, load_checkpoint, save_checkpoint
from vecenv.learn.runs import MAY_CHANGE, MetricsLog, checked_losses, differences, progress_metrics, read_metrics, run
from vecenv.learn.settings.run import CHECKPOINT
from vecenv.system import files
from vecenv.system.files import WriteLock

CPU = torch.device("cpu")
WEIGHTS = 20_000


class Counter:
    def __init__(self, updates: int, checkpoint_every: int = 1) -> None:
        self.env = SimpleNamespace(device=CPU)
        self.config = SimpleNamespace(checkpoint_every=checkpoint_every)
        self.num_updates, self.update_number = updates, 0
        self.weights = torch.zeros(WEIGHTS)

    def update(self):
        self.update_number += 1
        self.weights += 1
        return {"update": self.update_number, "frames": 8.0 * self.update_number, "loss": 0.1}

    def state_dict(self):
        return {"update": self.update_number, "weights": self.weights.clone()}

    def load_state_dict(self, state):
        self.update_number = state["update"]
        self.weights.copy_(state["weights"])


def state_of(update: int) -> dict:
    return {"update": update, "weights": torch.full((WEIGHTS,), float(update))}


def update_of(folder: Path) -> int:
    """The update of a folder's checkpoint, all of whose tensors are of that update."""
    state = load_checkpoint(folder / CHECKPOINT, CPU)
    assert (state["weights"] == state["update"]).all()
    return state["update"]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def logged(folder: Path) -> list[float]:
    return [row["update"] for row in read_metrics(folder / "metrics.csv")]


@contextmanager
def file_sizes():
    """Give a function that lets no file of this process grow beyond a size, until the end of the context."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError("a fault"), OSError(errno.ENOSPC, "full")])
def test_a_checkpoint_is_whole_or_the_one_before_whatever_happens(tmp_path, monkeypatch, fault):
    save_checkpoint(state_of(1), tmp_path / CHECKPOINT)

    def half(state, file):
        file.write(b"half of it")
        raise fault

    monkeypatch.setattr(checkpoints.torch, "save", half)
    with pytest.raises(BaseException) as told:
        save_checkpoint(state_of(2), tmp_path / CHECKPOINT)
    assert told.value is fault or told.type is fault
    assert update_of(tmp_path) == 1
    assert names(tmp_path) == {CHECKPOINT}


def test_a_checkpoint_takes_the_place_of_the_one_before_once_it_is_on_the_disk(tmp_path, monkeypatch):
    path, told = tmp_path / CHECKPOINT, []
    save_checkpoint(state_of(1), path)
    sync, replace = files.os.fsync, files.os.replace

    def synced(descriptor):
        told.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        sync(descriptor)

    def replaced(source, target):
        # The whole of the new beside the whole of the old.
        assert load_checkpoint(source, CPU)["update"] == 2 and load_checkpoint(target, CPU)["update"] == 1
        told.append("replace")
        replace(source, target)

    monkeypatch.setattr(files.os, "fsync", synced)
    monkeypatch.setattr(files.os, "replace", replaced)
    save_checkpoint(state_of(2), path)
    assert told == [f"sync {path}.partial", "replace", f"sync {tmp_path}"]
    assert update_of(tmp_path) == 2


def test_a_resumed_run_may_differ_in_what_decides_nothing_however_deep():
    saved, own = {"hidden": (4,), "market": {"source": "a", "days": 3}}, {"hidden": [4], "market": {"source": "b"}}
    assert differences(saved, own, ("source",)) == ["market.days (3, not nothing)"]
    assert {"total_frames", "checkpoint_every"} == set(MAY_CHANGE)


def test_what_was_altered_is_not_loaded(tmp_path):
    """Whatever it is, however deep, and also where the archive's checksums are right."""
    path, state = tmp_path / CHECKPOINT, {"a": [1, (2.5, None)], "b": {"days": {"A": "2024-12-31"}, 3: torch.ones(2)}}
    save_checkpoint(state, path)
    assert "sha256" not in load_checkpoint(path, CPU)
    whole = torch.load(path)
    for altered in (
        {"b": {"days": {"A": "2014-12-31"}, 3: torch.ones(2)}},
        {"b": {"days": {"A": "2024-12-31"}, 3: torch.ones(2).double()}},
        {"a": [1, (2.5, 0)]},
        {"a": [1, 2.5, None]},
        {"c": None},
        {"c": {}},
    ):
        torch.save(whole | altered, path)
        with pytest.raises(ValueError, match=r"checkpoint\.pt: altered: the hash of what it holds does not match"):
            load_checkpoint(path, CPU)
    torch.save(state, path)
    with pytest.warns(UserWarning, match="written by an older version, without a hash of what it holds"):
        load_checkpoint(path, CPU)


def test_a_full_disk_ends_the_run_in_a_sentence_that_names_what_is_kept(tmp_path):
    """The checkpoint of the third update does not fit; of another run, not even the log."""
    with file_sizes() as set_to, pytest.raises(RunStoppedError) as told:
        run(Counter(5), tmp_path, on_update=lambda metrics: metrics["update"] == 2 and set_to(WEIGHTS * 2))
    kept = f"the checkpoint of update 2, {tmp_path / CHECKPOINT}, is kept"
    assert str(told.value) == f"{tmp_path}: it cannot be written (File too large); {kept}"
    # One cause, and nothing that went wrong while that was told.
    assert "".join(traceback.format_exception(told.value)).count("Traceback") == 2
    assert update_of(tmp_path) == 2 and names(tmp_path) == {CHECKPOINT, "metrics.csv"}
    run(resumed := Counter(5), tmp_path, resume=True)
    assert resumed.update_number == update_of(tmp_path) == 5
    assert logged(tmp_path) == [1, 2, 3, 4, 5]
    with file_sizes() as set_to, pytest.raises(RunStoppedError, match="no checkpoint has been written yet"):
        set_to(10)
        run(Counter(5), tmp_path / "other")
    assert CHECKPOINT not in names(tmp_path / "other")


def test_a_second_interruption_waits_for_the_checkpoint(tmp_path, monkeypatch, capfd):
    save = runs.save_checkpoint

    def interrupted(state, path):
        os.kill(os.getpid(), signal.SIGINT)
        save(state, path)

    monkeypatch.setattr(runs, "save_checkpoint", interrupted)
    on_update = lambda metrics: metrics["update"] == 2 and os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    # A shell that starts the tests in the background makes them ignore Ctrl+C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as told:
            run(Counter(5, checkpoint_every=100), tmp_path, on_update=on_update)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert told.value.__context__ is None
    assert update_of(tmp_path) == 2
    assert capfd.readouterr().err == f"{tmp_path}: the last checkpoint is being written …\n"


def test_a_checkpoint_is_never_of_an_update_without_its_row(tmp_path, monkeypatch):
    """Neither after an interruption between the two, nor after a power cut: the row is on the disk first."""
    write, sync, save, told = MetricsLog.write, MetricsLog.sync, runs.save_checkpoint, []

    def interrupted(self, metrics):
        if metrics["update"] == 3:
            raise KeyboardInterrupt
        write(self, metrics)

    monkeypatch.setattr(MetricsLog, "write", interrupted)
    monkeypatch.setattr(MetricsLog, "sync", lambda self: told.append("row") or sync(self))
    monkeypatch.setattr(runs, "save_checkpoint", lambda *given: told.append("checkpoint") or save(*given))
    with pytest.raises(KeyboardInterrupt):
        run(Counter(5), tmp_path)
    assert update_of(tmp_path) == 2
    assert logged(tmp_path) == [1, 2]
    assert told == ["row", "checkpoint"] * 2


def test_a_row_that_was_cut_off_is_dropped_with_a_note_and_others_keep_their_texts(tmp_path):
    run(Counter(3), tmp_path)
    log = tmp_path / "metrics.csv"
    whole = log.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1])):
        log.write_bytes(whole[:-cut])
        with pytest.warns(UserWarning, match=r"metrics\.csv, line 4: cut off in the middle of writing"):
            MetricsLog(tmp_path, after=3).close()
        assert log.read_bytes() == b"".join(whole.splitlines(keepends=True)[:-1])
    log.write_bytes(whole[:-3])
    with pytest.warns(UserWarning, match="cut off"):
        run(Counter(5), tmp_path, resume=True)
    assert logged(tmp_path) == [1, 2, 4, 5]
    head = ["update,frames,loss", "1,8.0,0.10000000000000000001", "2,16,nan"]
    # As the csv module ends lines.
    log.write_bytes("\r\n".join([*head, "3,24.0,0.1", ""]).encode())
    MetricsLog(tmp_path, after=2).close()
    assert log.read_text().splitlines() == head


def test_a_damaged_log_is_refused_before_the_first_update(tmp_path):
    run(Counter(3), tmp_path)
    log = tmp_path / "metrics.csv"
    whole = log.read_text().splitlines()
    for number, line, words in (
        (1, "frames,loss", "line 1: these are not the names of metrics"),
        (2, "1,8.0", "line 2: 2 values for 3 metrics"),
        (2, "1,8.0,0.1,0.1", "line 2: 4 values for 3 metrics"),
        (3, "2,16.0,", "line 3: '' is not a number"),
        (3, "1,16.0,0.1", "line 3: update 1 cannot follow update 1"),
        (3, "2.5,16.0,0.1", "line 3: update 2.5 cannot follow update 1"),
        (4, "", "line 4: 1 values for 3 metrics"),
    ):
        log.write_text("\n".join([*whole[: number - 1], line, *whole[number:], ""]))
        learner = Counter(5)
        with pytest.raises(ValueError, match=f"metrics\\.csv, {words}"):
            run(learner, tmp_path, resume=True)
        assert learner.update_number == 3 and update_of(tmp_path) == 3


def test_what_is_no_checkpoint_or_a_damaged_one_is_refused(tmp_path):
    run(Counter(2), tmp_path)
    path = tmp_path / CHECKPOINT
    for content in (b"", b"no archive", path.read_bytes()[:-500]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"checkpoint\.pt: not a checkpoint, or a damaged one"):
            run(Counter(3), tmp_path, resume=True)
    # Nor is one loaded of which a bit of the weights has flipped.
    save_checkpoint(state_of(3), path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="not a checkpoint"):
        update_of(tmp_path)


def test_a_second_run_into_a_folder_is_refused_until_the_first_has_ended_or_was_killed(tmp_path, monkeypatch):
    folder, today, learner = tmp_path / "runs" / "one", time.strftime("%Y-"), Counter(2)
    with WriteLock(folder):
        with pytest.raises(BlockingIOError) as told:
            run(learner, folder)
        words = f"{folder} is already being written, by process {os.getpid()} on "
        assert str(told.value).startswith(words) and f" since {today}" in str(told.value)
        assert learner.update_number == 0 and names(folder) == {".lock"}
    # Nothing is left behind; of a process that was killed it is the file, and the lock has gone with the process.
    assert names(tmp_path) == set()
    folder.mkdir(parents=True)
    (folder / ".lock").write_text("process 1")
    run(learner, folder)
    assert names(folder) == {CHECKPOINT, "metrics.csv"}
    with WriteLock.beside(tmp_path / "file") as lock:
        assert lock.file == tmp_path / "file.lock"
    assert names(tmp_path) == {"runs"}
    # Between opening the file and locking it, its last holder removes it and a third writer makes it anew.
    taken, lock = [], WriteLock._lock

    def raced(self, descriptor):
        lock(self, descriptor)
        if not taken:
            taken.append(self.file.unlink())
            self.file.touch()

    monkeypatch.setattr(WriteLock, "_lock", raced)
    with WriteLock(folder):
        monkeypatch.undo()
        with pytest.raises(BlockingIOError), WriteLock(folder):
            pass


def test_log_and_progress_by_hand(tmp_path):
    log = MetricsLog(tmp_path)
    log.write({"update": 3.0, "loss": 0.5, "grade": float("nan")})
    with pytest.raises(ValueError, match="they differ in grade, speed"):
        log.write({"update": 4.0, "loss": 0.5, "speed": 1.0})
    log.close()
    assert (tmp_path / "metrics.csv").read_text() == "update,loss,grade\n3.0,0.5,nan\n"
    # A run of a version that told less, or more, goes on with what it told.
    log = MetricsLog(tmp_path, after=3)
    log.write({"update": 4.0, "loss": 0.25, "grade": 0.5, "speed": 1.0})
    log.write({"update": 5.0, "loss": 0.25})
    log.close()
    assert (tmp_path / "metrics.csv").read_text().splitlines()[1:] == ["3.0,0.5,nan", "4.0,0.25,0.5", "5.0,0.25,nan"]
    learner = Counter(3)
    learner.update(), learner.update()
    told = progress_metrics(learner, 10, 4.0, 0.1)
    assert told == {"update": 2, "frames": 20, "samples_per_second": 2.5, "learning_rate": 0.1}
    with pytest.raises(FloatingPointError, match=r"update 3: losses are not finite: \[1\.0, inf\]"):
        checked_losses(learner, [1.0, float("inf")])
