"""Settings and record of GRPO and its variants, for tensor policies and language models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple

from vecenv.learn import Algorithm
from vecenv.learn.settings.run import Frames, LearnerConfig, RunConfig
from vecenv.system.later import later
from vecenv.system.settings import Count, CountFromZero, NotNegative, Positive, Settings, Share, When

Ratio = Literal["token", "sequence"]
"""Probability ratio to the old policy: of each token, or of the sequence, the geometric mean over its tokens (Zheng
et al., "Group Sequence Policy Optimization", arXiv 2507.18071, 2025, eq. 7)."""

Aggregation = Literal["sequence_mean", "token_mean", "fixed_length"]
"""Averaging of token losses: per sequence, then over sequences (GRPO); over all tokens (DAPO); or divided by the
maximum sequence length, which removes the length bias (Dr. GRPO)."""

Variant = Literal["grpo", "dr_grpo", "dapo", "gspo", "gigpo", "capo"]


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
    """Weight of the KL divergence to the reference policy, the initial one; with dapo of groups that have spread."""
    renew_reference: Annotated[CountFromZero, When("kl_coef")] = 0
    """Updates after which the policy of the day becomes the reference, time and again; 0, never (after AdaCuRL)."""
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

    @property
    def most_refills(self) -> int | None:
        """Largest number of further rollouts of an update; None of a variant that keeps all groups."""
        return self.refills if self.rules.refill else None

    def renews_reference(self, update: int) -> bool:
        """Return whether the reference becomes the policy before an update, counted from 0."""
        return bool(self.renew_reference) and update % self.renew_reference == 0


@dataclass(frozen=True)
class GRPOConfig(GroupConfig, LearnerConfig):
    """Settings of GRPO for tensor policies."""

    total_frames: Frames = 2_500_000
    """Total environment steps over all sub-environments; rounded up to whole rollouts."""


GRPO = Algorithm(
    name="grpo",
    summary="comparison of episodes with the same start, without a critic, and its variants",
    learner=later("vecenv.learn.grpo:GRPO"),
    config=GRPOConfig,
    groups=True,
)
