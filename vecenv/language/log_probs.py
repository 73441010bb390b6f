"""Log-probabilities of sampled tokens, recomputed with gradients, and as a padded table, the shape of the losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vecenv.language.conversation import Segment
from vecenv.language.generation import half_precision, last_logits, left_padded, positions


def segment_log_probs(model: PreTrainedModel, segments: Sequence[Segment], pad: int, temperature: float) -> Tensor:
    """Return the log-probability of every sampled token, segments concatenated; ``temperature`` is above 0."""
    tokens, mask = left_padded([segment.tokens for segment in segments], pad, model.device)
    longest = tokens.shape[1]
    # Logits are needed from the token before the first sampled one.
    kept = max(len(segment.tokens) - segment.drawn[0] for segment in segments if segment.drawn) + 1
    with half_precision(model):
        output = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions(mask),
            use_cache=False,
            **last_logits(model, kept),
        )
    logits = output.logits
    row = [place for place, segment in enumerate(segments) for _ in segment.drawn]
    shift = logits.shape[1] - longest - 1
    column = [longest - len(segment.tokens) + drawn + shift for segment in segments for drawn in segment.drawn]
    said = [segment.tokens[drawn] for segment in segments for drawn in segment.drawn]
    index, target = torch.tensor([row, column], device=model.device), torch.tensor(said, device=model.device)
    log_prob = (logits[index[0], index[1]].float() / temperature).log_softmax(-1)
    return log_prob.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def packed(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the item numbers of batches of similar size, padded at most to ``most`` unless it is a single item."""
    part: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place]):
        if part and sizes[place] * (len(part) + 1) > most:
            yield part
            part = []
        part.append(place)
    if part:
        yield part


def padded_tokens(segments: Sequence[Segment]) -> int:
    """Return the padded number of tokens of a forward pass."""
    return len(segments) * max((len(segment.tokens) for segment in segments), default=0)


def flattened(nested: Sequence[Sequence[Segment]]) -> list[Segment]:
    """Return the segments of all conversations."""
    return list(chain.from_iterable(nested))


class TokenTable:
    """Layout of sampled tokens: concatenated, or one padded row per episode.

    ``days`` are those of each episode's tokens, ``log_prob`` of all, concatenated, as sampled.
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
