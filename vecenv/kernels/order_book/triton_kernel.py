"""The order book in Triton: one program carries out the messages of one book, as `accounts.process_all` does.

Both sides stay in registers until all messages are done. The numbers of a message are the same for all lanes, so a
program branches on them: only what a message needs is computed. What lies between two places is shifted by one with
`tl.gather`, which needs no copy of the book in memory and no barrier of its own: up to two places a thread Triton makes
shuffles of registers of it, beyond that it goes by way of shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vecenv.kernels.order_book import book, messages
from vecenv.kernels.order_book.messages import Kind, Status

# A kernel reads no globals but these.
_BUY, _SELL, _MAX_PRICE = (tl.constexpr(number) for number in (messages.BUY, messages.SELL, messages.MAX_PRICE))
_EMPTY = tl.constexpr(book.EMPTY)
_NO_KIND, _LIMIT, _MARKET, _IMMEDIATE, _POST_ONLY, _CANCEL, _CANCEL_ALL, _MODIFY, _REPLACE, _REPLACE_ALL = (
    tl.constexpr(int(kind)) for kind in Kind
)
_NO_STATUS, _DONE, _INVALID, _NOT_FOUND, _WOULD_TRADE, _NO_ROOM = (tl.constexpr(int(status)) for status in Status)


@triton.jit
def _ordered(kind: tl.tensor) -> tl.tensor:
    """Whether a kind of message brings in an order on the side that it names."""
    return ((kind >= _LIMIT) & (kind <= _POST_ONLY)) | (kind == _REPLACE_ALL)


@triton.jit
def _valid(
    kind: tl.tensor,
    side: tl.tensor,
    price: tl.tensor,
    quantity: tl.tensor,
    sender: tl.tensor,
    owners: tl.tensor,
    MOST: tl.constexpr,
) -> tl.tensor:
    """Whether a message can be carried out as far as it goes itself."""
    priced = ((price >= 1) & (price <= _MAX_PRICE)) | (kind == _MARKET)
    sized = (quantity >= 1) & (quantity <= MOST)
    sided = (side == _BUY) | (side == _SELL)
    known = (kind >= _NO_KIND) & (kind <= _REPLACE_ALL) & (sender >= 0) & (sender < owners)
    again = (kind == _MODIFY) | (kind == _REPLACE)
    told = (priced & sized & (sided | again)) | ((_ordered(kind) | again) == 0)
    return (known & told) | (kind == _NO_KIND)


@triton.jit
def _chosen(first: tl.tensor, one: tl.tuple, other: tl.tuple) -> tl.tuple:
    """Return the columns of one side or of the other."""
    return (
        tl.where(first, one[0], other[0]),
        tl.where(first, one[1], other[1]),
        tl.where(first, one[2], other[2]),
        tl.where(first, one[3], other[3]),
    )


@triton.jit
def _at(column: tl.tensor, lane: tl.tensor, place: tl.tensor) -> tl.tensor:
    """Return what stands at a place."""
    return tl.sum(tl.where(lane == place, column, 0))


@triton.jit
def _moved(column: tl.tensor, number: tl.tensor, lane: tl.tensor, source: tl.tensor, place: tl.tensor) -> tl.tensor:
    """Return a column of which each place has what its source had, and one a number."""
    return tl.where(lane == place, number, tl.gather(column, source, 0))


@triton.jit
def _side(
    keys: tl.tensor, quantities: tl.tensor, owners: tl.tensor, ids: tl.tensor, places: tl.tensor, here: tl.tensor
) -> tl.tuple:
    """Read a side; beyond its room there are places that have never held an order."""
    return (
        tl.load(keys + places, mask=here, other=_EMPTY),
        tl.load(quantities + places, mask=here, other=0),
        tl.load(owners + places, mask=here, other=-1),
        tl.load(ids + places, mask=here, other=-1),
    )


@triton.jit
def process_books(
    keys: tl.tensor, quantities: tl.tensor, owners_of: tl.tensor, ids: tl.tensor, next_ids: tl.tensor,
    new_keys: tl.tensor, new_quantities: tl.tensor, new_owners_of: tl.tensor, new_ids: tl.tensor,
    new_next_ids: tl.tensor, cash: tl.tensor, shares: tl.tensor,
    kinds: tl.tensor, sent_sides: tl.tensor, prices: tl.tensor, sizes: tl.tensor, senders: tl.tensor,
    targets: tl.tensor,
    statuses: tl.tensor, told_sides: tl.tensor, told_ids: tl.tensor, filleds: tl.tensor, resteds: tl.tensor,
    notionals: tl.tensor, cancelleds: tl.tensor, preventeds: tl.tensor, evicted_ids: tl.tensor,
    evicted_owners: tl.tensor, evicteds: tl.tensor,
    slots: tl.tensor, owners: tl.tensor,
    ROOM: tl.constexpr, WIDTH: tl.constexpr, MOST: tl.constexpr, EVICT: tl.constexpr,
) -> None:  # fmt: skip
    """Carry out the messages of the book that has the number of the program.

    Arrays are contiguous: those of the book (N, 2, K), of the accounts (N, A), of messages and reports (N, M). The book
    is read from one memory and written to another (``new_…``); the accounts are changed in place. ``slots`` is M,
    ``owners`` A, ``ROOM`` K, ``WIDTH`` a power of two from K, ``MOST`` the largest quantity of an order. With Triton's
    option ``debug`` an order that is met and whose owner has no account is an error of the device.
    """
    number = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    here = lane < ROOM
    bid_places, ask_places = 2 * number * ROOM + lane, (2 * number + 1) * ROOM + lane
    bids = _side(keys, quantities, owners_of, ids, bid_places, here)
    asks = _side(keys, quantities, owners_of, ids, ask_places, here)
    next_id = tl.load(next_ids + number)
    cash += number * owners
    shares += number * owners
    zero = tl.full((), 0, tl.int32)
    for slot in range(slots):
        at = number * slots + slot
        kind, side, price = tl.load(kinds + at), tl.load(sent_sides + at), tl.load(prices + at)
        quantity, sender, target = tl.load(sizes + at), tl.load(senders + at), tl.load(targets + at)
        valid = _valid(kind, side, price, quantity, sender, owners, MOST)
        every = valid & ((kind == _CANCEL_ALL) | (kind == _REPLACE_ALL))
        one = valid & (kind >= _CANCEL) & (kind <= _REPLACE) & (kind != _CANCEL_ALL)
        active = valid & _ordered(kind)
        order_id = tl.where(kind == _MODIFY, target, next_id)
        status = tl.where(kind == _NO_KIND, _NO_STATUS, tl.where(valid, _DONE, _INVALID))
        filled, rested, cancelled, prevented, evicted = zero, zero, zero, zero, zero
        evicted_id, evicted_owner, notional = zero - 1, zero - 1, zero.to(tl.int64)
        # Place that an order which comes in anew has left; -1 if there is none.
        left_place = zero - 1

        if every:
            bid_gone, ask_gone = bids[2] == sender, asks[2] == sender
            cancelled = tl.sum(tl.where(bid_gone, bids[1], 0) + tl.where(ask_gone, asks[1], 0))
            bids = (bids[0], tl.where(bid_gone, 0, bids[1]), bids[2], bids[3])
            asks = (asks[0], tl.where(ask_gone, 0, asks[1]), asks[2], asks[3])

        if one:
            bid_found = (bids[2] == sender) & (bids[3] == target) & (bids[1] > 0)
            ask_found = (asks[2] == sender) & (asks[3] == target) & (asks[1] > 0)
            shown = tl.sum(tl.where(bid_found, bids[1], 0) + tl.where(ask_found, asks[1], 0))
            if shown > 0:
                place = tl.min(tl.where(bid_found, lane, tl.where(ask_found, ROOM + lane, 2 * ROOM)))
                bid_key = tl.where(bid_found, bids[0], -_EMPTY)
                key = tl.max(tl.maximum(bid_key, tl.where(ask_found, asks[0], -_EMPTY)))
                # A modification that asks for no more at the same price stays where it is.
                kept = (kind == _MODIFY) & (price == tl.abs(key)) & (quantity <= shown)
                remains = tl.where(kept, quantity, 0)
                cancelled = shown - remains
                bids = (bids[0], tl.where(lane == place, remains, bids[1]), bids[2], bids[3])
                asks = (asks[0], tl.where(ROOM + lane == place, remains, asks[1]), asks[2], asks[3])
                active = (kind != _CANCEL) & (kept == 0)
                # Keys of asks are positive, those of bids negative.
                side = (key > 0).to(tl.int32)
                left_place = place - side * ROOM
            else:
                status = zero + _NOT_FOUND

        if active:
            buys = side == _BUY
            own, other = _chosen(buys, bids, asks), _chosen(buys, asks, bids)
            own_key = tl.where(buys, -price, price)
            limit = tl.where(kind == _MARKET, _EMPTY - 1, -own_key)
            met = tl.where(other[0] <= limit, other[1], 0)
            rest = zero
            if (kind == _POST_ONLY) & (tl.max(met) > 0):
                status = zero + _WOULD_TRADE
            else:
                available = tl.where(other[2] == sender, 0, met)
                ahead = tl.cumsum(available, 0) - available
                traded = tl.minimum(tl.maximum(quantity - ahead, 0), available)
                taken = tl.where(ahead < quantity, met - available, 0)
                filled, prevented = tl.sum(traded), tl.sum(taken)
                other = (other[0], other[1] - traded - taken, other[2], other[3])
                if filled > 0:
                    paid = traded.to(tl.int64) * tl.abs(other[0]).to(tl.int64)
                    notional = tl.sum(paid)
                    sign = tl.where(buys, 1, -1).to(tl.int64)
                    settled = (traded > 0) & (other[2] >= 0) & (other[2] < owners)
                    tl.device_assert(settled == (traded > 0), "an order in the book is of an owner without an account")
                    # Two places may be of one owner.
                    tl.atomic_add(cash + other[2], sign * paid, mask=settled, sem="relaxed")
                    tl.atomic_add(shares + other[2], -sign * traded.to(tl.int64), mask=settled, sem="relaxed")
                    tl.atomic_add(cash + sender, -sign * notional, sem="relaxed")
                    tl.atomic_add(shares + sender, sign * filled.to(tl.int64), sem="relaxed")
                rest = tl.where((kind == _MARKET) | (kind == _IMMEDIATE), 0, quantity - filled)

            if rest > 0:
                # After all orders of the same price or a better one.
                rank = tl.sum((here & (own[0] <= own_key)).to(tl.int32))
                hole = tl.min(tl.where(here & (own[1] == 0), lane, ROOM))
                hole = tl.where(left_place >= 0, left_place, hole)
                full = hole == ROOM
                if full & (rank < ROOM) & EVICT:
                    hole = zero + (ROOM - 1)
                    evicted, evicted_owner = _at(own[1], lane, hole), _at(own[2], lane, hole)
                    evicted_id = _at(own[3], lane, hole)
                if hole < ROOM:
                    rested = rest
                    place = tl.where(hole >= rank, rank, rank - 1)
                    later, earlier = (lane > place) & (lane <= hole), (lane < place) & (lane >= hole)
                    source = lane - later.to(tl.int32) + earlier.to(tl.int32)
                    own = (
                        _moved(own[0], own_key, lane, source, place),
                        _moved(own[1], rest, lane, source, place),
                        _moved(own[2], sender, lane, source, place),
                        _moved(own[3], order_id, lane, source, place),
                    )
                else:
                    status = zero + _NO_ROOM
            bids, asks = _chosen(buys, own, other), _chosen(buys, other, own)
            next_id += (kind != _MODIFY).to(tl.int32)

        tl.store(statuses + at, status)
        tl.store(told_sides + at, tl.where(active, side, -1))
        tl.store(told_ids + at, tl.where(active, order_id, -1))
        tl.store(filleds + at, filled)
        tl.store(resteds + at, rested)
        tl.store(notionals + at, notional)
        tl.store(cancelleds + at, cancelled)
        tl.store(preventeds + at, prevented)
        tl.store(evicted_ids + at, evicted_id)
        tl.store(evicted_owners + at, evicted_owner)
        tl.store(evicteds + at, evicted)

    tl.store(new_keys + bid_places, bids[0], mask=here)
    tl.store(new_keys + ask_places, asks[0], mask=here)
    tl.store(new_quantities + bid_places, bids[1], mask=here)
    tl.store(new_quantities + ask_places, asks[1], mask=here)
    tl.store(new_owners_of + bid_places, bids[2], mask=here)
    tl.store(new_owners_of + ask_places, asks[2], mask=here)
    tl.store(new_ids + bid_places, bids[3], mask=here)
    tl.store(new_ids + ask_places, asks[3], mask=here)
    tl.store(new_next_ids + number, next_id)
