"""What a run writes survives full disks, interruptions, kills and a second writer."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vecenv.learn import checkpoints, run_files
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.metrics_log import MetricsLog, read_metrics
from vecenv.learn.run_files import CHECKPOINT, RunStoppedError
from vecenv.learn.runs import checked_losses, progress_metrics, run
from vecenv.system import atomic_files
from vecenv.system.write_lock import WriteLock

CPU = torch.device("cpu")
WEIGHTS = 20_000


class Counter:
    """A learner that counts."""

    def __init__(self, updates: int, checkpoint_every: int = 1) -> None:
        self.env: Any = SimpleNamespace(device=CPU)
        self.config = SimpleNamespace(checkpoint_every=checkpoint_every, tensorboard=False)
        self.num_updates, self.update_number = updates, 0
        self.weights = torch.zeros(WEIGHTS)

    def update(self) -> dict[str, float]:
        self.update_number += 1
        self.weights += 1
        return {"update": self.update_number, "frames": 8.0 * self.update_number, "loss": 0.1}

    def state_dict(self) -> dict[str, Any]:
        return {"update": self.update_number, "weights": self.weights.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.update_number = state["update"]
        self.weights.copy_(state["weights"])


def update_of(folder: Path) -> int:
    """The update of a folder's checkpoint, all of whose tensors are of that update."""
    state = load_checkpoint(folder / CHECKPOINT, CPU)
    assert (state["weights"] == state["update"]).all()
    return state["update"]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def interrupts_raise() -> Iterator[None]:
    """Have Ctrl+C raise; a shell that starts the tests in the background makes them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError("a fault"), OSError(errno.ENOSPC, "full")])
def test_a_checkpoint_is_whole_or_the_one_before_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    path = tmp_path / CHECKPOINT
    save_checkpoint({"update": 1, "weights": torch.ones(WEIGHTS)}, path)

    def half(state: object, file: Any) -> None:
        file.write(b"half of it")
        raise fault

    with monkeypatch.context() as patch, pytest.raises(BaseException) as told:
        patch.setattr(checkpoints.torch, "save", half)
        save_checkpoint({"update": 2}, path)
    assert told.value is fault or told.type is fault
    assert update_of(tmp_path) == 1
    assert names(tmp_path) == {CHECKPOINT}


def test_a_checkpoint_takes_the_place_of_the_one_before_once_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / CHECKPOINT, []
    save_checkpoint({"update": 1, "weights": torch.ones(WEIGHTS)}, path)
    sync, replace = atomic_files.os.fsync, atomic_files.os.replace

    def synced(descriptor: int) -> None:
        told.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        sync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        # The whole of the new beside the whole of the old.
        assert load_checkpoint(source, CPU)["update"] == 2 and load_checkpoint(target, CPU)["update"] == 1
        told.append("replace")
        replace(source, target)

    monkeypatch.setattr(atomic_files.os, "fsync", synced)
    monkeypatch.setattr(atomic_files.os, "replace", replaced)
    save_checkpoint({"update": 2, "weights": torch.full((WEIGHTS,), 2.0)}, path)
    assert told == [f"sync {path}.partial", "replace", f"sync {tmp_path}"]
    assert update_of(tmp_path) == 2


def test_a_full_disk_ends_the_run_in_a_sentence_that_names_what_is_kept(tmp_path: Path) -> None:
    """The checkpoint of the third update does not fit."""
    learner = Counter(5)

    def on_update(metrics: Mapping[str, float]) -> None:
        if metrics["update"] == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (WEIGHTS * 2, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(RunStoppedError) as told:
            run(learner, tmp_path, on_update=on_update)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = f"the checkpoint of update 2, {tmp_path / CHECKPOINT}, is kept"
    assert str(told.value) == f"{tmp_path}: it cannot be written (File too large); {kept}"
    # One cause, and nothing that went wrong while that was told.
    assert "".join(traceback.format_exception(told.value)).count("Traceback") == 2
    assert update_of(tmp_path) == 2 and names(tmp_path) == {CHECKPOINT, "metrics.csv"}
    run(resumed := Counter(5), tmp_path, resume=True)
    assert resumed.update_number == update_of(tmp_path) == 5
    assert [row["update"] for row in read_metrics(tmp_path / "metrics.csv")] == [1, 2, 3, 4, 5]


def test_a_disk_that_is_full_from_the_first_says_that_nothing_is_kept(tmp_path: Path) -> None:
    with largest_file(10), pytest.raises(RunStoppedError, match="no checkpoint has been written yet"):
        run(Counter(5), tmp_path)
    assert CHECKPOINT not in names(tmp_path)


def test_a_second_interruption_waits_for_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    save = run_files.save_checkpoint

    def interrupted(state: Mapping[str, Any], path: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        save(state, path)

    def on_update(metrics: Mapping[str, float]) -> None:
        if metrics["update"] == 2:
            monkeypatch.setattr(run_files, "save_checkpoint", interrupted)
            os.kill(os.getpid(), signal.SIGINT)

    with interrupts_raise():
        with pytest.raises(KeyboardInterrupt) as told:
            run(Counter(5, checkpoint_every=100), tmp_path, on_update=on_update)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert told.value.__context__ is None
    assert update_of(tmp_path) == 2
    assert capfd.readouterr().err == f"{tmp_path}: the last checkpoint is being written …\n"


def test_a_checkpoint_is_never_of_an_update_without_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after an interruption between the two, nor after a power cut: the row is on the disk first."""
    write, sync, save, told = MetricsLog.write, MetricsLog.sync, run_files.save_checkpoint, []

    def interrupted(self: MetricsLog, metrics: Mapping[str, float]) -> None:
        if metrics["update"] == 3:
            raise KeyboardInterrupt
        write(self, metrics)

    def synced(self: MetricsLog) -> None:
        told.append("row")
        sync(self)

    def saved(state: Mapping[str, Any], path: Path) -> None:
        told.append("checkpoint")
        save(state, path)

    monkeypatch.setattr(MetricsLog, "write", interrupted)
    monkeypatch.setattr(MetricsLog, "sync", synced)
    monkeypatch.setattr(run_files, "save_checkpoint", saved)
    with pytest.raises(KeyboardInterrupt):
        run(Counter(5), tmp_path)
    assert update_of(tmp_path) == 2
    assert [row["update"] for row in read_metrics(tmp_path / "metrics.csv")] == [1, 2]
    assert told == ["row", "checkpoint"] * 2


