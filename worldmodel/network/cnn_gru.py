"""CNN-GRU trunk: causal convolutions over the days of one symbol, then a gated recurrent unit.

The unit is that of Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.worldmodel.network.settings import CnnGruSettings
from vecenv.worldmodel.network.trunk import Trunk


class CnnGruCache(NamedTuple):
    """Last inputs of each convolution (layers, B, kernel - 1, channels), and the recurrent unit's state (B, width)."""

    recent: Tensor
    state: Tensor

    def chosen(self, rows: Tensor) -> CnnGruCache:
        return CnnGruCache(self.recent[:, rows], self.state[rows])

    @classmethod
    def joined(cls, parts: Sequence[CnnGruCache]) -> CnnGruCache:
        return cls(torch.cat([part.recent for part in parts], dim=1), torch.cat([part.state for part in parts]))

    def repeatable(self) -> CnnGruCache:
        """Return the cache itself: every step has the same operations."""
        return self


class CnnGru(Trunk[CnnGruCache]):
    """Maps the features of each day to a representation for predicting the next day."""

    def __init__(self, num_features: int, settings: CnnGruSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embed = nn.Linear(num_features, settings.channels)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(settings.channels, settings.channels, settings.kernel) for _ in range(settings.layers)
        )
        self.unit = nn.GRU(settings.channels, settings.width, batch_first=True)

    def forward(self, features: Tensor) -> Tensor:
        hidden, _ = self._read(features)
        # One mask for all days, as in the transformer.
        return hidden * functional.dropout(torch.ones_like(hidden[:, :1]), self.settings.dropout, self.training)

    def prefill(self, features: Tensor) -> tuple[Tensor, CnnGruCache]:
        hidden, recent = self._read(features)
        return hidden[:, -1], CnnGruCache(recent, hidden[:, -1])

    def step(self, features: Tensor, cache: CnnGruCache, day_weights: None = None) -> tuple[Tensor, CnnGruCache]:
        hidden, recent = self.embed(features), []
        for convolution, before in zip(self.convolutions, cache.recent, strict=True):
            seen = torch.cat([before, hidden.unsqueeze(1)], dim=1)
            hidden = hidden + functional.silu(convolution(seen.mT)).squeeze(-1)
            recent.append(seen[:, 1:])
        state = self.unit(hidden.unsqueeze(1), cache.state.unsqueeze(0))[0].squeeze(1)
        return state, CnnGruCache(torch.stack(recent), state)

    def _read(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states after all days, and the convolutions' last inputs; days before the first are zero."""
        earlier = self.settings.kernel - 1
        hidden, recent = self.embed(features), []
        for convolution in self.convolutions:
            seen = functional.pad(hidden, (0, 0, earlier, 0))
            hidden = hidden + functional.silu(convolution(seen.mT)).mT
            recent.append(seen[:, seen.shape[1] - earlier :])
        return self.unit(hidden)[0], torch.stack(recent)
