"""Each kind of order on a book with three asks and two bids, worked out by hand."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.kernels.order_book.talk import Talk
from vecenv.kernels.order_book.messages import BUY, SELL, Kind, Status

ME = 9
"""Who sends the message; orders 0 … 4 are of the owners 0 … 4, order 5 is mine."""

ASKS = [(101, 5, 0, 0), (101, 4, 1, 1), (103, 6, 2, 2)]
BIDS = [(99, 5, 3, 3), (98, 7, 4, 4)]
MINE = (97, 2, ME, 5)


class Case(NamedTuple):
    """A message and what it leaves.

    Attributes:
        words: kind, side, price, quantity, and the target if any.
        trades: price, size and order of each trade.
        asks: price, quantity, owner and id of the asks that are left; None if none has changed.
        bids: likewise.
        status: of the message.
    """

    words: tuple[int, ...]
    trades: list[tuple[int, int, int]] = []  # noqa: RUF012
    asks: list[tuple[int, int, int, int]] | None = None
    bids: list[tuple[int, int, int, int]] | None = None
    status: Status = Status.DONE


CASES = {
    "a market order for less than the best": Case((Kind.MARKET, BUY, 0, 3), [(101, 3, 0)], [(101, 2, 0, 0), *ASKS[1:]]),
    "a market order for exactly the best": Case((Kind.MARKET, BUY, 0, 5), [(101, 5, 0)], ASKS[1:]),
    "a market order through a queue": Case(
        (Kind.MARKET, BUY, 0, 7), [(101, 5, 0), (101, 2, 1)], [(101, 2, 1, 1), ASKS[2]]
    ),
    "a market order through two prices": Case(
        (Kind.MARKET, BUY, 0, 10), [(101, 5, 0), (101, 4, 1), (103, 1, 2)], [(103, 5, 2, 2)]
    ),
    "a market order for more than there is": Case(
        (Kind.MARKET, BUY, 0, 99), [(101, 5, 0), (101, 4, 1), (103, 6, 2)], []
    ),
    "a market order to sell": Case((Kind.MARKET, SELL, 0, 6), [(99, 5, 3), (98, 1, 4)], bids=[(98, 6, 4, 4), MINE]),
    "a market order to sell that reaches its owner's": Case(
        (Kind.MARKET, SELL, 0, 13), [(99, 5, 3), (98, 7, 4)], bids=[]
    ),
    "a market order whose price is not read": Case((Kind.MARKET, BUY, -7, 5), [(101, 5, 0)], ASKS[1:]),
    "a market order without a quantity": Case((Kind.MARKET, BUY, 0, 0), status=Status.INVALID),
    "a limit order below the market": Case((Kind.LIMIT, BUY, 98, 3), bids=[*BIDS, (98, 3, ME, 6), MINE]),
    "a limit order inside the spread": Case((Kind.LIMIT, BUY, 100, 3), bids=[(100, 3, ME, 6), *BIDS, MINE]),
    "a limit order that joins a queue": Case((Kind.LIMIT, SELL, 101, 3), asks=[*ASKS[:2], (101, 3, ME, 6), ASKS[2]]),
    "a limit order that is served at the price of the book": Case((Kind.LIMIT, BUY, 102, 5), [(101, 5, 0)], ASKS[1:]),
    "a limit order that takes a price and stays": Case(
        (Kind.LIMIT, BUY, 102, 12), [(101, 5, 0), (101, 4, 1)], ASKS[2:], [(102, 3, ME, 6), *BIDS, MINE]
    ),
    "an immediate order that trades what it can": Case(
        (Kind.IMMEDIATE, BUY, 101, 12), [(101, 5, 0), (101, 4, 1)], ASKS[2:]
    ),
    "an immediate order that meets nothing": Case((Kind.IMMEDIATE, BUY, 100, 12)),
    "a post-only order": Case((Kind.POST_ONLY, BUY, 100, 3), bids=[(100, 3, ME, 6), *BIDS, MINE]),
    "a post-only order that would trade": Case((Kind.POST_ONLY, BUY, 101, 3), status=Status.WOULD_TRADE),
    "a cancellation": Case((Kind.CANCEL, 0, 0, 0, 5), bids=BIDS),
    "a cancellation of an order of another": Case((Kind.CANCEL, 0, 0, 0, 4), status=Status.NOT_FOUND),
    "a cancellation of no order": Case((Kind.CANCEL, 0, 0, 0, 77), status=Status.NOT_FOUND),
    "a cancellation of all": Case((Kind.CANCEL_ALL, 0, 0, 0), bids=BIDS),
    "a modification to less": Case((Kind.MODIFY, 0, 97, 1, 5), bids=[*BIDS, (97, 1, ME, 5)]),
    "a modification to the same": Case((Kind.MODIFY, 0, 97, 2, 5)),
    "a modification of the price": Case((Kind.MODIFY, 0, 99, 2, 5), bids=[BIDS[0], (99, 2, ME, 5), BIDS[1]]),
    "a modification that trades": Case(
        (Kind.MODIFY, 0, 101, 6, 5), [(101, 5, 0), (101, 1, 1)], [(101, 3, 1, 1), ASKS[2]], BIDS
    ),
    "a modification of no order": Case((Kind.MODIFY, 0, 97, 1, 77), status=Status.NOT_FOUND),
    "a replacement": Case((Kind.REPLACE, 0, 98, 4, 5), bids=[*BIDS, (98, 4, ME, 6)]),
    "a replacement at the same price": Case((Kind.REPLACE, 0, 97, 2, 5), bids=[*BIDS, (97, 2, ME, 6)]),
    "a replacement that trades": Case((Kind.REPLACE, 0, 101, 5, 5), [(101, 5, 0)], ASKS[1:], BIDS),
    "a kind that there is not": Case((42, BUY, 100, 1), status=Status.INVALID),
    "a side that there is not": Case((Kind.LIMIT, 2, 100, 1), status=Status.INVALID),
    "a price of nothing": Case((Kind.LIMIT, BUY, 0, 1), status=Status.INVALID),
    "no message": Case((Kind.NOTHING, 7, -1, -1), status=Status.NOTHING),
}


@pytest.mark.parametrize("name", CASES)
def test_a_message_does_what_it_says(name):
    case, talk = CASES[name], Talk(room=6)
    for price, quantity, owner, _ in ASKS:
        talk.say(Kind.LIMIT, SELL, price, quantity, owner)
    for price, quantity, owner, _ in (*BIDS, MINE):
        talk.say(Kind.LIMIT, BUY, price, quantity, owner)
    kind, side, price, quantity, *target = case.words
    report = talk.say(kind, side, price, quantity, ME, *target)
    assert int(report.status) == case.status
    assert talk.traded() == case.trades
    assert talk.orders(SELL) == (ASKS if case.asks is None else case.asks)
    assert talk.orders(BUY) == ([*BIDS, MINE] if case.bids is None else case.bids)
    assert int(report.filled) == sum(size for _, size, _ in case.trades)
