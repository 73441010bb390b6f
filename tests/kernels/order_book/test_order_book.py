"""Books and requotes against lists: every trade, id, quantity, level and account of random messages, full books too."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.kernels.order_book.book_oracle import Oracle, Told, before, levels_of
from vecenv.kernels.order_book.accounts import Accounts, empty_accounts, settled, transfers_of
from vecenv.kernels.order_book.book import EMPTY, Book, best_prices, empty_book, levels, queue_ahead
from vecenv.kernels.order_book.limits import max_quantity
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, SELL, Kind, Message, Report, Status, Trades
from vecenv.kernels.order_book.requoting import requoted

OWNERS, DEPTH = 3, 5
"""Owners that have an account, one fewer than send messages; levels that are looked at."""


def books(count: int, room: int) -> Book:
    return Book(*(leaf.expand(count, *leaf.shape).clone() for leaf in empty_book(room)))


def drawn(random: np.random.Generator, count: int, next_id: np.ndarray, room: int) -> np.ndarray:
    """Messages to ``count`` books. Shape: (6, count), int32."""
    kinds = [Kind.LIMIT, Kind.MARKET, Kind.IMMEDIATE, Kind.POST_ONLY, Kind.CANCEL, Kind.CANCEL_ALL, Kind.MODIFY]
    odds = np.array([0.419, 0.06, 0.06, 0.08, 0.12, 0.006, 0.13, 0.09, 0.005, 0.02, 0.01])
    kind = random.choice([*kinds, Kind.REPLACE, Kind.REPLACE_ALL, Kind.NOTHING, 99], count, p=odds)
    side = random.integers(0, 2, count)
    # Buyers below and sellers above the middle, with an overlap.
    price = 100 + np.where(side == BUY, -1, 1) * random.integers(-3, 9, count)
    quantity = random.integers(1, 12, count)
    owner = random.integers(0, 4, count)
    target = next_id - 1 - random.integers(0, 3 * room, count)
    wrong = random.random(count) < 0.03
    column = random.integers(0, 4, count)
    values = np.array([2, 0, -1, -5, MAX_PRICE + 1, max_quantity(room) + 1, 2**31 - 1, -(2**31)])
    bad = values[random.integers(0, len(values), count)]
    side, price, quantity, owner = (
        np.where(wrong & (column == place), bad, words) for place, words in enumerate((side, price, quantity, owner))
    )
    return np.stack([kind, side, price, quantity, owner, target]).astype(np.int32)


def orders_in(book: Book, one: int, side: int) -> list[tuple[int, int, int, int]]:
    """Price, quantity, owner and id of the orders of a side, best first."""
    live = book.quantity[one, side] > 0
    columns = (book.key[one, side].abs(), book.quantity[one, side], book.owner[one, side], book.id[one, side])
    return list(zip(*(column[live].tolist() for column in columns), strict=True))


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


ME = 9
"""Who sends the message; orders 0 … 4 are of the owners 0 … 4, order 5 is mine."""
ASKS = [(101, 5, 0, 0), (101, 4, 1, 1), (103, 6, 2, 2)]
BIDS = [(99, 5, 3, 3), (98, 7, 4, 4), (97, 2, ME, 5)]
CASES = [
    # Kind, side, price, quantity and target of a message; status; price, size and order of its trades; asks and bids.
    ((Kind.MARKET, BUY, 0, 10), Status.DONE, [(101, 5, 0), (101, 4, 1), (103, 1, 2)], [(103, 5, 2, 2)], BIDS),
    ((Kind.MARKET, SELL, 0, 13), Status.DONE, [(99, 5, 3), (98, 7, 4)], ASKS, []),
    ((Kind.LIMIT, BUY, 98, 3), Status.DONE, [], ASKS, [*BIDS[:2], (98, 3, ME, 6), BIDS[2]]),
    ((Kind.LIMIT, BUY, 102, 12), Status.DONE, [(101, 5, 0), (101, 4, 1)], ASKS[2:], [(102, 3, ME, 6), *BIDS]),
    ((Kind.IMMEDIATE, BUY, 101, 12), Status.DONE, [(101, 5, 0), (101, 4, 1)], ASKS[2:], BIDS),
    ((Kind.POST_ONLY, BUY, 100, 3), Status.DONE, [], ASKS, [(100, 3, ME, 6), *BIDS]),
    ((Kind.POST_ONLY, BUY, 101, 3), Status.WOULD_TRADE, [], ASKS, BIDS),
    ((Kind.CANCEL, 0, 0, 0, 5), Status.DONE, [], ASKS, BIDS[:2]),
    ((Kind.CANCEL, 0, 0, 0, 4), Status.NOT_FOUND, [], ASKS, BIDS),
    ((Kind.MODIFY, 0, 97, 1, 5), Status.DONE, [], ASKS, [*BIDS[:2], (97, 1, ME, 5)]),
    ((Kind.MODIFY, 0, 101, 6, 5), Status.DONE, [(101, 5, 0), (101, 1, 1)], [(101, 3, 1, 1), ASKS[2]], BIDS[:2]),
    ((Kind.REPLACE, 0, 97, 2, 5), Status.DONE, [], ASKS, [*BIDS[:2], (97, 2, ME, 6)]),
    ((Kind.REPLACE_ALL, SELL, 104, 5), Status.DONE, [], [*ASKS, (104, 5, ME, 6)], BIDS[:2]),
    ((42, BUY, 9, 1), Status.INVALID, [], ASKS, BIDS),
]


def say(
    book: Book, kind: int, side: int = BUY, price: int = 0, quantity: int = 0, owner: int = 0, target: int = -1
) -> tuple[Book, Report, Trades]:
    """A message to one book."""
    words = (torch.tensor(word, dtype=torch.int32) for word in (kind, side, price, quantity, owner, target))
    return process(book, Message(*words))


def test_messages_do_what_they_say():
    """Worked out by hand, on a book of three asks and three bids; quantities add up at their largest."""
    for (kind, side, price, quantity, *target), status, trades, asks, bids in CASES:
        book = empty_book(6)
        for number, (shown, shares, owner, _) in enumerate((*ASKS, *BIDS)):
            book, _, _ = say(book, Kind.LIMIT, SELL if number < 3 else BUY, shown, shares, owner)
        book, report, told = say(book, kind, side, price, quantity, ME, *target)
        columns = zip(told.price.tolist(), told.size.tolist(), told.maker_id.tolist(), strict=True)
        assert (int(report.status), [trade for trade in columns if trade[1]]) == (status, trades), kind
        whole = Book(*(leaf.unsqueeze(0) for leaf in book))
        assert (orders_in(whole, 0, SELL), orders_in(whole, 0, BUY)) == (asks, bids), kind
    room = 3
    book, most = empty_book(room), max_quantity(room)
    for _ in range(room):
        book, _, _ = say(book, Kind.LIMIT, SELL, MAX_PRICE, most, owner=1)
    book, report, _ = say(book, Kind.LIMIT, BUY, MAX_PRICE, most, owner=2)
    assert int(report.notional) == most * MAX_PRICE and levels(book, SELL, 1).quantity.tolist() == [2 * most]
    assert int(say(book, Kind.LIMIT, BUY, 1, most + 1, owner=2)[1].status) == Status.INVALID
    for make, message in ((empty_book, "1 order a side, got 0"), (empty_accounts, "1 owner, got 0")):
        with pytest.raises(ValueError, match=message):
            make(0)


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
