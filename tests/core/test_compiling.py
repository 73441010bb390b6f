"""Compiled calls fill the buffers as eager ones do, in place too, and a missing compiler is no fault."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import compile_fx, cpu_vec_isa
from torch._inductor import config as inductor
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.utils import tensor_is_aligned
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from vecenv.core import compiling
from vecenv.core.compiling import (
    compile_in_place,
    eager_in_place,
    operators_in_place,
    read_before_overwritten,
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


def test_a_missing_compiler_is_told_once_and_other_faults_are_raised(monkeypatch):
    with pytest.raises(RuntimeError):
        compile_in_place(lambda prices: [prices @ torch.ones(3)], [torch.ones(2, 2)], [torch.ones(2)])
    monkeypatch.setattr(compile_fx, "compile_fx_inner", Mock(side_effect=InvalidCxxCompiler))
    monkeypatch.setattr(compiling, "_warned_without_compiler", False)
    with pytest.warns(RuntimeWarning, match=r"^no working compiler, running eagerly \(slower\): ") as told:
        for seed in (6, 7):
            assert_fills(compile_in_place(weigh, arguments(0), buffers()), seed)
    assert len(told) == 1 and told[0].filename == __file__
    error = ValueError("no matrix")
    assert not compiling._is_toolchain_error(error)
    error.__cause__ = FileNotFoundError("g++")
    assert compiling._is_toolchain_error(error)
    monkeypatch.setattr(compiling, "_warned_without_compiler", False)
    with pytest.warns(
        RuntimeWarning, match=r"\(slower\): PassManager::run failed: another version of Triton may compile it"
    ):
        compiling.check_no_compiler(RuntimeError("SubprocException:\nRuntimeError: PassManager::run failed\n"))


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
    compiled = Mock(side_effect=lambda function, *_, **options: eager_in_place(function))
    monkeypatch.setattr(compiling, "compile_in_place", compiled)
    for flag in (False, True):
        asked = Mock(return_value=flag)
        call = compiling.FirstCallCompiled(weigh, asked, max_autotune=True)
        for seed in (1, 2):
            assert_fills(call, seed)
        assert asked.call_count == 1 and compiled.call_count == flag
    assert compiled.call_args.kwargs == {"max_autotune": True}


def test_a_gpu_rounds_each_operation_once_and_a_cpu_is_left_as_it_is(monkeypatch):
    """What a PyTorch does not know is not set; what is asked for goes first."""
    known = compiling._settings(True, {})
    assert known["emulate_precision_casts"] is True and known.keys() & set(compiling.ROUNDED_ONCE[1:])
    plain = dict.fromkeys(("assert_indirect_indexing", "size_asserts", "alignment_asserts"), False)
    assert compiling._settings(False, {}) == plain
    assert compiling._settings(True, {"emulate_precision_casts": False})["emulate_precision_casts"] is False
    monkeypatch.setattr(compiling, "ROUNDED_ONCE", ("emulate_precision_casts", "nothing.of_the_kind", "nothing"))
    assert compiling._settings(True, {}) == plain | {"emulate_precision_casts": True}


def test_buffers_are_compiled_for_as_they_are_aligned(monkeypatch):
    """Else a GPU's calls copy them."""
    known = Mock(side_effect=compile_fx.compile_fx_inner)
    monkeypatch.setattr(compile_fx, "compile_fx_inner", known)
    wide = torch.zeros(6, 16)
    outputs = [wide[:, place : place + 3] for place in (4, 5, 8, 11)] + [torch.zeros(6, 0)]
    compile_in_place(lambda a: (a, a + 1, a + 2, a + 3, a[:, :0]), [torch.ones(6, 3)], outputs)(
        [torch.ones(6, 3)], outputs
    )
    given = known.call_args.args[1][1:]
    assert [tensor_is_aligned(one) for one in given] == [one.data_ptr() % 16 == 0 for one in outputs]
    assert wide[0].tolist() == [0] * 4 + [1] + [2] * 3 + [3] * 3 + [4] * 3 + [0] * 2


