"""Returns of perfect hindsight from every start day, by dynamic programming: the upper end of a grade's scale.

One symbol is solved exactly: between cash and a full position, at closes and with proportional costs, by dynamic
programming. Days may be closed to purchases, or to all trading. An account of several symbols is split into sleeves of
one symbol each. Money does not move between sleeves, so with several sleeves this approximates the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_BLOCK_ELEMENTS = 2**16
"""Start days times symbols per block, so that a block stays in the cache: 512 KiB per tensor."""

# A remainder of the exposure from rounding gets no sleeve.
_NO_SHARE = 1e-9


class Hindsight(NamedTuple):
    """Results of hindsight by start day and number of days.

    Attributes:
        total_return: simple return after n days, at least 0. Shape: (P, T, days + 1), float32.
        exposure: mean over the n days of the shares invested. Shape: (P, T, days + 1), float32.
    """

    total_return: Tensor
    exposure: Tensor


class _Plans(NamedTuple):
    """Best plans so far from 1 in cash: wealth, 0 for no plan, and days invested. Shape of each: (..., K)."""

    cash: Tensor
    long: Tensor
    cash_days: Tensor
    long_days: Tensor


def sleeves(max_position: float, max_exposure: float, num_symbols: int) -> tuple[float, ...]:
    """Split an account into sleeves of at most ``max_position`` that sum to at most ``max_exposure``, largest first.

    Raises:
        ValueError: a limit is not in (0, 1], or there is no symbol.
    """
    for name, limit in (("max_position", max_position), ("max_exposure", max_exposure)):
        if not 0.0 < limit <= 1.0:
            raise ValueError(f"{name} must be above 0 and at most 1, got {limit}")
    if num_symbols < 1:
        raise ValueError(f"sleeves need at least one symbol, got num_symbols={num_symbols}")
    shares: list[float] = []
    left = max_exposure
    while left > _NO_SHARE and len(shares) < num_symbols:
        shares.append(min(max_position, left))
        left -= shares[-1]
    return tuple(shares)


def hindsight_tables(
    close: Tensor, tradable: Tensor, buyable: Tensor, days: int, cost: float, shares: Sequence[float]
) -> Hindsight:
    """Compute what hindsight earns from every start day over 0 to ``days`` days.

    Entry [p, t, n] is for an episode that started at the close of day t and has run n days. Accounts are valued at
    closes, so nothing has to be sold at the end. Plan and symbols are chosen separately for each number of days.
    Beyond the last day prices stay constant.

    Args:
        close: closing prices; 0 before a listing. Shape: (P, T, K).
        tradable: where the symbol can be sold, bool. Shape: (P, T, K).
        buyable: where it can be bought, bool. Shape: (P, T, K).
        days: longest episode, at least 1.
        cost: share of the value traded that each purchase and each sale costs, in [0, 1).
        shares: sleeves of the account, from `sleeves`. The largest takes the symbol with the highest gain.

    Raises:
        ValueError: the shapes differ, or a number is out of its range.
    """
    _refuse_bad_arguments(close, tradable, buyable, cost, shares)
    if days < 1:
        raise ValueError(f"hindsight needs at least 1 day, got days={days}")
    num_paths, num_days, num_symbols = close.shape
    tables = Hindsight(*(torch.zeros(num_paths, num_days, days + 1, device=close.device) for _ in range(2)))
    block = max(1, MAX_BLOCK_ELEMENTS // (num_days * num_symbols))
    for first in range(0, num_paths, block):
        paths = slice(first, first + block)
        growth = torch.nn.functional.pad(_growth(close[paths]), (0, 0, 0, days), value=1.0)
        can_sell, can_buy = (torch.nn.functional.pad(mask[paths], (0, 0, 0, days - 1)) for mask in (tradable, buyable))
        plans = _in_cash(close[paths])
        for elapsed in range(days):
            today = slice(elapsed, elapsed + num_days)
            plans, _, _ = _switched(plans, can_sell[:, today], can_buy[:, today], cost)
            plans = _grown(plans, growth[:, today])
            wealth, symbols, weights = _chosen(plans, shares)
            invested = torch.where(plans.long > plans.cash, plans.long_days, plans.cash_days).gather(-1, symbols)
            tables.total_return[paths, :, elapsed + 1] = ((wealth - 1.0) @ weights).float()
            tables.exposure[paths, :, elapsed + 1] = (invested @ weights / (elapsed + 1)).float()
    return tables


def hindsight_holdings(
    close: Tensor, tradable: Tensor, buyable: Tensor, cost: float, shares: Sequence[float]
) -> Tensor:
    """Return the holdings of the optimal plans of `hindsight_tables`, from each close to the next.

    Args:
        close: closing prices of N windows of L days and of the day after. Shape: (N, L + 1, K).
        tradable: where the symbol can be sold, bool. Shape: (N, L + 1, K).
        buyable: where it can be bought, bool. Shape: (N, L + 1, K).
        cost: share of the value traded that each purchase and each sale costs, in [0, 1).
        shares: sleeves of the account, from `sleeves`.

    Returns:
        The symbol's sleeve on the days on which it is invested, else 0. Sleeves are not rebalanced: a position is held
        unchanged from its purchase to its sale. Shape: (N, L, K), float32.

    Raises:
        ValueError: the shapes differ, there is no day, or a number is out of its range.
    """
    _refuse_bad_arguments(close, tradable, buyable, cost, shares)
    if close.shape[1] < 2:
        raise ValueError(f"hindsight needs a window of at least 2 closes, got {close.shape[1]}")
    growth = _growth(close)
    plans = _in_cash(close[:, :1])
    switches = []
    for day in range(growth.shape[1]):
        today = slice(day, day + 1)
        plans, bought, sold = _switched(plans, tradable[:, today], buyable[:, today], cost)
        plans = _grown(plans, growth[:, today])
        switches.append((bought, sold))
    # Backtracking: a plan that is invested after a purchase was in cash before it.
    invested, invested_days = plans.long > plans.cash, []
    for bought, sold in reversed(switches):
        invested_days.append(invested)
        invested = torch.where(invested, ~bought, sold)
    _, symbols, weights = _chosen(plans, shares)
    share = torch.zeros_like(plans.cash).scatter(-1, symbols, weights.expand(symbols.shape))
    return torch.cat(invested_days[::-1], dim=1) * share.float()


def _refuse_bad_arguments(
    close: Tensor, tradable: Tensor, buyable: Tensor, cost: float, shares: Sequence[float]
) -> None:
    if close.ndim != 3 or not close.shape == tradable.shape == buyable.shape:
        raise ValueError(
            f"close {tuple(close.shape)}, tradable {tuple(tradable.shape)} and buyable {tuple(buyable.shape)} must "
            f"have one shape of three dimensions"
        )
    if not 0.0 <= cost < 1.0:
        raise ValueError(f"cost must be at least 0 and below 1, got {cost}")
    if not shares:
        raise ValueError("shares must name at least one sleeve")


def _growth(close: Tensor) -> Tensor:
    """Return close / close of the day before, 1 before a listing. Shape: (P, T, K) -> (P, T - 1, K), float64."""
    before, after = close[:, :-1].double(), close[:, 1:].double()
    return torch.where(before > 0, after / torch.where(before > 0, before, 1.0), 1.0)


def _in_cash(like: Tensor) -> _Plans:
    nothing = torch.zeros_like(like, dtype=torch.float64)
    return _Plans(nothing + 1.0, nothing, nothing, nothing)


def _switched(plans: _Plans, tradable: Tensor, buyable: Tensor, cost: float) -> tuple[_Plans, Tensor, Tensor]:
    # On untradable days switching costs everything, so no plan switches.
    position = plans.cash * (1.0 - cost) * buyable.double()
    proceeds = plans.long * (1.0 - cost) * tradable.double()
    bought, sold = position > plans.long, proceeds > plans.cash
    after = _Plans(
        cash=torch.maximum(plans.cash, proceeds),
        long=torch.maximum(plans.long, position),
        cash_days=torch.where(sold, plans.long_days, plans.cash_days),
        long_days=torch.where(bought, plans.cash_days, plans.long_days),
    )
    return after, bought, sold


def _grown(plans: _Plans, growth: Tensor) -> _Plans:
    return plans._replace(long=plans.long * growth, long_days=plans.long_days + 1.0)


def _chosen(plans: _Plans, shares: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return wealth and symbols of the best plans, best first, and their sleeves. Shapes: (..., S), (..., S), (S,)."""
    count = min(len(shares), plans.cash.shape[-1])
    wealth, symbols = torch.maximum(plans.cash, plans.long).topk(count, dim=-1)
    return wealth, symbols, torch.tensor(shares[:count], dtype=torch.float64, device=wealth.device)
