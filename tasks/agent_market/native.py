"""`law.ticked` and `features.features` in C++, for CPUs: ticks in place, and all features in one pass over a market.

Operators of `torch.library` that `torch.vmap` batches and compiled steps call. Numbers of a tick are those of the
reference bit for bit, holes of the books included, and features are the same up to rounding (tests).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.core.checks import form
from vecenv.kernels.order_book.messages import BUY, SELL, Message
from vecenv.system.native_library import built_library
from vecenv.tasks.agent_market.config import NUM_CANDLES
from vecenv.tasks.agent_market.features import Candles, News, Quote, feature_names, features
from vecenv.tasks.agent_market.law import ticked
from vecenv.tasks.agent_market.market import DEPTH, OWN_ORDERS, Layout, Market, Report, joined, part_size, split
from vecenv.tasks.agent_market.rules import Rules

TICK, FEATURES = (Path(__file__).with_name(name) for name in ("tick.cpp", "features.cpp"))
"""Sources of the libraries."""

FIELDS = tuple(Market.__annotations__)
"""Fields of a market in the order of its library."""

_WIDE = ("notional", "estimate", "news", "seat_cash", "seat_shares")
"""Parts of a report that are int64."""

_KINDS = (torch.int32, torch.int64)
"""Types of the numbers of a report."""


def advanced_market(
    market: Market, orders: Message, rules: Rules, layout: Layout, ticks: int = 1
) -> tuple[Market, Report]:
    """Return the market after some ticks and what is seen of it, in C++ on a CPU with a compiler, else in PyTorch.

    In C++ the market that is given becomes the one after the ticks: its tensors are contiguous, and `split` if it has a
    batch dimension. Auctions are cleared in PyTorch. ``orders``, (J,), int32, are messages of the seats, in turn, in
    the first tick.
    """
    in_parts = len(market.batch_size) > 0
    if layout.auction or market.tick.device.type != "cpu" or built_library(TICK) is None:
        whole = joined(market, layout) if in_parts else market
        after, seen = ticked(whole, orders, rules, layout, ticks)
        return (split(after, layout.seats) if in_parts else after), seen
    tensors = [market.get(name).flatten() if in_parts else market.get(name) for name in FIELDS]
    narrow, wide = torch.ops.vecenv.agent_market_tick(
        tensors, list(orders), list(rules), list(astuple(layout)[:-1]), ticks, in_parts
    )
    told = [
        (wide if kind == torch.int64 else narrow)[first : first + math.prod(shape)].view(shape)
        for shape, kind, first in _report_places(astuple(layout))
    ]
    return market, Report(*told)


def _report_places(layout: Sequence[int]) -> list[tuple[tuple[int, ...], torch.dtype, int]]:
    """Return of each part of a report its shape, type and first place among all numbers of that type."""
    seats = layout[0]
    shapes: dict[str, tuple[int, ...]] = {"news": (4,), "prices": (2, DEPTH), "quantities": (2, DEPTH)}
    shapes |= {"seat_cash": (seats,), "seat_shares": (seats,)}
    shapes |= dict.fromkeys(("seat_traded", *OWN_ORDERS), (seats, 2))
    counts = {torch.int32: 0, torch.int64: 0}
    places = []
    for name in Report._fields:
        shape, kind = shapes.get(name, ()), torch.int64 if name in _WIDE else torch.int32
        places.append((shape, kind, counts[kind]))
        counts[kind] += math.prod(shape)
    return places


def _report_widths(layout: Sequence[int]) -> tuple[int, int]:
    """Return how many numbers of int32 and of int64 a report has."""
    places = _report_places(layout)
    narrow, wide = (sum(math.prod(shape) for shape, own, _ in places if own == kind) for kind in _KINDS)
    return narrow, wide


@torch.library.custom_op("vecenv::agent_market_tick", mutates_args=("market",), device_types="cpu")
def _tick(
    market: Sequence[Tensor],
    orders: Sequence[Tensor],
    rules: Sequence[Tensor],
    layout: Sequence[int],
    ticks: int,
    in_parts: bool,
) -> tuple[Tensor, Tensor]:
    """Advance one market, or a batch of markets along the first dimension, and return the report.

    With ``in_parts`` every tensor of a market is flat, with the padding of `split`.
    """
    library = built_library(TICK)
    if library is None:
        raise RuntimeError("there is no native market: no working C++ compiler was found")
    batch = _batch_of(market, in_parts)
    _check(market, layout, batch, in_parts)
    count, (numbers, arrivals, normal, sizes, growth) = batch.numel(), rules
    sent = [words.contiguous() for words in orders]
    own_numbers, own_arrivals = numbers.contiguous(), arrivals.contiguous()
    report = [
        torch.empty(*batch, width, dtype=kind) for width, kind in zip(_report_widths(layout), _KINDS, strict=True)
    ]
    sizes_of = [*layout, sent[0].shape[-1], arrivals.shape[-1]]
    steps = [
        0 if tensor.ndim == alone else tensor[0].numel() for tensor, alone in ((own_numbers, 1), (own_arrivals, 2))
    ]
    complete = library.vecenv_agent_market_tick(
        ctypes.c_int64(count),
        ctypes.c_int64(ticks),
        (ctypes.c_int64 * len(sizes_of))(*sizes_of),
        _pointers(market),
        _bytes(market, count),
        _pointers(sent),
        ctypes.c_void_p(own_numbers.data_ptr()),
        ctypes.c_int64(steps[0]),
        ctypes.c_void_p(own_arrivals.data_ptr()),
        ctypes.c_int64(steps[1]),
        ctypes.c_void_p(normal.data_ptr()),
        ctypes.c_void_p(sizes.data_ptr()),
        ctypes.c_void_p(growth.data_ptr()),
        *_report_pointers(report, layout),
    )
    if not complete:
        raise ValueError("an order in the book is of an owner without an account")
    return report[0], report[1]


def _pointers(tensors: Sequence[Tensor]) -> Any:  # noqa: ANN401
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _report_pointers(report: Sequence[Tensor], layout: Sequence[int]) -> tuple[Any, Any]:
    """Return where the parts of the first market's report are, and how many bytes further those of the next."""
    pointers, steps = [], []
    for _, kind, first in _report_places(layout):
        numbers = report[_KINDS.index(kind)]
        pointers.append(numbers.data_ptr() + first * kind.itemsize)
        steps.append(numbers.shape[-1] * kind.itemsize)
    return (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(steps))(*steps)


