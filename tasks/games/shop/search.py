"""BM25 search for a batch of queries over posting lists: an operator of `torch.library`, in C++ on a CPU.

Under `torch.vmap` it is called once for all rows. Scores are whole numbers (`vecenv.tasks.games.shop.catalogue`), so
both forms give the same bits. That in PyTorch, for other devices and without a compiler, has shapes that do not depend
on the words: nothing waits for the device, and a CUDA graph can hold it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.system.native_library import built_library

SOURCE = Path(__file__).with_name("search.cpp")

_CELLS = 1 << 25
"""Postings, with those that are left out, that are held at a time."""


@torch.library.custom_op("vecenv::shop_search", mutates_args=())
def _search(
    query: Tensor, asked: Tensor, first: Tensor, document: Tensor, impact: Tensor, documents: int, most: int
) -> Tensor:
    """Return the best documents of queries: (B, Q) int64, (B,) bool -> (B, most) int64."""
    found = query.new_full((len(query), most), -1)
    library = built_library(SOURCE) if query.device.type == "cpu" else None
    if library is not None:
        read = [tensor.contiguous() for tensor in (query, asked, first, document, impact)]
        sizes = (*query.shape, len(first) - 1, documents, most)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*read, found)]
        library.vecenv_shop_search(*map(ctypes.c_int64, sizes), *pointers)
        return found
    parts = query.split(max(1, _CELLS // (documents * query.shape[1])))
    told = [best(scores(part, first, document, impact, documents), most) for part in parts]
    return torch.where(asked[:, None], torch.cat(told), found)


def scores(query: Tensor, first: Tensor, document: Tensor, impact: Tensor, documents: int) -> Tensor:
    """Return the scores of all documents by queries, whose words count as often as they stand there.

    Shapes: (B, Q) -> (B, C), int32.
    """
    query = query.clamp(0, len(first) - 2)
    place = first[query][..., None] + torch.arange(documents, device=query.device)
    inside = place < first[query + 1][..., None]
    place = place.clamp(max=len(document) - 1)
    worth = torch.where(inside, impact[place], 0).flatten(1)
    cell = torch.where(inside, document[place], 0).flatten(1).long()
    return impact.new_zeros(len(query), documents).scatter_add_(1, cell, worth)


def best(score: Tensor, most: int) -> Tensor:
    """Return the documents of the largest positive scores, of equal ones the first; -1 behind.

    Shapes: (B, C) -> (B, most).
    """
    documents = score.shape[1]
    # One number for each document, so that there are no ties.
    lane = torch.arange(documents - 1, -1, -1, device=score.device)
    top = (score.long() * documents + lane).topk(min(most, documents), dim=1).values
    found = torch.where(top >= documents, documents - 1 - top % documents, -1)
    return torch.nn.functional.pad(found, (0, most - found.shape[1]), value=-1)


@_search.register_fake
def _(
    query: Tensor, asked: Tensor, first: Tensor, document: Tensor, impact: Tensor, documents: int, most: int
) -> Tensor:
    return query.new_empty(len(query), most)


@_search.register_vmap
def _(
    info: Any,  # noqa: ANN401
    in_dims: tuple[int | None, ...],
    query: Tensor,
    asked: Tensor,
    *shared: Any,  # noqa: ANN401
) -> tuple[Tensor, int]:
    query, asked = (
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip((query, asked), in_dims, strict=False)
    )
    found: Tensor = torch.ops.vecenv.shop_search(query.flatten(0, 1), asked.flatten(), *shared)
    return found.unflatten(0, query.shape[:2]), 0


def search(query: Tensor, asked: Tensor, shared: Mapping[str, Tensor], most: int) -> Tensor:
    """Return the best documents of one session's query; -1 behind them, and everywhere if it is not asked for.

    Shapes: (Q,), () -> (most,), int64.
    """
    lists = (shared["first"], shared["document"], shared["impact"])
    found: Tensor = torch.ops.vecenv.shop_search(query[None], asked[None], *lists, len(shared["price"]), most)
    return found[0]
