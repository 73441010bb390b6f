"""Causal transformer trunk over the days of one symbol: rotary positions, sliding window, ring-buffer cache.

Every layer attends to the last `window` days. Keys are stored rotated (Su et al. 2021, RoFormer), so only the distance
between days matters, and a ring buffer of `window` slots holds any number of days. All heads share one key and one
value (Shazeer 2019, multi-query attention), which makes the cache smaller by the number of heads: rollouts are bound by
reading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.worldmodel.network.attention import attended
from vecenv.worldmodel.network.settings import TransformerSettings
from vecenv.worldmodel.network.trunk import Trunk

ROTARY_BASE = 1000.0


class Cache(NamedTuple):
    """Rotated keys (layers, B, width of head, window) and values (layers, B, window, width of head) of the last days.

    `length`, the days read so far, is a tensor of shape () if the buffer is full and steps are captured.
    """

    keys: Tensor
    values: Tensor
    length: int | Tensor

    def chosen(self, rows: Tensor) -> Cache:
        return Cache(self.keys[:, rows], self.values[:, rows], self.length)

    @classmethod
    def joined(cls, parts: Sequence[Cache]) -> Cache:
        keys, values = (torch.cat(pieces, dim=1) for pieces in zip(*(part[:2] for part in parts), strict=True))
        return cls(keys, values, parts[0].length)

    def repeatable(self) -> Cache | None:
        """Return the cache with its length as a tensor; None until the buffer is full."""
        if self.length < self.keys.shape[-1]:
            return None
        return self._replace(length=torch.as_tensor(self.length, device=self.keys.device))


class Transformer(Trunk[Cache]):
    """Maps the features of each day to a representation for predicting the next day."""

    def __init__(self, num_features: int, settings: TransformerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embed = nn.Linear(num_features, settings.width)
        self.layers = nn.ModuleList(_Layer(settings) for _ in range(settings.layers))
        self.norm = nn.RMSNorm(settings.width)

    def forward(self, features: Tensor) -> Tensor:
        return self._read(features, features.shape[-2])[0]

    def _read(self, features: Tensor, asked: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the output of the requested last days, and each layer's keys and values.

        A layer reads only the days within the receptive field of the layers after it.
        """
        days, window = features.shape[-2], self.settings.window
        position = torch.arange(days, device=features.device)
        distance = position[:, None] - position
        mask = (distance >= 0) & (distance < window)
        hidden, stored = self.embed(features), []
        for after, layer in zip(range(len(self.layers) - 1, -1, -1), self.layers, strict=True):
            needed = min(days, asked + after * (window - 1))
            hidden, keys, values = layer(hidden, position, mask, needed)
            position, mask = position[-needed:], mask[-needed:, -needed:]
            stored.append((keys, values))
        return self.norm(hidden), stored

    def prefill(self, features: Tensor) -> tuple[Tensor, Cache]:
        hidden, stored = self._read(features, 1)
        days, window = features.shape[-2], self.settings.window
        kept = torch.arange(max(0, days - window), days, device=features.device)
        first = stored[0][0]
        values = first.new_zeros(len(stored), len(first), window, first.shape[-1])
        keys = torch.zeros_like(values).mT.contiguous()
        for layer, (layer_keys, layer_values) in enumerate(stored):
            keys[layer][..., kept % window] = layer_keys[:, -len(kept) :].mT
            values[layer][:, kept % window] = layer_values[:, -len(kept) :]
        return hidden[:, -1], Cache(keys, values, days)

    def day_weights(self, cache: Cache) -> list[_DayWeights]:
        turn = _turn(self.settings, cache.length, self.embed.weight)
        return [layer.day_weights(*turn) for layer in self.layers if isinstance(layer, _Layer)]

    def step(
        self, features: Tensor, cache: Cache, day_weights: list[_DayWeights] | None = None
    ) -> tuple[Tensor, Cache]:
        window = self.settings.window
        # Until the buffer is full, unwritten slots are masked.
        length = cache.length
        place, filled = length % window, window if isinstance(length, Tensor) else min(length + 1, window)
        hidden = self.embed(features)
        for index, (layer, weights) in enumerate(zip(self.layers, day_weights or self.day_weights(cache), strict=True)):
            assert isinstance(layer, _Layer)
            layer.step(hidden, cache.keys[index, ..., :filled], cache.values[index, :, :filled], place, weights)
        return self.norm(hidden), cache._replace(length=length + 1)