def _bytes(tensors: Sequence[Tensor], count: int) -> Any:  # noqa: ANN401
    return (ctypes.c_int64 * len(tensors))(*(tensor.nbytes // count for tensor in tensors))


def _batch_of(market: Sequence[Tensor], in_parts: bool) -> torch.Size:
    shape = market[FIELDS.index("tick")].shape
    return shape[:-1] if in_parts else shape


def _check(market: Sequence[Tensor], layout: Sequence[int], batch: torch.Size, in_parts: bool) -> None:
    """Raise a ValueError for tensors that the library would read or write beyond their memory."""
    shapes = Layout(*layout).market_shapes()
    for name, tensor in zip(FIELDS, market, strict=True):
        shape, kind = shapes[name]
        if in_parts:
            seats = layout[0]
            shape = (seats * part_size(math.prod(shape), seats),)
        if tensor.shape != (*batch, *shape) or tensor.dtype != kind or not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, of shape {(*batch, *shape)} and {kind}, got {form(tensor)}")


@_tick.register_fake
def _(
    market: Sequence[Tensor],
    orders: Sequence[Tensor],
    rules: Sequence[Tensor],
    layout: Sequence[int],
    ticks: int,
    in_parts: bool,
) -> tuple[Tensor, Tensor]:
    tick, (narrow, wide) = market[FIELDS.index("tick")], _report_widths(layout)
    batch = _batch_of(market, in_parts)
    return tick.new_empty(*batch, narrow, dtype=torch.int32), tick.new_empty(*batch, wide)


def _mapped(tensors: Sequence[Tensor], dims: Sequence[int | None], count: int) -> list[Tensor]:
    """Return tensors with their mapped dimension first; those without one are repeated."""
    return [
        tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=True)
    ]


@_tick.register_vmap
def _(
    info: Any,  # noqa: ANN401
    in_dims: tuple[Any, ...],
    market: Sequence[Tensor],
    orders: Sequence[Tensor],
    rules: Sequence[Tensor],
    *numbers: Any,  # noqa: ANN401
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    market_dims, order_dims, rule_dims = in_dims[:3]
    if any(dim != 0 for dim in market_dims):
        raise ValueError("every tensor of a market must be mapped along its first dimension")
    if any(dim is not None for dim in rule_dims[2:]):
        raise ValueError("all markets share the tables of normal numbers, sizes and growth")
    sent = _mapped(orders, order_dims, info.batch_size)
    own = [tensor if dim is None else tensor.movedim(dim, 0) for tensor, dim in zip(rules, rule_dims, strict=True)]
    return torch.ops.vecenv.agent_market_tick(list(market), sent, own, *numbers), (0, 0)


PARTS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "candles": ((5, NUM_CANDLES), torch.int32),
    "bid": ((), torch.int32),
    "ask": ((), torch.int32),
    "doubled_mid": ((), torch.int32),
    "quantities": ((2, DEPTH), torch.int32),
    "news": ((4,), torch.int64),
    "estimate": ((), torch.int64),
}
"""Shape and type of what the library of features reads of a market, in its order."""


def seen_features(candles: Tensor, report: Report, weights: Tensor, fair_value: bool) -> Tensor:
    """Return `features.features` of one market, in C++ on a CPU with a compiler, else in PyTorch."""
    if candles.device.type == "cpu" and built_library(FEATURES) is not None:
        parts = [candles, *(getattr(report, name) for name in list(PARTS)[1:])]
        shown: Tensor = torch.ops.vecenv.agent_market_features(parts, weights, fair_value)
        return shown
    sign, magnitude, remaining, _ = report.news.unbind()
    sizes = report.quantities.sum(-1, dtype=torch.int32)
    return features(
        Candles(*candles.unbind()),
        Quote(report.bid, report.ask, sizes[BUY], sizes[SELL]),
        News(sign.float(), magnitude.float(), remaining.to(torch.int32)),
        report.estimate.float() * 2.0**-16 if fair_value else None,
        report.doubled_mid,
        weights,
    )


@torch.library.custom_op("vecenv::agent_market_features", mutates_args=(), device_types="cpu")
def _features(parts: Sequence[Tensor], weights: Tensor, fair_value: bool) -> Tensor:
    """Return the features of one market, or of a batch of markets along the first dimension."""
    library = built_library(FEATURES)
    if library is None:
        raise RuntimeError("there are no native features: no working C++ compiler was found")
    batch = parts[1].shape
    read = [_readable(name, tensor, batch) for name, tensor in zip(PARTS, parts, strict=True)]
    own_weights = weights.contiguous()
    if own_weights.shape != (4, NUM_CANDLES) or own_weights.dtype != torch.float32:
        raise ValueError(f"the weights must have shape {(4, NUM_CANDLES)} and float32, got {form(weights)}")
    width = len(feature_names(fair_value))
    shown = weights.new_empty(*batch, width)
    steps = [tensor.stride(0) * tensor.itemsize if batch else 0 for tensor in read]
    library.vecenv_agent_market_features(
        ctypes.c_int64(batch.numel()),
        _pointers(read),
        (ctypes.c_int64 * len(read))(*steps),
        ctypes.c_void_p(own_weights.data_ptr()),
        ctypes.c_int32(fair_value),
        ctypes.c_void_p(shown.data_ptr()),
        ctypes.c_int64(width),
    )
    return shown


def _readable(name: str, tensor: Tensor, batch: torch.Size) -> Tensor:
    """Return a tensor with the numbers of each market side by side; raises ValueError for another shape or type."""
    shape, kind = PARTS[name]
    if tensor.shape != (*batch, *shape) or tensor.dtype != kind or len(batch) > 1:
        raise ValueError(f"{name} must have shape {(*batch, *shape)} and {kind}, got {form(tensor)}")
    one = tensor[0] if batch and len(tensor) else tensor
    return tensor if one.is_contiguous() else tensor.contiguous()


@_features.register_fake
def _(parts: Sequence[Tensor], weights: Tensor, fair_value: bool) -> Tensor:
    return weights.new_empty(*parts[1].shape, len(feature_names(fair_value)))


@_features.register_vmap
def _(
    info: Any,  # noqa: ANN401
    in_dims: tuple[Any, ...],
    parts: Sequence[Tensor],
    weights: Tensor,
    fair_value: bool,
) -> tuple[Tensor, int]:
    part_dims, weight_dim, _ = in_dims
    if weight_dim is not None:
        raise ValueError("all markets share the weights of the means")
    batched = _mapped(parts, part_dims, info.batch_size)
    return torch.ops.vecenv.agent_market_features(batched, weights, fair_value), 0
