"""The language of orders: what is an answer, what is none, and what it becomes."""

import random

import pytest
import torch

from vecenv.kernels.order_book.messages import MAX_PRICE
from vecenv.tasks.agent_market.language import OrderLanguage
from vecenv.tasks.agent_market.orders import Order

LANGUAGE = OrderLanguage(price_tick=0.01, default=100, max_orders=4)

BUY, SELL, BUY_LIMIT, SELL_LIMIT, BID, ASK, CANCEL = (Order(number) for number in range(1, 8))

ANSWERS = {
    "HOLD": (),
    "hold; HOLD\n": (),
    "BUY": ((BUY, 1, 100),),
    "sell 7": ((SELL, 1, 7),),
    "BUY AT 99.98": ((BUY_LIMIT, 9_998, 100),),
    "BUY 1,500 AT $1,000.04": ((BUY_LIMIT, 100_004, 1_500),),
    "SELL 5@100": ((SELL_LIMIT, 10_000, 5),),
    "SELL @ 100.": ((SELL_LIMIT, 10_000, 100),),
    "BID 50 AT .5; ASK 50 AT 101": ((BID, 50, 50), (ASK, 10_100, 50)),
    "BID 0;ASK 0": ((BID, 1, 0), (ASK, 1, 0)),
    "CANCEL\r\nBUY 1\nBUY 2; SELL 3": ((CANCEL, 1, 0), (BUY, 1, 1), (BUY, 1, 2), (SELL, 1, 3)),
    "<think>SELL all?</think><answer>BUY 3</answer> done": ((BUY, 1, 3),),
    "BUY 1 AT 0.014": ((BUY_LIMIT, 1, 1),),
    "BUY 1 AT 0.015": ((BUY_LIMIT, 2, 1),),
    "BUY 1 AT 0.025": ((BUY_LIMIT, 2, 1),),
    f"BUY 999999999 AT {MAX_PRICE / 100}": ((BUY_LIMIT, MAX_PRICE, 999_999_999),),
}
NONE = (
    *(None, 3, b"BUY", [], "", " ;\n", "<answer></answer>", "BUY 100 shares", "BUY 1.5", "BUY -1", "BUY +1", "BUY 0"),
    *("BUY 0 AT 100", "BUY 1000000000", "BUY 1 AT", "BUY 1 AT 0", "BUY 1 AT 0.004", "BUY 1 AT -1", "BUY 1 AT 1e3"),
    *("BUY 1 AT nan", "BUY 1 AT .", "BUY 1 AT $$1", "BUY 1 AT 10737418.25", "BUY1", "BUY 1AT 2", "BUY 50%"),
    *("BID", "BID 5", "BID AT 100", "BID 0 AT 100", "ASK 5 AT", "HOLD 1", "CANCEL 1", "CANCEL BID", "QUOTE 1"),
    *("BUY; SELL; BUY; SELL; BUY", "BID 1 AT 1; BID 2 AT 1", "BUY 1; nonsense", "BUY 1 AT " + "1" * 25, "ＢＵＹ 1"),
    *("BUY １", "\ud800", "BUY 1 AT ٣"),
)


def test_answers_are_read_and_others_are_none():
    """No order at all of the others: not even the part of a text that could be read."""
    for text, orders in ANSWERS.items():
        assert LANGUAGE.parse(text) == orders, text
    for text in NONE:
        assert LANGUAGE.parse(text) is None, text
    # A quadratic reader would not come to an end.
    for piece in ("BUY 1 AT 1", "1", "BUY ", "<answer>", "BUY 1;", "1,000", "@ ", " \t", "<think>"):
        for text in (piece * 200_000, "BUY " + piece * 200_000):
            assert LANGUAGE.parse(text) in (None, ((BUY, 1, 100),))
    # A batch is one tensor.
    orders, valid = LANGUAGE.tensor([LANGUAGE.parse(text) for text in ("SELL 3; BID 4 AT 1", "no", "HOLD")])
    nothing = [0, 1, 0]
    assert orders.dtype == torch.int64 and valid.tolist() == [True, False, True]
    assert orders.tolist() == [[[2, 1, 3], [5, 100, 4], nothing, nothing], [[8, 1, 0], *[nothing] * 3], [nothing] * 4]
    empty, none = LANGUAGE.tensor([])
    assert empty.shape == (0, 4, 3) and none.shape == (0,)


@pytest.mark.parametrize("price_tick", [0.01, 0.25, 0.1, 1.0, 0.005, 25.0])
def test_written_orders_are_read_again(price_tick):
    """Every kind of order, at prices from the smallest to the largest; what a book refuses is not written."""
    language = OrderLanguage(price_tick, default=10, max_orders=3)
    draw = random.Random(7)
    for _ in range(300):
        orders = []
        for kind in draw.sample([BUY, SELL, BUY_LIMIT, SELL_LIMIT, BID, ASK, CANCEL], draw.randrange(4)):
            priced = kind in (BUY_LIMIT, SELL_LIMIT, BID, ASK)
            price = draw.choice([1, MAX_PRICE, draw.randrange(1, MAX_PRICE)]) if priced else 1
            orders.append((kind, price, 0 if kind == CANCEL else draw.randrange(1, 10**9)))
        assert language.parse(language.written(orders)) == tuple(orders)
    assert language.written([(BID, 5, 0), (ASK, 0, -3), (Order.NONE, 1, 1)]) == "BID 0; ASK 0"
    refused = [(BUY, 1, 0), (SELL, 1, -2), (BUY_LIMIT, 0, 5), (SELL_LIMIT, MAX_PRICE + 1, 5), (BID, -1, 5), (9, 1, 1)]
    assert language.written(refused) == "HOLD"
