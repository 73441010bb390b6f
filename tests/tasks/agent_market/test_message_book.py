"""The book for messages against lists: reports, orders, accounts and ids of random messages, one a call and many."""

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import numpy as np
import pytest
import torch

from tests.kernels.order_book.book_oracle import Oracle
from tests.kernels.order_book.test_order_book import OWNERS, drawn, orders_in
from vecenv.kernels.order_book.book import Book
from vecenv.kernels.order_book.messages import BUY, SELL, Kind, Status
from vecenv.system.native_library import compiler
from vecenv.tasks.agent_market.message_book import MessageBook

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")


@pytest.mark.parametrize("room", [1, 8, 33])
def test_messages_do_what_the_lists_do_one_by_one_and_together(room):
    random, oracle, ledger = np.random.default_rng(room), Oracle(room, OWNERS), np.zeros((2, OWNERS), np.int64)
    one, many = MessageBook(room, OWNERS), MessageBook(room, OWNERS)
    seen = set()
    for _ in range(40):
        sent = np.concatenate([drawn(random, 1, np.array([oracle.next_id + k]), room) for k in range(25)], 1).T
        together = many.send_all(torch.from_numpy(sent))
        for place, words in enumerate(sent.tolist()):
            report, told = one.send(*words), oracle.process(*words)
            assert report == tuple(int(column[place]) for column in together)
            assert (report.status, report.id, report.side, report.rested) == (
                told.status,
                told.id,
                told.side,
                told.rested,
            )
            assert (report.cancelled, report.prevented) == (told.cancelled, told.prevented)
            assert (report.evicted_id, report.evicted_owner, report.evicted) == told.evicted
            assert report.filled == sum(size for _, size, *_ in told.trades)
            assert report.notional == sum(price * size for price, size, *_ in told.trades)
            sign = 1 if told.side == BUY else -1
            for price, size, maker, _ in told.trades:
                ledger[:, words[4]] += (-sign * price * size, sign * size)
                ledger[:, maker] += (sign * price * size, -sign * size)
            seen.add(told.status)
        for own in (one, many):
            whole = Book(*(tensor.unsqueeze(0) for tensor in own.book))
            for side, queue in enumerate(oracle.sides):
                assert orders_in(whole, 0, side) == [order.told() for order in queue]
            assert int(own.book.next_id) == oracle.next_id
            assert torch.equal(torch.stack(list(own.accounts)), torch.from_numpy(ledger))
    assert seen >= {Status.DONE, Status.INVALID, Status.NOT_FOUND, Status.NOTHING} and ledger.any()


def test_what_is_no_message_is_refused_and_the_book_goes_on():
    book = MessageBook(4, 2)
    for price in (2**31, 1.5, None):
        with pytest.raises(ValueError, match="the numbers of a message are int32, got Message"):
            book.send(Kind.LIMIT, BUY, price, 1)
    words = torch.tensor([[Kind.LIMIT, SELL, 101, 5, 0, -1]], dtype=torch.int32)
    for wrong in (words.long(), words[0], words[:, :5], words.to("meta")):
        with pytest.raises(ValueError, match=r"messages must have shape \(M, 6\) and int32"):
            book.send_all(wrong)
    assert book.send_all(words[:0]).status.shape == (0,)
    # Columns that do not lie side by side.
    assert book.send_all(words.T.contiguous().T.expand(2, 6)).rested.tolist() == [5, 5]
    assert book.send(Kind.MARKET, BUY, quantity=3, owner=1).filled == 3
    for name in ("book", "accounts"):
        with pytest.raises(AttributeError):
            setattr(book, name, None)
    # Only a caller who writes the tensors can bring an owner without an account. The order before theirs is whole.
    book.book.owner[SELL, 1] = 7
    before = [tensor.clone() for tensor in (*book.book, *book.accounts)]
    for sent in (lambda: book.send(Kind.MARKET, BUY, quantity=6, owner=1), lambda: book.send_all(words)):
        with pytest.raises(ValueError, match="an order in the book is of an owner without an account: nothing"):
            sent()
        assert all(map(torch.equal, (*book.book, *book.accounts), before))


def test_threads_that_share_a_book_have_their_own_reports(monkeypatch):
    book = MessageBook(4, 2)
    call = book._call
    # The next thread comes between a message and its report.
    monkeypatch.setattr(book, "_call", lambda *given: (call(*given), sleep(0.001))[0])
    with ThreadPoolExecutor(4) as threads:
        sent = threads.map(lambda owner: book.send(Kind.IMMEDIATE, BUY, 9, 1, owner).id, [0, 1] * 20)
    assert sorted(sent) == list(range(40))
