"""The zero-intelligence market of Cont, Stoikov and Talreja on the same order book.

"A stochastic model for order book dynamics", Operations Research 58 (2010) 549-563: limit orders of one unit arrive at
distance i from the best price of the other side at rate λ(i), market orders on either side at rate μ, and every order
is cancelled at rate θ(i). The constants are its estimates for Sky Perfect Communications at the Tokyo stock exchange,
per minute; beyond five ticks λ follows its power law k / i^α, and θ is that of five.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vecenv.benchmarks.studies.book_sessions import DEPTH, Recorded
from vecenv.core.compiling import compile_in_place
from vecenv.kernels.order_book.book import Book, empty_book
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, SELL, Kind, Message

ARRIVALS = (1.85, 1.51, 1.09, 0.88, 0.77)
"""λ(1) … λ(5), per minute."""
POWER_LAW = (1.92, 0.52)
"""k and α."""
MARKET_ORDERS = 0.94
"""μ, per minute."""
CANCELLATIONS = (0.71, 0.81, 0.68, 0.56, 0.47)
"""θ(1) … θ(5), per minute and order."""

DISTANCES = 20
"""Largest distance of a limit order from the best price of the other side, in ticks."""
ROOM = 256
MIDDLE = 10_000


def limit_rates() -> np.ndarray:
    k, alpha = POWER_LAW
    beyond = k / np.arange(len(ARRIVALS) + 1, DISTANCES + 1) ** alpha
    return np.array([*ARRIVALS, *beyond])


def cancel_rates(distance: np.ndarray) -> np.ndarray:
    return np.array(CANCELLATIONS)[np.clip(distance, 1, len(CANCELLATIONS)) - 1]


def zero_intelligence_sessions(sessions: int, seconds: int, seed: int, speed: float, warm_up: int = 600) -> Recorded:
    """Simulate sessions event by event, and record them on a grid of seconds."""
    draw = np.random.default_rng(seed)
    book = Book(*(leaf.expand(sessions, *leaf.shape).clone() for leaf in empty_book(ROOM)))
    filled = torch.zeros(sessions, dtype=torch.int32)
    opening = _opening_orders(sessions)
    # The book is overwritten in place.
    carry_out = compile_in_place(_carried_out, [*book, *opening[0]], [*book, filled])
    for orders in opening:
        carry_out([*book, *orders], [*book, filled])
    whole = warm_up + seconds
    shown = np.full((7, sessions, whole), np.nan)
    shown[4:6] = 0.0
    clock, rows = np.zeros(sessions), np.arange(sessions)
    best = np.tile([MIDDLE - 1, MIDDLE + 1], (sessions, 1))
    rates = limit_rates()
    while bool((clock < whole).any()):
        keys, sizes, ids = (column.numpy() for column in (book.key, book.quantity, book.id))
        live, prices = sizes > 0, np.abs(keys)
        best = _best(live, prices, best)
        distance = np.stack([best[:, SELL, None] - prices[:, BUY], prices[:, SELL] - best[:, BUY, None]], 1)
        leaving = np.where(live, cancel_rates(np.where(live, distance, 1)), 0.0).reshape(sessions, -1)
        occupied = live.any(-1)
        weights = np.concatenate([np.tile(rates, (sessions, 2)), MARKET_ORDERS * occupied, leaving], axis=1)
        total = weights.cumsum(1)
        passed = draw.exponential(60.0 / speed / total[:, -1])
        running = clock < whole
        clock = clock + passed
        running &= clock < whole
        event = (total < draw.random(sessions)[:, None] * total[:, -1:]).sum(1).clip(max=weights.shape[1] - 1)
        message = _messages(event, best, ids.reshape(sessions, -1), running)
        carry_out([*book, *message], [*book, filled])
        second = clock.astype(int)[running]
        traded, side = filled.numpy()[running], message.side.numpy()[running]
        _record(book, rows[running], shown, second)
        for column, of in ((4, BUY), (5, SELL)):
            np.add.at(shown[column], (rows[running], second), np.where(side == of, traded, 0))
        messages = np.nan_to_num(shown[6, rows[running], second])
        shown[6, rows[running], second] = messages + 1
    shown[:4] = [_forward_filled(column) for column in shown[:4]]
    shown[6] = np.nan_to_num(shown[6])
    return Recorded(*shown[:, :, warm_up:])


def _carried_out(*tensors: Tensor) -> list[Tensor]:
    """Return the tensors of the books after a message to each, and what it has filled."""
    own = len(Book._fields)
    book, report, _ = torch.vmap(process)(Book(*tensors[:own]), Message(*tensors[own:]))
    return [*book, report.filled]


def _opening_orders(sessions: int) -> list[Message]:
    """Return five orders at each of the five nearest prices of both sides, each for all sessions."""
    words = [
        (Kind.LIMIT, side, MIDDLE + (-level if side == BUY else level), 1, side, -1)
        for level in range(1, 6)
        for side in (BUY, SELL)
        for _ in range(5)
    ]
    return [Message(*(torch.full((sessions,), word, dtype=torch.int32) for word in order)) for order in words]


def _best(live: np.ndarray, prices: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return best bid and ask; those before where a side is empty. Shape: (S, 2)."""
    bid = np.where(live[:, BUY], prices[:, BUY], -1).max(-1)
    ask = np.where(live[:, SELL], prices[:, SELL], 2**30).min(-1)
    bid = np.where(bid < 0, np.minimum(before[:, 0], ask - 1), bid)
    ask = np.where(ask >= 2**30, np.maximum(before[:, 1], bid + 1), ask)
    return np.stack([bid, ask], 1)


