"""Linear layers of many rows on a CPU, by oneDNN where PyTorch's own products leave half of a processor unused.

PyTorch multiplies float32 by MKL, which on processors of other makers than its own takes 8 numbers at a time, not 16.
One thread of an AMD EPYC (Zen 5) multiplies 4,096 rows of 301 numbers by 64 columns at 100 GF/s with MKL, and at 240
with oneDNN, both of PyTorch 2.13. On an Intel Xeon (Sapphire Rapids) MKL is as fast, and on few rows twice as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vecenv.system.cache import processor

WIDE = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"

BY_ONEDNN = WIDE and not any("Intel" in line for line in processor())
"""Whether products on the CPU of this machine are oneDNN's: on processors of others with vectors of 16 numbers."""

FEW_ROWS = 64
"""Rows up to which a product is PyTorch's: oneDNN's begins later."""

_LIBRARY = torch.library.Library("vecenv", "FRAGMENT")
_LIBRARY.define("added_to_rows(Tensor values, Tensor index, int rows) -> Tensor")
_LIBRARY.define("linear(Tensor values, Tensor weight, Tensor? bias) -> Tensor")


@torch.library.impl(_LIBRARY, "linear", "CPU")
def _by_onednn(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # It reads a bias as contiguous numbers, whatever its strides.
    bias = None if bias is None else bias.contiguous()
    result: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
    return result


@torch.library.register_fake("vecenv::linear")
def _form(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return values.new_empty(len(values), len(weight))


@torch.library.register_vmap("vecenv::linear")
def _of_each(info: Any, batched: tuple[int | None, ...], *tensors: Tensor | None) -> tuple[Tensor, int]:  # noqa: ANN401
    each = [
        [tensor] * info.batch_size if tensor is None or dim is None else tensor.unbind(dim)
        for tensor, dim in zip(tensors, batched, strict=True)
    ]
    return torch.stack([torch.ops.vecenv.linear(*of_one) for of_one in zip(*each, strict=True)]), 0


class _Linear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        result: Tensor = torch.ops.vecenv.linear(values, weight, bias)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:  # noqa: ANN401
        values, weight, bias = inputs
        ctx.save_for_backward(values, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (gradient,), (values, weight) = gradients, ctx.saved_tensors
        # Not the operator, whose own gradients PyTorch would take for zero.
        product = _Linear.apply
        of_values = product(gradient, weight.t(), None) if ctx.needs_input_grad[0] else None
        # Copied by compiled code together with what it computes; oneDNN would copy anew for each product.
        transposed = gradient.t().contiguous()
        return of_values, product(transposed, values.t(), None), transposed.sum(1) if ctx.has_bias else None


def linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return values @ weight.T + bias, as `torch.nn.functional.linear`. Shapes: (..., I), (O, I), (O,) -> (..., O)."""
    rows = values.shape[:-1].numel()
    # Of nothing oneDNN has no product.
    large = rows > FEW_ROWS and weight.numel() > 0
    if not (BY_ONEDNN and large and values.device.type == "cpu" and values.dtype == torch.float32):
        return functional.linear(values, weight, bias)
    return _Linear.apply(values.reshape(rows, -1), weight, bias).view(*values.shape[:-1], -1)


@torch.library.impl(_LIBRARY, "added_to_rows", "CompositeExplicitAutograd")
def _added(values: Tensor, index: Tensor, rows: int) -> Tensor:
    return values.new_zeros(rows, values.shape[-1]).index_add_(0, index, values)


@torch.library.register_fake("vecenv::added_to_rows")
def _form_of_added(values: Tensor, index: Tensor, rows: int) -> Tensor:
    return values.new_empty(rows, values.shape[-1])


class _Added(torch.autograd.Function):
    """The gradients of rows, whose own are rows of a table."""

    @staticmethod
    def forward(values: Tensor, index: Tensor, rows: int) -> Tensor:
        result: Tensor = torch.ops.vecenv.added_to_rows(values, index, rows)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:  # noqa: ANN401
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return rows_of(gradients[0], *ctx.saved_tensors), None, None


class _Rows(torch.autograd.Function):
    """Rows of a table. Compiled code adds gradients number by number, atomically; PyTorch's own kernel row by row."""

    @staticmethod
    def forward(table: Tensor, index: Tensor) -> Tensor:
        return table[index]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ANN401
        table, index = inputs
        ctx.save_for_backward(index)
        ctx.rows = len(table)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (index,) = ctx.saved_tensors
        return _Added.apply(gradients[0], index, ctx.rows), None


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Return ``table[index]``, which passes gradients to the table. Shapes: (R, H), (B,) -> (B, H)."""
    return _Rows.apply(table, index)
