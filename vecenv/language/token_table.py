"""Drawn tokens of episodes in the shape of the losses: a row for each episode, whatever segments they are from."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.language.conversation import Segment
from vecenv.language.log_probs import flattened


class TokenTable:
    """Drawn tokens of episodes, from one after the other to one row an episode.

    Args:
        said: the segments of each episode. B of them.
        device: where tensors live.

    Attributes:
        days: of each drawn token, by episode. B of them.
        log_prob: of all drawn tokens when they were drawn, one after the other.
    """

    def __init__(self, said: list[list[Segment]], device: torch.device) -> None:
        days = [[day for segment in segments for day in segment.day] for segments in said]
        self.days = [torch.tensor(own, dtype=torch.int64, device=device) for own in days]
        self.log_prob = [value for segment in flattened(said) for value in segment.log_prob]
        counts = torch.tensor([len(own) for own in days], device=device)
        self._filled = torch.arange(max(map(len, days)), device=device) < counts.unsqueeze(-1)

    def spread(self, values: Tensor) -> Tensor:
        """Return values with a row for each episode, 0 where it has no more tokens. Shape: (tokens,) -> (B, L)."""
        return values.new_zeros(self._filled.shape).masked_scatter(self._filled, values)


def counted_tokens(said: list[Segment], mask: Tensor) -> int:
    """Return how many drawn tokens of an episode count. Shape of the mask: (T,)."""
    counts = mask.tolist()
    return sum(counts[day] for segment in said for day in segment.day)
