"""Group-relative policy optimisation (GRPO) and its variants: Dr. GRPO, DAPO, GSPO, GiGPO and CAPO.

Advantages are those within groups of episodes; there is no critic. A group is a set of rows that share path, start and
length, so that its members differ by their actions alone. One rollout of the collector is one episode of every row.

An episode is a sequence, and a day's action a token. For a language model a token is a token of text: advantages and
losses are functions of rewards and log-probabilities, so that both share them (`vecenv.language.grpo`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.group_episodes import (
    EpisodeAccounts,
    GroupEpisodes,
    audit,
    check_groups,
    check_same_rules,
    check_told,
    check_whole_worlds,
    group_episodes,
    group_returns,
    has_spread,
    not_failed,
    of_all_shards,
    of_shards,
    refilled,
    rollout_seed,
)
from vecenv.learn.learner import Learner
from vecenv.learn.returns import generalised_advantages
from vecenv.learn.runs import Metrics
from vecenv.learn.settings.grpo import (
    GroupConfig,
    GroupObjective,
    GRPOConfig,
)
from vecenv.learn.settings.run import check_shards
from vecenv.learn.shards import ranks


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


EPSILON = 1e-6
"""Added to standard deviations in denominators."""


def group_advantages(returns: Tensor, scaled: bool, counted: Tensor | None = None) -> Tensor:
    """Return the group-relative advantage of each episode: R - mean, over std + `EPSILON` if scaled.

    An episode is compared with the group of those that share its market path and start (Shao et al., "DeepSeekMath",
    arXiv 2402.03300, 2024).
    GRPO scales, Dr. GRPO does not. The variance estimate is unbiased. Groups of equal returns get exactly 0. Returns
    that are not ``counted`` are the mean of the others of their group, see `group_returns`; by default all are.
    Shapes: (num_groups, group_size), of at least two members.
    """
    if returns.shape[-1] < 2:
        raise ValueError(f"a group needs at least 2 members to compare, got {returns.shape[-1]}")
    centred = returns - returns.mean(-1, keepdim=True)
    if scaled:
        deviation = returns.std(-1, keepdim=True)
        if counted is not None:
            others = (counted.sum(-1, keepdim=True) - 1).clamp(min=1)
            deviation = deviation * ((returns.shape[-1] - 1) / others).sqrt()
        centred = centred / (deviation + EPSILON)
    return centred.where(has_spread(returns).unsqueeze(-1), 0.0)


def step_advantages(returns: Tensor, anchor: Tensor, mask: Tensor, scaled: bool) -> Tensor:
    """Return the advantage of each step's return-to-go over the mean of the steps with the same anchor. Shape: any.

    Feng et al., "Group-in-Group Policy Optimization", arXiv 2505.10978, 2025: anchors are similar positions of a group.
    Steps with an anchor of their own, or outside of the mask, get 0. Scaled as in `group_advantages`.
    """
    here = returns[mask].double()
    _, place, count = anchor[mask].unique(return_inverse=True, return_counts=True)
    mean = torch.zeros(len(count), dtype=here.dtype, device=here.device).index_add_(0, place, here) / count
    centred = here - mean[place]
    if scaled:
        squares = torch.zeros_like(mean).index_add_(0, place, centred.square())
        centred = centred / ((squares / (count - 1).clamp(min=1)).sqrt()[place] + EPSILON)
    ends = [torch.zeros_like(mean).scatter_reduce_(0, place, here, how, include_self=False) for how in ("amax", "amin")]
    differs = (ends[0] > ends[1])[place]
    advantages = torch.zeros_like(returns)
    advantages[mask] = centred.where(differs, 0.0).to(returns.dtype)
    return advantages


def step_credit(episodes: EpisodeAccounts, config: GroupConfig, group_size: int, progress: float) -> Tensor:
    """Return the advantage of every step of whole groups, whose members are consecutive rows. Shape: (T, N)."""
    rules, mask = config.rules, episodes.mask
    returns, counted = group_returns(episodes, group_size), not_failed(episodes, group_size)
    advantages = group_advantages(returns, rules.scaled, counted).view(-1).expand(mask.shape)
    if rules.compare_steps:
        nothing = torch.zeros_like(episodes.reward)
        end = torch.zeros_like(mask)
        returns = generalised_advantages(episodes.reward, nothing, nothing, end, end, config.step_gamma, 1.0)
        anchors = step_anchors(episodes, config.position_buckets, group_size)
        advantages = advantages + config.step_weight * step_advantages(returns, anchors, mask, rules.scaled)
    if rules.positive_first and progress < config.positive_share:
        advantages = advantages.clamp(min=0.0)
    return advantages.float().contiguous()


def step_anchors(episodes: EpisodeAccounts, buckets: int, group_size: int) -> Tensor:
    """Return an id of group, day and, if there is an account, position of every step. Shape: (T, N), int64."""
    days, rows = episodes.mask.shape
    exposure = torch.zeros_like(episodes.reward) if episodes.exposure is None else episodes.exposure
    position = (exposure * buckets).floor().clamp(0, buckets - 1).long()
    group = torch.arange(rows, device=position.device) // group_size
    day = torch.arange(days, device=position.device).unsqueeze(-1)
    return (group * days + day) * buckets + position


class GRPO(Learner[GRPOConfig]):
    """GRPO learner. Every rollout resets all rows of ``env``; ``group_size`` divides their number.

    Raises:
        ValueError: the rows do not split into whole groups or equal minibatches, groups divide worlds, parameters
            differ between sub-environments, the task sets no longest episode, or it does not tell what the reward
            weighs.
        TypeError: there is no head for the environment's actions.
    """

    loss_metrics = ("policy_loss", "entropy", "reference_kl", "approx_kl", "clip_fraction")

    def __init__(self, env: VecEnv, config: GRPOConfig, group_size: int) -> None:
        rows = env.num_envs * ranks().count
        check_groups(rows, group_size, config)
        check_whole_worlds(env, group_size)
        check_shards(config.shards, ranks().count, rows // group_size, "groups")
        super().__init__(env, config, check_same_rules(env), with_critic=False, units=env.num_envs)
        check_told(env.scenario, env.engine.bound().info(env.rows), config.reward)
        # Again: a curriculum sets per-row parameters in the line above.
        check_same_rules(env)
        self.group_size = group_size
        self.first_seed, self.rollouts = int(env.seed_tensor), 0
        self.reference = [parameter.clone() for parameter in self.actor]

    def start_from(
        self, actor: list[Tensor], critic: list[Tensor], moments: list[Tensor], running: Mapping[str, Tensor]
    ) -> None:
        """Extend `Learner.start_from` by the reference policy, which is the initial one."""
        super().start_from(actor, critic, moments, running)
        self._refer_to(actor)

    def _refer_to(self, actor: list[Tensor]) -> None:
        """Make a policy the reference."""
        for own, other in zip(self.reference, actor, strict=True):
            own.copy_(other)

    def own_state(self) -> dict[str, Any]:
        own = {"group_size": self.group_size, "first_seed": self.first_seed, "rollouts": self.rollouts}
        return super().own_state() | own | {"reference": [tensor.clone() for tensor in self.reference]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("group_size") != self.group_size:
            raise ValueError(f"the checkpoint was trained with groups of {state.get('group_size')}")
        super().load_state_dict(state)

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        super().load_own_state(state)
        self.first_seed, self.rollouts = state["first_seed"], state["rollouts"]
        self._refer_to(state["reference"])

    def collect(self) -> None:
        seed = rollout_seed(self.first_seed, self.rollouts)
        rows = self.env.num_envs
        self.env.reset_groups(rows // self.group_size, self.group_size, seed, self.shards.first_row(rows))
        super().collect()
        self.rollouts += 1

    def learn(self) -> Metrics:
        episodes, with_spread, refills = self._episodes()
        finite = self.shards.mean([part.isfinite().all().float() for part in self.shards.parts(episodes.log_prob)])
        if finite < 1:
            # Members that are no numbers are alike, and what is alike may count for nothing.
            raise FloatingPointError(f"update {self.update_number + 1}: log-probabilities are not finite")
        parts, progress = of_shards(episodes, self.shards), self.update_number / self.num_updates
        credits = [step_credit(part, self.config, self.group_size, progress) for part in parts]
        credit = credits[0] if len(credits) == 1 else torch.cat(credits, dim=1)
        batch = [episodes.observation, episodes.action, episodes.log_prob, credit, episodes.mask]
        if self.config.kl_coef:
            if self.config.renews_reference(self.update_number):
                self._refer_to(self.actor)
            batch.append(self._reference_log_prob(episodes))
        metrics = self.minimise(batch)
        spread = self.shards.joined([with_spread.to(torch.int8)]).bool()
        return metrics | audit(of_all_shards(parts, self.shards), spread) | {"refills": refills}

    def _episodes(self) -> tuple[GroupEpisodes, Tensor, int]:
        """Return the update's episodes, which groups of the first rollout have variance, and the number of refills."""
        episodes = group_episodes(self.collector, self.config.reward)
        if self.config.most_refills is not None:
            episodes = episodes.owned()
        own, most = of_shards(episodes, self.shards), self.config.most_refills
        return episodes, *refilled(own, self._again, most, self.group_size, self.shards)

    def _again(self) -> list[GroupEpisodes]:
        self.collect()
        return of_shards(group_episodes(self.collector, self.config.reward), self.shards)

    def _reference_log_prob(self, episodes: GroupEpisodes) -> Tensor:
        """Return the log-probabilities of the actions under the reference policy. Shape: (T, N)."""
        columns = []
        for part in of_shards(episodes, self.shards):
            days = zip(part.observation, part.action, strict=True)
            columns.append(torch.stack([self._log_prob(self.reference, *day) for day in days]))
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def _log_prob(self, actor: list[Tensor], observation: Tensor, action: Tensor) -> Tensor:
        """Return log-probabilities of actions. Shapes: (B, D), (B, *spec.shape) -> (B,)."""
        allowed = self.network.mask(observation)
        outputs, own = self.network.outputs(actor, self.network.normalised(observation, *self.moments), allowed)
        return self.network.head.evaluate(outputs, own, action)[0]

    def pick(self, tensor: Tensor, index: Tensor) -> Tensor:
        """Return whole episodes. Shape: (T, N, ...)."""
        return tensor[:, index]

    def objective(
        self,
        parameters: list[Tensor],
        observation: Tensor,
        allowed: Tensor | None,
        action: Tensor,
        old_log_prob: Tensor,
        advantage: Tensor,
        mask: Tensor,
        *reference_log_prob: Tensor,
    ) -> tuple[Tensor, Tensor]:
        config, days = self.config, len(mask)
        outputs, own = self.network.outputs(parameters, observation, allowed)
        log_prob, entropy = self.network.head.evaluate(outputs, own, action.flatten(0, 1))
        losses = group_losses(
            log_prob.view(days, -1).T,
            old_log_prob.T,
            advantage.T,
            mask.T,
            config.rules.objective,
            days,
            reference_log_prob[0].T if reference_log_prob else None,
        )
        entropy = entropy.view(days, -1).where(mask, 0.0).sum() / mask.sum().clamp(min=1)
        loss = losses.policy + config.kl_coef * losses.reference_kl - config.entropy_coef * entropy
        return loss, torch.stack([losses.policy, entropy, *losses[1:]]).detach()
