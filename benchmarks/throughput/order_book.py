"""Messages per second of the limit order book: the PyTorch form, compiled, and the operator in C++ or Triton.

Random messages near one price, of every kind; most orders rest. Books have seen four messages for each place before,
and every call goes on from the books that the one before left. Forms take turns, so that other work on the machine
slows all of them; medians count. Messages are drawn on the CPU, the same for every device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.compiling import compile_in_place
from vecenv.core.device import device_named
from vecenv.kernels.order_book.accounts import Accounts, empty_accounts, process_all
from vecenv.kernels.order_book.book import Book, empty_book
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, Kind, Message, Report, report_types
from vecenv.kernels.order_book.native import has_operator, process_all_native

MIDDLE = 100
"""Price in ticks around which orders come in."""
DEEPEST, CROSSING = 9, 4
"""An order is up to 8 ticks behind the middle and up to 3 beyond it."""
LARGEST = 11
"""Shares of an order."""
ODDS = {
    Kind.LIMIT: 0.42, Kind.MARKET: 0.06, Kind.IMMEDIATE: 0.06, Kind.POST_ONLY: 0.08, Kind.CANCEL: 0.12,
    Kind.CANCEL_ALL: 0.01, Kind.MODIFY: 0.14, Kind.REPLACE: 0.09, Kind.NOTHING: 0.02,
}  # fmt: skip
WARM_UP = 4
"""Messages for each place before a measurement."""
MOST_CALLS, MESSAGES_A_ROUND = 64, 100_000
"""Calls of a round: so many messages, but not more calls."""

NEEDS = {"cpu": "a working C++ compiler", "cuda": "Triton"}
"""What the operator needs, by device type."""

Form = Literal["pytorch", "operator"]
Run = Callable[[Sequence[Message]], None]


@dataclass(frozen=True)
class OrderBookConfig:
    """Settings of the order-book benchmark."""

    num_books: tuple[int, ...] = (1, 64, 4096)
    """Books, N."""
    rooms: tuple[int, ...] = (32, 64, 128)
    """Orders of a side, K."""
    messages: tuple[int, ...] = (1, 6, 64)
    """Messages of a call."""
    unrolled: int = 6
    """The PyTorch form is measured with up to so many messages a call: each takes some ten seconds to compile."""
    owners: int = 4
    """Owners of orders."""
    device: str = "cpu"
    """cpu, cuda or auto."""
    repeats: int = 15
    """Timed rounds of calls."""
    threads: int = 1
    """CPU threads."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


@dataclass(frozen=True)
class BookFigure:
    """One measured throughput.

    Attributes:
        form: `process` or `process_all` compiled, or the operator.
        accounts: whether trades are settled; the operator always does.
        num_books: books, N.
        room: orders of a side, K.
        messages: of a call and a book.
        messages_per_second: of all books.
        microseconds: median of a call.
    """

    form: Form
    accounts: bool
    num_books: int
    room: int
    messages: int
    messages_per_second: float
    microseconds: float

    def line(self) -> str:
        """Return a line of the table."""
        what = f"{self.form}, {'with accounts' if self.accounts else 'matching alone'}"
        return (
            f"{what:<24} K {self.room:>3}  {self.num_books:>5} x {self.messages:<3} "
            f"{self.messages_per_second / 1e6:7.3f} M/s  {self.microseconds:11,.1f} us a call"
        )


def main(config: OrderBookConfig) -> dict[str, Any]:
    """Measure, print and write the figures.

    Raises:
        ValueError: ``repeats`` is below 1, or the device is not available or has no operator.
    """
    if config.repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {config.repeats}")
    device = device_named(config.device)
    torch.set_num_threads(config.threads)
    figures = []
    for room, num_books, slots in product(config.rooms, config.num_books, config.messages):
        for figure in measure_books(config, room, num_books, slots):
            print(figure.line(), flush=True)
            figures.append(figure)
    result: dict[str, Any] = {
        "benchmark": "order_book",
        "device": machine.device_name(device),
        "torch": torch.__version__,
        "config": plain(config),
        "figures": [asdict(figure) for figure in figures],
    }
    write_result(config.output, f"order-book-{machine.file_stem(result['device'])}", result)
    return result


