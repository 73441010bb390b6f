"""Settings and losses of GRPO and its variants: Dr. GRPO, DAPO, GSPO, GiGPO and CAPO.

For a language model a token is a token of text; for a tensor policy it is one day's action, and the sequence an
episode. Everything is a function of log-probabilities, so that both share this code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from vecenv.learn.runs import RunConfig
from vecenv.system.settings import Count, CountFromZero, NotNegative, Positive, Settings, Share, When

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


Variant = Literal["grpo", "dr_grpo", "dapo", "gspo", "gigpo", "capo"]


class VariantRules(NamedTuple):
    """Differences between the variants of GRPO.

    Attributes:
        scaled: divide advantages by the group's standard deviation.
        refill: replace zero-variance groups by new ones (dynamic sampling).
        compare_steps: add each step's advantage over the steps of its group in a similar position.
        positive_first: use positive advantages only in the first updates.
    """

    objective: GroupObjective
    scaled: bool = True
    refill: bool = False
    compare_steps: bool = False
    positive_first: bool = False


_PLAIN = GroupObjective("token", "sequence_mean", 0.2, 0.2)

VARIANTS: dict[Variant, VariantRules] = {
    # Shao et al., arXiv 2402.03300, 2024.
    "grpo": VariantRules(_PLAIN),
    # Liu et al., "Understanding R1-Zero-Like Training", arXiv 2503.20783, 2025.
    "dr_grpo": VariantRules(replace(_PLAIN, aggregation="fixed_length"), scaled=False),
    # Yu et al., arXiv 2503.14476, 2025.
    "dapo": VariantRules(replace(_PLAIN, aggregation="token_mean", clip_high=0.28), refill=True),
    # Zheng et al., arXiv 2507.18071, 2025.
    "gspo": VariantRules(replace(_PLAIN, ratio="sequence", clip_low=3e-4, clip_high=4e-4)),
    # Feng et al., arXiv 2505.10978, 2025.
    "gigpo": VariantRules(_PLAIN, compare_steps=True),
    # Yang et al., "From Imitation to Discrimination", arXiv 2512.02580, 2025.
    "capo": VariantRules(_PLAIN, positive_first=True),
}


@dataclass(frozen=True)
class EpisodeReward(Settings):
    """Weights of the parts whose sum is the reward of an episode."""

    grade: float = 1.0
    """Weight of the grade in [0, 1]."""
    total_return: float = 0.0
    """Weight of the account's return as a fraction of its initial value."""
    steps: float = 0.0
    """Weight of the sum of step rewards."""
    invalid: NotNegative = 0.0
    """Format penalty: subtracted once if any action was invalid."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grade == self.total_return == self.steps == 0:
            raise ValueError("grade, total_return and steps all have weight 0: there is nothing to learn")


@dataclass(frozen=True)
class GroupConfig(RunConfig):
    """Settings of GRPO and its variants, for tensor policies and language models."""

    variant: Variant = "grpo"
    """grpo, dr_grpo, dapo, gspo, gigpo or capo."""
    reward: EpisodeReward = field(default_factory=EpisodeReward)
    """Weights of the episode reward."""
    clip_low: Positive | None = None
    """Probability ratios below 1 - clip_low get no gradient; by default the variant's."""
    clip_high: Positive | None = None
    """Probability ratios above 1 + clip_high get no gradient; by default the variant's."""
    kl_coef: NotNegative = 0.0
    """Weight of the KL divergence to the initial policy."""
    refills: Annotated[CountFromZero, When("variant", "dapo")] = 4
    """dapo: largest number of further rollouts of an update to replace zero-variance groups."""
    step_weight: Annotated[NotNegative, When("variant", "gigpo")] = 1.0
    """gigpo: weight of the step advantages."""
    step_gamma: Annotated[Share, When("variant", "gigpo")] = 0.95
    """gigpo: discount per step of the step returns."""
    position_buckets: Annotated[Count, When("variant", "gigpo")] = 5
    """gigpo: number of equal bins of the invested share of the account; steps of one bin are compared."""
    positive_share: Annotated[Share, When("variant", "capo")] = 0.25
    """capo: fraction of the updates, from the first on, that use positive advantages only."""

    @property
    def rules(self) -> VariantRules:
        rules = VARIANTS[self.variant]
        bounds = {name: getattr(self, name) for name in ("clip_low", "clip_high") if getattr(self, name) is not None}
        return rules._replace(objective=replace(rules.objective, **bounds))
