"""CVaR-PPO (CPPO): PPO whose trajectories are penalised by what their return falls short of a threshold.

Ying et al., "Towards safe reinforcement learning via constraining conditional value-at-risk", IJCAI 2022; constants of
its use on stocks with risk levels: Benhenda, "FinRL-DeepSeek", arXiv 2502.07393, 2025. An update with a rollout's
trajectories of returns D, threshold nu and multiplier lambda:

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

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import hollow, select_rows
from vecenv.learn.advantages import discounted_sums
from vecenv.learn.cppo_objective import (
    CVAR_METRICS,
    CPPOConfig,
    mean_return,
    risk_weighed,
    shortfall_penalty,
    trajectory_returns,
)
from vecenv.learn.network_learner import Trained
from vecenv.learn.ppo import PPO
from vecenv.learn.ppo_ensemble import EnsemblePPO, member_metric
from vecenv.learn.runs import Metrics, run

__all__ = ["CPPO", "CVAR_METRICS", "CPPOConfig", "EnsembleCPPO", "train"]


_STATE = ("nu", "multiplier", "carried_return")
"""Tensors of a checkpoint beside those of PPO."""


def check_risk_levels(env: VecEnv) -> None:
    """Raise ValueError unless a rollout's risk levels can be had.

    A task may have none, or have them in its rewards already, or a warm-up, which would be repeated at every step.
    """
    scenario = env.scenario
    if not scenario.has_risk_level:
        raise ValueError(
            f"weigh_risk needs the risk level of what is held, which task {scenario.name!r} does not have, "
            "or has in its rewards already"
        )
    if scenario.warm_up:
        raise ValueError(f"weigh_risk is for tasks without a warm-up, which task {scenario.name!r} has")


def risk_levels(collector: FusedCollector) -> Tensor:
    """Return the risk level of every step of the last rollout. Shape: (T, N), float32."""
    env = collector.env
    bound, donated = env.engine.bound(), env.scenario.donated
    before, after = collector.rows(after=False), collector.rows()
    levels = []
    for step in range(collector.num_steps):
        rows = before[step]
        # Buffers hold the rows before auto-reset: a row that was done has stepped from its next episode's start.
        started = hollow(bound.start(env.seed_tensor, env.start_ids, rows.episode + 1), donated)
        levels.append(bound.risk_level(select_rows(rows.done, started, rows), after[step]))
    return torch.stack(levels).float()


class _TailsPenalised(PPO):
    """What learns with penalised tails: one learner, or several of one batch, each with numbers of its own."""

    config: CPPOConfig

    def __init__(self, env: VecEnv, config: CPPOConfig, *members: Any) -> None:  # noqa: ANN401
        if config.weigh_risk:
            check_risk_levels(env)
        super().__init__(env, config, *members)
        shape = self.reward_scale.deviation().shape
        self.nu = torch.full(shape, config.nu_start, device=env.device)
        self.multiplier = torch.full(shape, config.lam_start, device=env.device)
        self.carried_return = torch.zeros(env.num_envs, device=env.device)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {name: getattr(self, name).clone() for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for name in _STATE:
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
        self.nu.copy_(config.nu_delay * self.told[0])
        return metrics | self.told_metrics()

    def told_metrics(self) -> Metrics:
        return dict(zip(CVAR_METRICS, self.told.tolist(), strict=True))

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
        flags = (penalty.short.float(), penalty.capped.float())
        shares = (flag.unflatten(1, shape).mean((0, -1)) for flag in flags)
        mean = mean_return(returns.unflatten(1, shape), done.unflatten(1, shape))
        self.told = torch.stack([mean, self.nu, self.multiplier, *shares])
        return advantages - penalty.amount


class CPPO(_TailsPenalised):
    """CVaR-PPO learner; `train` runs it.

    Raises:
        ValueError: as `PPO`, or ``weigh_risk`` with a task that has no risk levels.
        TypeError: there is no head for the environment's actions.
    """


class EnsembleCPPO(_TailsPenalised, EnsemblePPO):
    """CVaR-PPO of S members of one batch, each with its own threshold and multiplier; see `EnsemblePPO`."""

    def told_metrics(self) -> Metrics:
        metrics: Metrics = {}
        for seed, told in zip(self.seeds, self.told.T.tolist(), strict=True):
            metrics |= {member_metric(name, seed): value for name, value in zip(CVAR_METRICS, told, strict=True)}
        return metrics

    def member_state(self, number: int) -> dict[str, Any]:
        each = self.env.num_envs // self.num_members
        own = {name: getattr(self, name)[number].clone() for name in ("nu", "multiplier")}
        carried = self.carried_return[number * each : (number + 1) * each].clone()
        return super().member_state(number) | own | {"carried_return": carried}


def train(
    env: VecEnv,
    config: CPPOConfig | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    on_update: Callable[[Metrics], None] | None = None,
    before_update: Callable[[int], None] | None = None,
) -> Trained[CPPO]:
    """Train CVaR-PPO; for the arguments see `vecenv.learn.runs.run`."""
    learner = CPPO(env, config or CPPOConfig())
    return Trained(learner, run(learner, folder, resume, on_update, before_update))
