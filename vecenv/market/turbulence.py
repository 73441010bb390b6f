"""Financial turbulence index: Mahalanobis distance of a day's returns from the trailing year."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_WINDOW_ELEMENTS = 2**22
"""Bound of the returns expanded into windows at once: 32 MiB."""


def turbulence(close: Tensor, listed: Tensor, lookback: int = 252) -> Tensor:
    """Squared Mahalanobis distance of each day's returns from the trailing year (Kritzman and Li, 2010).

    ``d = (r - μ)ᵀ Σ⁺ (r - μ)``: r the day's simple returns, μ and Σ the mean and the sample
    covariance of the ``lookback`` returns before it, Σ⁺ the pseudo-inverse, as in FinRL's
    ``FeatureEngineer.calculate_turbulence``. A symbol takes part on a day only if it has a bar on
    that day and on each of the ``lookback + 1`` days before. The mean is about the number of symbols
    under a stationary distribution, and grows as that number approaches ``lookback``.

    FinRL sets its first two positive values to zero, and takes the first of them from one return
    less. Here values start once the window is full, so that on complete data day ``lookback + 1``
    has a value where FinRL has 0, and all others agree.

    Args:
        close: closing prices; read only where listed. Shape: (P, T, K).
        listed: whether the symbol has a bar on the day, bool. Shape: (P, T, K).
        lookback: trailing days of returns, at least 2.

    Returns:
        float64, 0 where no symbol has a full window. Shape: (P, T).

    Raises:
        ValueError: ``lookback`` is below 2 or the shapes differ.
    """
    if lookback < 2:
        raise ValueError(f"a covariance needs a lookback of at least 2 days, got {lookback}")
    if close.shape != listed.shape:
        raise ValueError(f"close {tuple(close.shape)} and listed {tuple(listed.shape)} must have one shape")
    paths, days, symbols = close.shape
    distances = torch.zeros(paths, days, dtype=torch.float64, device=close.device)
    first_day = lookback + 1
    if days <= first_day:
        return distances

    close = close.double()
    has_return = listed[:, 1:] & listed[:, :-1]
    returns = torch.where(has_return, close[:, 1:] / close[:, :-1] - 1.0, 0.0)
    window = lookback + 1
    chunk = max(1, MAX_WINDOW_ELEMENTS // (paths * symbols * window))
    return_windows = returns.unfold(1, window, 1).split(chunk, dim=1)
    full_windows = has_return.unfold(1, window, 1).split(chunk, dim=1)
    distances[:, first_day:] = torch.cat(
        [_mahalanobis(values, full.all(-1)) for values, full in zip(return_windows, full_windows, strict=True)],
        dim=1,
    )
    return distances


def _mahalanobis(returns: Tensor, takes_part: Tensor) -> Tensor:
    """Squared distance of each window's last return from those before it. Shape: (P, D)."""
    # A symbol of zeros adds zero eigenvalues only, which the pseudo-inverse drops.
    returns = returns * takes_part.unsqueeze(-1)
    history, today = returns[..., :-1], returns[..., -1]
    mean = history.mean(-1, keepdim=True)
    centred = history - mean
    covariance = centred @ centred.mT / (history.shape[-1] - 1)
    variances, directions = torch.linalg.eigh(covariance)
    deviation = (today.unsqueeze(-2) - mean.mT) @ directions
    negligible = variances[..., -1:] * variances.shape[-1] * torch.finfo(variances.dtype).eps
    kept = variances > negligible
    return torch.where(kept, deviation.squeeze(-2).square() / variances, 0.0).sum(-1)