def test_a_row_that_was_cut_off_is_dropped_with_a_note(tmp_path: Path) -> None:
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
    assert [row["update"] for row in read_metrics(log)] == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("number", "line", "words"),
    [
        (1, "frames,loss", "line 1: these are not the names of metrics"),
        (2, "1,8.0", "line 2: 2 values for 3 metrics"),
        (2, "1,8.0,0.1,0.1", "line 2: 4 values for 3 metrics"),
        (3, "2,16.0,", "line 3: '' is not a number"),
        (3, "2,16.0,0.1\0", "line 3: .* is not a number"),
        (3, "1,16.0,0.1", "line 3: update 1 cannot follow update 1"),
        (3, "2.5,16.0,0.1", "line 3: update 2.5 cannot follow update 1"),
        (3, "nan,16.0,0.1", "line 3: update nan cannot follow update 1"),
        (4, "", "line 4: 1 values for 3 metrics"),
    ],
)
def test_a_damaged_log_is_refused_before_the_first_update(tmp_path: Path, number: int, line: str, words: str) -> None:
    run(Counter(3), tmp_path)
    log = tmp_path / "metrics.csv"
    lines = log.read_text().splitlines()
    lines[number - 1] = line
    log.write_text("\n".join([*lines, ""]))
    learner = Counter(5)
    with pytest.raises(ValueError, match=f"metrics\\.csv, {words}"):
        run(learner, tmp_path, resume=True)
    assert learner.update_number == 3 and update_of(tmp_path) == 3


