"""A book as lists, written from the rules alone: every order waits in a queue, best first."""

from dataclasses import dataclass, field
from itertools import groupby

from vecenv.kernels.order_book.limits import max_quantity
from vecenv.kernels.order_book.messages import BUY, MAX_OWNERS, MAX_PRICE, SELL, Kind, Status


@dataclass
class Order:
    """An order in the book."""

    price: int
    quantity: int
    owner: int
    id: int

    def told(self) -> tuple[int, int, int, int]:
        return self.price, self.quantity, self.owner, self.id


@dataclass
class Told:
    """What a message did."""

    status: Status
    id: int = -1
    side: int = -1
    rested: int = 0
    trades: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # price, quantity, maker and the maker's order
    cancelled: int = 0
    prevented: int = 0
    evicted: tuple[int, int, int] = (-1, -1, 0)  # id, owner and quantity


class Oracle:
    """One book."""

    def __init__(self, room: int, owners: int = MAX_OWNERS) -> None:
        self.room, self.owners, self.next_id = room, owners, 0
        self.sides: list[list[Order]] = [[], []]

    def process(self, kind: int, side: int, price: int, quantity: int, owner: int, target: int) -> Told:
        if kind == Kind.NOTHING:
            return Told(Status.NOTHING)
        if not self._valid(kind, side, price, quantity, owner):
            return Told(Status.INVALID)
        if kind == Kind.CANCEL_ALL:
            return Told(Status.DONE, cancelled=self._cancel_all(owner))
        if kind in (Kind.CANCEL, Kind.MODIFY, Kind.REPLACE):
            return self._change(kind, price, quantity, owner, target)
        if kind == Kind.POST_ONLY and any(self._meets(side, price, order) for order in self.sides[1 - side]):
            return Told(Status.WOULD_TRADE, self._new_id(), side)
        limit = None if kind == Kind.MARKET else price
        cancelled = self._cancel_all(owner) if kind == Kind.REPLACE_ALL else 0
        stays = kind in (Kind.LIMIT, Kind.POST_ONLY, Kind.REPLACE_ALL)
        told = self._come_in(side, limit, quantity, owner, self._new_id(), stays)
        told.cancelled = cancelled
        return told

    def requote(self, owner: int, bids: list[int], asks: list[int], quantity: int) -> tuple[int, int, int]:
        """Quote for all orders of an owner, best first; return quotes placed, orders evicted and quantity taken out."""
        cancelled = self._cancel_all(owner)
        number, placed, evicted = self.next_id, 0, 0
        self.next_id += len(bids) + len(asks)
        best = [queue[0] if queue else None for queue in self.sides]
        for side, prices in ((BUY, bids), (SELL, asks)):
            queue = self.sides[side]
            for price in prices:
                met = best[1 - side]
                if 1 <= price <= MAX_PRICE and not (met and self._meets(side, price, met)):
                    queue.insert(self._place(side, price), Order(price, quantity, owner, number))
                number += 1
            placed += sum(order.owner == owner for order in queue[: self.room])
            evicted += sum(order.owner != owner for order in queue[self.room :])
            del queue[self.room :]
        return placed, evicted, cancelled

    def _cancel_all(self, owner: int) -> int:
        gone = [order for queue in self.sides for order in queue if order.owner == owner]
        self.sides = [[order for order in queue if order.owner != owner] for queue in self.sides]
        return sum(order.quantity for order in gone)

    def _valid(self, kind: int, side: int, price: int, quantity: int, owner: int) -> bool:
        if kind not in list(Kind) or not 0 <= owner < self.owners:
            return False
        if kind in (Kind.CANCEL, Kind.CANCEL_ALL):
            return True
        if not 1 <= quantity <= max_quantity(self.room):
            return False
        if kind != Kind.MARKET and not 1 <= price <= MAX_PRICE:
            return False
        return kind in (Kind.MODIFY, Kind.REPLACE) or side in (BUY, SELL)

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _change(self, kind: int, price: int, quantity: int, owner: int, target: int) -> Told:
        for side, queue in enumerate(self.sides):
            for place, order in enumerate(queue):
                if (order.id, order.owner) == (target, owner):
                    if kind == Kind.MODIFY and price == order.price and quantity <= order.quantity:
                        less = order.quantity - quantity
                        order.quantity = quantity
                        return Told(Status.DONE, cancelled=less)
                    del queue[place]
                    if kind == Kind.CANCEL:
                        return Told(Status.DONE, cancelled=order.quantity)
                    number = target if kind == Kind.MODIFY else self._new_id()
                    told = self._come_in(side, price, quantity, owner, number, True)
                    told.cancelled = order.quantity
                    return told
        return Told(Status.NOT_FOUND)

    def _meets(self, side: int, limit: int | None, order: Order) -> bool:
        if limit is None:
            return True
        return order.price <= limit if side == BUY else order.price >= limit

    def _come_in(self, side: int, limit: int | None, quantity: int, owner: int, number: int, stays: bool) -> Told:
        told, queue = Told(Status.DONE, number, side), self.sides[1 - side]
        while quantity and queue and self._meets(side, limit, queue[0]):
            first = queue[0]
            if first.owner == owner:
                told.prevented += first.quantity
                del queue[0]
                continue
            size = min(quantity, first.quantity)
            told.trades.append((first.price, size, first.owner, first.id))
            quantity, first.quantity = quantity - size, first.quantity - size
            if not first.quantity:
                del queue[0]
        if quantity and stays:
            assert limit is not None
            told.rested = self._rest(Order(limit, quantity, owner, number), side, told)
            if not told.rested:
                told.status = Status.NO_ROOM
        return told

    def _rest(self, order: Order, side: int, told: Told) -> int:
        queue, place = self.sides[side], self._place(side, order.price)
        if len(queue) == self.room:
            if place == len(queue):
                return 0
            worst = queue.pop()
            told.evicted = (worst.id, worst.owner, worst.quantity)
        queue.insert(place, order)
        return order.quantity

    def _place(self, side: int, price: int) -> int:
        """Number of orders of a side that are as good as a price."""
        sign = -1 if side == BUY else 1
        return sum(sign * other.price <= sign * price for other in self.sides[side])


def levels_of(queue: list[Order], count: int) -> list[tuple[int, int, int]]:
    """Price, quantity and number of orders of the best prices."""
    grouped = [(price, [order.quantity for order in orders]) for price, orders in groupby(queue, lambda one: one.price)]
    told = [(price, sum(quantities), len(quantities)) for price, quantities in grouped]
    return (told + [(0, 0, 0)] * count)[:count]


def before(oracle: Oracle, number: int) -> int:
    """Quantity in front of an order at its price."""
    for queue in oracle.sides:
        for place, order in enumerate(queue):
            if order.id == number:
                return sum(other.quantity for other in queue[:place] if other.price == order.price)
    return 0
