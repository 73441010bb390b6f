"""Compiled calls fill the buffers as eager ones do, and a missing compiler is no fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import compile_fx
from torch._inductor.exc import InvalidCxxCompiler

from vecenv.core import compiling
from vecenv.core.compiling import ROUNDED_ONCE, _settings, compile_in_place, eager_in_place, toolchain_prepared

ROOT = Path(__file__).parents[2]


def weigh(prices: torch.Tensor, days: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Index, sum exactly, and return an input's number."""
    chosen = prices[days]
    return [chosen * weight, chosen.sum(-1).to(torch.int64), days + 1]


def arguments(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    prices = torch.randint(1, 1000, (9, 4), generator=generator).float()
    return [prices, torch.randint(0, 9, (5,), generator=generator), torch.rand((), generator=generator)]


def buffers() -> list[torch.Tensor]:
    """Return buffers for `weigh`, the first a strided part of a wider one."""
    wide = torch.full((5, 10), -7.0)
    return [wide[:, 3:7], torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.int64)]


@pytest.fixture(scope="module")
def compiled():
    return compile_in_place(weigh, arguments(0), buffers())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.assembly
def test_a_compiled_call_fills_the_buffers(compiled, seed):
    """New inputs at every call, also of a zero-dimensional tensor, and nothing is written beside the buffer."""
    expected, filled = weigh(*arguments(seed)), buffers()
    for call in (compiled, eager_in_place(weigh)):
        outputs = buffers()
        call(arguments(seed), outputs)
        assert all(torch.equal(output, value) for output, value in zip(outputs, expected, strict=True))
        outputs[0].zero_()
        whole = outputs[0]._base
        assert (whole[:, :3] == -7).all() and (whole[:, 7:] == -7).all()
    assert not torch.equal(filled[0], expected[0])


def test_compiling_does_not_write(compiled):
    outputs = buffers()
    inputs = arguments(3)
    before = [tensor.clone() for tensor in (*inputs, *outputs)]
    compile_in_place(weigh, inputs, outputs)
    assert all(torch.equal(a, b) for a, b in zip((*inputs, *outputs), before, strict=True))


def test_the_same_graph_is_compiled_once(compiled):
    """Another call of the same shapes, in this process or a later one, finds the graph on disk."""
    counters["inductor"].clear()
    again = compile_in_place(weigh, arguments(4), buffers())
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    outputs = buffers()
    again(arguments(5), outputs)
    assert all(torch.equal(*pair) for pair in zip(outputs, weigh(*arguments(5)), strict=True))


@pytest.mark.parametrize("size", [3, 3000])
@pytest.mark.assembly
def test_a_graph_on_disk_has_its_own_constants(size):
    """Functions that differ in the numbers of a tensor they hold are not taken for each other."""
    for factor in (2.0, 3.0, 2.0):
        held = torch.arange(size) * factor
        outputs = [torch.zeros(size)]
        compile_in_place(lambda numbers, held=held: [numbers * held], [torch.ones(size)], outputs)(
            [torch.full((size,), 5.0)], outputs
        )
        assert torch.equal(outputs[0], 5.0 * held)


def test_faults_of_the_function_are_raised():
    """Only a missing toolchain is answered with the eager call."""

    def wrong(prices: torch.Tensor) -> list[torch.Tensor]:
        return [prices @ torch.ones(3)]

    with pytest.raises(RuntimeError):
        compile_in_place(wrong, [torch.ones(2, 2)], [torch.ones(2)])


def test_a_missing_compiler_is_told_once(monkeypatch):
    """Every call runs eagerly, and only the first says so."""

    def missing(*_: object) -> None:
        raise InvalidCxxCompiler

    monkeypatch.setattr(compile_fx, "compile_fx_inner", missing)
    monkeypatch.setattr(compiling, "_warned_without_compiler", False)
    with pytest.warns(RuntimeWarning, match="no working compiler, running eagerly") as told:
        for seed in (6, 7):
            outputs = buffers()
            compile_in_place(weigh, arguments(0), buffers())(arguments(seed), outputs)
            assert all(torch.equal(*pair) for pair in zip(outputs, weigh(*arguments(seed)), strict=True))
    assert len(told) == 1


WITHOUT_COMPILER = """
import warnings
import torch
from tests.small_env import collected, make_env
from vecenv.core.collector import FusedCollector
from vecenv.core.compiling import compile_in_place

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    left = FusedCollector(make_env(5, True), num_steps=6)
    left.rollout()
    doubled = torch.zeros(3)
    compile_in_place(lambda numbers: [numbers * 2], [torch.ones(3)], [doubled])([torch.ones(3)], [doubled])
assert doubled.tolist() == [2.0, 2.0, 2.0]
own = [str(warning.message) for warning in caught if "running eagerly" in str(warning.message)]
right = FusedCollector(make_env(5), num_steps=6)
right.rollout()
assert left.mode == "compiled" and all(map(torch.equal, collected(left), collected(right)))
print(len(own), *own)
"""


@pytest.mark.nightly
def test_without_a_compiler_it_warns_once_and_runs_eagerly(tmp_path):
    """In a fresh process with an empty cache, since a compiled step would be found there."""
    environment = os.environ | {
        "CXX": str(tmp_path / "no-such-compiler"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("1 no working compiler, running eagerly"), ran.stdout


def test_a_gpu_rounds_each_operation_once_and_a_cpu_is_left_as_it_is(monkeypatch):
    """What a PyTorch does not know is not set; what is asked for goes first."""
    known = _settings(True, {})
    assert known["emulate_precision_casts"] is True and known.keys() & set(ROUNDED_ONCE[1:])
    assert not _settings(False, {}).keys() & set(ROUNDED_ONCE)
    assert _settings(True, {"emulate_precision_casts": False})["emulate_precision_casts"] is False
    monkeypatch.setattr(
        "vecenv.core.compiling.ROUNDED_ONCE", ("emulate_precision_casts", "nothing.of_the_kind", "nothing")
    )
    assert _settings(True, {}).keys() == known.keys() - set(ROUNDED_ONCE[1:])


def test_a_thread_prepares_the_toolchain(monkeypatch):
    done = []
    monkeypatch.setattr(compiling, "compile_in_place", lambda function, inputs, outputs: done.append(function(*inputs)))
    with toolchain_prepared(enabled=False):
        pass
    assert not done
    with toolchain_prepared():
        pass
    assert len(done) == 1, "the context waits for the thread"


def test_what_keeps_the_toolchain_from_being_prepared_is_left_to_the_first_compilation(monkeypatch):
    def broken(*_):
        raise RuntimeError("no compiler of this kind")

    with monkeypatch.context() as patched:
        patched.setattr(compiling, "compile_in_place", broken)
        with toolchain_prepared():
            pass


def test_an_error_does_not_wait_for_the_toolchain(monkeypatch):
    going, ended = Event(), Event()

    def endless(*_):
        going.wait(60)
        ended.set()

    monkeypatch.setattr(compiling, "compile_in_place", endless)
    with pytest.raises(ZeroDivisionError), toolchain_prepared():
        raise ZeroDivisionError
    assert not ended.is_set()
    going.set()
    assert ended.wait(60)