def test_a_log_goes_on_with_the_texts_that_it_has(tmp_path: Path) -> None:
    run(Counter(4), tmp_path)
    log = tmp_path / "metrics.csv"
    head = ["update,frames,loss", "1,8.0,0.10000000000000000001", "2,16,nan"]
    # As the csv module ends lines.
    log.write_bytes("\r\n".join([*head, "3,24.0,0.1", ""]).encode())
    MetricsLog(tmp_path, after=2).close()
    assert log.read_text().splitlines() == head


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A file of something else, and one of which the end is missing."""
    run(Counter(2), tmp_path)
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-500] if content is None else content)
    with pytest.raises(ValueError, match=r"checkpoint\.pt: not a checkpoint, or a damaged one"):
        run(Counter(3), tmp_path, resume=True)


def test_a_checkpoint_with_a_bit_flipped_is_refused_or_the_same(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    save_checkpoint({"update": 3, "weights": torch.full((40,), 3.0)}, path)
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert update_of(tmp_path) == 3
        except ValueError as error:
            assert "not a checkpoint" in str(error)
            refused += 1
    assert refused > 70


WRITER = """
import sys, time
from pathlib import Path
from vecenv.system.write_lock import WriteLock
with WriteLock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


@contextmanager
def another_writer(folder: Path) -> Iterator[subprocess.Popen]:
    """A process that writes into a folder."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_second_run_into_a_folder_is_refused_until_the_first_has_ended_or_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    today = time.strftime("%Y-")
    with another_writer(folder) as process:
        learner = Counter(2)
        with pytest.raises(BlockingIOError) as told:
            run(learner, folder)
        words = f"{folder} is already being written, by process {process.pid} on "
        assert str(told.value).startswith(words) and f" since {today}" in str(told.value)
        assert learner.update_number == 0 and names(folder) == {".lock"}
        process.send_signal(signal.SIGKILL)
        process.wait()
        # The file is still there, the lock has gone with the process.
        assert names(folder) == {".lock"}
        run(learner, folder)
    assert names(folder) == {CHECKPOINT, "metrics.csv"}


def test_a_lock_leaves_nothing_behind_and_keeps_out_this_process_too(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with WriteLock(folder), pytest.raises(BlockingIOError, match=f"process {os.getpid()} "), WriteLock(folder):
        pass
    assert names(tmp_path) == set()
    with WriteLock(folder):
        (folder / "kept").write_text("")
    assert names(folder) == {"kept"}
    with WriteLock.beside(tmp_path / "file") as lock:
        assert lock.file == tmp_path / "file.lock"
    assert names(tmp_path) == {"runs"}


def test_a_lock_on_a_file_that_was_taken_away_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it, its last holder removes it and a third writer makes it anew."""
    first, lock = True, WriteLock._lock

    def raced(self: WriteLock, descriptor: int) -> None:
        nonlocal first
        lock(self, descriptor)
        if first:
            first = False
            self.file.unlink()
            self.file.touch()

    monkeypatch.setattr(WriteLock, "_lock", raced)
    with WriteLock(tmp_path):
        monkeypatch.undo()
        with pytest.raises(BlockingIOError), WriteLock(tmp_path):
            pass


def test_events_have_what_is_a_number_at_its_update(tmp_path: Path) -> None:
    told: list[tuple[object, ...]] = []
    log = MetricsLog(tmp_path)
    log._events = SimpleNamespace(add_scalar=lambda *event: told.append(event), close=lambda: told.append(("closed",)))
    log.write({"update": 3.0, "loss": 0.5, "grade": float("nan")})
    with pytest.raises(ValueError, match="they differ in grade, speed"):
        log.write({"update": 4.0, "loss": 0.5, "speed": 1.0})
    log.close()
    assert told == [("update", 3.0, 3), ("loss", 0.5, 3), ("closed",)]
    assert (tmp_path / "metrics.csv").read_text() == "update,loss,grade\n3.0,0.5,nan\n"


def test_progress_by_hand() -> None:
    learner = Counter(3)
    learner.update(), learner.update()
    told = progress_metrics(learner, 10, 4.0, 0.1)
    assert told == {"update": 2, "frames": 20, "samples_per_second": 2.5, "learning_rate": 0.1}
    with pytest.raises(FloatingPointError, match=r"update 3: losses are not finite: \[1\.0, inf\]"):
        checked_losses(learner, [1.0, float("inf")])
