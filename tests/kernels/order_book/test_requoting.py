"""Requotes beside lists: random books and ladders, full sides and quotes that would trade or are out of range."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from tests.kernels.order_book.book_oracle import Oracle
from tests.kernels.order_book.books import Talk, books, drawn, orders_in
from vecenv.kernels.order_book.book import EMPTY, Book, best_prices, max_quantity
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Message
from vecenv.kernels.order_book.requoting import requoted, without_owner


def random_ladder(random: np.random.Generator, levels: int) -> tuple[list[int], list[int]]:
    """Prices of a ladder near the books' middle, or at an end of what a price may be."""
    middle = int(random.choice([random.integers(88, 113), random.integers(-3, 4), MAX_PRICE], p=[0.86, 0.07, 0.07]))
    step, gap = int(random.choice([1, 1, 2, 30])), int(random.integers(1, 8))
    return [middle - step * level for level in range(levels)], [middle + gap + step * level for level in range(levels)]


def check_closed(book: Book) -> None:
    """Orders stand at the front of their side, sorted, and what follows is as in an empty book."""
    live = book.quantity > 0
    assert bool((live[..., 1:] <= live[..., :-1]).all()) and bool((book.key[..., 1:] >= book.key[..., :-1]).all())
    for column, empty in ((book.key, EMPTY), (book.quantity, 0), (book.owner, -1), (book.id, -1)):
        assert bool((live | (column == empty)).all())
    bid, ask = torch.vmap(best_prices)(book).unbind(-1)
    assert bool(((bid < ask) | (bid == 0) | (ask == 0)).all())


@pytest.mark.parametrize(("room", "levels", "steps"), [(2, 3, 30), (8, 3, 30), (8, 12, 30), (32, 10, 16)])
def test_random_requotes_do_what_the_lists_do(room, levels, steps):
    random, count, seen = np.random.default_rng(room), 24, Counter[str]()
    book, oracles = books(count, room), [Oracle(room) for _ in range(count)]
    for step in range(steps):
        for _ in range(random.integers(0, 3)):
            sent = drawn(random, count, np.array([oracle.next_id for oracle in oracles]), room)
            book, _, _ = torch.vmap(process)(book, Message(*torch.from_numpy(sent)))
            for oracle, words in zip(oracles, sent.T.tolist(), strict=True):
                oracle.process(*words)
        owners = random.integers(0, 4, count).astype(np.int32)
        sizes = random.choice([1, 5, max_quantity(room) // 2], count, p=[0.3, 0.65, 0.05]).astype(np.int32)
        ladders = [random_ladder(random, levels) for _ in range(count)]
        bids, asks = (torch.tensor([ladder[side] for ladder in ladders]) for side in (BUY, SELL))
        book, told = torch.vmap(requoted)(book, torch.from_numpy(owners), bids, asks, torch.from_numpy(sizes))
        check_closed(book)
        for one, (oracle, ladder) in enumerate(zip(oracles, ladders, strict=True)):
            expected = oracle.requote(int(owners[one]), *ladder, int(sizes[one]))
            assert tuple(int(column[one]) for column in told) == expected, (step, one)
            assert int(book.next_id[one]) == oracle.next_id
            for side in (BUY, SELL):
                assert orders_in(book, one, side) == [order.told() for order in oracle.sides[side]], (step, one)
            placed, evicted, cancelled = expected
            seen["all placed"] += placed == 2 * levels
            seen["none placed"] += placed == 0
            seen["evicted"] += evicted > 0
            seen["cancelled"] += cancelled > 0
            seen["full"] += any(len(queue) == room for queue in oracle.sides)
            seen["out of range"] += not 1 <= ladder[BUY][-1] <= ladder[SELL][-1] <= MAX_PRICE
    expected = {"evicted", "cancelled", "full", "none placed", "out of range"}
    expected |= {"all placed"} if levels <= room else set()
    assert expected - (+seen).keys() == set()


def requote(talk: Talk, owner: int, bids: list[int], asks: list[int], quantity: int) -> tuple[int, ...]:
    """Requote on a book spoken to; return quotes placed, orders evicted and quantity taken out."""
    words = (torch.tensor(owner, dtype=torch.int32), torch.tensor(bids), torch.tensor(asks))
    talk.book, told = requoted(talk.book, *words, torch.tensor(quantity, dtype=torch.int32))
    return tuple(int(number) for number in told)


def test_quotes_stand_after_the_orders_of_their_price():
    talk = Talk(room=4)
    talk.say(Kind.LIMIT, BUY, 99, 5, owner=1)
    talk.say(Kind.LIMIT, BUY, 98, 5, owner=2)
    talk.say(Kind.LIMIT, SELL, 103, 5, owner=1)
    assert requote(talk, 2, [100, 99], [102, 103], 7) == (4, 0, 5)
    assert talk.orders(BUY) == [(100, 7, 2, 3), (99, 5, 1, 0), (99, 7, 2, 4)]
    assert talk.orders(SELL) == [(102, 7, 2, 5), (103, 5, 1, 2), (103, 7, 2, 6)]
    assert int(talk.book.next_id) == 7


def test_the_book_without_an_owner_has_the_orders_of_all_others():
    talk = Talk(room=3)
    for owner, price in ((1, 99), (2, 98), (1, 97)):
        talk.say(Kind.LIMIT, BUY, price, 5, owner=owner)
    talk.book = without_owner(talk.book, torch.tensor(1, dtype=torch.int32))
    assert talk.orders(BUY) == [(98, 5, 2, 1)]
