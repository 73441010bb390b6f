"""Causal transformer over the days of one symbol: rotary positions, a sliding window, and a ring-buffer cache.

Every layer sees the last `window` days. Keys are stored rotated (Su et al. 2021, RoFormer), so only the distance
between days counts, and a ring buffer of `window` places serves any number of days. All heads share one key and one
value (Shazeer 2019, multi-query attention): a rollout is bound by reading the cache, which is as many times smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from worldmodel.trunk import Trunk

ROTARY_BASE = 1000.0


@dataclass(frozen=True)
class TransformerSettings:
    """Sizes of the network.

    Attributes:
        layers: number of layers.
        width: numbers per day and symbol between layers.
        heads: attention heads; their width must be even.
        hidden: width of the feed-forward layer.
        window: days that one layer sees, the present one included.
        dropout: share of a layer's output dropped in training, the same numbers on all days of a symbol.
    """

    layers: int = 4
    width: int = 192
    heads: int = 4
    hidden: int = 384
    window: int = 60
    dropout: float = 0.1

    @property
    def reach(self) -> int:
        """Days of history that reach the output."""
        return self.layers * self.window


class Cache(NamedTuple):
    """Keys and values of the last days of every layer.

    Attributes:
        keys: rotated. Shape: (layers, B, window, width of head).
        values: Shape: the same.
        length: days seen so far. Shape: (), int64.
    """

    keys: Tensor
    values: Tensor
    length: Tensor

    def chosen(self, rows: Tensor) -> Cache:
        """Return a copy for some of the sequences, any of them more than once. Shape of the numbers: (N,)."""
        return Cache(self.keys[:, rows], self.values[:, rows], self.length.clone())


class Transformer(Trunk[Cache]):
    """Maps the features of each day to what is known of the next day.

    Args:
        num_features: F.
        settings: sizes.
    """

    def __init__(self, num_features: int, settings: TransformerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embed = nn.Linear(num_features, settings.width)
        self.layers = nn.ModuleList(_Layer(settings) for _ in range(settings.layers))
        self.norm = nn.RMSNorm(settings.width)

    def forward(self, features: Tensor) -> Tensor:
        """Read whole sequences. Shape: (B, T, F) -> (B, T, width)."""
        return self._read(features)[0]

    def _read(self, features: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        days = features.shape[-2]
        position = torch.arange(days, device=features.device)
        distance = position[:, None] - position
        mask = (distance >= 0) & (distance < self.settings.window)
        hidden, stored = self.embed(features), []
        for layer in self.layers:
            hidden, keys, values = layer(hidden, position, mask)
            stored.append((keys, values))
        return self.norm(hidden), stored

    def prefill(self, features: Tensor) -> tuple[Tensor, Cache]:
        """Read a history; return what is known after its last day, and the cache. Shape: (B, T, F) -> (B, width)."""
        hidden, stored = self._read(features)
        days, window = features.shape[-2], self.settings.window
        kept = torch.arange(max(0, days - window), days, device=features.device)
        first = stored[0][0]
        keys = first.new_zeros(len(stored), len(first), window, first.shape[-1])
        values = torch.zeros_like(keys)
        for layer, (layer_keys, layer_values) in enumerate(stored):
            keys[layer][:, kept % window] = layer_keys[:, kept]
            values[layer][:, kept % window] = layer_values[:, kept]
        return hidden[:, -1], Cache(keys, values, torch.tensor(days, device=features.device))

    def step(self, features: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Read one more day; the cache's tensors are written in place. Shape: (B, F) -> (B, width)."""
        window = self.settings.window
        place = cache.length % window
        # Until the buffer is full, places not yet written are hidden.
        hiding = torch.zeros(window, dtype=features.dtype, device=features.device)
        hiding.masked_fill_(torch.arange(window, device=features.device) > cache.length, -torch.inf)
        hidden = self.embed(features)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            hidden = layer.step(hidden, cache.keys[index], cache.values[index], cache.length, place, hiding)
        return self.norm(hidden), cache._replace(length=cache.length + 1)


class _Layer(nn.Module):
    """Attention and a feed-forward layer, each on the normalised input and added to it."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.attention_norm, self.feed_norm = nn.RMSNorm(settings.width), nn.RMSNorm(settings.width)
        self.head_width = settings.width // settings.heads
        self.project = nn.Linear(settings.width, settings.width + 2 * self.head_width, bias=False)
        self.output = nn.Linear(settings.width, settings.width, bias=False)
        self.expand = nn.Linear(settings.width, settings.hidden)
        self.contract = nn.Linear(settings.hidden, settings.width)
        self.dropout = settings.dropout

    def forward(self, hidden: Tensor, position: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return output, rotated keys and values. Shapes: (B, T, width), 2 x (B, T, width of head)."""
        query, key, value = self._projected(hidden)
        query, key = _rotated(query.transpose(1, 2), position), _rotated(key, position)
        shared_key, shared_value = (part.unsqueeze(1).expand(-1, self.heads, -1, -1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, shared_key, shared_value, attn_mask=mask)
        hidden = hidden + self._dropped(self.output(mixed.transpose(1, 2).flatten(2)))
        return hidden + self._dropped(self._feed(hidden)), key, value

    def step(
        self, hidden: Tensor, keys: Tensor, values: Tensor, position: Tensor, place: Tensor, hiding: Tensor
    ) -> Tensor:
        """Return the output for one day, writing its key and value at ``place``. Shape: (B, width)."""
        query, key, value = self._projected(hidden.unsqueeze(1))
        at = position.reshape(1)
        keys.index_copy_(1, place.reshape(1), _rotated(key, at))
        values.index_copy_(1, place.reshape(1), value)
        # The heads take the place of positions: one product reads the keys once for all of them. PyTorch's own
        # attention copies the keys to scale them, which would be most of its time here.
        heads = _rotated(query.transpose(1, 2), at).squeeze(2) * self.head_width**-0.5
        weight = torch.softmax(torch.bmm(heads, keys.mT) + hiding, dim=-1)
        hidden = hidden + self.output(torch.bmm(weight, values).flatten(1))
        return hidden + self._feed(hidden)

    def _projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values. Shapes: (B, T, heads, width of head), 2 x (B, T, width of head)."""
        width = hidden.shape[-1]
        query, key, value = self.project(self.attention_norm(hidden)).split(
            (width, self.head_width, self.head_width), dim=-1
        )
        return query.unflatten(-1, (self.heads, -1)), key, value

    def _dropped(self, output: Tensor) -> Tensor:
        """Drop numbers in training, the same on all days: fewer draws, and no noise between days (Gal 2016)."""
        kept = torch.ones_like(output[:, :1])
        return output * functional.dropout(kept, self.dropout, self.training)

    def _feed(self, hidden: Tensor) -> Tensor:
        return self.contract(functional.silu(self.expand(self.feed_norm(hidden))))


def _rotated(vectors: Tensor, position: Tensor) -> Tensor:
    """Rotate pairs of numbers by angles that grow with the day. Shapes: (..., T, E), (T,)."""
    half = vectors.shape[-1] // 2
    rate = ROTARY_BASE ** (-torch.arange(half, device=vectors.device) / half)
    angle = position[:, None] * rate
    cosine, sine = angle.cos().to(vectors.dtype), angle.sin().to(vectors.dtype)
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
