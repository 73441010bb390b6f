"""Random subsets of a market's symbols as paths, so that a policy of symbols learns from many portfolios of a history.

The idea is that of random subspaces: Ho, "The random subspace method for constructing decision forests", 1998.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.tape import MarketTape
from vecenv.market.validation import MarketDataError
from vecenv.system.memory import check_memory


def drawn_subsets(tape: MarketTape, size: int, count: int, seed: int) -> Tensor:
    """Return positions of the symbols of each path's random subsets. Shape: (P, count, size), int64, on the CPU.

    Only symbols that trade on a day of the path are drawn, each subset of ``size`` of them with equal probability; two
    may be equal. They are in the tape's order, and the draw is the same on every device.

    Raises:
        MarketDataError: fewer symbols trade on a path.
    """
    trades = tape.tradable.any(1).cpu()
    fewest = int(trades.sum(-1).min())
    if fewest < size:
        raise MarketDataError(
            f"{tape.source}: subsets of {size} symbols cannot be drawn: "
            f"{fewest} of {tape.num_symbols} trade on the training days"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(tape.num_paths, count, tape.num_symbols, generator=generator, dtype=torch.float64)
    # The first of a random permutation, with symbols that never trade at its end.
    order = torch.where(trades.unsqueeze(1), order, 2.0).argsort(-1)
    return order[..., :size].sort(-1).values


def symbol_subsets(tape: MarketTape, size: int, count: int, seed: int) -> MarketTape:
    """Return a tape of ``size`` symbols with ``count`` random subsets of each path's symbols as its paths.

    Path p of the result has symbols of path p // ``count``, those of `drawn_subsets`, with their prices and features
    as they are, in the same ticks. Symbols differ between paths, so they are named ``*1``, ``*2`` and so on, and
    series of the whole market remain those of all its symbols. The best rule of a subset is unknown.

    Raises:
        MarketDataError: fewer symbols trade on a path.
        ValueError: ``size`` or ``count`` is below one, or the tape does not fit into memory.
    """
    for name, value in (("size", size), ("count", count)):
        if value < 1:
            raise ValueError(f"{name} of subsets must be at least 1, got {value}")
    paths = tape.num_paths * count
    row = tape.ohlcv[0, 0, 0].nbytes + tape.features[0, 0, 0].nbytes + tape.tradable.element_size()
    check_memory(paths * tape.num_days * size * row, tape.device, f"{paths:,} paths of {size} symbols")
    index = drawn_subsets(tape, size, count, seed).to(tape.device)

    def chosen(tensor: Tensor) -> Tensor:
        parts = [tensor[path].index_select(1, some) for path, subsets in enumerate(index) for some in subsets]
        return torch.stack(parts)

    names = tuple(f"*{place + 1}" for place in range(size))
    return tape.by_symbol(chosen, symbols=names, context=tape.context.repeat_interleave(count, 0), path_span=None)