def test_a_thread_prepares_the_toolchain_and_traces_nothing(monkeypatch):
    """A trace would take part in the calls of other threads' modules. An error is left to the first compilation."""
    going, ended, broken = Event(), Event(), Mock(side_effect=RuntimeError("no compiler of this kind"))
    stand_in = Mock(side_effect=lambda *_: ended.set() if going.wait(60) else None)
    traces = Mock(side_effect=AssertionError)
    monkeypatch.setattr(torch.fx.Tracer, "trace", traces)
    monkeypatch.setattr(CppPythonBindingsCodeCache, "load_pybinding", broken)
    for enabled in (True, False):
        with toolchain_prepared(enabled):
            pass
    assert broken.call_count == 1, "it waits for the thread"
    assert not traces.called
    monkeypatch.setattr(CppPythonBindingsCodeCache, "load_pybinding", stand_in)
    with pytest.raises(ZeroDivisionError), toolchain_prepared():
        raise ZeroDivisionError
    assert not ended.is_set()
    going.set()
    assert ended.wait(60)


def test_the_first_vector_instructions_are_tried_by_one_process_of_a_kind(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    tried: list[str] = []

    class Instructions:
        def __init__(self, name, works):
            self.name, self.works = name, works

        def __str__(self):
            return self.name

        def __bool__(self):
            if inductor.cpp.vec_isa_ok:
                return True
            tried.append(self.name)
            return self.works

    def process(**works):
        """Return those that Inductor takes to work, and those that it has tried."""
        tried.clear()
        of_all = [Instructions(name, good) for name, good in works.items()]
        monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", of_all)
        monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["avx512", "avx2"])
        monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", cache(lambda: [isa for isa in of_all[1:] if isa]))
        compiling._know_vector_instructions.__wrapped__()
        return list(map(str, cpu_vec_isa.valid_vec_isa_list())), list(tried)

    broken = process(amx=True, avx512=False, avx2=True)
    assert broken == process(amx=True, avx512=False, avx2=True)
    assert broken == (["avx2"], ["avx512", "avx512", "avx2"])
    assert process(amx=True, avx512=True, avx2=True) == (["avx512", "avx2"], ["avx512"])
    assert process(amx=True, avx512=True, avx2=True) == (["avx512", "avx2"], [])
    monkeypatch.setattr(compiling, "processor", lambda: "another")
    assert process(amx=True, avx512=False, avx2=True) == broken
    monkeypatch.setattr(compiling, "processor", lambda: "of another maker")
    assert process(none=True, neon=True) == (["neon"], ["neon"])
    assert process(none=True, neon=True) == (["neon"], [])
    monkeypatch.setattr(compiling, "processor", lambda: "with a choice")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert process(amx=True, avx512=True, avx2=True) == (["avx512", "avx2"], ["avx512", "avx2"])


@torch.library.custom_op("tests::add_to", mutates_args=("book",))
def _add_to(book: Tensor, amount: Tensor) -> Tensor:
    """Add an amount to every number of a row; return the sums."""
    book.add_(amount.unsqueeze(-1))
    return book.sum(-1)


@_add_to.register_fake
def _(book: Tensor, amount: Tensor) -> Tensor:
    return torch.empty_like(book[..., 0])


@torch.library.custom_op("tests::add_to_all", mutates_args=("books",))
def _add_to_all(books: Sequence[Tensor], amount: Tensor) -> Tensor:
    for book in books:
        book.add_(amount.unsqueeze(-1))
    return books[0].sum(-1)


@_add_to_all.register_fake
def _(books: Sequence[Tensor], amount: Tensor) -> Tensor:
    return torch.empty_like(books[0][..., 0])


add_to, add_to_all = torch.ops.tests.add_to, torch.ops.tests.add_to_all


def read_before(a, b, amount):
    """What is used after the operator was computed before it."""
    first, doubled = a[:, 0] * 2 + 1, a.sum(-1) * 2
    later = (first + 1) * amount
    told = add_to(a, amount)
    return a, b, told + first * later + doubled


def read_by_index(a, b, amount):
    old = torch.where(a > 2, a, b).gather(1, (amount > 1).long().unsqueeze(-1))[:, 0]
    add_to(a, amount)
    return a, b, old + a[:, 0]


