"""The benchmark of the order book measures both forms on the same messages, and writes what it prints."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from vecenv.benchmarks.throughput import order_book
from vecenv.benchmarks.throughput.order_book import OrderBookConfig, call_bytes, main
from vecenv.kernels.native_library import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

SMALL = OrderBookConfig(num_books=(3,), rooms=(4,), messages=(1, 2), unrolled=1, repeats=2, output=None)


@pytest.fixture
def ended(monkeypatch):
    """The state of the books that each run of a form ends with, by number of state tensors."""
    states: dict[int, list[list[torch.Tensor]]] = {}
    compiled = order_book.compile_in_place

    def watched(function, inputs, outputs):
        call, count = compiled(function, inputs, outputs), len(inputs) - 6

        def told(given, results):
            call(given, results)
            states.setdefault(count, []).append([tensor.clone() for tensor in results[:count]])

        return told

    def native(book, accounts, messages):
        result = order_book_native(book, accounts, messages)
        states.setdefault(0, []).append([*result[0], *result[1]])
        return result

    order_book_native = order_book.process_all_native
    monkeypatch.setattr(order_book, "compile_in_place", watched)
    monkeypatch.setattr(order_book, "process_all_native", native)
    monkeypatch.setattr(order_book, "MOST_CALLS", 20)
    return states


@pytest.mark.assembly
def test_forms_are_timed_on_the_same_books(ended, tmp_path, capsys):
    result = main(replace(SMALL, messages=(1,), output=tmp_path))
    matching, settling, operator = ended[5][-1], ended[7][-1], ended[0][-1]
    assert all(torch.equal(one, other) for one, other in zip(settling, operator, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(matching, operator, strict=False))
    assert bool(settling[-1].any()), "nothing was traded"
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("order-book-") and json.loads(file.read_text()) == json.loads(json.dumps(result))
    assert capsys.readouterr().out.count(" M/s ") == 3


@pytest.mark.assembly
def test_longer_calls_are_left_to_the_operator():
    figures = main(SMALL)["figures"]
    told = [(figure["form"], figure["accounts"], figure["messages"]) for figure in figures]
    assert told == [("pytorch", False, 1), ("pytorch", True, 1), ("operator", True, 1), ("operator", True, 2)]
    for figure in figures:
        sent = 3 * figure["messages"]
        assert figure["messages_per_second"] == pytest.approx(1e6 * sent / figure["microseconds"])


def test_nothing_to_repeat_is_refused():
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        main(replace(SMALL, repeats=0))


def test_a_device_without_the_operator_is_told(monkeypatch):
    monkeypatch.setattr(order_book, "has_operator", lambda device: False)
    with pytest.raises(ValueError, match=r"the order book's operator needs a working C\+\+ compiler"):
        main(SMALL)


def test_a_call_moves_books_twice_and_messages_and_reports_once():
    # 4 orders of 2 sides with 4 numbers each, and the next id; cash and shares of 3 owners; 6 and 10 words and a long.
    assert call_bytes(room=4, owners=3, num_books=5, slots=2) == 5 * (2 * (132 + 48) + 2 * (24 + 48))
