"""Loss of group-relative policy optimisation (GRPO): clipped probability ratios over the tokens of sequences.

For a language model a token is a token of text; for a tensor policy it is one day's action, and the sequence an
episode. Everything is a function of log-probabilities, so that both share this code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Ratio = Literal["token", "sequence"]
"""Probability ratio to the old policy: of each token, or of the sequence, the geometric mean over its tokens (Zheng
et al., "Group Sequence Policy Optimization", arXiv 2507.18071, 2025, eq. 7)."""

Aggregation = Literal["sequence_mean", "token_mean", "fixed_length"]
"""Averaging of token losses: per sequence, then over sequences (GRPO); over all tokens (DAPO); or divided by the
maximum sequence length, which removes the length bias (Dr. GRPO)."""


@dataclass(frozen=True)
class GroupObjective:
    """Settings of the clipped surrogate: see `Ratio` and `Aggregation`.

    A ratio below 1 - clip_low gets no gradient where the advantage is negative, one above 1 + clip_high where it is
    positive.
    """

    ratio: Ratio
    aggregation: Aggregation
    clip_low: float
    clip_high: float


class GroupLosses(NamedTuple):
    """Surrogate to be minimised, and diagnostics; all of shape ().

    ``reference_kl``, averaged as the surrogate, is (r - 1) - log r, r = reference probability / policy probability
    (Schulman, "Approximating KL divergence", 2020, k3), 0 without a reference. ``approx_kl`` is the same of the old
    policy, averaged over all tokens.
    """

    policy: Tensor
    reference_kl: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def group_losses(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    objective: GroupObjective,
    longest: int,
    reference_log_prob: Tensor | None = None,
) -> GroupLosses:
    """Return the loss of a batch of sequences and its diagnostics. Shape of log-probabilities and mask: (B, L).

    The advantage has shape (B, L), or (B, 1) if constant within sequences. Tokens outside of the mask are ignored,
    whatever their values. ``longest`` is the maximum sequence length, for the ``fixed_length`` aggregation.
    """
    token = (log_prob - old_log_prob).where(mask, 0.0)
    log_ratio = token
    if objective.ratio == "sequence":
        mean = token.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        # Value of the sequence ratio, gradient of each token: its mean over the sequence is the gradient of the
        # sequence ratio, and tokens may have different advantages (eq. 13 of the paper, GSPO-token).
        log_ratio = token + (mean - token).detach()
    ratio = log_ratio.exp()
    low, high = 1.0 - objective.clip_low, 1.0 + objective.clip_high
    gain = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage).where(mask, 0.0)
    reference_kl = torch.zeros((), dtype=log_prob.dtype, device=log_prob.device)
    if reference_log_prob is not None:
        reference_kl = _averaged(_k3((reference_log_prob - log_prob).where(mask, 0.0)), mask, objective, longest)
    beyond = ((ratio < low) | (ratio > high)) & mask
    count = mask.sum().clamp(min=1)
    return GroupLosses(
        policy=-_averaged(gain, mask, objective, longest),
        reference_kl=reference_kl,
        approx_kl=_k3(token).sum() / count,
        clip_fraction=beyond.sum() / count,
    )


def _k3(log_ratio: Tensor) -> Tensor:
    return log_ratio.expm1() - log_ratio


def _averaged(value: Tensor, mask: Tensor, objective: GroupObjective, longest: int) -> Tensor:
    """Average token values, which are 0 outside the mask. Shapes: (B, L), (B, L) -> ()."""
    if objective.aggregation == "token_mean":
        return value.sum() / mask.sum().clamp(min=1)
    if objective.aggregation == "fixed_length":
        return value.sum() / (len(value) * longest)
    return (value.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
