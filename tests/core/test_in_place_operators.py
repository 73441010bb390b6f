"""Compiled calls with operators that overwrite their arguments, and with outputs that are inputs, do as eager ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from vecenv.core.compiling import compile_in_place, eager_in_place
from vecenv.core.in_place_operators import operators_in_place, read_before_overwritten


@torch.library.custom_op("tests::add_to", mutates_args=("book",))
def _add_to(book: Tensor, amount: Tensor) -> Tensor:
    """Add an amount to every number of a row; return the sums."""
    book.add_(amount.unsqueeze(-1))
    return book.sum(-1)


@_add_to.register_fake
def _(book: Tensor, amount: Tensor) -> Tensor:
    return torch.empty_like(book[..., 0])


@torch.library.custom_op("tests::add_to_all", mutates_args=("books",))
def _add_to_all(books: Sequence[Tensor], amount: Tensor) -> Tensor:
    for book in books:
        book.add_(amount.unsqueeze(-1))
    return books[0].sum(-1)


@_add_to_all.register_fake
def _(books: Sequence[Tensor], amount: Tensor) -> Tensor:
    return torch.empty_like(books[0][..., 0])


add_to, add_to_all = torch.ops.tests.add_to, torch.ops.tests.add_to_all


def read_before(a, b, amount):
    """What is used after the operator was computed before it."""
    first, doubled = a[:, 0] * 2 + 1, a.sum(-1) * 2
    later = (first + 1) * amount
    told = add_to(a, amount)
    return a, b, told + first * later + doubled


def read_by_index(a, b, amount):
    old = torch.where(a > 2, a, b).gather(1, (amount > 1).long().unsqueeze(-1))[:, 0]
    add_to(a, amount)
    return a, b, old + a[:, 0]


def two_operators(a, b, amount):
    first = a[:, 1] * 3
    add_to(a, amount)
    between = a[:, 1] * 5 + first
    add_to(a, amount + 1)
    return a, b, a[:, 1] * 7 + between + first


def part(a, b, amount):
    """The operator overwrites a view."""
    first = a[:, 2] * 2
    add_to(a[:, 1:], amount)
    return a, b, first + a[:, 2] + a[:, 0]


def both(a, b, amount):
    """A list of arguments."""
    first = a[:, 1] * b[:, 1]
    told = add_to_all([a, b], amount)
    return a, b, told + first


def of_copies(a, b, amount):
    """Copies are overwritten, and the arguments are results as they were."""
    one, two = a.clone(), b.clone()
    add_to_all([one, two], amount)
    return b + 0, two, a[:, 0] + one[:, 0] * 10 + two[:, 0] * 100


def exchanged_copies(a, b, amount):
    return b.clone(), a.clone(), b[:, 1].clone()


def each_of_both(a, b, amount):
    return a + 2 * b, b.flip(-1) - a, (a * b).sum(-1)


def one_of_two(a, b, amount):
    """One argument is overwritten, the other replaced by what it was."""
    old = a + 0
    told = add_to(a, amount)
    return a, old, told


QUICK = (read_before, exchanged_copies)
OTHERS = (of_copies, read_by_index, two_operators, part, both, each_of_both, one_of_two)


def arguments(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 9, shape, generator=generator).float() for shape in ((7, 3), (7, 3), (7,))]


@pytest.mark.parametrize(
    "function",
    [*QUICK, *(pytest.param(function, marks=pytest.mark.nightly) for function in OTHERS)],
    ids=lambda f: f.__name__,
)
@pytest.mark.assembly
def test_compiled_and_eager_calls_do_the_same(function: Callable[..., Sequence[Tensor]]):
    """For donated arguments: what they hold after two calls, and the results beside, without a write when compiling."""
    example = arguments(0)
    kept = [tensor.clone() for tensor in example]
    compiled = compile_in_place(function, example, [example[0], example[1], torch.zeros(7)])
    assert all(map(torch.equal, example, kept)), "compiling writes to an argument"
    found = []
    for call in (compiled, eager_in_place(function)):
        a, b, amount = arguments(1)
        told = torch.zeros(7)
        for _ in range(2):
            call([a, b, amount], [a, b, told])
        found.append([a, b, told])
    a, b, amount = arguments(1)
    for _ in range(2):
        new_a, new_b, told = (tensor.clone() for tensor in function(a.clone(), b.clone(), amount))
        a, b = new_a, new_b
    for name, one, other, expected in zip("ab-", *found, [a, b, told], strict=True):
        assert torch.equal(other, expected), f"eager {name}"
        assert torch.equal(one, expected), f"compiled {name}"


class Copies(TorchDispatchMode):
    """Counts copies that are no part of compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.clone)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("function", "copies"), [(both, 0), (each_of_both, 2), (one_of_two, 1)])
@pytest.mark.assembly
def test_what_is_overwritten_is_not_copied(function, copies):
    a, b, amount = arguments(3)
    outputs = [a, b, torch.zeros(7)]
    call = compile_in_place(function, [a, b, amount], outputs)
    with Copies() as mode:
        call([a, b, amount], outputs)
    assert mode.count == copies


def test_a_graph_says_what_is_computed_before():
    """What is used before an operator alone, and views, which tell what was overwritten, are left as they are."""

    def function(a, amount):
        view, used_before = a[:, 0], a[:, 1] * 2
        told = add_to(a, amount + used_before)
        return told + view + amount * 2 + a[:, 2] * 3

    graph = make_fx(function)(torch.ones(7, 3), torch.ones(7)).graph
    read_before_overwritten(graph)
    assert len(operators_in_place(graph)) == 1
    assert not [node for node in graph.nodes if node.target is torch.ops.vecenv.computed.default]
    graph = make_fx(read_before)(*arguments(0)).graph
    read_before_overwritten(graph)
    computed = [node.args[0].name for node in graph.nodes if node.target is torch.ops.vecenv.computed.default]
    assert len(computed) == 3, "two factors and a sum"
