"""Trades are settled: nothing is made or lost, and every account is that of the oracle's trades."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.order_book.book_oracle import Oracle
from tests.kernels.order_book.random_messages import OWNERS, accounts_of, books, drawn
from vecenv.kernels.order_book.accounts import empty_accounts, process_all
from vecenv.kernels.order_book.messages import BUY, Message, Status


@pytest.mark.parametrize(("room", "evict"), [(4, True), (16, False)])
@pytest.mark.assembly
def test_every_account_is_that_of_the_trades(room, evict):
    random, count, slots = np.random.default_rng(room), 8, 5
    book, accounts = books(count, room), accounts_of(count)
    oracles = [Oracle(room, evict, OWNERS) for _ in range(count)]
    ledger = np.zeros((2, count, OWNERS), dtype=np.int64)
    for _ in range(60):
        next_id = np.array([oracle.next_id for oracle in oracles])
        sent = np.stack([drawn(random, count, next_id + slots // 2, room) for _ in range(slots)], axis=-1)
        messages = Message(*torch.from_numpy(sent))
        book, accounts, report = torch.vmap(lambda *parts: process_all(*parts, evict))(book, accounts, messages)
        for one, oracle in enumerate(oracles):
            for slot in range(slots):
                words = sent[:, one, slot].tolist()
                told = oracle.process(*words)
                assert (int(report.status[one, slot]), int(report.side[one, slot])) == (told.status, told.side)
                sign = 1 if told.side == BUY else -1
                for price, size, maker, _ in told.trades:
                    ledger[:, one, words[4]] += (-sign * price * size, sign * size)
                    ledger[:, one, maker] += (sign * price * size, -sign * size)
                assert told.status != Status.DONE or words[4] < OWNERS
        assert torch.equal(torch.stack(list(accounts)), torch.from_numpy(ledger))
    assert bool((accounts.shares != 0).any())
    assert not bool(accounts.cash.sum(-1).any()) and not bool(accounts.shares.sum(-1).any())


def test_there_is_an_owner():
    with pytest.raises(ValueError, match="at least 1 owner, got 0"):
        empty_accounts(0)
