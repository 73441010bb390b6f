"""Sampled tokens of episodes as a padded table, one row per episode, the shape of the losses."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.language.conversation import Segment
from vecenv.language.log_probs import flattened


class TokenTable:
    """Layout of sampled tokens: concatenated, or one padded row per episode.

    Args:
        said: the segments of each episode. B of them.
        device: of the tensors.

    Attributes:
        days: day of each sampled token, by episode. B of them.
        log_prob: sampling log-probabilities of all tokens, concatenated.
    """

    def __init__(self, said: list[list[Segment]], device: torch.device) -> None:
        days = [[day for segment in segments for day in segment.day] for segments in said]
        self.days = [torch.tensor(own, dtype=torch.int64, device=device) for own in days]
        self.log_prob = [value for segment in flattened(said) for value in segment.log_prob]
        counts = torch.tensor([len(own) for own in days], device=device)
        self._filled = torch.arange(max(map(len, days)), device=device) < counts.unsqueeze(-1)

    def spread(self, values: Tensor) -> Tensor:
        """Return values as one row per episode, padded with 0. Shape: (tokens,) -> (B, L)."""
        return values.new_zeros(self._filled.shape).masked_scatter(self._filled, values)


def counted_tokens(said: list[Segment], mask: Tensor) -> int:
    """Return the number of unmasked sampled tokens of an episode. Shape of the mask: (T,)."""
    counts = mask.tolist()
    return sum(counts[day] for segment in said for day in segment.day)
