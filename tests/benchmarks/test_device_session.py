"""A session on a device: what is measured is kept whatever goes wrong, and it ends."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.benchmarks.session_faults import PIDS, part
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.device_session import schedule as session_schedule
from vecenv.benchmarks.device_session.child import out_of_memory
from vecenv.benchmarks.device_session.command import (
    PARTS,
    DeviceSessionConfig,
    command,
    machine_facts,
    main,
    summary_table,
)
from vecenv.benchmarks.device_session.gpu_tests import gpu_tests
from vecenv.benchmarks.device_session.point import Place
from vecenv.benchmarks.device_session.process import PartProcess, StopSignal
from vecenv.benchmarks.device_session.record import SessionRecord
from vecenv.benchmarks.device_session.schedule import Schedule, allowance
from vecenv.benchmarks.result_files import write_json
from vecenv.benchmarks.throughput import worldmodel_training
from vecenv.benchmarks.throughput.worldmodel_training import TrainingBenchConfig, measure_training
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.training_market import TrainingMarket
from vecenv.worldmodel.training import fit as training
from vecenv.worldmodel.training.fit import TrainingSettings

ROOT = Path(__file__).parents[2]
MACHINE = {"device": "cpu", "gpu": None, "torch": "2"}
WAIT = 100.0
"""Seconds after which a test gives up waiting for another process."""


def session(folder, parts, seconds=WAIT, resume=False, device="cpu"):
    """Run parts in a session and return its record, as it is on the disk, and what was said."""
    said = []
    with StopSignal() as stop:
        record = SessionRecord(folder, MACHINE, parts, 1.0, resume)
        Schedule(record, device, True, time.monotonic() + seconds, stop, said.append).run(parts)
    return json.loads(record.path.read_text()), "\n".join(said)


def statuses(data, name):
    return {point: found["status"] for point, found in data["parts"][name]["points"].items()}


def lives(pid):
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition):
    ends = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.05)


@contextmanager
def hanging_session(folder, monkeypatch, *words):
    """Yield a session in another process whose second part hangs, and the processes of that part."""
    pids = folder / "pids"
    monkeypatch.setenv(PIDS, str(pids))
    command = [sys.executable, "-m", "tests.benchmarks.session_faults", str(folder / "out"), *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        summary = folder / "out" / "summary.json"
        wait_for(lambda: statuses(json.loads(summary.read_text()), "second")["hangs"] == "running")
        yield process, [int(pid) for pid in pids.read_text().split()]
    finally:
        process.kill()
        process.wait()


def test_what_is_left_of_the_time_is_shared_among_the_parts_that_are_left():
    parts = [part("a", "good", share=30, least=5), part("b", "good", share=60, least=5), part("c", "good", share=10)]
    assert allowance(parts, 100.0) == 30.0
    # What the first did not need goes to the others.
    assert allowance(parts[1:], 98.0) == 84.0
    assert allowance(parts[2:], 40.0) == 40.0
    # A part has what it needs, the valuable ones first, or is left out.
    assert allowance(parts, 12.0) == 5.0 and allowance(parts, 5.0) == 5.0 and allowance(parts, 4.9) == 0.0


def test_parts_run_in_order_and_know_the_bandwidth_that_the_first_measured(tmp_path):
    parts = [part("machine", "measures_copy"), part("b", "good"), part("a", "good", least=1e6), part("c", "good")]
    data, said = session(tmp_path, parts)
    assert [line.split(":")[0] for line in said.splitlines() if not line.startswith(" ")] == [
        "machine", "machine", "b", "b", "a", "c", "c",
    ]  # fmt: skip
    assert data["parts"]["b"]["points"]["two"]["figures"]["value"] == 17.0
    assert data["parts"]["a"]["status"] == "skipped" and "it needs 1000000" in data["parts"]["a"]["reason"]
    assert [data["parts"][name]["status"] for name in ("machine", "b", "c")] == ["done"] * 3
    processes = {data["parts"][name]["points"]["one"]["figures"]["process"] for name in ("b", "c")}
    assert len(processes | {os.getpid()}) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "log.txt"}
    log = (tmp_path / "log.txt").read_text()
    assert log.index("=== b") < log.index("--- two") < log.index("measured 17.0") < log.index("=== c")


def test_a_failure_is_kept_with_its_traceback_and_the_rest_goes_on(tmp_path):
    parts = [
        part("a", "fails"),
        part("b", "cannot_be_set_up"),
        part("c", "good"),
        part("d", "good", needs=("no_such",)),
    ]
    data, _ = session(tmp_path, parts)
    failed = data["parts"]["a"]
    assert failed["status"] == "failed" and failed["reason"] == "2 of 4 points failed"
    assert statuses(data, "a") == {"raises": "failed", "too large": "does not fit", "half": "failed", "one": "done"}
    assert failed["points"]["raises"]["error"] == "ValueError: two lines"
    assert "of which one is shown" in failed["points"]["raises"]["traceback"]
    assert failed["points"]["half"]["figures"]["headline"] == "1 passed, 1 failed"
    assert "of which one is shown" in (tmp_path / "log.txt").read_text()
    assert (data["parts"]["b"]["status"], data["parts"]["b"]["reason"]) == ("failed", "FileNotFoundError: no weights")
    assert "cannot_be_set_up" in data["parts"]["b"]["traceback"]
    assert data["parts"]["c"]["status"] == "done"
    assert (data["parts"]["d"]["status"], data["parts"]["d"]["reason"]) == ("skipped", "not installed: no_such")


def test_a_part_that_hangs_before_its_points_takes_its_own_time_alone(tmp_path):
    parts = [part("a", "hangs_before_its_points", share=1, least=0.5), part("b", "good", share=WAIT)]
    data, _ = session(tmp_path, parts)
    assert (data["parts"]["a"]["status"], data["parts"]["a"]["reason"]) == ("out of time", "nothing was measured")
    assert data["parts"]["b"]["status"] == "done"


@pytest.mark.nightly
def test_a_point_that_hangs_or_kills_its_process_takes_itself_alone(tmp_path, monkeypatch):
    """With all that it started; another process measures the points after it."""
    monkeypatch.setenv(PIDS, str(tmp_path / "pids"))
    data, _ = session(tmp_path / "out", [part("a", "hangs", longest=3), part("b", "dies")], 2 * WAIT)
    assert statuses(data, "a") == {"one": "done", "hangs": "out of time", "two": "done"}
    assert data["parts"]["a"]["points"]["hangs"]["error"] == "killed at the end of the time of a point"
    wait_for(lambda: not any(lives(pid) for pid in (tmp_path / "pids").read_text().split()))
    assert statuses(data, "b") == {"one": "done", "dies": "failed", "two": "done"}
    assert data["parts"]["b"]["points"]["dies"]["error"] == "the process ended with code 7"
    assert data["parts"]["a"]["status"] == "out of time" and data["parts"]["b"]["status"] == "failed"


@pytest.mark.nightly
def test_a_part_whose_time_is_over_keeps_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv(PIDS, str(tmp_path / "pids"))
    monkeypatch.setattr(session_schedule, "ANOTHER_START", math.inf)
    data, _ = session(tmp_path / "out", [part("a", "hangs", longest=2), part("b", "good")])
    assert statuses(data, "a") == {"one": "done", "hangs": "out of time", "two": "waiting"}
    assert data["parts"]["a"]["reason"] == "2 of 3 points have no result"
    assert data["parts"]["b"]["status"] == "done"


@pytest.mark.nightly
def test_a_session_that_is_stopped_has_lost_nothing_and_is_resumed(tmp_path, monkeypatch):
    """SIGTERM while the second of three parts hangs; resuming measures what is lacking and nothing again."""
    out = tmp_path / "out"
    with hanging_session(tmp_path, monkeypatch) as (process, pids):
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGTERM and "1 units" in printed and "stopped" in printed
    wait_for(lambda: not any(map(lives, pids)))
    data = json.loads((out / "summary.json").read_text())
    assert data["sessions"][0]["status"] == "stopped by SIGTERM"
    assert [data["parts"][name]["status"] for name in ("first", "second", "third")] == ["done", "stopped", "skipped"]
    assert statuses(data, "second") == {"one": "done", "hangs": "stopped", "two": "waiting"}

    with pytest.raises(FileExistsError, match=r"summary\.json exists: give another folder, or --resume"):
        SessionRecord(out, MACHINE, [], 1.0, resume=False)
    changed = data | {"machine": MACHINE}
    write_json(out / "summary.json", changed)
    for name in ("first", "second"):
        data["parts"][name]["points"] = {
            point: found for point, found in data["parts"][name]["points"].items() if found["status"] == "done"
        }
    parts = [part("first", "good"), part("second", "dies"), part("third", "good")]
    again, _ = session(out, parts, resume=True)
    for name in ("first", "second"):
        for point, found in data["parts"][name]["points"].items():
            assert again["parts"][name]["points"][point] == found
    assert statuses(again, "second") == {"one": "done", "hangs": "stopped", "dies": "failed", "two": "done"}
    assert again["parts"]["third"]["status"] == "done" and len(again["sessions"]) == 2


def test_a_session_that_is_killed_has_written_all_it_knew_and_leaves_nothing_running(tmp_path, monkeypatch):
    with hanging_session(tmp_path, monkeypatch, "bare") as (process, pids):
        assert all(map(lives, pids))
        process.kill()
        process.wait()
        wait_for(lambda: not any(map(lives, pids)))
    data = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert statuses(data, "first") == {"one": "done", "two": "done"}
    assert statuses(data, "second") == {"one": "done", "hangs": "running", "two": "waiting"}


def test_a_file_is_the_old_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    write_json(path, {"number": 1})

    def half(self, text):
        self.write_bytes(text[: len(text) // 2].encode())
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="full"):
        write_json(path, {"number": 2})
    assert json.loads(path.read_text()) == {"number": 1}


def test_only_the_same_machine_goes_on_with_a_record(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no session to resume"):
        SessionRecord(tmp_path, MACHINE, [], 1.0, resume=True)
    (tmp_path / "summary.json").write_text('{"benchmark":')
    with pytest.raises(ValueError, match="is no record of a session"):
        SessionRecord(tmp_path, MACHINE, [], 1.0, resume=True)
    (tmp_path / "summary.json").unlink()
    SessionRecord(tmp_path, MACHINE, [], 1.0, resume=False)
    with pytest.raises(ValueError, match="gpu is 'H200' here and None in"):
        SessionRecord(tmp_path, MACHINE | {"gpu": "H200"}, [], 1.0, resume=True)


def test_on_a_gpu_the_next_process_is_started_before_its_turn(tmp_path, monkeypatch):
    """And is ended if its part has no turn."""
    made, events = [], []
    begin, run = PartProcess.__init__, PartProcess.run

    def starting(self, record, part, *others):
        events.append(f"start {part.name}")
        made.append(self)
        begin(self, record, part, *others)

    def running(self, *order):
        events.append(f"run {self.part.name}")
        run(self, *order)

    monkeypatch.setattr(PartProcess, "__init__", starting)
    monkeypatch.setattr(PartProcess, "run", running)
    parts = [part("a", "good"), part("b", "good"), part("c", "good", least=1e6)]
    data, _ = session(tmp_path, parts, device="cuda")
    assert [data["parts"][name]["status"] for name in "abc"] == ["done", "done", "skipped"]
    assert events == ["start a", "start b", "run a", "start c", "run b"]
    assert all(process._process.returncode is not None for process in made)


def test_a_gpu_is_timed_between_events(monkeypatch):
    """In seconds, each event after the device has been waited for, or before."""
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("event")

        def elapsed_time(self, other):
            return 250.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    assert machine.seconds_of(lambda: done.append("call"), torch.device("cuda"), 2) == [0.25, 0.25]
    assert done == ["wait", "event", "call", "event", "wait"] * 2


def test_a_lack_of_memory_is_known_behind_other_failures():
    assert out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte"))
    behind = RuntimeError("capture failed")
    behind.__context__ = torch.cuda.OutOfMemoryError("CUDA out of memory")
    assert out_of_memory(behind) and not out_of_memory(RuntimeError("capture failed"))


def test_the_gpu_and_its_driver_are_told(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA A, 1.2'\necho 'NVIDIA B, 1.2'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for device, gpu, driver in (("cuda", "NVIDIA A", "1.2"), ("cuda:1", "NVIDIA B", "1.2"), ("cpu", None, None)):
        facts = machine_facts(device, small=False)
        assert (facts["gpu"], facts["driver"], facts["torch"]) == (gpu, driver, torch.__version__)


def test_the_table_shows_every_point_and_why_parts_have_none(tmp_path):
    data, _ = session(tmp_path, [part("a", "good"), part("b", "good", needs=("no_such",))])
    console = Console(width=150)
    with console.capture() as capture:
        console.print(summary_table(data))
    text = capture.get()
    assert "1 units" in text and "50.0%" in text and "not installed: no_such" in text and "skipped" in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"parts": ("text", "tea")}, "unknown parts tea; there are machine, tests, throughput"),
        ({"minutes": 0}, "minutes must be positive, got 0"),
        ({"minutes": math.nan}, "minutes must be positive"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_a_folder_is_made(settings, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        main(DeviceSessionConfig(out=tmp_path / "out", **settings))
    assert not (tmp_path / "out").exists()


def test_a_fault_at_the_command_line_is_one_sentence(tmp_path, capsys):
    assert command(["--out", str(tmp_path), "--device", "tpu"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert told.err.startswith("device_session: error: unknown device 'tpu'")


@pytest.mark.parametrize("one", [one for one in PARTS if one.name != "tests"], ids=lambda one: one.name)
@pytest.mark.parametrize("small", [True, False])
def test_the_points_of_every_part_have_names(one, small):
    """In both sizes; nothing is measured yet."""
    module, _, function = one.points.partition(":")
    names = [
        point.name for point in getattr(import_module(module), function)(Place("cpu", small, 1e9, time.monotonic()))
    ]
    assert names and len(set(names)) == len(names)
    assert 0 < one.least <= 30 and one.longest_point >= one.least


MARK = f"pytest.mark.{'gpu'}"
"""In two pieces, so that this file is not taken for one with such tests."""
GPU_TESTS = f"""
import pytest

