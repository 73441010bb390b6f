"""The book in Triton: in its interpreter, compiled for a GPU that is not there, and on one that is."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.order_book.random_messages import accounts_of, books, drawn, filling
from vecenv.core.compiling import compile_in_place
from vecenv.kernels.order_book import native
from vecenv.kernels.order_book.accounts import Accounts, process_all
from vecenv.kernels.order_book.book import Book, max_quantity
from vecenv.kernels.order_book.messages import Message, Report
from vecenv.kernels.order_book.native import has_operator, process_all_native, processed_messages

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.nightly
@needs_triton
def test_it_is_the_reference_in_the_interpreter():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    found = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=--strict-markers -ra", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, str(HERE / "check_triton_form.py")],
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": found, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-8_000:] + ran.stderr[-2_000:]


@needs_triton
@pytest.mark.skipif(bool(os.environ.get("TRITON_INTERPRET")), reason="Triton interprets")
@pytest.mark.parametrize(("room", "sizes"), [(5, {"slots": 1, "owners": 1}), (64, {}), (128, {}), (1024, {})])
def test_it_compiles_for_a_gpu_and_keeps_the_book_in_registers(room, sizes, tmp_path, monkeypatch):
    """With numbers of messages and owners that are 1, which Triton makes constants, and others."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from vecenv.kernels.order_book.triton_form import OPTIONS, warps_of, width_of
    from vecenv.kernels.order_book.triton_kernel import process_books

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"ROOM": room, "WIDTH": width_of(room), "MOST": max_quantity(room), "EVICT": True, **sizes}
    names = process_books.arg_names
    signature = {name: "*i64" if name in ("cash", "shares", "notionals") else "*i32" for name in names}
    signature |= {"slots": "i32", "owners": "i32"} | dict.fromkeys(constants, "constexpr")
    # Memory of a tensor begins at a multiple of 16 bytes, as Triton finds when it is called.
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if signature[name].startswith("*")}
    made = triton.compile(
        ASTSource(
            process_books, signature, {(names.index(name),): value for name, value in constants.items()}, aligned
        ),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": warps_of(room), **OPTIONS},
    )
    file = tmp_path / "book.cubin"
    file.write_bytes(made.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert " LOCAL:0 " in told and " STACK:0 " in told, told
    # Where a thread has more than two places, a shift goes by way of shared memory, a column or two at a time.
    assert (made.metadata.shared == 0) == (room <= 64) and made.metadata.shared <= 8 * room


def test_the_form_is_chosen_by_the_device(monkeypatch):
    monkeypatch.setattr(native, "library", object)
    monkeypatch.setattr(native, "find_spec", {"triton": object()}.get)
    cpu, gpu, other = (torch.device(name) for name in ("cpu", "cuda:0", "meta"))
    assert has_operator(cpu) and has_operator(gpu) and not has_operator(other)
    monkeypatch.setattr(native, "library", lambda: None)
    assert not has_operator(cpu) and has_operator(gpu)
    monkeypatch.setattr(native, "find_spec", {}.get)
    assert not has_operator(gpu)


@pytest.mark.parametrize("there", [True, False])
def test_messages_go_to_the_form_that_is_chosen(there, monkeypatch):
    book, called = books(2, 4), []
    for form in (process_all, process_all_native):
        # Whichever is called, PyTorch does it: there may be no compiler.
        monkeypatch.setattr(native, form.__name__, lambda *parts, form=form: called.append(form) or process_all(*parts))
    monkeypatch.setattr(native, "has_operator", lambda device: there and device.type == "cpu")
    parts = book, accounts_of(2), sent_to(np.random.default_rng(1), book, 3)
    assert differing(torch.vmap(process_all)(*parts), torch.vmap(processed_messages)(*parts)) == []
    assert called == [process_all_native if there else process_all]


def sent_to(random: np.random.Generator, book: Book, slots: int) -> Message:
    next_id, room = book.next_id.cpu().numpy(), book.key.shape[-1]
    return Message(*torch.from_numpy(np.stack([drawn(random, len(next_id), next_id, room) for _ in range(slots)], -1)))


def differing(expected: tuple[Book, Accounts, Report], found: tuple[Book, Accounts, Report]) -> list[str]:
    """Names of what is not equal in what two forms return, wherever it lies."""
    names = [name for part in expected for name in part._fields]
    pairs = zip(names, chain(*expected), chain(*found), strict=True)
    return [name for name, one, other in pairs if one.dtype != other.dtype or not torch.equal(one.cpu(), other.cpu())]


def on_gpu(parts: tuple[Book, Accounts, Message]) -> tuple[Book, Accounts, Message]:
    return tuple(type(part)(*(tensor.cuda() for tensor in part)) for part in parts)


@pytest.mark.gpu
@needs_gpu
@needs_triton
@pytest.mark.parametrize(
    ("room", "evict"), [(1, True), (5, True), (5, False), (32, True), (64, True), (64, False), (128, True), (256, True)]
)
def test_on_a_gpu_it_is_the_reference_bit_for_bit(room, evict):
    random, count, slots = np.random.default_rng(room), 64, 8
    book, accounts = books(count, room), accounts_of(count)
    messages = filling(random, count, room)
    for step in range(25):
        parts = book, accounts, messages
        expected = torch.vmap(lambda *given: process_all(*given, evict))(*parts)
        found = torch.vmap(lambda *given: processed_messages(*given, evict))(*on_gpu(parts))
        assert all(tensor.is_cuda for part in found for tensor in part)
        assert differing(expected, found) == [], step
        book, accounts, _ = expected
        messages = sent_to(random, book, slots)


@pytest.mark.gpu
@needs_gpu
@needs_triton
def test_on_a_gpu_a_book_is_the_same_alone_and_in_compiled_steps():
    random, room, sizes = np.random.default_rng(2), 8, (len(Book._fields), len(Book._fields) + len(Accounts._fields))
    book, accounts = books(64, room), accounts_of(64)

    def step(*tensors: Tensor) -> list[Tensor]:
        parts = Book(*tensors[: sizes[0]]), Accounts(*tensors[sizes[0] : sizes[1]]), Message(*tensors[sizes[1] :])
        return list(chain(*torch.vmap(process_all_native)(*parts)))

    given = list(chain(*on_gpu((book, accounts, sent_to(random, book, 4)))))
    outputs = [torch.zeros_like(tensor) for tensor in step(*given)]
    call = compile_in_place(step, given, outputs)
    for _ in range(20):
        parts = book, accounts, sent_to(random, book, 4)
        expected = torch.vmap(process_all)(*parts)
        call(list(chain(*on_gpu(parts))), outputs)
        found = tuple(
            kind(*outputs[first:last])
            for kind, (first, last) in zip((Book, Accounts, Report), pairwise((0, *sizes, len(outputs))), strict=True)
        )
        assert differing(expected, found) == []
        alone = process_all_native(*on_gpu(tuple(type(part)(*(tensor[3] for tensor in part)) for part in parts)))
        assert differing(tuple(type(part)(*(tensor[3] for tensor in part)) for part in expected), alone) == []
        book, accounts, _ = expected
