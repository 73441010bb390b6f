"""Settings of group-relative policy optimisation, and its variants by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from vecenv.learn.group_objective import GroupObjective
from vecenv.learn.learner_config import LearnerConfig, RunConfig

Variant = Literal["grpo", "dr_grpo", "dapo", "gspo", "gigpo", "capo"]


class VariantRules(NamedTuple):
    """What a variant does differently.

    Attributes:
        objective: ratios, their bounds and how tokens are averaged.
        scaled: divide advantages by the group's standard deviation.
        refill: draw new groups in the place of those without spread.
        compare_steps: add the advantage of each step among those of its group in a like position.
        positive_first: learn from positive advantages alone at first.
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
class EpisodeReward:
    """What an episode is worth: weights of its parts, which are added."""

    grade: float = 1.0
    """Of the grader's outcome in [0, 1]."""
    total_return: float = 0.0
    """Of the account's return, as a share of its value at the start."""
    steps: float = 0.0
    """Of the rewards of the steps."""
    invalid: float = 0.0
    """Of the format gate: taken away once if any action was invalid."""

    def __post_init__(self) -> None:
        if self.grade == self.total_return == self.steps == 0:
            raise ValueError("grade, total_return and steps all have weight 0: there is nothing to learn")
        if self.invalid < 0:
            raise ValueError(f"invalid must not be negative, it is taken away: got {self.invalid}")


@dataclass(frozen=True)
class GroupConfig(RunConfig):
    """Settings of GRPO and its variants, whatever learns by them."""

    variant: Variant = "grpo"
    """grpo, dr_grpo, dapo, gspo, gigpo or capo."""
    reward: EpisodeReward = field(default_factory=EpisodeReward)
    """What an episode is worth."""
    clip_low: float | None = None
    """Probability ratios below 1 less this get no gradient; by default the variant's."""
    clip_high: float | None = None
    """Probability ratios above 1 plus this get no gradient; by default the variant's."""
    kl_coef: float = 0.0
    """Weight of the KL divergence to the policy before the first update."""
    refills: int = 4
    """dapo: most further rollouts of an update for new groups in the place of those without spread."""
    step_weight: float = 1.0
    """gigpo: weight of the advantages among steps."""
    step_gamma: float = 0.95
    """gigpo: discount of later rewards in them."""
    position_buckets: int = 5
    """gigpo: steps are alike if the invested share of the account falls in the same of so many equal parts."""
    positive_share: float = 0.25
    """capo: share of the updates, the first ones, that learn from positive advantages alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant not in VARIANTS:
            raise ValueError(f"unknown variant {self.variant!r}; there are {', '.join(VARIANTS)}")
        self._check_least(0, "kl_coef", "refills", "step_weight")
        self._check_least(1, "position_buckets")
        self._check_share("step_gamma", "positive_share")
        for name in ("clip_low", "clip_high"):
            if getattr(self, name) is not None:
                self._check_positive(name)

    def inapplicable(self) -> dict[str, str]:
        """Return what each setting belongs to that does nothing beside the others."""
        own = {
            "dapo": ("refills",),
            "gigpo": ("step_weight", "step_gamma", "position_buckets"),
            "capo": ("positive_share",),
        }
        return {name: f"variant {kind}" for kind, names in own.items() if kind != self.variant for name in names}

    @property
    def rules(self) -> VariantRules:
        """The variant, with the bounds that are set."""
        rules = VARIANTS[self.variant]
        bounds = {name: getattr(self, name) for name in ("clip_low", "clip_high") if getattr(self, name) is not None}
        return rules._replace(objective=replace(rules.objective, **bounds))


@dataclass(frozen=True)
class GRPOConfig(GroupConfig, LearnerConfig):
    """Settings of GRPO for tensor policies."""

    total_frames: int = 2_500_000
    """Steps of all sub-environments together; rounded up to whole rollouts."""