@{MARK}
def test_good(): pass

@{MARK}
@pytest.mark.parametrize("number", [1, 2], ids=["one", "x/y z"])
def test_bad(number): assert number == 2

@{MARK}
@pytest.mark.skipif(True, reason="no device")
def test_skipped(): pass

def test_for_any_device(): assert False
"""


@pytest.mark.assembly
def test_gpu_tests_are_found_and_told_one_by_one(tmp_path):
    (tmp_path / "test_one.py").write_text(GPU_TESTS)
    (tmp_path / "test_two.py").write_text("def test_for_any_device(): pass\n")
    (tmp_path / "test_three.py").write_text(f"import no_such_module  # {MARK}\n")
    (tmp_path / "test_four.py").write_text(f"import pytest\npytest.importorskip('no_such_module')  # {MARK}\n")
    program = (
        "import json, sys; from pathlib import Path; from vecenv.benchmarks.device_session.gpu_tests import *; "
        "found = gpu_tests(Path(sys.argv[1])); "
        "print('\\n' + json.dumps({name: run_gpu_tests(test) for name, test in found.items()}))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    plain = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=plain).stdout
    told = json.loads(printed.splitlines()[-1])
    assert {name: (one["headline"], one["faults"]) for name, one in told.items()} == {
        "test_one.py::test_good": ("passed", []),
        "test_one.py::test_bad[one]": ("failed", ["assert 1 == 2"]),
        "test_one.py::test_bad[x/y z]": ("passed", []),
        "test_one.py::test_skipped": ("skipped", []),
        "test_four.py": ("skipped", []),
        "test_three.py": ("failed", ["ModuleNotFoundError: No module named 'no_such_module'"]),
    }
    with pytest.raises(FileNotFoundError, match="no tests marked gpu"):
        gpu_tests(tmp_path / "none")


def test_training_is_measured_by_what_the_network_reads(monkeypatch):
    """Days of a chunk and days before it; the first update and those that follow a validation do not count."""
    # The clock ticks once an update, and a validation takes long.
    clock, validate = [0.0], training.validate_network

    def passing(seconds):
        clock[0] += seconds
        return clock[0]

    monkeypatch.setattr(worldmodel_training.time, "perf_counter", lambda: passing(1.0))
    monkeypatch.setattr(training, "validate_network", lambda *given: passing(100.0) and validate(*given))
    read, known = [], TrainingMarket.known

    def reading(market, network, first, stop, context, *others):
        if network.training:
            read.append(min(first, context) + stop - first - 1)
        return known(market, network, first, stop, context, *others)

    monkeypatch.setattr(TrainingMarket, "known", reading)
    network = TransformerSettings(layers=1, width=8, heads=2, hidden=16, window=8)
    settings = TrainingSettings(steps=50, days=16, evaluate_every=4)
    config = TrainingBenchConfig(seconds=150, days=80, symbols=2, network=network, training=settings)
    monkeypatch.setattr(worldmodel_training.machine, "product_rate", lambda *size: 1e6)
    figures = measure_training(config, torch.device("cpu"), copy=1e6)
    assert figures["updates"] == 9 and figures["updates_per_second"] == 1.0
    # Steps 4 and 8 are followed by a validation; two symbols.
    counted = [days for step, days in enumerate(read) if step not in (0, 4, 8)]
    assert figures["stock_days_per_second"] == pytest.approx(2 * sum(counted) / len(counted))
    assert figures["bandwidth_share"] == pytest.approx(13 * 4 * figures["parameters"] / 1e6)
    share = figures["operations_per_stock_day"] * figures["stock_days_per_second"] / 1e6
    assert figures["product_share"] == pytest.approx(share)
    assert set(figures["validation"]) == {"synthetic"} and math.isfinite(figures["last_loss"])


@pytest.mark.nightly
def test_every_part_runs_in_small(tmp_path):
    """The real command: no part fails, and what it leaves are few files with plain names."""
    command = [sys.executable, "-m", "vecenv.benchmarks.device_session", "--device", "cpu", "--minutes", "20"]
    result = subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    data = json.loads((tmp_path / "summary.json").read_text())
    assert {name: part["status"] for name, part in data["parts"].items()} == {one.name: "done" for one in PARTS}
    assert data["sessions"][0]["status"] == "finished" and data["machine"]["torch"] == torch.__version__
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*")]
    assert len(files) <= 8 and all(re.fullmatch(r"[A-Za-z0-9._-]+", str(file)) for file in files)
    for name, one in data["parts"].items():
        for point, found in one["points"].items():
            assert found["figures"]["headline"] and found["seconds"] >= 0, (name, point)
            if name not in ("machine", "tests"):
                assert 0 < found["figures"]["bandwidth_share"] < 1, (name, point)
