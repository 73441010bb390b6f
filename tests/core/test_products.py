"""Products by oneDNN and rows of tables: values and gradients of PyTorch's own, alone and mapped."""

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional

from vecenv.core import products

# On machines that multiply by MKL too.
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")


def arguments(*batch: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*batch, *shape, generator=generator) for shape in ((70, 5), (3, 5), (3,))]


def twice(loss, places):
    """Return the gradients of the sum of squares of a function's gradients."""
    first = grad(loss, places)
    return grad(lambda *tensors: sum(each.square().sum() for each in first(*tensors)), places)


@pytest.mark.parametrize("places", [(0, 1, 2), (1, 2), (0, 1), (1,)])
@pytest.mark.parametrize("mapped", [(0, 0, 0), (None, 0, 0), None])
@pytest.mark.parametrize("times", [1, 2])
def test_layers_by_onednn_have_the_values_and_gradients_of_pytorch(
    times: int, places: tuple[int, ...], mapped: tuple[int | None, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments() if mapped is None else arguments(2)
    if mapped == (None, 0, 0):
        given[0] = given[0][0]

    def made(layer):
        def loss(*tensors: torch.Tensor) -> torch.Tensor:
            return layer(*tensors[: 3 if 2 in places else 2]).square().sum()

        found = twice(loss, places) if times == 2 else grad(loss, places)
        return (found if mapped is None else vmap(found, mapped))(*given)

    expected = made(functional.linear)
    monkeypatch.setattr(products, "BY_ONEDNN", True)
    # Nothing is left to PyTorch's own.
    monkeypatch.setattr(products, "functional", None)
    for one, other in zip(made(products.linear), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 if times == 1 else 0.1)


def test_rows_of_a_table_add_their_gradients_up() -> None:
    table, weights = arguments()[1], torch.randn(9, 5)
    index = torch.tensor([0, 2, 2, 0, 0, 2, 2, 2, 0])

    def loss(rows):
        return lambda table: (rows(table, index).square() * weights).sum()

    found = grad(loss(products.rows_of))(table)
    torch.testing.assert_close(found, grad(loss(lambda table, index: table[index]))(table))
    second = (twice(loss(each), (0,))(table)[0] for each in (products.rows_of, lambda table, index: table[index]))
    torch.testing.assert_close(*second)
    assert torch.equal(found[1], torch.zeros(5)) and torch.equal(products.rows_of(table, index), table[index])


def test_layers_with_a_strided_bias_or_no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "BY_ONEDNN", True)
    values, weight, _ = arguments()
    for strided in (torch.randn(6)[::2], torch.randn(1).expand(3)):
        expected = functional.linear(values, weight, strided)
        torch.testing.assert_close(products.linear(values, weight, strided), expected, rtol=1e-5, atol=1e-5)
    bias = torch.randn(3)
    assert torch.equal(products.linear(torch.zeros(70, 0), torch.zeros(3, 0), bias), bias.expand(70, 3))
