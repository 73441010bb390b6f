"""Scores and texts of documents per symbol and day: what was known at the close on which an agent decides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SCORES = ("sentiment", "risk")
"""Names of the scores, in the order of a panel's last dimension."""

LOWEST, NEUTRAL, HIGHEST = 1.0, 3.0, 5.0
"""Range of a score. Sentiment runs from very negative to very positive, risk from very low to very high."""


@dataclass(frozen=True, eq=False)
class Panels:
    """Scores of P paths, T days and K symbols, and the texts behind them where they are at hand.

    Attributes:
        scores: sentiment and risk, `NEUTRAL` where there is none. Shape: (P, T, K, 2), float32.
        known: whether there is a score. Shape: (P, T, K, 2), bool.
        text: position of the day's text in ``texts``, -1 for none; None without texts. Shape: (P, T, K), int64.
        texts: the different texts.
    """

    scores: Tensor
    known: Tensor
    text: Tensor | None = None
    texts: tuple[str, ...] = ()

    def changed(self, change: Callable[[Tensor], Tensor]) -> Panels:
        text = None if self.text is None else change(self.text)
        return replace(self, scores=change(self.scores), known=change(self.known), text=text)

    def shuffled(self, where: Tensor, seed: int) -> Panels:
        """Return the panels with days of each path and symbol in random order: the control without information.

        Only days ``where`` a symbol's are marked are exchanged. The order is the same on every device.
        """
        generator = torch.Generator().manual_seed(seed)
        draw = torch.rand(where.shape, generator=generator, dtype=torch.float64).to(where.device)
        # The n-th day of a symbol receives what its n-th day in random order had.
        days = torch.arange(where.shape[1], device=where.device, dtype=torch.float64)[:, None].expand(where.shape)
        target = torch.where(where, days, torch.inf).argsort(dim=1, stable=True)
        source = torch.where(where, draw, torch.inf).argsort(dim=1, stable=True)
        # Behind them stand the days that stay, in their own order on both sides.
        taken = torch.empty_like(target).scatter_(1, target, source)

        def exchanged(tensor: Tensor) -> Tensor:
            index = taken if tensor.ndim == taken.ndim else taken.unsqueeze(-1).expand(tensor.shape)
            return tensor.gather(1, index)

        return self.changed(exchanged)

    def digest(self) -> bytes:
        digest = hashlib.sha256("\0".join(self.texts).encode())
        for tensor in self.tensors():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.digest()

    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.scores, self.known, self.text) if tensor is not None]
