"""`accounts.process_all` in C++, for CPUs: built by the machine's compiler when it is first asked for.

An operator of `torch.library`, so that `torch.vmap` batches it and compiled steps call it. Its numbers are those of the
reference bit for bit, holes included (a test). On a GPU the operator is in Triton (`triton_form`), which is imported
when it is first called there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.core.tensor_checks import form
from vecenv.kernels.native_library import built_library
from vecenv.kernels.order_book.accounts import Accounts, process_all
from vecenv.kernels.order_book.book import Book
from vecenv.kernels.order_book.messages import Message, Report, report_types

SOURCE = Path(__file__).with_name("process_all.cpp")


def library() -> ctypes.CDLL | None:
    """Return the library of the operator; None without a working compiler."""
    return built_library(SOURCE)


def has_operator(device: torch.device) -> bool:
    """Whether `process_all_native` works on a device: with a compiler on a CPU, with Triton on a GPU of CUDA."""
    return library() is not None if device.type == "cpu" else device.type == "cuda" and find_spec("triton") is not None


def processed_messages(
    book: Book, accounts: Accounts, messages: Message, evict: bool = True
) -> tuple[Book, Accounts, Report]:
    """Do what `accounts.process_all` does: by the operator where the device has it, else in PyTorch.

    Raises:
        ValueError: as `process_all_native`.
    """
    chosen = process_all_native if has_operator(book.key.device) else process_all
    return chosen(book, accounts, messages, evict)


def process_all_native(
    book: Book, accounts: Accounts, messages: Message, evict: bool = True
) -> tuple[Book, Accounts, Report]:
    """Do what `accounts.process_all` does; where `has_operator`.

    Raises:
        RuntimeError: the device has no operator.
        ValueError: a tensor has another shape or type than the reference takes, or an owner of an order has no account.
    """
    tensors = torch.ops.vecenv.process_all(list(book), list(accounts), list(messages), evict)
    own, held = len(book), len(book) + len(accounts)
    return Book(*tensors[:own]), Accounts(*tensors[own:held]), Report(*tensors[held:])


@torch.library.custom_op("vecenv::process_all", mutates_args=(), device_types="cpu")
def _process_all(
    book: Sequence[Tensor], accounts: Sequence[Tensor], messages: Sequence[Tensor], evict: bool
) -> list[Tensor]:
    """Carry out messages to one book, or to a batch of books along the first dimension of all tensors."""
    loaded = library()
    if loaded is None:
        raise RuntimeError("there is no native order book: no working C++ compiler was found")
    _check(book, accounts, messages)
    made = [tensor.contiguous().clone() for tensor in (*book, *accounts)]
    sent = [words.contiguous() for words in messages]
    reports = [torch.empty_like(sent[0], dtype=kind) for kind in report_types()]
    place = Report._fields.index("notional")
    told = [column.data_ptr() for column in (*reports[:place], *reports[place + 1 :])]
    slots, room, owners = sent[0].shape[-1], made[0].shape[-1], made[-1].shape[-1]
    count = made[-1].numel() // owners
    complete = loaded.vecenv_process_all(
        *map(ctypes.c_int64, (count, room, slots, owners)),
        ctypes.c_int32(evict),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in made),
        (ctypes.c_void_p * len(sent))(*(words.data_ptr() for words in sent)),
        (ctypes.c_void_p * len(told))(*told),
        ctypes.c_void_p(reports[place].data_ptr()),
    )
    if not complete:
        raise ValueError(f"an order in the book is of an owner beyond the {owners} accounts")
    return [*made, *reports]


def _check(book: Sequence[Tensor], accounts: Sequence[Tensor], messages: Sequence[Tensor]) -> None:
    """Reject tensors that the library would read or write beyond their memory.

    Raises:
        ValueError: naming the first of another shape or type.
    """
    *batch, _, room = book[0].shape
    owners, slots = accounts[0].shape[-1:], messages[0].shape[-1:]
    wanted: list[tuple[str, Tensor, Sequence[int], torch.dtype]] = []
    for name, tensor in zip(Book._fields, book, strict=True):
        wanted.append((name, tensor, [] if name == "next_id" else [2, room], torch.int32))
    wanted += [(name, tensor, owners, torch.int64) for name, tensor in zip(Accounts._fields, accounts, strict=True)]
    wanted += [(name, tensor, slots, torch.int32) for name, tensor in zip(Message._fields, messages, strict=True)]
    for name, tensor, shape, kind in wanted:
        if tensor.shape != (*batch, *shape) or tensor.dtype != kind:
            raise ValueError(f"{name} must have shape {(*batch, *shape)} and type {kind}, got {form(tensor)}")


@_process_all.register_kernel("cuda")
def _(book: Sequence[Tensor], accounts: Sequence[Tensor], messages: Sequence[Tensor], evict: bool) -> list[Tensor]:
    if not has_operator(book[0].device):
        raise RuntimeError("there is no order book for GPUs: Triton is not installed")
    from vecenv.kernels.order_book.triton_form import processed_books

    _check(book, accounts, messages)
    return processed_books(book, accounts, messages, evict)


@_process_all.register_fake
def _(book: Sequence[Tensor], accounts: Sequence[Tensor], messages: Sequence[Tensor], evict: bool) -> list[Tensor]:
    made = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (*book, *accounts)]
    return [*made, *(torch.empty_like(messages[0], dtype=kind) for kind in report_types())]


@_process_all.register_vmap
def _(
    info: Any,  # noqa: ANN401
    in_dims: tuple[Any, ...],
    book: Sequence[Tensor],
    accounts: Sequence[Tensor],
    messages: Sequence[Tensor],
    evict: bool,
) -> tuple[list[Tensor], list[int]]:
    groups = []
    for tensors, dims in zip((book, accounts, messages), in_dims, strict=False):
        each = dims if isinstance(dims, list | tuple) else [dims] * len(tensors)
        groups.append([_leading(tensor, dim, info.batch_size) for tensor, dim in zip(tensors, each, strict=True)])
    result = torch.ops.vecenv.process_all(*groups, evict)
    return result, [0] * len(result)


def _leading(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """Return a tensor with the mapped dimension first, repeated if there is none."""
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
