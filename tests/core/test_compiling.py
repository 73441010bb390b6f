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
from vecenv.core.compiling import (
    ROUNDED_ONCE,
    FirstCallCompiled,
    _is_toolchain_error,
    _settings,
    compile_in_place,
    eager_in_place,
    toolchain_prepared,
)


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


def assert_fills(call, seed: int) -> None:
    """The buffers, and nothing beside them."""
    outputs = buffers()
    call(arguments(seed), outputs)
    assert all(torch.equal(output, value) for output, value in zip(outputs, weigh(*arguments(seed)), strict=True))
    whole = outputs[0]._base
    assert (whole[:, :3] == -7).all() and (whole[:, 7:] == -7).all()


@pytest.mark.assembly
def test_a_compiled_call_fills_the_buffers():
    """New inputs at every call; compiling does not write, and what is on disk is not compiled again."""
    inputs, outputs = arguments(0), buffers()
    before = [tensor.clone() for tensor in (*inputs, *outputs)]
    compiled = compile_in_place(weigh, inputs, outputs)
    assert all(torch.equal(a, b) for a, b in zip((*inputs, *outputs), before, strict=True))
    for seed in (1, 2):
        for call in (compiled, eager_in_place(weigh)):
            assert_fills(call, seed)
    counters["inductor"].clear()
    again = compile_in_place(weigh, arguments(4), buffers())
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert_fills(again, 5)


@pytest.mark.assembly
def test_a_graph_on_disk_has_its_own_constants():
    """Functions that differ in the numbers of a tensor they hold are not taken for each other."""
    for factor in (2.0, 3.0, 2.0):
        held, outputs = torch.arange(3) * factor, [torch.zeros(3)]
        compile_in_place(lambda numbers, held=held: [numbers * held], [torch.ones(3)], outputs)(
            [torch.full((3,), 5.0)], outputs
        )
        assert torch.equal(outputs[0], 5.0 * held)


def test_faults_of_the_function_are_raised():
    """Only a missing toolchain is answered with the eager call."""

    def wrong(prices: torch.Tensor) -> list[torch.Tensor]:
        return [prices @ torch.ones(3)]

    with pytest.raises(RuntimeError):
        compile_in_place(wrong, [torch.ones(2, 2)], [torch.ones(2)])
    try:
        raise ValueError from FileNotFoundError("g++")
    except ValueError as error:
        assert _is_toolchain_error(error)
    assert not _is_toolchain_error(ValueError("no matrix"))


def test_a_missing_compiler_is_told_once(monkeypatch):
    """Every call runs eagerly, and only the first says so."""

    def missing(*_: object) -> None:
        raise InvalidCxxCompiler

    monkeypatch.setattr(compile_fx, "compile_fx_inner", missing)
    monkeypatch.setattr(compiling, "_warned_without_compiler", False)
    with pytest.warns(RuntimeWarning, match=r"^no working compiler, running eagerly \(slower\): ") as told:
        for seed in (6, 7):
            assert_fills(compile_in_place(weigh, arguments(0), buffers()), seed)
    assert len(told) == 1 and told[0].filename == __file__


WITHOUT_COMPILER = """
import warnings
import torch
from vecenv.core.compiling import compile_in_place

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for factor in (2, 3):
        product = torch.zeros(3)
        compile_in_place(lambda numbers: [numbers * factor], [torch.ones(3)], [product])([torch.ones(3)], [product])
        assert product.tolist() == [factor] * 3
print(*[str(warning.message) for warning in caught if "running eagerly" in str(warning.message)], sep="|")
"""


@pytest.mark.nightly
def test_without_a_compiler_it_warns_once_and_runs_eagerly(tmp_path):
    """In a fresh process with an empty cache, since a compiled call would be found there."""
    missing = {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    environment = os.environ | missing | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("no working compiler, running eagerly") and "|" not in ran.stdout, ran.stdout


def test_whether_to_compile_is_asked_at_the_first_call(monkeypatch):
    asked, compiled = [], []
    monkeypatch.setattr(
        compiling,
        "compile_in_place",
        lambda function, *_, **options: (compiled.append(options), eager_in_place(function))[1],
    )
    for flag in (False, True):
        call = FirstCallCompiled(weigh, lambda flag=flag: (asked.append(flag), flag)[1], max_autotune=True)
        for seed in (1, 2):
            assert_fills(call, seed)
    assert asked == [False, True] and compiled == [{"max_autotune": True}]


def test_a_gpu_rounds_each_operation_once_and_a_cpu_is_left_as_it_is(monkeypatch):
    """What a PyTorch does not know is not set; what is asked for goes first."""
    known = _settings(True, {})
    assert known["emulate_precision_casts"] is True and known.keys() & set(ROUNDED_ONCE[1:])
    plain = dict.fromkeys(("assert_indirect_indexing", "size_asserts", "alignment_asserts"), False)
    assert _settings(False, {}) == plain
    assert _settings(True, {"emulate_precision_casts": False})["emulate_precision_casts"] is False
    monkeypatch.setattr(compiling, "ROUNDED_ONCE", ("emulate_precision_casts", "nothing.of_the_kind", "nothing"))
    assert _settings(True, {}) == plain | {"emulate_precision_casts": True}


def test_a_thread_prepares_the_toolchain(monkeypatch):
    """What keeps it from being prepared is left to the first compilation; an error does not wait for it."""
    done, going, ended = [], Event(), Event()

    def broken(*_):
        done.append("broken")
        raise RuntimeError("no compiler of this kind")

    def endless(*_):
        going.wait(60)
        ended.set()

    for stand_in, enabled in (
        (lambda function, inputs, _: done.append(function(*inputs)), True),
        (broken, True),
        (broken, False),
    ):
        monkeypatch.setattr(compiling, "compile_in_place", stand_in)
        with toolchain_prepared(enabled):
            pass
    assert len(done) == 2 and torch.equal(done[0][0], torch.full((64,), 2.0)), "the context waits for the thread"
    monkeypatch.setattr(compiling, "compile_in_place", endless)
    with pytest.raises(ZeroDivisionError), toolchain_prepared():
        raise ZeroDivisionError
    assert not ended.is_set()
    going.set()
    assert ended.wait(60)
