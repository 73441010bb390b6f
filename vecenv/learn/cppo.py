"""CVaR-PPO (CPPO): PPO whose trajectories are penalised by what their return falls short of a threshold.

Ying et al., "Towards safe reinforcement learning via constraining conditional value-at-risk", IJCAI 2022; constants of
its use on stocks with risk levels: Benhenda, "FinRL-DeepSeek", arXiv 2502.07393, 2025. An update with a rollout's
trajectories of returns D, threshold nu and multiplier lambda::

    lambda <- max(lam_low_bound, lambda + lam_lr (beta - nu))
    A(t)   <- A(t) - min(lambda / (1 - alpha) (nu - D)^+, cvar_clip_ratio |V(t)|)    for the steps t of that trajectory
    nu     <- nu_delay x mean of D

A(t) is PPO's advantage before it is normalised; the critic's targets stay as they are. What differs from the published
code, which has faults:

* A trajectory's steps get its own penalty once. There the whole buffer is lowered whenever a trajectory ends.
* D is the return of the whole trajectory. There it is what was earned before step t plus V(t), which the action at t
  cannot change, so that the penalty is a baseline, without any effect on the gradient in the mean.
* lambda keeps to its lower bound, which the code for stocks names and does not use.

D is not discounted: what an account has gained at the end of an episode is the plain sum. The sums go on from rollout
to rollout, as those of `RewardScale`. Where a rollout cuts a trajectory, D is the sum so far and the critic's value of
what follows (with a gamma of 0 the critic tells of nothing that follows, and D is the sum so far), and its later steps
are judged by later rollouts, which know more. Episodes that end, terminated or truncated, count with their sum.

D, nu and beta are in raw rewards times ``reward_unit``, so that they keep their meaning while the scale of the rewards
moves. The penalty is converted to scaled rewards, the unit of advantages and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.core.capabilities import RiskAware
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import hollow, select_rows
from vecenv.learn.ppo import PPO
from vecenv.learn.returns import discounted_sums
from vecenv.learn.runs import Metrics
from vecenv.learn.settings.on_policy import CPPOConfig
from vecenv.learn.shards import Shards

CVAR_METRICS = ("trajectory_return", "cvar_nu", "cvar_lambda", "penalised_fraction", "capped_fraction")
"""Metrics of an update beside those of PPO: mean return of its trajectories, the threshold nu and the multiplier lambda
that judged them, the share of the steps that were penalised, and the share whose penalty was cut by the cap."""


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


def mean_return(returns: Sequence[Tensor], done: Sequence[Tensor], shards: Shards) -> Tensor:
    """Return the mean over the trajectories of a rollout, those that it cuts included, of all shards.

    They are those of each own shard. Shapes: (T, ..., N) -> (...).
    """
    sums = []
    for each, ends in zip(returns, done, strict=True):
        last = ends.clone()
        last[-1] = True
        sums.append([torch.where(last, each, 0.0).sum((0, -1)), last.sum((0, -1))])
    together, count = shards.total(sums)
    return together / count


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


def check_risk_levels(env: VecEnv) -> None:
    """Raise ValueError unless a rollout's risk levels can be had.

    A task may have none, or have them in its rewards already, or a warm-up, which would be repeated at every step.
    """
    scenario = env.scenario
    if not (isinstance(scenario, RiskAware) and scenario.has_risk_level):
        raise ValueError(
            f"weigh_risk needs the risk level of what is held, which task {scenario.name!r} does not have, "
            "or has in its rewards already"
        )
    if env.traits.warm_up:
        raise ValueError(f"weigh_risk is for tasks without a warm-up, which task {scenario.name!r} has")


def risk_levels(collector: FusedCollector) -> Tensor:
    """Return the risk level of every step of the last rollout. Shape: (T, N), float32."""
    env = collector.env
    bound, donated = env.engine.bound(), env.traits.donated
    before, after = collector.rows(after=False), collector.rows()
    levels = []
    for step in range(collector.num_steps):
        rows = before[step]
        # Buffers hold the rows before auto-reset: a row that was done has stepped from its next episode's start.
        started = hollow(bound.start(env.seed_tensor, env.start_ids, rows.episode + 1), donated)
        levels.append(bound.risk_level(select_rows(rows.done, started, rows), after[step]))
    return torch.stack(levels).float()


class CPPO(PPO):
    """CVaR-PPO learner. Several members have a threshold and a multiplier each.

    Raises:
        ValueError: as `PPO`, or ``weigh_risk`` with a task that has no risk levels.
        TypeError: there is no head for the environment's actions.
    """

    config: CPPOConfig
    of_members = ("nu", "multiplier")
    _kept = (*of_members, "carried_return")
    of_rows = (*PPO.of_rows, "carried_return")

    def __init__(self, env: VecEnv, config: CPPOConfig) -> None:
        if config.weigh_risk:
            check_risk_levels(env)
        super().__init__(env, config)
        shape = self.reward_scale.deviation().shape
        self.nu = torch.full(shape, config.nu_start, device=env.device)
        self.multiplier = torch.full(shape, config.lam_start, device=env.device)
        self.carried_return = torch.zeros(env.num_envs, device=env.device)

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {name: getattr(self, name).clone() for name in self._kept}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        super().load_own_state(state)
        for name in self._kept:
            getattr(self, name).copy_(state[name])

    def collect(self) -> None:
        super().collect()
        collector, config = self.collector, self.config
        reward = collector.reward.float() * config.reward_unit
        if config.weigh_risk:
            reward = risk_weighed(reward, risk_levels(collector))
        # Whoever resets the environment between rollouts ends its episodes unseen.
        carried = torch.where(collector.rows(after=False).elapsed[0] == 0, 0.0, self.carried_return)
        self.so_far, self.carried_return = discounted_sums(reward, collector.rows().done, carried, 1.0)

    def learn(self) -> Metrics:
        """Move lambda, make all optimiser steps of one update on penalised advantages, and move nu."""
        config = self.config
        self.multiplier.add_(config.lam_lr * (config.beta - self.nu)).clamp_(min=config.lam_low_bound)
        metrics = super().learn()
        self.nu.copy_(config.nu_delay * self.told[..., 0])
        return metrics | self.named(CVAR_METRICS, self.told)

    def learned_advantages(self, advantages: Tensor, values: Tensor, next_values: Tensor) -> Tensor:
        """Subtract the penalty of each step's trajectory; see `OnPolicyLearner.learned_advantages`."""
        config, done = self.config, self.collector.rows().done
        # By member, and by row.
        shape = (*self.nu.shape, -1)
        nu, multiplier, scale = (
            one.unsqueeze(-1).expand(*shape[:-1], values.shape[1] // max(1, one.numel())).flatten()
            for one in (self.nu, self.multiplier, self.reward_scale.deviation())
        )
        unit = config.reward_unit * scale
        returns = trajectory_returns(self.so_far, done, next_values[-1] * unit)
        cap = config.cvar_clip_ratio * (values if config.cvar_clip_of == "value" else advantages).abs()
        penalty = shortfall_penalty(returns, nu, multiplier, config.alpha, unit, cap)
        # Of each shard, and then by member, of which there are several in one shard alone.
        parts = [
            [part.unflatten(1, shape) for part in self.shards.parts(each)]
            for each in (penalty.short.float(), penalty.capped.float(), returns, done)
        ]
        shares = [self.shards.mean([part.mean((0, -1)) for part in flags]) for flags in parts[:2]]
        mean = mean_return(parts[2], parts[3], self.shards)
        self.told = torch.stack([mean, self.nu, self.multiplier, *shares], -1)
        return advantages - penalty.amount
