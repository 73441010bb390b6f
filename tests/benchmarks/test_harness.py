"""The harness: medians and ratios of made-up timings are exact, calls take turns, results are small and whole."""

import json
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vecenv.benchmarks import device as machine
from vecenv.benchmarks import harness
from vecenv.benchmarks.harness import Point, Times, Workload, figures_of, measured, run, timed
from vecenv.benchmarks.result_files import result_of, summary_text, write_result
from vecenv.core.memory import TooLittleMemoryError

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_figures_of_made_up_timings(monkeypatch):
    """The ratio is the median of the rounds' ratios, 1, 2 and 4, not that of the medians, 8 / 3."""
    one = Workload("one", lambda: None, 12.0, limit=8.0)
    two = Workload("two", lambda: None, 20.0, "texts", beside="one", told={"width": 7})
    times = {"one": Times([3.0, 4.0, 2.0], [3.0, 3.0, 3.0], 13.0), "two": Times([3.0, 8.0, 8.0], [6.0, 1.5, 3.0], 7.5)}
    first, second = figures_of([one, two], times)
    assert (first.per_second, first.fastest, first.seconds, first.compile_seconds) == (4.0, 6.0, 3.0, 10.0)
    assert (first.limit_share, first.time_ratio, first.processor_ratio) == (0.5, None, None)
    assert (second.per_second, second.fastest, second.compile_seconds) == (2.5, 20.0 / 3.0, 0.0)
    assert (second.time_ratio, second.processor_ratio, second.limit_share) == (2.0, 1.0, None)
    assert (second.unit, second.beside, second.told) == ("texts", "one", {"width": 7})
    assert first.line() == "one: 4 steps/s, 3,000.00 ms, 50.0% of the limit, compiled in 10 s"
    assert second.line() == "two: 2 texts/s, 8,000.00 ms, 2.000 times as long as one (1.000 of the processor), width 7"
    # A copy reads and writes, a fill writes; products are as many as make a measurement long enough.
    monkeypatch.setattr(machine, "COPY_BYTES", 4096)
    monkeypatch.setattr(machine, "seconds_of", lambda call, device, repeats: (call(), [4.0, 1.0, 2.0])[1])
    assert machine.copy_bandwidth(CPU) == 4096.0 and machine.write_bandwidth(CPU) == 2048.0
    monkeypatch.setattr(machine, "PRODUCT_OPERATIONS", {"cpu": 1000})
    # 2 x 4 x 5 x 6 operations a product, of which five are at least a thousand.
    assert machine.product_rate(4, 5, 6, torch.float32, CPU) == 5 * 240 / 2.0


def test_workloads_take_turns_and_short_calls_are_bundled(monkeypatch):
    """A clock of our own: a call of a takes 1/128 s, so three make a bundle, one of b 1/16 s; the first ones more."""
    clock, calls = [0.0], []

    def passes(name: str, seconds: float, first: float) -> None:
        clock[0] += first if name not in calls else seconds
        calls.append(name)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: clock[0] / 2)
    a, b = Workload("a", lambda: passes("a", 1 / 128, 1.0), 1), Workload("b", lambda: passes("b", 1 / 16, 2.0), 1)
    found = timed([a, b], CPU, 3)
    # The first calls, one to warm up, one to count the bundle, and the rounds.
    assert "".join(calls) == "ab" + "ab" + "ab" + 3 * "aaab"
    assert (found["a"].first, found["b"].first) == (1.0, 2.0)
    assert found["a"].wall == [1 / 128] * 3 and found["a"].processor == [1 / 256] * 3
    assert found["b"].wall == [1 / 16] * 3 and found["b"].processor == [1 / 32] * 3


def test_a_gpu_is_timed_between_events(monkeypatch):
    done = []
    event = SimpleNamespace(record=lambda: done.append("event"), elapsed_time=lambda other: 250.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: enable_timing and event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    assert machine.seconds_of(lambda: done.append("call"), GPU, 2) == [0.25, 0.25]
    assert done == ["wait", "event", "call", "event", "wait"] * 2
    assert harness._seconds(lambda: None, GPU, 5) == (0.05, 0.05)


def test_what_does_not_fit_is_told_and_the_next_point_is_measured(capsys):
    def too_large():
        raise TooLittleMemoryError("no room")

    counted = []
    good = Point("good", lambda: [Workload("one", lambda: counted.append(1), 2, told=lambda: {"calls": len(counted)})])
    found = run([Point("large", too_large), good], CPU, 3)
    assert list(found) == ["good"] and "large does not fit the memory" in capsys.readouterr().out
    (figure,) = found["good"]
    # What is told is asked for after the timed calls.
    assert figure["told"]["calls"] == len(counted) > 3 and figure["told"]["peak_memory_bytes"] > 0
    assert figure["per_second"] == pytest.approx(2 / figure["seconds"])
    with pytest.raises(TooLittleMemoryError):
        measured(Point("large", too_large), CPU, 3)


@dataclass(frozen=True)
class Config:
    near: Path = Path("here/file")
    far: Path = Path("/somewhere/else/file.parquet")
    sizes: tuple[int, ...] = (1, 2)


def test_a_result_has_its_conditions_and_is_small(tmp_path):
    result = result_of(Config(), benchmark="made up", value=1 / 3, none=math.nan, long=[{"name": 1.23456789}] * 20)
    assert result["config"] == {"near": "here/file", "far": "file.parquet", "sizes": (1, 2)}
    assert result["torch"] == torch.__version__ and result["device"] == machine.device_name(CPU)
    write_result(tmp_path / "new", "one", result, "page\n")
    text = (tmp_path / "new" / "one.json").read_text()
    told = json.loads(text)
    assert told["value"] == 0.33333 and told["none"] is None and told["long"] == [{"name": 1.2346}] * 20
    assert max(map(len, text.splitlines())) <= 160 and text.count("\n") == 20 + len(result) - 1 + 4
    assert (tmp_path / "new" / "one.md").read_text() == "page\n"
    write_result(None, "two", result)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["one.json", "one.md"]
    assert summary_text({"ä": "… τ"}) == '{"ä": "… τ"}\n'
    plain = [1.0, 2, True, "x", None]
    assert json.loads(summary_text({"a": [*plain, math.inf]})) == {"a": [*plain, None]}
    stem = machine.file_stem("Intel(R) Xeon(R) Processor @ 2.50GHz, 1 thread")
    assert stem == "intel-xeon-processor-2-50ghz-1-thread"
