"""A session on a device: what is measured is kept whatever goes wrong, and it ends."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tests.benchmarks.session_faults import PIDS, part
from vecenv.benchmarks import device_session, session_parts
from vecenv.benchmarks.device_session import PARTS, DeviceSessionConfig, Session, allowance, command, main
from vecenv.benchmarks.session_child import Place, out_of_memory

ROOT = Path(__file__).parents[2]
MACHINE = {"device": "cpu", "small": True, "gpu": None, "torch": "2"}
WAIT = 100.0


def session(folder, parts, seconds=WAIT, resume=False):
    own = Session(folder, MACHINE, parts, time.monotonic() + seconds)
    own.open(resume)
    own.run()
    data = json.loads((folder / "summary.json").read_text())
    assert data == json.loads(json.dumps(own.data))
    return data


def statuses(data, name):
    return {job: found["status"] for job, found in data["parts"][name]["jobs"].items()}


def outcomes(data):
    return {name: (one["status"], one["reason"]) for name, one in data["parts"].items()}


def lives(pid):
    try:
        return "Z" not in Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def wait_for(condition):
    ends = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_processes_follow_one_another_until_nothing_is_left(tmp_path, monkeypatch):
    parts = [part("a", "good", share=30, least=5), part("b", "good", share=60), part("c", "good", share=30)]
    for left, seconds, expected in ((0, 120.0, 30.0), (1, 90.0, 60.0), (2, 7.0, 7.0), (0, 8.0, 5.0), (0, 4.9, 0.0)):
        assert allowance(parts[left:], seconds) == expected
    assert sum(each.share for each in PARTS) <= 540 and all(0 < each.least <= 30 <= each.longest for each in PARTS)
    for one, small in itertools.product([each for each in PARTS if each.name != "tests"], (True, False)):
        module, _, function = one.jobs.partition(":")
        names = [job.name for job in getattr(import_module(module), function)(Place("cpu", small, 1e9))]
        assert names and len(set(names)) == len(names), one.name
    parts, asked, ended = [part("a", "good"), part("b", "good")], [], "the process ended with code 7"
    killed = "the process was killed by SIGKILL"
    begun = {"one": "done", "two": "running", "three": "waiting", "four": "waiting"}
    processes = [(begun, ("out of time", ended)), ({"three": "running"}, ("failed", ended))]
    processes += [({"four": "done"}, ("done", "")), ({}, ("failed", killed))]

    def run(self, own, ends, left_out):
        jobs, outcome = processes[len(asked)]
        asked.append((own.name, sorted(left_out)))
        for name, status in jobs.items():
            self._tell(own, name, {"status": status})
        return outcome

    monkeypatch.setattr(Session, "_run_process", run)
    data = session(tmp_path, parts)
    assert asked == [("a", []), ("a", ["one", "two"]), ("a", ["one", "three", "two"]), ("b", [])]
    assert statuses(data, "a") == {"one": "done", "two": "out of time", "three": "failed", "four": "done"}
    assert data["parts"]["a"]["jobs"]["two"]["error"] == ended
    assert outcomes(data) == {"a": ("failed", "1 of 4 points failed"), "b": ("failed", killed)}


@pytest.mark.assembly
def test_a_part_or_a_job_that_fails_or_hangs_takes_itself_alone(tmp_path, monkeypatch, capsys):
    """With all that it started; later parts know the copy bandwidth; who has no time is skipped."""
    out, pids = tmp_path / "out", tmp_path / "pids"
    monkeypatch.setenv(PIDS, str(pids))
    names = {"machine": "measures_copy", "a": "fails", "b": "cannot_be_set_up", "c": "dies"}
    parts = [part(name, function) for name, function in names.items()]
    parts += [part("d", "hangs", longest=3), part("e", "hangs_before_its_jobs", share=1e-9, least=4)]
    data = session(out, [*parts, part("f", "good"), part("g", "good", least=1e6)], 2 * WAIT)
    found, told, jobs = {name: statuses(data, name) for name in "acd"}, outcomes(data), data["parts"]["a"]["jobs"]
    assert found["a"] == {"raises": "failed", "too large": "does not fit", "half": "failed", "one": "done"}
    assert jobs["raises"]["error"] == "ValueError: two lines" and "of which one is shown" in jobs["raises"]["traceback"]
    assert jobs["half"]["error"] == "test_a: assert 0" and jobs["half"]["figures"]["headline"] == "1 passed, 1 failed"
    assert found["c"] == {"one": "done", "dies": "failed", "two": "done"}
    assert found["d"] == {"one": "done", "hangs": "out of time", "two": "done"}
    errors = [data["parts"][name]["jobs"][job]["error"] for name, job in (("c", "dies"), ("d", "hangs"))]
    assert errors == ["the process ended with code 7", "killed at the end of the time of a point"]
    wait_for(lambda: not any(map(lives, pids.read_text().split())))
    assert data["parts"]["f"]["jobs"]["two"]["figures"]["value"] == 17.0
    assert told["a"] == ("failed", "2 of 4 points failed") and told["b"] == ("failed", "FileNotFoundError: no weights")
    assert told["d"] == ("out of time", "1 of 3 points have no result") and told["f"] == ("done", "")
    assert told["e"] == ("out of time", "nothing was measured")
    assert told["g"][0] == "skipped" and told["g"][1].endswith("s were left, it needs 1000000")
    assert "  one: 1 units [done]" in capsys.readouterr().out and "measured 17.0" in (out / "log.txt").read_text()
    table = device_session.summary_table(data)
    assert "| two | 17.0 units |" in table and "| ValueError: two lines |" in table and table.count("skipped") == 1


@pytest.mark.assembly
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_session_that_is_ended_has_lost_nothing_and_is_resumed(tmp_path, monkeypatch, sent):
    """While the second of three parts hangs; nothing is left running, and resuming measures what is lacking alone."""
    out, pids = tmp_path / "out", tmp_path / "pids"
    monkeypatch.setenv(PIDS, str(pids))
    words = [sys.executable, "-m", "tests.benchmarks.session_faults", str(out)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: process.poll() is not None or (pids.exists() and len(pids.read_text().split()) == 2))
        assert all(map(lives, pids.read_text().split()))
        process.send_signal(sent)
        printed, _ = process.communicate(timeout=WAIT)
    wait_for(lambda: not any(map(lives, pids.read_text().split())))
    lines = [json.loads(line) for line in (out / "points.jsonl").read_text().splitlines() if line]
    last = {(line["part"], line["job"]): line["status"] for line in lines}
    assert last[("first", "two")] == last[("second", "one")] == "done" and last[("second", "two")] == "waiting"
    if sent == signal.SIGKILL:
        assert last[("second", "hangs")] == "running"
        return
    assert process.returncode == 128 + signal.SIGTERM and "1 units" in printed and "stopped" in printed
    data = json.loads((out / "summary.json").read_text())
    assert [data["parts"][name]["status"] for name in ("first", "second", "third")] == ["done", "stopped", "skipped"]
    assert statuses(data, "second") == {"one": "done", "hangs": "stopped", "two": "waiting"}
    (out / "summary.json").write_text(json.dumps(data | {"machine": MACHINE}))
    monkeypatch.setattr(device_session, "ANOTHER_START", 0.0)
    again = session(out, [part("first", "good"), part("second", "dies"), part("third", "good")], resume=True)
    assert again["parts"]["first"] == data["parts"]["first"] and again["parts"]["third"]["status"] == "done"
    assert again["parts"]["second"]["jobs"]["one"] == data["parts"]["second"]["jobs"]["one"]
    assert statuses(again, "second") == {"one": "done", "hangs": "stopped", "two": "done", "dies": "failed"}


def test_what_is_told_of_a_machine_and_who_goes_on_with_a_record(tmp_path, monkeypatch):
    summary = tmp_path / "summary.json"
    other, kept = MACHINE | {"gpu": "H200"}, json.dumps({"machine": MACHINE})
    for record, machine, resume, error, told in (
        (None, MACHINE, True, FileNotFoundError, "there is no session to resume"),
        ('{"benchmark":', MACHINE, True, ValueError, "is no record of a session"),
        (kept, other, True, ValueError, "gpu is 'H200' here and None in"),
        (kept, MACHINE, False, FileExistsError, r"summary\.json exists: give another folder, or --resume"),
    ):
        if record:
            summary.write_text(record)
        with pytest.raises(error, match=told):
            Session(tmp_path, machine, [], 0.0).open(resume)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA A, 1.2'\necho 'NVIDIA B, 1.2'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for device, gpu, driver in (("cuda", "NVIDIA A", "1.2"), ("cuda:1", "NVIDIA B", "1.2"), ("cpu", None, None)):
        facts = device_session.machine_facts(device, small=False)
        assert (facts["gpu"], facts["driver"], facts["torch"]) == (gpu, driver, torch.__version__)
    assert out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte"))
    # It may be behind another failure.
    behind = RuntimeError("capture failed")
    behind.__context__ = torch.cuda.OutOfMemoryError("CUDA out of memory")
    assert out_of_memory(behind) and not out_of_memory(RuntimeError("capture failed"))


def test_the_command_refuses_what_does_not_fit_and_ends_with_the_code_of_its_session(tmp_path, capsys, monkeypatch):
    for settings, words in (
        ({"parts": ("text", "tea")}, "unknown parts tea; there are machine, tests, throughput"),
        ({"minutes": 0}, "minutes must be positive, got 0"),
        ({"minutes": float("nan")}, "minutes must be positive"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ):
        with pytest.raises(ValueError, match=words):
            main(DeviceSessionConfig(out=tmp_path / "out", **settings))
    assert not (tmp_path / "out").exists()
    assert command(["--out", str(tmp_path), "--device", "tpu"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert told.err.startswith("device_session: error: unknown device 'tpu'")
    asked = []
    monkeypatch.setattr(device_session, "main", lambda config: asked.append(config) or 1)
    assert command(["--out", str(tmp_path), "--parts", "text", "curve", "--resume"]) == 1
    assert asked == [DeviceSessionConfig(tmp_path, parts=("text", "curve"), resume=True)]


@pytest.mark.assembly
def test_gpu_tests_are_found_and_told_one_by_one(tmp_path):
    # In two pieces, so that this file is not taken for one with such tests.
    mark = f"@pytest.mark.{'gpu'}"
    bad = "@pytest.mark.parametrize('number', [1, 2], ids=['one', 'x/y z'])\ndef test_bad(number): assert number == 2\n"
    (tmp_path / "test_one.py").write_text(f"import pytest\n{mark}\n{bad}def test_for_any_device(): assert False\n")
    (tmp_path / "test_two.py").write_text("def test_for_any_device(): pass\n")
    (tmp_path / "test_three.py").write_text(f"import no_such_module  # {mark}\n")
    program = (
        "import json, sys; from pathlib import Path; from vecenv.benchmarks.session_parts import gpu_tests; "
        "told = {job.name: job.measure() for job in gpu_tests(None, Path(sys.argv[1]))}; "
        "print('\\n' + json.dumps({name: [one['headline'], *one['faults']] for name, one in told.items()}))"
    )
    options = {"env": os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, "capture_output": True, "text": True}
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=True, **options)
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "test_one.py::test_bad[one]": ["failed", "assert 1 == 2"],
        "test_one.py::test_bad[x/y z]": ["passed"],
        "test_three.py": ["failed", "ModuleNotFoundError: No module named 'no_such_module'"],
    }


def test_peers_in_jax_that_are_not_there_are_told_in_a_line(monkeypatch):
    pytest.importorskip("jax")
    (job,) = session_parts.peers(Place("cuda", True, None))
    assert job.measure() == {"headline": "the JAX that is installed runs on cpu, not on cuda"}
    monkeypatch.setitem(sys.modules, "optax", None)
    (job,) = session_parts.peers(Place("cpu", True, None))
    assert job.measure() == {"headline": "the peers need JAX and Optax: pip install 'vecenv[peers]'"}


@pytest.mark.nightly
def test_every_part_runs_in_small(tmp_path):
    words = [sys.executable, "-m", "vecenv.benchmarks.device_session", "--device", "cpu", "--minutes", "20"]
    result = subprocess.run([*words, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    data = json.loads((tmp_path / "summary.json").read_text())
    assert {name: one["status"] for name, one in data["parts"].items()} == {one.name: "done" for one in PARTS}
    assert all(job["figures"]["headline"] for one in data["parts"].values() for job in one["jobs"].values())
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "points.jsonl", "log.txt"}