def measure_books(config: OrderBookConfig, room: int, num_books: int, slots: int) -> list[BookFigure]:
    """Time all forms at one size, in turns.

    Raises:
        ValueError: the device is not available or has no operator.
    """
    device = device_named(config.device)
    if not has_operator(device):
        raise ValueError(f"the order book's operator needs {NEEDS[device.type]}")
    generator = torch.Generator().manual_seed(room)
    book = Book(*(leaf.expand(num_books, *leaf.shape).clone() for leaf in empty_book(room, device)))
    accounts = Accounts(*(leaf.expand(num_books, -1).clone() for leaf in empty_accounts(config.owners, device)))
    book, accounts, _ = _played(book, accounts, config.owners, WARM_UP * room, 1, generator)
    calls = min(MOST_CALLS, math.ceil(MESSAGES_A_ROUND / (num_books * slots)))
    _, _, batches = _played(book, accounts, config.owners, slots, calls, generator)

    runs: dict[tuple[Form, bool], Run] = {}
    if slots <= config.unrolled:
        runs["pytorch", False] = _compiled(_matching(config.owners), [*book], batches[0])
        runs["pytorch", True] = _compiled(_settling, [*book, *accounts], batches[0])
    runs["operator", True] = _operator(book, accounts)
    times: dict[tuple[Form, bool], list[float]] = {key: [] for key in runs}
    for _ in range(1 + config.repeats):
        for key, run in runs.items():
            times[key] += machine.seconds_of(lambda run=run: run(batches), device, 1)  # type: ignore[misc]
    figures = []
    for (form, settled), seconds in times.items():
        # The first round is a warm-up.
        call = statistics.median(seconds[1:]) / calls
        figures.append(BookFigure(form, settled, num_books, room, slots, num_books * slots / call, 1e6 * call))
    return figures


def call_bytes(room: int, owners: int, num_books: int, slots: int) -> int:
    """Return the bytes that a call cannot avoid moving: books and accounts in and out, messages in, reports out."""
    shape = empty_book(room), empty_accounts(owners)
    state = sum(tensor.nbytes for part in shape for tensor in part)
    words = len(Message._fields) * torch.int32.itemsize + sum(kind.itemsize for kind in report_types())
    return num_books * (2 * state + slots * words)


def _played(
    book: Book, accounts: Accounts, owners: int, slots: int, calls: int, generator: torch.Generator
) -> tuple[Book, Accounts, list[Message]]:
    """Send random messages; return the books and accounts after them, and the messages of each call."""
    batches = []
    for _ in range(calls):
        batches.append(_drawn(book, owners, slots, generator))
        book, accounts, _ = process_all_native(book, accounts, batches[-1])
    return book, accounts, batches


def _drawn(book: Book, owners: int, slots: int, generator: torch.Generator) -> Message:
    """Return random messages to every book, some of them to orders that the ones before bring in. Shapes: (N, M)."""
    shape, room = (len(book.next_id), slots), book.key.shape[-1]

    def integers(low: int, high: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    kinds = torch.multinomial(torch.tensor(list(ODDS.values())), math.prod(shape), True, generator=generator)
    side, behind = integers(0, 2), integers(1 - CROSSING, DEEPEST)
    words = (
        torch.tensor(list(ODDS))[kinds].reshape(shape),
        side,
        torch.where(side == BUY, MIDDLE - behind, MIDDLE + behind),
        integers(1, LARGEST + 1),
        integers(0, owners),
        book.next_id.cpu()[:, None] + slots // 2 - 1 - integers(0, 3 * room),
    )
    return Message(*(word.to(book.key.device, torch.int32) for word in words))


def _operator(book: Book, accounts: Accounts) -> Run:
    def run(batches: Sequence[Message]) -> None:
        state = (book, accounts)
        for messages in batches:
            state = process_all_native(*state, messages)[:2]

    return run


Step = Callable[[Sequence[Tensor], Message], tuple[Sequence[Tensor], Report]]


def _compiled(step: Step, start: list[Tensor], messages: Message) -> Run:
    """Compile a step from the state's tensors of one book and its messages to those after it and the reports."""
    count = len(start)

    def batched(*tensors: Tensor) -> list[Tensor]:
        state, report = torch.vmap(step)(tensors[:count], Message(*tensors[count:]))
        return [*state, *report]

    shapes = batched(*(torch.empty_like(tensor, device="meta") for tensor in (*start, *messages)))
    # Two sets of buffers, of which each call reads one and writes the other.
    buffers = [
        [torch.zeros(shape.shape, dtype=shape.dtype, device=start[0].device) for shape in shapes] for _ in range(2)
    ]
    call = compile_in_place(batched, [*start, *messages], buffers[0])

    def run(batches: Sequence[Message]) -> None:
        state = start
        for number, sent in enumerate(batches):
            outputs = buffers[number % 2]
            call([*state, *sent], outputs)
            state = outputs[:count]

    return run


def _matching(owners: int) -> Step:
    def step(state: Sequence[Tensor], messages: Message) -> tuple[Sequence[Tensor], Report]:
        book, reports = Book(*state), []
        for number in range(len(messages.kind)):
            book, report, _ = process(book, Message(*(words[number] for words in messages)), owners=owners)
            reports.append(report)
        return book, Report(*(torch.stack(column) for column in zip(*reports, strict=True)))

    return step


def _settling(state: Sequence[Tensor], messages: Message) -> tuple[Sequence[Tensor], Report]:
    count = len(Book._fields)
    book, accounts, report = process_all(Book(*state[:count]), Accounts(*state[count:]), messages)
    return (*book, *accounts), report


if __name__ == "__main__":
    main(tyro.cli(OrderBookConfig, prog="python -m vecenv.benchmarks.throughput.order_book"))
