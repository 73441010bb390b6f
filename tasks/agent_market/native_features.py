"""`features.features` in C++, for CPUs: one pass over each market, in place of one for each feature.

An operator of `torch.library` that `torch.vmap` batches and compiled steps call. Its numbers are those of the reference
up to rounding (a test).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.core.checks import form
from vecenv.kernels.native_library import built_library
from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.tasks.agent_market.background import NUM_CANDLES
from vecenv.tasks.agent_market.features import Candles, News, Quote, feature_names, features
from vecenv.tasks.agent_market.market import DEPTH, Report

SOURCE = Path(__file__).with_name("features.cpp")

PARTS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "candles": ((5, NUM_CANDLES), torch.int32),
    "bid": ((), torch.int32),
    "ask": ((), torch.int32),
    "doubled_mid": ((), torch.int32),
    "quantities": ((2, DEPTH), torch.int32),
    "news": ((4,), torch.int64),
    "estimate": ((), torch.int64),
}
"""Shape and type of what the library reads of a market, in its order."""


def seen_features(candles: Tensor, report: Report, weights: Tensor, fair_value: bool) -> Tensor:
    """Return `features.features` of one market, in C++ on a CPU with a compiler, else in PyTorch."""
    if candles.device.type == "cpu" and built_library(SOURCE) is not None:
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
    library = built_library(SOURCE)
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
        (ctypes.c_void_p * len(read))(*(tensor.data_ptr() for tensor in read)),
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
    batched = [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(parts, part_dims, strict=True)
    ]
    return torch.ops.vecenv.agent_market_features(batched, weights, fair_value), 0
