"""Settings and records of the learners from rollouts of the policy itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vecenv.learn import Algorithm
from vecenv.learn.settings.run import LearnerConfig
from vecenv.system.later import later
from vecenv.system.settings import Count, Fraction, NotNegative, Positive, Share


@dataclass(frozen=True)
class OnPolicyConfig(LearnerConfig):
    """Settings of a learner that estimates advantages of its own rollouts."""

    num_steps: Count = 64
    """Steps per rollout and sub-environment."""
    gamma: Share = 0.99
    """Discount per step."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    by_reference: bool | None = None
    """Keep of an observation what is a row's own and the day of the market, whose part of the first layer is computed
    once per update; flat policies only. By default where a batch has twice as many steps as the market has days."""
    normalise_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    normalise_advantages: bool = True
    """Scale the advantages of each batch to mean 0 and standard deviation 1."""


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    clip: Positive = 0.2
    """Probability ratios outside 1 ± clip get no gradient."""
    benchmark_kl: NotNegative = 0.0
    """Weight of the KL divergence from the policy around the centre of the actions, with tilts the benchmark."""
    target_kl: NotNegative | None = None
    """Early stopping: no further epochs in an update once the approximate KL divergence exceeds this."""


@dataclass(frozen=True)
class CPPOConfig(PPOConfig):
    """Settings of CVaR-PPO; the constants are those that FinRL-DeepSeek was published with (arXiv 2502.07393).

    ``beta`` and ``nu_start`` count returns in the rewards of that publication: the change of an account of 1e6 in
    currency x 1e-4, so that the account is 100, and a beta of 3000 is a gain of thirty accounts, which no episode
    reaches: lambda grows by ``lam_lr`` x 3000 = 1.5 an update, and soon the cap alone limits the penalty.
    ``reward_unit`` converts the rewards of other tasks. To mean a part of the initial account, multiply by 100: with
    ``beta`` 10 the tail is to gain a tenth.
    """

    alpha: Fraction = 0.85
    """Confidence level: a shortfall counts 1 / (1 - alpha) fold."""
    beta: float = 3000.0
    """Least acceptable value of the threshold nu: lambda grows while nu is below, and falls while it is above."""
    reward_unit: Positive = 1.0
    """What a reward of 1 counts in the unit of beta and nu: 1 for changes of an account of 1e6 x 1e-4, 100 for returns
    and log-returns."""
    nu_start: float = 0.1
    """Threshold nu of the first update."""
    nu_delay: float = 0.75
    """Later thresholds, as a multiple of the mean return of the trajectories of the rollout before."""
    lam_start: float = 0.01
    """Lagrange multiplier lambda before the first update."""
    lam_lr: NotNegative = 5e-4
    """Step size of lambda."""
    lam_low_bound: NotNegative = 0.001
    """Least lambda."""
    cvar_clip_ratio: NotNegative = 0.05
    """Largest penalty of a step, as a share of what ``cvar_clip_of`` names."""
    cvar_clip_of: Literal["value", "advantage"] = "value"
    """Whose magnitude caps the penalty: the critic's value, as published, which lets little through where returns are
    about 0; or the step's advantage."""
    weigh_risk: bool = False
    """Weigh the rewards that enter the trajectories' returns by the task's `RiskAware.risk_level`: gains divided by it,
    losses multiplied."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam_start < self.lam_low_bound:
            raise ValueError(f"lam_start must be at least lam_low_bound, {self.lam_low_bound}, got {self.lam_start}")


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C."""

    epochs: Count = 1
    """Passes over each batch: one, since the gradient is that of the policy that collected."""
    minibatches: Count = 1
    """Number of equal parts of a batch; one optimiser step each, of which the first alone has the policy that
    collected."""

    unused: ClassVar[dict[str, str]] = {"epochs": "a learner that reuses its batch"}
    learning_rate: Positive = 3e-3
    """Learning rate of Adam."""
    num_steps: Count = 5
    """Steps per rollout and sub-environment."""
    gae_lambda: Share = 1.0
    """Lambda of generalised advantage estimation; 1 are the returns of the paper."""


PPO = Algorithm(
    name="ppo",
    summary="the clipped policy gradient, with a critic",
    learner=later("vecenv.learn.ppo:PPO"),
    # Short rollouts: more updates per frame, and an earlier first update.
    config=lambda: PPOConfig(num_steps=16),
    ensemble=True,
)

CPPO = Algorithm(
    name="cppo",
    summary="PPO that penalises episodes whose return falls short",
    learner=later("vecenv.learn.cppo:CPPO"),
    config=lambda: CPPOConfig(num_steps=16),
    ensemble=True,
    extends="ppo",
)

A2C = Algorithm(
    name="a2c",
    summary="one step of the policy gradient for each rollout",
    learner=later("vecenv.learn.a2c:A2C"),
    config=A2CConfig,
)
