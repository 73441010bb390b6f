"""Batched generation with a persistent key-value cache.

Each appended prompt is left-padded and its padding masked, so that a row's results do not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

Draws = Callable[[int], Tensor]
"""Returns a uniform number in (0, 1) per row, given the token number. Shape: (B,), float64."""


class Written(NamedTuple):
    """Sampled answers, log-probabilities at the sampling temperature, and which tokens belong. Shape: (B, M)."""

    tokens: Tensor
    log_prob: Tensor
    mask: Tensor


class GenerationContext:
    """Contexts of B rows: prompts are appended and answers generated alternately."""

    def __init__(self, model: PreTrainedModel, rows: int, pad: int) -> None:
        self.model, self.pad = model, pad
        # Keys and values of earlier tokens, which later releases of transformers call otherwise.
        name = "cache" if _takes(model, "cache") else "past_key_values"
        self._known = {name: DynamicCache(config=model.config)}
        self._mask = torch.zeros(rows, 0, dtype=torch.int64, device=model.device)
        # The last sampled token is not in the cache yet: it is read with the next prompt.
        self._unread: list[list[int]] = [[] for _ in range(rows)]
        self._logits: Tensor | None = None

    @torch.no_grad()
    def read(self, chunks: Sequence[Sequence[int]]) -> None:
        """Append tokens to the rows; a row without any is unchanged and must not generate next."""
        pending = [[*unread, *chunk] if chunk else [] for unread, chunk in zip(self._unread, chunks, strict=True)]
        self._unread = [[] if chunk else unread for unread, chunk in zip(self._unread, chunks, strict=True)]
        tokens, mask = left_padded(pending, self.pad, self._mask.device)
        self._forward(tokens, mask)

    @torch.no_grad()
    def write(self, draws: Draws, stop: Collection[int], most: int, temperature: float, active: Tensor) -> Written:
        """Sample tokens until every active row has drawn a stop token or ``most``; a temperature of 0 is greedy."""
        assert self._logits is not None
        stops = torch.tensor(sorted(stop), device=self._mask.device)
        writing, columns = active, []
        for number in range(most):
            token, log_prob = drawn(self._logits, draws(number), temperature)
            columns.append((token, log_prob, writing))
            going_on = writing & ~torch.isin(token, stops)
            if number + 1 == most or not bool(going_on.any()):
                break
            self._forward(token.where(going_on, self.pad).unsqueeze(-1), going_on.unsqueeze(-1).long())
            writing = going_on
        written = Written(*(torch.stack(column, dim=-1) for column in zip(*columns, strict=True)))
        last = written.tokens.gather(-1, (written.mask.sum(-1, keepdim=True) - 1).clamp(min=0)).squeeze(-1).tolist()
        for row in active.nonzero().squeeze(-1).tolist():
            self._unread[row] = [last[row]]
        return written

    def _forward(self, tokens: Tensor, mask: Tensor) -> None:
        self._mask = torch.cat([self._mask, mask], dim=-1)
        with half_precision(self.model):
            output = self.model(
                input_ids=tokens,
                attention_mask=self._mask,
                position_ids=positions(self._mask)[:, -tokens.shape[1] :],
                use_cache=True,
                **self._known,
                **last_logits(self.model, 1),
            )
        self._logits = output.logits[:, -1]


def half_precision(model: PreTrainedModel) -> torch.autocast:
    """Return the autocast context for bfloat16 on a GPU, in sampling and in training."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda")


def left_padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return left-padded token sequences and their mask. Shape of both: (B, longest), int64."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return tokens, mask


def positions(mask: Tensor) -> Tensor:
    """Return each token's position in its row, padding excluded. Shape: (B, L) -> (B, L), int64."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def last_logits(model: PreTrainedModel, count: int) -> dict[str, int]:
    """Return the keyword argument that restricts logits to the last tokens, if the model accepts it."""
    return {"logits_to_keep": count} if _takes(model, "logits_to_keep") else {}


def _takes(model: PreTrainedModel, name: str) -> bool:
    # Adapters hide the model's signature.
    bare: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return name in signature(bare.forward).parameters


def drawn(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sample a token per row by inverse-transform sampling; temperature 0 is greedy decoding.

    Return the tokens, int64, and their log-probabilities, 0 at temperature 0. Shapes: (B, V), (B,) -> (B,), (B,).
    """
    if temperature == 0:
        token = logits.argmax(-1)
        return token, torch.zeros_like(token, dtype=torch.float32)
    log_prob = (logits.float() / temperature).log_softmax(-1)
    total = log_prob.double().exp().cumsum(-1)
    token = torch.searchsorted(total, uniform.unsqueeze(-1) * total[:, -1:]).squeeze(-1)
    # Inactive rows may hold NaN.
    token = token.clamp(max=logits.shape[-1] - 1)
    return token, log_prob.gather(-1, token.unsqueeze(-1)).squeeze(-1)
