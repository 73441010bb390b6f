"""What is seen of a book is what its orders add up to, around holes and on empty sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels.order_book.book_oracle import Oracle, Order, before, levels_of
from tests.kernels.order_book.random_messages import books, drawn
from vecenv.kernels.order_book.book import best_prices, doubled_mid, levels, queue_ahead
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, SELL, Message


def middle_of(sides: list[list[Order]]) -> int:
    """Twice the middle of the best prices."""
    best = [queue[0].price for queue in sides if queue]
    return sum(best) if len(best) == 2 else 2 * sum(best)


@pytest.mark.parametrize("room", [3, 16])
@pytest.mark.assembly
def test_levels_best_prices_and_queues_of_random_books(room):
    random, count, depth = np.random.default_rng(room), 16, 5
    book, oracles = books(count, room), [Oracle(room, True) for _ in range(count)]
    empty = 0
    for _ in range(120):
        sent = drawn(random, count, np.array([oracle.next_id for oracle in oracles]), room)
        book, _, _ = torch.vmap(process)(book, Message(*torch.from_numpy(sent)))
        for oracle, words in zip(oracles, sent.T.tolist(), strict=True):
            oracle.process(*words)
        best, middle = torch.vmap(best_prices)(book), torch.vmap(doubled_mid)(book)
        found = [torch.vmap(lambda one, side=side: levels(one, side, depth))(book) for side in (BUY, SELL)]
        ids = torch.from_numpy(random.integers(0, 40, count))
        ahead = torch.vmap(queue_ahead)(book, ids)
        for one, oracle in enumerate(oracles):
            empty += any(not queue for queue in oracle.sides)
            assert best[one].tolist() == [queue[0].price if queue else 0 for queue in oracle.sides]
            assert int(middle[one]) == middle_of(oracle.sides)
            for side in (BUY, SELL):
                told = list(zip(*(column[one].tolist() for column in found[side]), strict=True))
                assert told == levels_of(oracle.sides[side], depth)
            assert int(ahead[one]) == before(oracle, int(ids[one]))
    assert empty > 10
