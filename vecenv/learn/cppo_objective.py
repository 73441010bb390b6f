"""Settings of CVaR-PPO, and its penalty for trajectories whose return falls short of a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vecenv.learn.ppo_objective import PPOConfig
from vecenv.system.settings import Fraction, NotNegative, Positive

CVAR_METRICS = ("trajectory_return", "cvar_nu", "cvar_lambda", "penalised_fraction", "capped_fraction")
"""Metrics of an update beside those of PPO: mean return of its trajectories, the threshold nu and the multiplier lambda
that judged them, the share of the steps that were penalised, and the share whose penalty was cut by the cap."""


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
    """Weigh the rewards that enter the trajectories' returns by the task's `Scenario.risk_level`: gains divided by it,
    losses multiplied."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam_start < self.lam_low_bound:
            raise ValueError(f"lam_start must be at least lam_low_bound, {self.lam_low_bound}, got {self.lam_start}")


class Penalty(NamedTuple):
    """Penalty of each step, and where it holds. Shape of each: (T, N)."""

    amount: Tensor
    short: Tensor
    capped: Tensor


def trajectory_returns(so_far: Tensor, done: Tensor, following: Tensor) -> Tensor:
    """Return of each step the return of its whole trajectory, as far as the rollout tells. Shape: (T, N).

    It is the sum of rewards of a trajectory that ended; where the rollout cuts one, the sum so far (of earlier rollouts
    too) and what is expected to follow, of shape (N,).
    """
    returns = torch.empty_like(so_far)
    whole = so_far[-1] + following
    for step in reversed(range(len(so_far))):
        whole = torch.where(done[step], so_far[step], whole, out=returns[step])
    return returns


def mean_return(returns: Tensor, done: Tensor) -> Tensor:
    """Return the mean over the trajectories of a rollout, those that it cuts included. Shapes: (T, ..., N) -> (...)."""
    last = done.clone()
    last[-1] = True
    return torch.where(last, returns, 0.0).sum((0, -1)) / last.sum((0, -1))


def shortfall_penalty(
    returns: Tensor, nu: Tensor, multiplier: Tensor, alpha: float, unit: Tensor, cap: Tensor
) -> Penalty:
    """Return the penalty lambda / (1 - alpha) (nu - D)^+ of each step, at most ``cap``, of trajectory returns D (T, N).

    It is the derivative of the CVaR's term of the Lagrangian (Ying et al., "Towards safe reinforcement learning via
    constraining conditional value-at-risk", IJCAI 2022) by the log-probabilities of a trajectory's actions: each action
    of a trajectory is charged with that trajectory's shortfall, and with no other's. ``unit`` is what an advantage of
    1, the unit of ``cap``, is in that of D and nu.
    """
    amount = multiplier / (1 - alpha) * (nu - returns).clamp(min=0) / unit
    return Penalty(torch.minimum(amount, cap), returns < nu, amount > cap)


def risk_weighed(reward: Tensor, level: Tensor) -> Tensor:
    """Return rewards after their risk: gains divided by the level (above 1 riskier), losses multiplied.

    Dividing losses too, as a factor of the whole return does, would reward risk taken at a loss.
    """
    return torch.where(reward > 0, reward / level, reward * level)
