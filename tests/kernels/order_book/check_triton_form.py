"""The book in Triton is the reference bit for bit, in Triton's interpreter.

Run by ``test_triton_form.py`` in a process of its own, since Triton asks when it is imported whether to interpret.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import interpreter_builder

from tests.kernels.order_book.random_messages import OWNERS, accounts_of, books, drawn, filling
from tests.kernels.order_book.test_order_kinds import ASKS, BIDS, CASES, ME, MINE
from vecenv.kernels.order_book.accounts import Accounts, empty_accounts, process_all
from vecenv.kernels.order_book.book import Book
from vecenv.kernels.order_book.messages import BUY, SELL, Kind, Message, Report, Status
from vecenv.kernels.order_book.triton_form import processed_books

NAMES = (*Book._fields, *Accounts._fields, *Report._fields)


@pytest.fixture
def asserting(monkeypatch):
    """Assertions of the kernel hold, and that no sum or product is beyond int32."""
    monkeypatch.setattr(interpreter_builder, "options", replace(interpreter_builder.options, debug=True))


def reference(book: Book, accounts: Accounts, messages: Message, evict: bool) -> tuple[Book, Accounts, Report]:
    return torch.vmap(lambda *parts: process_all(*parts, evict))(book, accounts, messages)


def differing(expected: tuple[Book, Accounts, Report], found: list[Tensor]) -> list[str]:
    pairs = zip(NAMES, [tensor for part in expected for tensor in part], found, strict=True)
    return [name for name, one, other in pairs if one.dtype != other.dtype or not torch.equal(one, other)]


@pytest.mark.parametrize("evict", [True, False])
@pytest.mark.parametrize("room", [5, 8, 32, 64])
def test_it_is_the_reference_bit_for_bit(room, evict):
    random, count, slots, seen = np.random.default_rng(room), 4, 5, set()
    book, accounts, filled = reference(books(count, room), accounts_of(count), filling(random, count, room), evict)
    assert bool((book.quantity > 0).all()) and bool((filled.status == Status.DONE).all()), "sides are full"
    holes = 0
    for step in range(14):
        next_id = book.next_id.numpy() + slots // 2
        sent = np.stack([drawn(random, count, next_id, room) for _ in range(slots)], -1)
        # What is rare, of an owner that there is: the last books do not lose all their orders.
        sent[0, 0, 0], sent[4, 0, 0] = (Kind.CANCEL_ALL, Kind.REPLACE_ALL, Kind.NOTHING, Kind.POST_ONLY)[step % 4], 1
        sent[0, 1, 0] = step if step < len(Kind) else sent[0, 1, 0]
        messages = Message(*torch.from_numpy(sent))
        before = [tensor.clone() for tensor in (*book, *accounts, *messages)]
        found = processed_books(book, accounts, messages, evict)
        expected = reference(book, accounts, messages, evict)
        assert differing(expected, found) == [], step
        assert all(torch.equal(a, b) for a, b in zip(before, (*book, *accounts, *messages), strict=True))
        book, accounts, report = expected
        for kind, status in zip(messages.kind.ravel().tolist(), report.status.ravel().tolist(), strict=True):
            seen |= {("status", status)} | ({("done", kind)} if status == Status.DONE else set())
        for name in ("filled", "rested", "cancelled", "prevented", "evicted"):
            seen |= {name} if bool((getattr(report, name) > 0).any()) else set()
        holes += int(((book.quantity == 0) & (book.id >= 0)).sum())
    expected = {("status", status) for status in Status} | {("done", kind) for kind in Kind if kind != Kind.NOTHING}
    expected |= {"filled", "rested", "cancelled", "prevented"} | ({"evicted"} if evict else set())
    assert expected - seen == set() and holes
    assert evict or "evicted" not in seen


def test_each_kind_does_what_it_says():
    """The cases that are worked out by hand, a book each, some of which random messages miss."""
    before = [(Kind.LIMIT, SELL, *words[:3], -1) for words in ASKS]
    before += [(Kind.LIMIT, BUY, *words[:3], -1) for words in (*BIDS, MINE)]
    sent = [[*before, (*case.words[:4], ME, *(case.words[4:] or (-1,)))] for case in CASES.values()]
    messages = Message(*torch.tensor(sent, dtype=torch.int32).movedim(-1, 0))
    accounts = Accounts(*(leaf.expand(len(CASES), -1).clone() for leaf in empty_accounts(ME + 1)))
    book = books(len(CASES), 6)
    expected = reference(book, accounts, messages, True)
    assert expected[2].status[:, -1].tolist() == [case.status for case in CASES.values()]
    assert differing(expected, processed_books(book, accounts, messages, True)) == []


def test_a_book_alone_and_no_book():
    random = np.random.default_rng(1)
    book, accounts = books(1, 5), accounts_of(1)
    messages = filling(random, 1, 5)
    alone = [[tensor[0] for tensor in part] for part in (book, accounts, messages)]
    found = [tensor.unsqueeze(0) for tensor in processed_books(*alone, True)]
    assert differing(reference(book, accounts, messages, True), found) == []
    none = [[tensor[:0] for tensor in part] for part in (book, accounts, messages)]
    assert [tensor.shape for tensor in processed_books(*none, True)] == [(0, *tensor.shape[1:]) for tensor in found]


def test_largest_numbers_are_exact(asserting):
    """Prices times quantities beyond int32 and float64's whole numbers, on both sides of one book."""
    room, most, price = 5, (2**31 - 1) // 6, 2**30
    words = [(Kind.LIMIT, SELL, price - one, most, one % 2, -1) for one in range(room)]
    words += [
        (Kind.MARKET, BUY, 0, most, 2, -1),
        (Kind.LIMIT, BUY, price, most, 2, -1),
        (Kind.CANCEL_ALL, 0, 0, 0, 1, -1),
    ]
    messages = Message(*torch.tensor(words, dtype=torch.int32).T.unsqueeze(1))
    book, accounts = books(1, room), accounts_of(1)
    expected = reference(book, accounts, messages, True)
    assert differing(expected, processed_books(book, accounts, messages, True)) == []
    assert int(expected[2].notional.max()) > 2**53


def test_an_owner_without_an_account_is_told(asserting):
    book = books(1, 5)
    book.key[0, 1, 0], book.quantity[0, 1, 0], book.owner[0, 1, 0] = 100, 5, OWNERS
    buy = [torch.tensor([[word]], dtype=torch.int32) for word in (Kind.MARKET, BUY, 0, 3, 0, -1)]
    with pytest.raises(InterpreterError, match="an owner without an account"):
        processed_books(book, accounts_of(1), buy, True)
