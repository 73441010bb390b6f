"""What policies see of a symbol on a day: scores with their masks, and recent returns."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.panels import HIGHEST, NEUTRAL, SCORES, Panels

ITEM_FEATURES = tuple(column for name in SCORES for column in (name, f"{name}_known"))
"""Names of the first features of a symbol; the returns follow."""

PERCENT = 100.0


def daily_returns(close: Tensor, tradable: Tensor) -> Tensor:
    """Return simple returns from the day before, 0 where the symbol had no bar so far. Shape of each: (P, T, K)."""
    listed = tradable.cummax(1).values[:, :-1]
    change = torch.where(listed, close[:, 1:] / torch.where(listed, close[:, :-1], 1.0) - 1.0, 0.0)
    return torch.cat([torch.zeros_like(close[:, :1]), change], dim=1)


def recent_returns(close: Tensor, tradable: Tensor, recent_days: int) -> Tensor:
    """Return the last daily returns of each day, the latest first, 0 before the tape. Shape: (P, T, K, recent_days)."""
    change = daily_returns(close, tradable)
    late = [
        torch.cat([torch.zeros_like(change[:, :back]), change[:, : change.shape[1] - back]], dim=1)
        for back in range(recent_days)
    ]
    return torch.stack(late, dim=-1) if late else change.new_zeros(*change.shape, 0)


def day_features(panels: Panels, close: Tensor, tradable: Tensor, recent_days: int) -> Tensor:
    """Return the features of every symbol and day. Shapes: (P, T, K) -> (P, T, K, 4 + recent_days), float32."""
    scores = (panels.scores - NEUTRAL) / (HIGHEST - NEUTRAL)
    shown = torch.stack([torch.where(panels.known, scores, 0.0), panels.known.float()], dim=-1).flatten(-2)
    returns = PERCENT * recent_returns(close, tradable, recent_days)
    return torch.cat([shown, returns.float()], dim=-1)
