"""The book against lists: every trade, id, quantity, level and account of random messages, full books included."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.order_book.book_oracle import Oracle, Told, before, levels_of
from tests.kernels.order_book.books import Talk, books, drawn, orders_in
from vecenv.core.compiling import compile_in_place
from vecenv.kernels.order_book.accounts import Accounts, empty_accounts, settled, transfers_of
from vecenv.kernels.order_book.book import Book, best_prices, empty_book, levels, max_quantity, queue_ahead
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Message, Report, Status, Trades

OWNERS, DEPTH = 3, 5
"""Owners that have an account, one fewer than send messages; levels that are looked at."""


def told_by(report: Report, trades: Trades, one: int) -> Told:
    """What a report says of one book, in the words of the oracle."""
    places = np.flatnonzero(trades.size[one].numpy())
    columns = (trades.price, trades.size, trades.maker, trades.maker_id)
    listed = zip(*(column[one].numpy()[places].tolist() for column in columns), strict=True)
    return Told(
        Status(int(report.status[one])),
        int(report.id[one]),
        int(report.side[one]),
        int(report.rested[one]),
        list(listed),
        int(report.cancelled[one]),
        int(report.prevented[one]),
        (int(report.evicted_id[one]), int(report.evicted_owner[one]), int(report.evicted[one])),
    )


def carried_out(book: Book, accounts: Accounts, sent: Message) -> tuple[Book, Accounts, Report, Trades]:
    """A message to one book, settled."""
    book, report, trades = process(book, sent, OWNERS)
    return book, settled(accounts, [transfers_of(sent.owner, report, trades, OWNERS)]), report, trades


def play(room: int, count: int, steps: int, seed: int, every: int = 1) -> Counter[str]:
    """Send random messages to books and oracles, and compare them; return what has happened."""
    random, book, seen = np.random.default_rng(seed), books(count, room), Counter[str]()
    accounts = Accounts(*(leaf.expand(count, -1).clone() for leaf in empty_accounts(OWNERS)))
    oracles, ledger = [Oracle(room, OWNERS) for _ in range(count)], np.zeros((2, count, OWNERS), dtype=np.int64)
    for step in range(steps):
        sent = drawn(random, count, np.array([oracle.next_id for oracle in oracles]), room)
        book, accounts, report, trades = torch.vmap(carried_out)(book, accounts, Message(*torch.from_numpy(sent)))
        for one, (oracle, words) in enumerate(zip(oracles, sent.T.tolist(), strict=True)):
            told = oracle.process(*words)
            assert told_by(report, trades, one) == told, (step, one, words)
            assert int(report.filled[one]) == sum(size for _, size, _, _ in told.trades)
            assert int(report.notional[one]) == sum(price * size for price, size, _, _ in told.trades)
            sign = 1 if told.side == BUY else -1
            for price, size, maker, _ in told.trades:
                ledger[:, one, words[4]] += (-sign * price * size, sign * size)
                ledger[:, one, maker] += (sign * price * size, -sign * size)
            seen[told.status.name] += 1
            seen["evicted"] += told.evicted[2] > 0
            seen["prevented"] += told.prevented > 0
        if step % every == 0:
            assert torch.equal(torch.stack(list(accounts)), torch.from_numpy(ledger))
            check_shown(book, oracles, random, seen)
    assert bool((accounts.shares != 0).any()) and not bool(accounts.cash.sum(-1).any())
    return seen


def check_shown(book: Book, oracles: list[Oracle], random: np.random.Generator, seen: Counter[str]) -> None:
    """What is seen of books is what their orders add up to; keys are sorted, and no book is crossed or locked."""
    assert bool((book.key[..., 1:] >= book.key[..., :-1]).all())
    best = torch.vmap(best_prices)(book)
    bid, ask = best.unbind(-1)
    assert bool(((bid < ask) | (bid == 0) | (ask == 0)).all())
    found = [torch.vmap(lambda one, side=side: levels(one, side, DEPTH))(book) for side in (BUY, SELL)]
    ids = torch.from_numpy(random.integers(0, 40, len(oracles)))
    ahead = torch.vmap(queue_ahead)(book, ids)
    for one, oracle in enumerate(oracles):
        assert int(book.next_id[one]) == oracle.next_id and int(ahead[one]) == before(oracle, int(ids[one]))
        for side, queue in enumerate(oracle.sides):
            assert orders_in(book, one, side) == [order.told() for order in queue], one
            assert int(best[one, side]) == (queue[0].price if queue else 0)
            told = list(zip(*(column[one].tolist() for column in found[side]), strict=True))
            assert told == levels_of(queue, DEPTH)
            seen["empty"] += not queue


@pytest.mark.parametrize(("room", "steps"), [(1, 60), (2, 80), (8, 120), (32, 80)])
def test_random_messages_do_what_the_lists_do(room, steps):
    seen = play(room, 20, steps, seed=room, every=4)
    expected = {status.name for status in Status} | {"prevented", "evicted", "empty"}
    assert expected - (+seen).keys() <= ({"NO_ROOM", "evicted"} if room == 32 else set())


@pytest.mark.nightly
@pytest.mark.parametrize("room", [8, 32, 128])
def test_a_million_random_messages_do_what_the_lists_do(room):
    play(room, count=256, steps=1_500, seed=100 + room, every=50)


@pytest.mark.assembly
def test_compiled_and_eager_books_are_equal_bit_for_bit():
    random, count, room = np.random.default_rng(9), 16, 8
    book = books(count, room)
    sent = Message(*torch.from_numpy(drawn(random, count, np.zeros(count, dtype=np.int64), room)))

    def one_step(*tensors: Tensor) -> list[Tensor]:
        after, report, trades = torch.vmap(process)(Book(*tensors[:5]), Message(*tensors[5:]))
        return [*after, *report, *trades]

    outputs = [torch.zeros_like(tensor) for tensor in one_step(*book, *sent)]
    call = compile_in_place(one_step, [*book, *sent], outputs)
    for _ in range(150):
        sent = Message(*torch.from_numpy(drawn(random, count, book.next_id.numpy(), room)))
        call([*book, *sent], outputs)
        eager = one_step(*book, *sent)
        assert all(torch.equal(one, other) for one, other in zip(outputs, eager, strict=True))
        book = Book(*eager[:5])


ME = 9
"""Who sends the message; orders 0 … 4 are of the owners 0 … 4, order 5 is mine."""
ASKS = [(101, 5, 0, 0), (101, 4, 1, 1), (103, 6, 2, 2)]
BIDS = [(99, 5, 3, 3), (98, 7, 4, 4), (97, 2, ME, 5)]
CASES = [
    # Kind, side, price, quantity and target of a message; price, size and order of its trades; asks and bids after it.
    ((Kind.MARKET, BUY, -7, 3), [(101, 3, 0)], [(101, 2, 0, 0), *ASKS[1:]], BIDS),
    ((Kind.MARKET, BUY, 0, 5), [(101, 5, 0)], ASKS[1:], BIDS),
    ((Kind.MARKET, BUY, 0, 10), [(101, 5, 0), (101, 4, 1), (103, 1, 2)], [(103, 5, 2, 2)], BIDS),
    ((Kind.MARKET, BUY, 0, 99), [(101, 5, 0), (101, 4, 1), (103, 6, 2)], [], BIDS),
    ((Kind.MARKET, SELL, 0, 13), [(99, 5, 3), (98, 7, 4)], ASKS, []),
    ((Kind.LIMIT, BUY, 98, 3), [], ASKS, [*BIDS[:2], (98, 3, ME, 6), BIDS[2]]),
    ((Kind.LIMIT, BUY, 102, 12), [(101, 5, 0), (101, 4, 1)], ASKS[2:], [(102, 3, ME, 6), *BIDS]),
    ((Kind.IMMEDIATE, BUY, 101, 12), [(101, 5, 0), (101, 4, 1)], ASKS[2:], BIDS),
    ((Kind.POST_ONLY, BUY, 100, 3), [], ASKS, [(100, 3, ME, 6), *BIDS]),
    ((Kind.CANCEL, 0, 0, 0, 5), [], ASKS, BIDS[:2]),
    ((Kind.CANCEL_ALL, 0, 0, 0), [], ASKS, BIDS[:2]),
    ((Kind.MODIFY, 0, 97, 1, 5), [], ASKS, [*BIDS[:2], (97, 1, ME, 5)]),
    ((Kind.MODIFY, 0, 99, 2, 5), [], ASKS, [BIDS[0], (99, 2, ME, 5), BIDS[1]]),
    ((Kind.MODIFY, 0, 101, 6, 5), [(101, 5, 0), (101, 1, 1)], [(101, 3, 1, 1), ASKS[2]], BIDS[:2]),
    ((Kind.REPLACE, 0, 97, 2, 5), [], ASKS, [*BIDS[:2], (97, 2, ME, 6)]),
    ((Kind.REPLACE, 0, 101, 5, 5), [(101, 5, 0)], ASKS[1:], BIDS[:2]),
    ((Kind.REPLACE_ALL, SELL, 104, 5), [], [*ASKS, (104, 5, ME, 6)], BIDS[:2]),
]
REFUSED = {
    Status.INVALID: [(42, BUY, 9, 1), (Kind.LIMIT, 2, 9, 1), (Kind.LIMIT, BUY, 0, 1), (Kind.MARKET, BUY, 0, 0)],
    Status.NOT_FOUND: [(Kind.CANCEL, 0, 0, 0, 4), (Kind.CANCEL, 0, 0, 0, 77), (Kind.MODIFY, 0, 97, 1, 77)],
    Status.WOULD_TRADE: [(Kind.POST_ONLY, BUY, 101, 3)],
    Status.NOTHING: [(Kind.NOTHING, 7, -1, -1)],
}


def test_messages_do_what_they_say():
    """Worked out by hand, on a book of three asks and three bids."""
    cases = [(Status.DONE, *case) for case in CASES]
    cases += [(status, words, [], ASKS, BIDS) for status, all_words in REFUSED.items() for words in all_words]
    for status, (kind, side, price, quantity, *target), trades, asks, bids in cases:
        talk = Talk(room=6)
        for number, (shown, shares, owner, _) in enumerate((*ASKS, *BIDS)):
            talk.say(Kind.LIMIT, SELL if number < 3 else BUY, shown, shares, owner)
        report = talk.say(kind, side, price, quantity, ME, *target)
        assert (int(report.status), talk.traded()) == (status, trades), kind
        assert (talk.orders(SELL), talk.orders(BUY)) == (asks, bids), kind


def test_an_order_never_meets_its_owner():
    talk = Talk()
    for owner in (1, 2, 1):
        talk.say(Kind.LIMIT, SELL, 101, 4, owner=owner)
    report = talk.say(Kind.LIMIT, BUY, 101, 6, owner=1)
    # The first is taken out, the second trades, the third is reached and taken out, and the rest stays.
    assert (int(report.filled), int(report.prevented), int(report.rested)) == (4, 8, 2)
    assert talk.orders(SELL) == [] and talk.orders(BUY) == [(101, 2, 1, 3)]


def test_a_full_side_makes_room_for_a_better_order():
    talk = Talk(room=2)
    for price in (99, 98):
        talk.say(Kind.LIMIT, BUY, price, 5, owner=1)
    same = talk.say(Kind.LIMIT, BUY, 98, 5, owner=2)
    assert (int(same.status), int(same.rested), int(same.evicted_id)) == (Status.NO_ROOM, 0, -1)
    better = talk.say(Kind.LIMIT, BUY, 100, 5, owner=2)
    assert (int(better.status), int(better.evicted_id), int(better.evicted)) == (Status.DONE, 1, 5)
    assert [order[0] for order in talk.orders(BUY)] == [100, 99]


def test_quantities_add_up_at_their_largest():
    room = 3
    talk, most = Talk(room), max_quantity(room)
    for _ in range(room):
        talk.say(Kind.LIMIT, SELL, MAX_PRICE, most, owner=1)
    report = talk.say(Kind.LIMIT, BUY, MAX_PRICE, most, owner=2)
    assert int(report.notional) == most * MAX_PRICE and levels(talk.book, SELL, 1).quantity.tolist() == [2 * most]
    assert int(talk.say(Kind.LIMIT, BUY, 1, most + 1, owner=2).status) == Status.INVALID
    for make, message in ((empty_book, "1 order a side, got 0"), (empty_accounts, "1 owner, got 0")):
        with pytest.raises(ValueError, match=message):
            make(0)
