"""Batched generation that goes on where it stopped: keys and values of all that was read and written are kept.

Rows are padded on the left of every stretch that is read, and masked where they have nothing, so that a row's numbers
are those that it would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

Draws = Callable[[int], Tensor]
"""Returns a number in (0, 1) for every row, by the number of the token. Shape: (B,), float64."""


class Written(NamedTuple):
    """What a model has drawn.

    Attributes:
        tokens: Shape: (B, M), int64.
        log_prob: of the tokens, at the temperature of the draws. Shape: (B, M), float32.
        mask: which belong to the row's answer. Shape: (B, M), bool.
    """

    tokens: Tensor
    log_prob: Tensor
    mask: Tensor


class GenerationContext:
    """The contexts of B rows, read and written by a model in turn.

    Args:
        model: a causal language model.
        rows: B.
        pad: token in the place of none.
    """

    def __init__(self, model: PreTrainedModel, rows: int, pad: int) -> None:
        self.model, self.pad = model, pad
        self._cache = DynamicCache(config=model.config)
        self._mask = torch.zeros(rows, 0, dtype=torch.int64, device=model.device)
        # The token that was drawn last is read together with what comes next.
        self._unread: list[list[int]] = [[] for _ in range(rows)]
        self._logits: Tensor | None = None

    @torch.no_grad()
    def read(self, chunks: Sequence[Sequence[int]]) -> None:
        """Append tokens to the rows; a row without any stays as it is, and must not write next."""
        pending = [[*unread, *chunk] if chunk else [] for unread, chunk in zip(self._unread, chunks, strict=True)]
        self._unread = [[] if chunk else unread for unread, chunk in zip(self._unread, chunks, strict=True)]
        tokens, mask = left_padded(pending, self.pad, self._mask.device)
        self._forward(tokens, mask)

    @torch.no_grad()
    def write(self, draws: Draws, stop: Collection[int], most: int, temperature: float, active: Tensor) -> Written:
        """Draw tokens until every active row has drawn one that stops it, or as many as allowed.

        Args:
            draws: numbers that the tokens are drawn by.
            stop: tokens that end an answer.
            most: largest number of tokens.
            temperature: logits are divided by it; 0 takes the likeliest token.
            active: rows that write. Shape: (B,), bool.
        """
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
                past_key_values=self._cache,
                use_cache=True,
                **last_logits(self.model, 1),
            )
        self._logits = output.logits[:, -1]


def half_precision(model: PreTrainedModel) -> torch.autocast:
    """Return the context in which a model multiplies in bfloat16 on a GPU, where it draws and where it learns."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda")


def left_padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return tokens of unequal number, right-aligned, and which are some. Shape of both: (B, longest), int64."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return tokens, mask


def positions(mask: Tensor) -> Tensor:
    """Return each token's number among its row's own. Shape: (B, L) -> (B, L), int64."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def last_logits(model: PreTrainedModel, count: int) -> dict[str, int]:
    """Return the argument by which models compute the logits of the last tokens alone, if they take it."""
    # Adapters hide what the model takes.
    bare: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return {"logits_to_keep": count} if "logits_to_keep" in signature(bare.forward).parameters else {}


def drawn(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw a token of each row by inversion.

    Args:
        logits: Shape: (B, V).
        uniform: in (0, 1). Shape: (B,).
        temperature: 0 takes the likeliest.

    Returns:
        The tokens, int64, and their log-probabilities, which are 0 at temperature 0. Shape of both: (B,).
    """
    if temperature == 0:
        token = logits.argmax(-1)
        return token, torch.zeros_like(token, dtype=torch.float32)
    log_prob = (logits.float() / temperature).log_softmax(-1)
    total = log_prob.double().exp().cumsum(-1)
    token = torch.searchsorted(total, uniform.unsqueeze(-1) * total[:, -1:]).squeeze(-1)
    # A row that does not write may hold what is not a number.
    token = token.clamp(max=logits.shape[-1] - 1)
    return token, log_prob.gather(-1, token.unsqueeze(-1)).squeeze(-1)
