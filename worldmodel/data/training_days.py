"""Training days as rows for resampling generators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.market.bars import Bars
from vecenv.worldmodel.data.bar_moves import EncodedBars, Move, encode_history, log_return

MINIMUM_RETURNS = 250
"""Minimum number of daily returns of a fitted symbol, about a year."""


@dataclass(frozen=True, eq=False)
class TrainingDays:
    """Moves of a history, one row per day with a move of any symbol.

    Gaps are filled by the symbol's other days: a run of L days without a bar repeats the symbol's L days before it,
    cyclically, so that its last days precede its first. So a gap of one day repeats the previous day, and blocks of
    rows stay blocks. Volume moves are centred per symbol, else long draws would shift its level. Shapes: moves (R, K,
    5); valid, and `source`, the row that fills a symbol's day: (R, K).
    """

    symbols: tuple[str, ...]
    moves: Tensor
    valid: Tensor
    source: Tensor

    @classmethod
    def from_bars(cls, bars: Bars) -> TrainingDays:
        """Build the rows of a history of one path; raise ValueError for several, or as `from_moves`."""
        return cls.from_moves(bars, encode_history(bars))

    @classmethod
    def from_moves(cls, bars: Bars, encoded: EncodedBars, last_days: int | None = None) -> TrainingDays:
        """Build the rows from a history with encoded moves. With `last_days`, only so many last rows are kept.

        Raises:
            ValueError: there are fewer rows, a symbol has fewer than `MINIMUM_RETURNS` returns (or a return on less
                than half of ``last_days``), or its close never changes.
        """
        rows = encoded.valid[0].any(-1).nonzero().squeeze(-1)
        if last_days is not None and len(rows) < last_days:
            raise ValueError(f"{bars.source}: {len(rows)} daily returns, {last_days} are needed")
        rows = rows if last_days is None else rows[-last_days:]
        moves, valid = encoded.moves[0, rows], encoded.valid[0, rows]
        needed = MINIMUM_RETURNS if last_days is None else (last_days + 1) // 2
        count = valid.sum(0)
        short = [f"{name} has {n}" for name, n in zip(bars.symbols, count.tolist(), strict=True) if n < needed]
        if short:
            raise ValueError(f"{bars.source}: too few daily returns, {needed} are needed: {', '.join(short)}")
        still = (log_return(moves) == 0).all(0).tolist()
        if any(still):
            names = ", ".join(name for name, never in zip(bars.symbols, still, strict=True) if never)
            raise ValueError(f"{bars.source}: the close never changes: {names}")
        volume = moves[..., Move.VOLUME]
        volume -= torch.where(valid, volume.sum(0) / count, 0.0)
        return cls(bars.symbols, moves, valid, _source(valid))

    @property
    def returns(self) -> Tensor:
        """Log-returns from close to close, 0 where `valid` is not set. Shape: (R, K)."""
        return log_return(self.moves)

    def filled(self, values: Tensor) -> Tensor:
        """Fill each symbol's rows from their source rows. Shape: (R, K, ...)."""
        return values[self.source, torch.arange(values.shape[1])]


class DayShapes(NamedTuple):
    """Bar shapes of days, given their return, in units of volatility.

    Attributes:
        gap_share: regression coefficient of the gap on the day's return. Shape: (K,).
        table: residual gap, upper and lower wick over volatility, and the volume's move. Shape: (R, K, 4).
    """

    gap_share: Tensor
    table: Tensor

    @classmethod
    def from_days(cls, days: TrainingDays, volatility: Tensor) -> DayShapes:
        """Compute the shapes of training days. Shape of `volatility`: (R, K) or (K,)."""
        gap, _, upper, lower, volume = days.moves.unbind(-1)
        share = (gap * days.returns).sum(0) / days.returns.square().sum(0)
        scaled = [part / volatility for part in (gap - share * days.returns, upper, lower)]
        return cls(share, days.filled(torch.stack([*scaled, volume], dim=-1)))

    def moves(self, daily_return: Tensor, volatility: Tensor, row: Tensor, columns: Tensor) -> Tensor:
        """Return moves (P, K, 5) of given returns (P, K), with the shapes of training days `row`, (P, K) or (P, 1)."""
        rest, upper, lower, volume = self.table[row, columns].unbind(-1)
        gap = self.gap_share[columns] * daily_return + volatility * rest
        return torch.stack([gap, daily_return - gap, volatility * upper, volatility * lower, volume], dim=-1)


def symbol_positions(known: Sequence[str], asked: Sequence[str]) -> Tensor:
    """Return the position of each symbol in the known ones; raise ValueError naming unknown ones. Shape: (K,)."""
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise ValueError(f"unknown symbols: {', '.join(unknown)}; the model knows {', '.join(known)}")
    return torch.tensor([known.index(name) for name in asked])


def _source(valid: Tensor) -> Tensor:
    """Return the source row of each symbol's day. Shapes: (R, K)."""
    num_rows = len(valid)
    row = torch.arange(num_rows)[:, None].expand_as(valid)
    # The row of the next bar, the row itself if it has one.
    following = torch.where(valid, row, num_rows).flip(0).cummin(0).values.flip(0)
    count, before = valid.sum(0), valid.cumsum(0) - valid.long()
    own = valid.long().argsort(dim=0, descending=True, stable=True)
    return own.gather(0, (before - (following - row)) % count)