class _DayWeights(NamedTuple):
    """Weights of a layer with the norms' scales, rotation, and scaling of queries folded in."""

    project: Tensor
    expand: Tensor


class _Layer(nn.Module):
    """Pre-norm residual attention and feed-forward layer."""

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

    def forward(self, hidden: Tensor, position: Tensor, mask: Tensor, needed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last days' output, (B, needed, width), and all rotated keys and values, (B, T, width of head)."""
        query, key, value = self._projected(hidden)
        hidden, query, mask = hidden[:, -needed:], query[:, -needed:], mask[-needed:]
        query, key = _rotated(query.transpose(1, 2), position[-needed:]), _rotated(key, position)
        shared_key, shared_value = (part.unsqueeze(1).expand(-1, self.heads, -1, -1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, shared_key, shared_value, attn_mask=mask)
        hidden = hidden + self._dropped(self.output(mixed.transpose(1, 2).flatten(2)))
        return hidden + self._dropped(self._feed(hidden)), key, value

    def day_weights(self, own: Tensor, partner: Tensor) -> _DayWeights:
        """Return the weights for a day. Shape of its rotation factors, from `_turn`: (heads + 2, 2, half width, 1)."""
        weight = (self.project.weight * self.attention_norm.weight).unflatten(0, own.shape[:-1])
        project = torch.addcmul(weight * own, weight.flip(1), partner).flatten(0, 2)
        return _DayWeights(project, self.expand.weight * self.feed_norm.weight)

    def step(self, hidden: Tensor, keys: Tensor, values: Tensor, place: int | Tensor, weights: _DayWeights) -> None:
        """Read one day: update ``hidden``, shape (B, width), in place, and write key and value at ``place``."""
        made = functional.linear(_normalised(hidden), weights.project).unflatten(-1, (-1, self.head_width))
        # In-place additions fused into the products: a separate pass over memory would cost about as much.
        hidden.addmm_(attended(made, keys, values, place), self.output.weight.T)
        inner = functional.linear(_normalised(hidden), weights.expand, self.expand.bias)
        hidden.add_(self.contract.bias).addmm_(functional.silu(inner, inplace=True), self.contract.weight.T)

    def _projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values. Shapes: (B, T, heads, width of head), 2 x (B, T, width of head)."""
        width = hidden.shape[-1]
        query, key, value = self.project(self.attention_norm(hidden)).split(
            (width, self.head_width, self.head_width), dim=-1
        )
        return query.unflatten(-1, (self.heads, -1)), key, value

    def _dropped(self, output: Tensor) -> Tensor:
        """Dropout with one mask for all days: fewer draws, and no noise between days (Gal 2016)."""
        kept = torch.ones_like(output[:, :1])
        return output * functional.dropout(kept, self.dropout, self.training)

    def _feed(self, hidden: Tensor) -> Tensor:
        return self.contract(functional.silu(self.expand(self.feed_norm(hidden))))


def _normalised(hidden: Tensor) -> Tensor:
    """RMS norm with unit scale, in fewer operations. Shape: (B, width)."""
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    return hidden * length.square_().mul_(1.0 / hidden.shape[-1]).add_(torch.finfo(hidden.dtype).eps).rsqrt_()


def _turn(settings: TransformerSettings, day: int | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of `_rotated` for a day's queries and key, with the scaling of queries.

    Factors of each number and of its rotation partner. Shape of both: (heads + 2, 2, half width of head, 1).
    """
    width = settings.width // settings.heads
    position = day.view(1) if isinstance(day, Tensor) else torch.full((1,), day, device=like.device)
    cosine, sine = _angles(position, width // 2, like.dtype)
    own = torch.cat([cosine, cosine]).repeat(settings.heads + 2, 1, 1)
    partner = torch.cat([-sine, sine]).repeat(settings.heads + 2, 1, 1)
    for factors in (own, partner):
        factors[:-2] *= width**-0.5
    # The last one is the value, which is not rotated.
    own[-1], partner[-1] = 1.0, 0.0
    return own.unsqueeze(-1), partner.unsqueeze(-1)


def _angles(position: Tensor, half: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotary angles of each day. Shape: (T,) -> (T, half)."""
    rate = ROTARY_BASE ** (-torch.arange(half, device=position.device) / half)
    angle = position[:, None] * rate
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotated(vectors: Tensor, position: Tensor) -> Tensor:
    """Rotate pairs of numbers. Shapes: (..., T, E), (T,)."""
    half = vectors.shape[-1] // 2
    cosine, sine = _angles(position, half, vectors.dtype)
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