def two_operators(a, b, amount):
    first = a[:, 1] * 3
    add_to(a, amount)
    between = a[:, 1] * 5 + first
    add_to(a, amount + 1)
    return a, b, a[:, 1] * 7 + between + first


def part(a, b, amount):
    first = a[:, 2] * 2
    add_to(a[:, 1:], amount)
    return a, b, first + a[:, 2] + a[:, 0]


def both(a, b, amount):
    first = a[:, 1] * b[:, 1]
    told = add_to_all([a, b], amount)
    return a, b, told + first


def of_copies(a, b, amount):
    """Copies are overwritten, and the arguments are results as they were."""
    one, two = a.clone(), b.clone()
    add_to_all([one, two], amount)
    return b + 0, two, a[:, 0] + one[:, 0] * 10 + two[:, 0] * 100


def exchanged_copies(a, b, amount):
    return b.clone(), a.clone(), b[:, 1].clone()


def each_of_both(a, b, amount):
    return a + 2 * b, b.flip(-1) - a, (a * b).sum(-1)


def one_of_two(a, b, amount):
    """One argument is overwritten, the other replaced by what it was."""
    old = a + 0
    told = add_to(a, amount)
    return a, old, told


QUICK = (read_before, exchanged_copies)
OTHERS = (of_copies, read_by_index, two_operators, part, both, each_of_both, one_of_two)


def donated(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 9, shape, generator=generator).float() for shape in ((7, 3), (7, 3), (7,))]


@pytest.mark.parametrize(
    "function",
    [*QUICK, *(pytest.param(function, marks=pytest.mark.nightly) for function in OTHERS)],
    ids=lambda f: f.__name__,
)
@pytest.mark.assembly
def test_compiled_and_eager_calls_do_the_same(function: Callable[..., Sequence[Tensor]]):
    """For donated arguments: what they hold after two calls, and the results beside, without a write when compiling."""
    example = donated(0)
    kept = [tensor.clone() for tensor in example]
    compiled = compile_in_place(function, example, [example[0], example[1], torch.zeros(7)])
    assert all(map(torch.equal, example, kept)), "compiling writes to an argument"
    found = []
    for call in (compiled, eager_in_place(function)):
        a, b, amount = donated(1)
        told = torch.zeros(7)
        for _ in range(2):
            call([a, b, amount], [a, b, told])
        found.append([a, b, told])
    a, b, amount = donated(1)
    for _ in range(2):
        new_a, new_b, told = (tensor.clone() for tensor in function(a.clone(), b.clone(), amount))
        a, b = new_a, new_b
    for name, one, other, expected in zip("ab-", *found, [a, b, told], strict=True):
        assert torch.equal(other, expected), f"eager {name}"
        assert torch.equal(one, expected), f"compiled {name}"


class Copies(TorchDispatchMode):
    """Counts copies that are no part of compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.clone)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("function", "copies"), [(both, 0), (each_of_both, 2), (one_of_two, 1)])
@pytest.mark.assembly
def test_what_is_overwritten_is_not_copied(function, copies):
    a, b, amount = donated(3)
    outputs = [a, b, torch.zeros(7)]
    call = compile_in_place(function, [a, b, amount], outputs)
    with Copies() as mode:
        call([a, b, amount], outputs)
    assert mode.count == copies


def test_a_graph_says_what_is_computed_before():
    """What is used before an operator alone, and views, which tell what was overwritten, are left as they are."""

    def function(a, amount):
        view, used_before = a[:, 0], a[:, 1] * 2
        told = add_to(a, amount + used_before)
        return told + view + amount * 2 + a[:, 2] * 3

    graph = make_fx(function)(torch.ones(7, 3), torch.ones(7)).graph
    read_before_overwritten(graph)
    assert len(operators_in_place(graph)) == 1
    assert not [node for node in graph.nodes if node.target is torch.ops.vecenv.computed.default]
    graph = make_fx(read_before)(*donated(0)).graph
    read_before_overwritten(graph)
    computed = [node.args[0].name for node in graph.nodes if node.target is torch.ops.vecenv.computed.default]
    assert len(computed) == 3, "two factors and a sum"
