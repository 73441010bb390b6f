"""The book against lists: every trade, id and quantity of random messages of all kinds, full books included."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.kernels.order_book.book_oracle import Oracle, Told
from tests.kernels.order_book.random_messages import books, drawn
from tests.kernels.order_book.talk import Talk, orders_in
from vecenv.core.compiling import compile_in_place
from vecenv.kernels.order_book.book import Book, best_prices, empty_book, levels, max_quantity, queue_ahead
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Message, Report, Status, Trades


def batched(book: Book, message: Message, evict: bool) -> tuple[Book, Report, Trades]:
    return torch.vmap(lambda one, sent: process(one, sent, evict))(book, message)


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


def play(room: int, count: int, steps: int, evict: bool, seed: int, every: int = 5) -> Counter[Status]:
    """Send random messages to books and oracles, and compare them; return how often each status occurred."""
    random, book = np.random.default_rng(seed), books(count, room)
    oracles, seen = [Oracle(room, evict) for _ in range(count)], Counter()
    for step in range(steps):
        next_id = np.array([oracle.next_id for oracle in oracles])
        sent = drawn(random, count, next_id, room)
        book, report, trades = batched(book, Message(*torch.from_numpy(sent)), evict)
        for one, (oracle, words) in enumerate(zip(oracles, sent.T.tolist(), strict=True)):
            expected = oracle.process(*words)
            assert told_by(report, trades, one) == expected, (step, one, words)
            assert int(report.filled[one]) == sum(size for _, size, _, _ in expected.trades)
            assert int(report.notional[one]) == sum(price * size for price, size, _, _ in expected.trades)
            seen[expected.status] += 1
            seen["evicted"] += expected.evicted[2] > 0
            seen["prevented"] += expected.prevented > 0
        if step % every == 0 or step == steps - 1:
            for one, oracle in enumerate(oracles):
                for side in (BUY, SELL):
                    assert orders_in(book, one, side) == [order.told() for order in oracle.sides[side]], (step, one)
                assert int(book.next_id[one]) == oracle.next_id
            check_order(book)
    return seen


def check_order(book: Book) -> None:
    """Keys are sorted, holes too, and no book is crossed or locked."""
    assert bool((book.key[..., 1:] >= book.key[..., :-1]).all())
    bid, ask = torch.vmap(best_prices)(book).unbind(-1)
    assert bool(((bid < ask) | (bid == 0) | (ask == 0)).all())


@pytest.mark.parametrize("evict", [True, False])
@pytest.mark.parametrize("room", [1, 2, 8, 32])
def test_random_messages_do_what_the_lists_do(room, evict):
    seen = play(room, 24, 250, evict, seed=room)
    for status in Status:
        assert seen[status] > 0 or (status == Status.NO_ROOM and room == 32 and evict), status
    assert seen["prevented"] > 0 and (seen["evicted"] > 0) == evict


@pytest.mark.nightly
@pytest.mark.parametrize(("room", "count", "steps"), [(8, 256, 2000), (32, 256, 1500), (128, 256, 1500)])
def test_a_million_random_messages_do_what_the_lists_do(room, count, steps):
    for evict in (True, False):
        play(room, count, steps // 2, evict, seed=100 + room, every=50)


@pytest.mark.assembly
def test_compiled_and_eager_books_are_equal_bit_for_bit():
    random, count, room = np.random.default_rng(9), 16, 8
    book = books(count, room)
    sent = Message(*torch.from_numpy(drawn(random, count, np.zeros(count, dtype=np.int64), room)))

    def one_step(*tensors: Tensor) -> list[Tensor]:
        after, report, trades = batched(Book(*tensors[:5]), Message(*tensors[5:]), True)
        return [*after, *report, *trades]

    outputs = [torch.zeros_like(tensor) for tensor in one_step(*book, *sent)]
    call = compile_in_place(one_step, [*book, *sent], outputs)
    for _ in range(150):
        sent = Message(*torch.from_numpy(drawn(random, count, book.next_id.numpy(), room)))
        call([*book, *sent], outputs)
        eager = one_step(*book, *sent)
        assert all(torch.equal(one, other) for one, other in zip(outputs, eager, strict=True))
        book = Book(*eager[:5])


def test_the_better_price_and_then_the_earlier_order_is_served_first():
    talk = Talk()
    talk.say(Kind.LIMIT, SELL, 102, 5, owner=1)
    talk.say(Kind.LIMIT, SELL, 101, 5, owner=2)
    talk.say(Kind.LIMIT, SELL, 101, 5, owner=3)
    report = talk.say(Kind.LIMIT, BUY, 102, 12, owner=4)
    assert talk.trades.size.tolist()[:3] == [5, 5, 2] and talk.trades.price.tolist()[:3] == [101, 101, 102]
    assert talk.trades.maker.tolist()[:3] == [2, 3, 1] and talk.trades.maker_id.tolist()[:3] == [1, 2, 0]
    assert (int(report.filled), int(report.rested), int(report.notional)) == (12, 0, 5 * 101 + 5 * 101 + 2 * 102)
    assert talk.orders(SELL) == [(102, 3, 1, 0)] and talk.orders(BUY) == []


def test_a_market_order_into_an_empty_side_is_dropped():
    talk = Talk()
    report = talk.say(Kind.MARKET, SELL, quantity=7)
    assert (int(report.status), int(report.filled), int(report.rested)) == (Status.DONE, 0, 0)
    assert talk.orders(BUY) == talk.orders(SELL) == [] and best_prices(talk.book).tolist() == [0, 0]


def test_a_smaller_quantity_keeps_its_place_and_anything_else_loses_it():
    talk = Talk()
    first, second = (int(talk.say(Kind.LIMIT, BUY, 99, 6, owner=1).id) for _ in range(2))
    talk.say(Kind.MODIFY, price=99, quantity=2, owner=1, target=first)
    assert talk.orders(BUY) == [(99, 2, 1, first), (99, 6, 1, second)]
    assert int(queue_ahead(talk.book, torch.tensor(second))) == 2
    talk.say(Kind.MODIFY, price=99, quantity=3, owner=1, target=first)
    assert talk.orders(BUY) == [(99, 6, 1, second), (99, 3, 1, first)]
    report = talk.say(Kind.REPLACE, price=99, quantity=6, owner=1, target=second)
    assert talk.orders(BUY) == [(99, 3, 1, first), (99, 6, 1, int(report.id))] and int(report.id) == 2


def test_a_cancelled_order_a_filled_one_and_one_of_another_cannot_be_cancelled():
    talk = Talk()
    gone, filled, other = (int(talk.say(Kind.LIMIT, SELL, 101, 1, owner=owner).id) for owner in (1, 1, 2))
    assert int(talk.say(Kind.CANCEL, owner=1, target=gone).cancelled) == 1
    talk.say(Kind.MARKET, BUY, quantity=1, owner=3)
    for target in (gone, filled, other):
        report = talk.say(Kind.CANCEL, owner=1, target=target)
        assert (int(report.status), int(report.cancelled)) == (Status.NOT_FOUND, 0)
    assert talk.orders(SELL) == [(101, 1, 2, other)]


def test_an_order_never_meets_its_owner():
    talk = Talk()
    for owner in (1, 2, 1):
        talk.say(Kind.LIMIT, SELL, 101, 4, owner=owner)
    report = talk.say(Kind.LIMIT, BUY, 101, 6, owner=1)
    # The first is taken out, the second trades, the third is reached and taken out, and the rest stays.
    assert (int(report.filled), int(report.prevented), int(report.rested)) == (4, 8, 2)
    assert talk.orders(SELL) == [] and talk.orders(BUY) == [(101, 2, 1, 3)]


def test_a_full_side_makes_room_for_a_better_order_or_says_no():
    for evict in (True, False):
        talk = Talk(room=2, evict=evict)
        for price in (99, 98):
            talk.say(Kind.LIMIT, BUY, price, 5, owner=1)
        same = talk.say(Kind.LIMIT, BUY, 98, 5, owner=2)
        assert (int(same.status), int(same.rested), int(same.evicted_id)) == (Status.NO_ROOM, 0, -1)
        better = talk.say(Kind.LIMIT, BUY, 100, 5, owner=2)
        assert int(better.status) == (Status.DONE if evict else Status.NO_ROOM)
        told = (int(better.evicted_id), int(better.evicted_owner), int(better.evicted))
        assert told == ((1, 1, 5) if evict else (-1, -1, 0))
        prices = [order[0] for order in talk.orders(BUY)]
        assert prices == ([100, 99] if evict else [99, 98])


def test_levels_sum_the_orders_of_a_price_around_holes():
    talk = Talk(room=6)
    ids = [int(talk.say(Kind.LIMIT, SELL, price, 3, owner=1).id) for price in (103, 101, 101, 102, 101, 104)]
    talk.say(Kind.CANCEL, owner=1, target=ids[2])
    talk.say(Kind.CANCEL, owner=1, target=ids[3])
    found = levels(talk.book, SELL, 4)
    assert found.price.tolist() == [101, 103, 104, 0]
    assert found.quantity.tolist() == [6, 3, 3, 0] and found.orders.tolist() == [2, 1, 1, 0]
    assert levels(talk.book, BUY, 2).price.tolist() == [0, 0]


def test_quantities_add_up_at_their_largest():
    room = 3
    talk, most = Talk(room), max_quantity(room)
    for _ in range(room):
        talk.say(Kind.LIMIT, SELL, MAX_PRICE, most, owner=1)
    report = talk.say(Kind.LIMIT, BUY, MAX_PRICE, most, owner=2)
    assert int(report.notional) == most * MAX_PRICE and levels(talk.book, SELL, 1).quantity.tolist() == [2 * most]
    assert int(talk.say(Kind.LIMIT, BUY, 1, most + 1, owner=2).status) == Status.INVALID
    with pytest.raises(ValueError, match="at least 1 order a side, got 0"):
        empty_book(0)
