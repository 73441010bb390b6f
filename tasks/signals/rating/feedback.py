"""Which signals count, and the market's feedback on them."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.tasks.signals.rating.config import LARGEST_SIGNAL, NewsSignalsConfig


def signals_of(action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the signals that an action means, (K,), int64, all 0 if it is invalid, and whether it is valid.

    Actions are choices, (K,), int64, numbers in [-1, 1], (K,), floating, or signals, (K, 1), int64.
    """
    if action.is_floating_point():
        valid = action.isfinite().all()
        asked = (LARGEST_SIGNAL * action.nan_to_num().clamp(-1.0, 1.0)).round().to(torch.int64)
    else:
        asked = action.squeeze(-1) if action.ndim == 2 else action - LARGEST_SIGNAL
        valid = (asked.abs() <= LARGEST_SIGNAL).all()
    return torch.where(valid, asked, 0), valid


def counting(signal: Tensor, tradable: Tensor, config: NewsSignalsConfig) -> Tensor:
    """Return the signals that count, 0 elsewhere. Shapes: (K,), (K,) -> (K,), int64."""
    said = torch.where(tradable, signal, 0)
    counts = said.abs() >= config.threshold
    if config.picks:
        place = said.argsort(descending=True, stable=True).argsort()
        counts = counts & ((place < config.picks) | (place >= len(said) - config.picks))
    return torch.where(counts, said, 0)


def most_counting(num_symbols: int, config: NewsSignalsConfig) -> int:
    """Return how many signals may count, N."""
    return 2 * config.picks or num_symbols


def settled(tradable: Tensor, horizon: int) -> Tensor:
    """Return the day on which the move after each day is over. Shape: (P, T, K) -> (P, T, K), int64.

    It is the first with a bar at the horizon or later, the horizon itself without one on the tape.
    """
    num_days = tradable.shape[1]
    day = torch.arange(num_days, device=tradable.device)[:, None]
    following = torch.where(tradable, day, num_days).flip(1).cummin(1).values.flip(1)
    end = (day + horizon).clamp(max=num_days - 1)
    found = following.gather(1, end.expand_as(following))
    return torch.where(found < num_days, found, end)


def moves(prices: Tensor, tradable: Tensor, config: NewsSignalsConfig) -> Tensor:
    """Return the moves after each day over the horizon, 0 where it does not end on the tape. Shape: (P, T, K)."""
    horizon = min(config.horizon, prices.shape[1])
    # A symbol without a price yet has no bar either.
    base = torch.where(tradable, prices, 1.0)[:, : prices.shape[1] - horizon]
    known = tradable[:, : base.shape[1]]
    later = prices.gather(1, settled(tradable, horizon)[:, : base.shape[1]])
    move = torch.where(known, later / base - 1.0, 0.0)
    if config.demeaned:
        mean = move.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
        move = torch.where(known, move - mean, 0.0)
    return torch.cat([move, torch.zeros_like(prices[:, :horizon])], dim=1)


def feedback(counted: Tensor, move: Tensor, cost: Tensor, config: NewsSignalsConfig) -> Tensor:
    """Return the reward of the signals, 0 where they do not count; ``cost`` is that of the strongest on all symbols."""
    strength = counted.double() / LARGEST_SIGNAL
    if config.feedback == "return":
        paid = 100.0 * move * strength
    else:
        paid = torch.where(move.abs() > config.move_threshold, strength.sign() * move.sign(), 0.0)
    return (paid - cost.double() * strength.abs()).sum(-1) / most_counting(counted.shape[-1], config)
