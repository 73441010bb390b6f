"""The book in C++ is the reference bit for bit, alone, batched and in compiled steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.order_book.random_messages import accounts_of, books, drawn
from vecenv.core.compiling import compile_in_place
from vecenv.kernels import native_library
from vecenv.kernels.order_book import native
from vecenv.kernels.order_book.accounts import Accounts, process_all
from vecenv.kernels.order_book.book import Book
from vecenv.kernels.order_book.messages import BUY, Kind, Message
from vecenv.kernels.order_book.native import process_all_native

pytestmark = pytest.mark.skipif(native_library.compiler() is None, reason="no C++ compiler")


def sent_to(random: np.random.Generator, book: Book, slots: int) -> Message:
    """Messages of which some are for orders that the ones before bring in."""
    next_id, room = book.next_id.numpy(), book.key.shape[-1]
    return Message(
        *torch.from_numpy(np.stack([drawn(random, len(next_id), next_id + slots // 2, room) for _ in range(slots)], -1))
    )


def tensors_of(result: tuple[Book, Accounts, object]) -> list[Tensor]:
    return [tensor for part in result for tensor in part]  # type: ignore[attr-defined]


def same(one: tuple[Book, Accounts, object], other: tuple[Book, Accounts, object]) -> bool:
    return all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(tensors_of(one), tensors_of(other), strict=True)
    )


@pytest.mark.parametrize("evict", [True, False])
@pytest.mark.parametrize(
    ("room", "steps"), [(1, 40), (2, 40), (8, 60), (pytest.param(64, 150, marks=pytest.mark.nightly))]
)
@pytest.mark.assembly
def test_it_is_the_reference_bit_for_bit(room, steps, evict):
    random, count, slots = np.random.default_rng(room), 32, 6
    book, accounts = books(count, room), accounts_of(count)
    for step in range(steps):
        messages = sent_to(random, book, slots)
        expected = torch.vmap(lambda *parts: process_all(*parts, evict))(book, accounts, messages)
        found = torch.vmap(lambda *parts: process_all_native(*parts, evict))(book, accounts, messages)
        assert same(expected, found), step
        book, accounts, _ = expected


def test_one_book_is_the_same_alone_and_nothing_given_is_written():
    random = np.random.default_rng(2)
    book, accounts = books(4, 8), accounts_of(4)
    for _ in range(30):
        messages = sent_to(random, book, 5)
        before = [tensor.clone() for tensor in (*book, *accounts, *messages)]
        batched = torch.vmap(process_all_native)(book, accounts, messages)
        for one in range(4):
            parts = (type(part)(*(tensor[one] for tensor in part)) for part in (book, accounts, messages))
            alone = process_all_native(*parts)
            chosen = tuple(type(part)(*(tensor[one] for tensor in part)) for part in batched)
            assert same(alone, chosen)
        assert all(torch.equal(a, b) for a, b in zip(before, (*book, *accounts, *messages), strict=True))
        book, accounts, _ = batched


def test_one_book_meets_many_messages():
    """What is not mapped is repeated, wherever the mapped dimension lies."""
    random, one = np.random.default_rng(4), tuple(type(p)(*(t[0] for t in p)) for p in (books(1, 8), accounts_of(1)))
    messages = sent_to(random, books(6, 8), 5)
    last = Message(*(words.T.contiguous() for words in messages))
    expected = torch.vmap(process_all, in_dims=(None, None, -1))(*one, last)
    assert same(expected, torch.vmap(process_all_native, in_dims=(None, None, -1))(*one, last))


@pytest.mark.assembly
def test_compiled_steps_call_it():
    random = np.random.default_rng(3)
    book, accounts = books(8, 8), accounts_of(8)
    sizes = (len(book), len(book) + len(accounts))

    def step(*tensors: Tensor) -> list[Tensor]:
        parts = Book(*tensors[: sizes[0]]), Accounts(*tensors[sizes[0] : sizes[1]]), Message(*tensors[sizes[1] :])
        return tensors_of(torch.vmap(process_all_native)(*parts))

    messages = sent_to(random, book, 4)
    outputs = [torch.zeros_like(tensor) for tensor in step(*book, *accounts, *messages)]
    call = compile_in_place(step, [*book, *accounts, *messages], outputs)
    for _ in range(20):
        messages = sent_to(random, book, 4)
        call([*book, *accounts, *messages], outputs)
        expected = torch.vmap(process_all)(book, accounts, messages)
        assert all(torch.equal(a, b) for a, b in zip(outputs, tensors_of(expected), strict=True))
        book, accounts, _ = expected


WRONG = {
    "fewer books": lambda book, accounts, sent: (Book(*(part[:2] for part in book)), accounts, sent),
    "fewer accounts": lambda book, accounts, sent: (book, Accounts(*(part[:2] for part in accounts)), sent),
    "fewer messages": lambda book, accounts, sent: (book, accounts, Message(*(part[:2] for part in sent))),
    "a longer message": lambda book, accounts, sent: (book, accounts, sent._replace(side=sent.side.repeat(1, 2))),
    "one side": lambda book, accounts, sent: (book._replace(key=book.key[:, :1]), accounts, sent),
    "other numbers": lambda book, accounts, sent: (book, accounts._replace(cash=accounts.cash.int()), sent),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_foreign_memory_is_read(name):
    book, accounts = books(4, 8), accounts_of(4)
    parts = WRONG[name](book, accounts, sent_to(np.random.default_rng(6), book, 3))
    with pytest.raises(ValueError, match="must have shape"):
        torch.ops.vecenv.process_all(*(list(part) for part in parts), True)


def test_an_owner_without_an_account_is_told():
    book = books(1, 4)
    book.key[0, 1, 0], book.quantity[0, 1, 0], book.owner[0, 1, 0] = 100, 5, 1_000_000
    buy = [torch.tensor([[word]], dtype=torch.int32) for word in (Kind.MARKET, BUY, 0, 3, 0, -1)]
    with pytest.raises(ValueError, match="an owner beyond the 3 accounts"):
        torch.vmap(process_all_native)(book, accounts_of(1), Message(*buy))


def test_without_a_compiler_there_is_none(monkeypatch):
    native_library.built_library.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    try:
        with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler was found"):
            assert native_library.compiler() is None and native.library() is None
        with pytest.raises(RuntimeError, match="no working C\\+\\+ compiler was found"):
            process_all_native(*(type(p)(*(t[0] for t in p)) for p in (books(1, 2), accounts_of(1), nothing())))
    finally:
        native_library.built_library.cache_clear()


def nothing() -> Message:
    return Message(*(torch.zeros(1, 1, dtype=torch.int32) for _ in Message._fields))