def _messages(event: np.ndarray, best: np.ndarray, ids: np.ndarray, running: np.ndarray) -> Message:
    """Return the message of each session's event. Events: bids, asks, market orders, cancellations."""
    limit, market = event < 2 * DISTANCES, (event >= 2 * DISTANCES) & (event < 2 * DISTANCES + 2)
    away = event % DISTANCES + 1
    side = np.where(limit, event // DISTANCES, 0)
    # A market order takes from the side that the event names.
    side = np.where(market, 1 - (event - 2 * DISTANCES), side)
    place = np.clip(event - 2 * DISTANCES - 2, 0, ids.shape[1] - 1)
    side = np.where(limit | market, side, place // ROOM)
    price = np.where(side == BUY, best[:, SELL] - away, best[:, BUY] + away)
    kind = np.where(limit, Kind.LIMIT, np.where(market, Kind.MARKET, Kind.CANCEL))
    target = np.where(limit | market, -1, np.take_along_axis(ids, place[:, None], 1)[:, 0])
    sent = np.where(running, kind, Kind.NOTHING)
    # Bids and asks have owners of their own, so that no order meets one of its owner's.
    words = (sent, side, np.maximum(price, 1), np.ones_like(side), side, target)
    return Message(*(torch.from_numpy(word.astype(np.int32)) for word in words))


def _record(book: Book, rows: np.ndarray, shown: np.ndarray, second: np.ndarray) -> None:
    sizes, prices = book.quantity.numpy()[rows], np.abs(book.key.numpy()[rows])
    live = sizes > 0
    bid = np.where(live[:, BUY], prices[:, BUY], -1).max(-1).astype(float)
    ask = np.where(live[:, SELL], prices[:, SELL], 2**30).min(-1).astype(float)
    both = live.any(-1).all(-1)
    at_best = [np.where(live[:, 0] & (prices[:, 0] == bid[:, None]), sizes[:, 0], 0).sum(-1)]
    at_best.append(np.where(live[:, 1] & (prices[:, 1] == ask[:, None]), sizes[:, 1], 0).sum(-1))
    near = np.stack([prices[:, 0] > bid[:, None] - DEPTH, prices[:, 1] < ask[:, None] + DEPTH], 1)
    parts = ((bid + ask) / 2, ask - bid, (at_best[0] + at_best[1]) / 2, (sizes * live * near).sum((1, 2)))
    for column, part in enumerate(parts):
        shown[column, rows, second] = np.where(both, part, np.nan)


def _forward_filled(values: np.ndarray) -> np.ndarray:
    place = np.where(np.isnan(values), 0, np.arange(values.shape[1]))
    return np.take_along_axis(values, np.maximum.accumulate(place, 1), 1)
