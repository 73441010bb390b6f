"""The objective of group-relative policy optimisation: probability ratios, clipped, over the tokens of sequences.

A token is what is drawn at once: a word piece of a language model, or a day's action of a tensor policy, whose sequence
is then an episode. Everything is a function of log-probabilities, so that both learn by the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Ratio = Literal["token", "sequence"]
"""Whose probability is compared with that under the old policy: of each token, or of the whole sequence as the
geometric mean of its tokens (Zheng et al., "Group Sequence Policy Optimization", arXiv 2507.18071, 2025, eq. 7)."""

Aggregation = Literal["sequence_mean", "token_mean", "fixed_length"]
"""How tokens are averaged: within each sequence first (GRPO), all alike (DAPO), or over as many as the longest sequence
may have, so that long sequences are not favoured (Dr. GRPO)."""


@dataclass(frozen=True)
class GroupObjective:
    """How a loss is made of probability ratios and advantages.

    Attributes:
        ratio: see `Ratio`.
        aggregation: see `Aggregation`.
        clip_low: a ratio below 1 less this gets no gradient where the advantage is negative.
        clip_high: a ratio above 1 plus this gets no gradient where the advantage is positive.
    """

    ratio: Ratio
    aggregation: Aggregation
    clip_low: float
    clip_high: float


class GroupLosses(NamedTuple):
    """Terms of the objective and what one watches beside them; all of shape ().

    Attributes:
        policy: the clipped surrogate, to be minimised.
        reference_kl: estimate of the KL divergence to the reference policy, averaged as the surrogate is; 0 without
            one. It is (r - 1) - log r, r the ratios of the reference's probabilities to the policy's (Schulman,
            "Approximating KL divergence", 2020, k3).
        approx_kl: the same estimate of the divergence from the old policy, over all tokens alike.
        clip_fraction: share of the tokens whose ratio is beyond the bounds.
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
    """Return the loss of sequences and what belongs to it.

    Args:
        log_prob: of the tokens under the current policy. Shape: (B, L).
        old_log_prob: of the tokens under the policy that drew them. Shape: (B, L).
        advantage: of each token. Shape: (B, L), or (B, 1) where those of a sequence are the same.
        mask: which tokens the policy drew; nothing of the others counts, whatever they hold. Shape: (B, L), bool.
        objective: the variant.
        longest: tokens that a sequence may have at most, for a mean over a fixed length.
        reference_log_prob: of the tokens under the policy that is not to be left. Shape: (B, L).
    """
    token = (log_prob - old_log_prob).where(mask, 0.0)
    log_ratio = token
    if objective.ratio == "sequence":
        mean = token.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        # Its value is the sequence's, its gradient each token's own: their mean over the sequence is the gradient of
        # the sequence's ratio, and tokens may have different advantages (eq. 13 of the paper).
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
    """Average numbers of tokens, which are 0 where the mask is not set. Shapes: (B, L), (B, L) -> ()."""
    if objective.aggregation == "token_mean":
        return value.sum() / mask.sum().clamp(min=1)
    if objective.aggregation == "fixed_length":
        return value.sum() / (len(value) * longest)
    return (value.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
