"""Whole episodes of group rollouts: their rewards and parts, what reveals reward hacking, and groups drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from vecenv.core.collector import FusedCollector
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, hollow
from vecenv.core.scenario import Scenario, flat_view
from vecenv.learn.domain import domain_of
from vecenv.learn.runs import RunConfig
from vecenv.learn.settings.grpo import EpisodeReward
from vecenv.learn.shards import Shards


@dataclass(frozen=True, eq=False)
class EpisodeAccounts:
    """Mask, rewards and trades of the first episode of every row, in T steps of N rows.

    Attributes:
        mask: which steps belong to the episode. Shape: (T, N), bool.
        reward: of each step, the last including the terminal parts; their sum is the episode's return. Shape: (T, N).
        parts: weighted parts of the return, by name. Shape of each: (N,), float64.
        exposure: invested share of the account before each step, None without an account. Shape: (T, N).
        flow: 1 where a step bought on balance, -1 sold, 0 no trade; None without an account. Shape: (T, N), int8.
        invalid: number of invalid actions, None where the task does not tell it. Shape: (N,).
        failed: episodes whose world failed, which are outside of the mask and compared with none; None where no world
            can fail. Shape: (N,), bool.
    """

    mask: Tensor
    reward: Tensor
    parts: dict[str, Tensor]
    exposure: Tensor | None
    flow: Tensor | None
    invalid: Tensor | None
    failed: Tensor | None = field(default=None, kw_only=True)

    def of_rows(self, rows: slice) -> Self:
        """Return views of the episodes of some rows."""

        def part(value: Any) -> Any:  # noqa: ANN401
            if isinstance(value, dict):
                return {name: part(each) for name, each in value.items()}
            if not isinstance(value, Tensor):
                return value if value is None else value[rows]
            return value[rows] if value.ndim == 1 else value[:, rows]

        return type(self)(**{name: part(value) for name, value in vars(self).items()})

    def lengthened(self, steps: int) -> Self:
        """Return the episodes in so many steps, of which further ones belong to none."""
        further = steps - len(self.mask)
        if not further:
            return self
        by_step = {name: value for name, value in vars(self).items() if isinstance(value, Tensor) and value.ndim > 1}
        longer: dict[str, Any] = {
            name: torch.cat([value, value.new_zeros(further, *value.shape[1:])]) for name, value in by_step.items()
        }
        return replace(self, **longer)

    def put(self, rows: Tensor, other: Self, others: Tensor) -> None:
        """Replace the episodes of ``rows`` by those of rows ``others`` of ``other``. Shape of both: (M,)."""
        for name, own in vars(self).items():
            new = getattr(other, name)
            if own is None:
                continue
            if isinstance(own, dict):
                for part, tensor in own.items():
                    tensor[rows] = new[part][others]
            elif isinstance(own, list):
                for row, place in zip(rows.tolist(), others.tolist(), strict=True):
                    own[row] = new[place]
            elif own.ndim == 1:
                own[rows] = new[others]
            else:
                own[:, rows] = new[:, others]


@dataclass(frozen=True, eq=False)
class GroupEpisodes(EpisodeAccounts):
    """Episodes with flat observations, actions and log-probabilities under the policy that played.

    They are views of buffers that the next rollout overwrites. Shape of each: (T, N, ...).
    """

    observation: Tensor
    action: Tensor
    log_prob: Tensor

    def owned(self) -> GroupEpisodes:
        """Return the episodes with copies instead of views of the collector's buffers."""
        seen, done, log_prob = self.observation.clone(), self.action.clone(), self.log_prob.clone()
        return replace(self, observation=seen, action=done, log_prob=log_prob)


def check_groups(num_envs: int, group_size: int, config: RunConfig) -> None:
    """Raise ValueError unless the rows split into whole groups and equal minibatches."""
    if group_size < 2 or num_envs % group_size:
        raise ValueError(f"group_size must be at least 2 and divide the {num_envs} sub-environments, got {group_size}")
    if num_envs % config.minibatches:
        raise ValueError(f"{num_envs} episodes cannot be split into {config.minibatches} equal minibatches")


def check_whole_worlds(env: VecEnv, group_size: int) -> None:
    """Raise ValueError unless groups consist of whole worlds."""
    agents = env.traits.num_agents
    if group_size % agents:
        raise ValueError(f"group_size must be a multiple of {agents}, the agents of a world, got {group_size}")


def check_same_rules(env: VecEnv) -> int:
    """Return the steps of the longest episode; ValueError if there is none, or parameters differ between rows."""
    scenario = env.scenario
    if scenario.longest is None:
        raise ValueError(f"{scenario.name} does not say how long an episode may be")
    if scenario.varied:
        raise ValueError(
            f"{scenario.name}: the members of a group would be compared although they differ in their "
            f"{', '.join(sorted(scenario.varied))}"
        )
    return scenario.longest


SEED_STRIDE = 1 << 32
"""Difference of the environment seeds of consecutive rollouts."""


def rollout_seed(first_seed: int, rollouts: int) -> int:
    """Return the environment seed of a rollout by the number of earlier rollouts."""
    return (first_seed + rollouts * SEED_STRIDE) % (1 << 63)


@torch.no_grad()
def played_accounts(
    env: VecEnv,
    act: Callable[[], Tensor],
    worth: EpisodeReward,
    parts: Sequence[Sequence[int]],
    misread: Callable[[], Sequence[Tensor]],
) -> list[EpisodeAccounts]:
    """Play freshly reset episodes to their ends and return the `EpisodeAccounts` of each of some parts of the rows.

    Those of a part do not depend on the others, and have as many steps as its longest episode. ``misread`` returns, at
    the end, the number of answers of each part's rows that could not be read.
    """
    donated, ids = env.traits.donated, [row for part in parts for row in part]
    rows, rewards = [hollow(env.rows_of(ids)[0], donated)], []
    while not bool(rows[-1].done.all()):
        rewards.append(env.advance(act())[ids])
        rows.append(hollow(env.rows_of(ids)[0], donated))
    # torch.stack accepts tensorclasses.
    whole: Any = torch.stack(rows)  # type: ignore[arg-type]
    reward, found, first = torch.stack(rewards), list[EpisodeAccounts](), 0
    for part, wrong in zip(parts, misread(), strict=True):
        own = slice(first, first + len(part))
        steps = 1 + int((~whole.done[1:, own].all(1)).sum())
        before, after = whole[:steps, own], whole[1 : steps + 1, own]
        numbers = torch.tensor(list(part), device=env.device)
        found.append(episode_accounts(env, before, after, reward[:steps, own], worth, numbers, wrong))
        first = own.stop
    return found


def check_told(scenario: Scenario[Any], told: Collection[str], worth: EpisodeReward) -> None:
    """Raise ValueError of a weight of what a scenario does not tell of an episode, given the names that it tells."""
    weights = {"total_return": worth.total_return, "invalid_actions": worth.invalid}
    options = {"total_return": "total-return", "invalid_actions": "invalid"}
    for name in [name for name, weight in weights.items() if weight and name not in told]:
        penalised = name == "invalid_actions" and hasattr(getattr(scenario, "config", None), "format_penalty")
        other = ": its own penalty is --env.format-penalty" if penalised else ""
        raise ValueError(
            f"{scenario.name} does not tell {name} of an episode, which --learner.reward.{options[name]} weighs{other}"
        )


def episode_outcome(
    bound: BoundEngine, ended: Rows, worth: EpisodeReward, misread: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the terminal parts ``grade``, ``return`` and ``invalid``, weighted, and the number of invalid actions.

    If the task does not tell that, it is the number of ``misread`` answers, else None. Shape: (N,).

    Raises:
        ValueError: as `check_told`.
    """
    info = bound.info(ended)
    if "invalid_actions" not in info and misread is not None:
        info = info | {"invalid_actions": misread}
    check_told(bound.scenario, info, worth)
    none = torch.zeros_like(ended.elapsed, dtype=torch.float64)
    invalid = info["invalid_actions"].double() if "invalid_actions" in info else None
    returns = info["total_return"].double() if "total_return" in info else none
    parts = {
        "grade": worth.grade * bound.grade(ended).double() if worth.grade else none,
        "return": worth.total_return * returns,
        "invalid": none if invalid is None else -worth.invalid * (invalid > 0).double(),
    }
    return parts, invalid


@torch.no_grad()
def episode_accounts(
    env: VecEnv,
    before: Rows,
    after: Rows,
    reward: Tensor,
    worth: EpisodeReward,
    ids: Tensor | None = None,
    misread: Tensor | None = None,
) -> EpisodeAccounts:
    """Return the `EpisodeAccounts` of the episodes that start at the first of T steps.

    Rows are those before each step, and after it before auto-reset, of shape (T, N); ``ids`` their indices;
    ``misread`` as of `episode_outcome`.

    Raises:
        ValueError: an episode does not end within the steps, or as `episode_outcome`.
    """
    steps, count = reward.shape
    done = after.done
    mask = (done.cumsum(0) - done.long()) == 0
    row, last = torch.arange(count, device=env.device), mask.sum(0) - 1
    if not bool(done[last, row].all()):
        raise ValueError(f"{env.scenario.name}: an episode has more than the {steps} steps of a rollout")
    ended = after[last, row]
    bound = env.engine.bound().of_rows(row if ids is None else ids)
    outcome, invalid = episode_outcome(bound, ended, worth, misread)
    rewards = worth.steps * reward.double().where(mask, 0.0)
    parts = {"steps": rewards.sum(0), **outcome}
    rewards[last, row] += outcome["grade"] + outcome["return"] + outcome["invalid"]
    exposure, flow = domain_of(env).trades(before.state, after.state) or (None, None)
    return EpisodeAccounts(
        mask=mask,
        reward=rewards,
        parts=parts,
        exposure=exposure,
        flow=None if flow is None else flow.where(mask, 0),
        invalid=invalid,
    )


Episodes = TypeVar("Episodes", bound=EpisodeAccounts)


def of_shards(episodes: Episodes, shards: Shards) -> list[Episodes]:
    """Return the episodes of each own shard, which are views."""
    rows = shards.slices(episodes.reward.shape[1])
    return [episodes] if len(rows) == 1 else [episodes.of_rows(part) for part in rows]


def of_all_shards(own: Sequence[EpisodeAccounts], shards: Shards) -> EpisodeAccounts:
    """Return accounts of the episodes of all shards for `audit`; their rewards are those of whole episodes.

    ``own`` are those of each own shard, in as many steps as those of all others.
    """
    if shards.count == 1:
        return own[0]

    def joined(parts: Sequence[Tensor | None]) -> Any:  # noqa: ANN401
        # Rows first, and no booleans, which not all ranks can send.
        known = [part for part in parts if part is not None]
        if not known:
            return None
        kind = known[0].dtype
        sent = torch.int8 if kind == torch.bool else kind
        return shards.joined([part.movedim(-1, 0).to(sent) for part in known]).to(kind).movedim(0, -1)

    return EpisodeAccounts(
        mask=joined([part.mask for part in own]),
        reward=joined([part.reward.sum(0, keepdim=True) for part in own]),
        parts={name: joined([part.parts[name] for part in own]) for name in own[0].parts},
        exposure=None,
        flow=joined([part.flow for part in own]),
        invalid=joined([part.invalid for part in own]),
        failed=joined([part.failed for part in own]),
    )


def group_episodes(collector: FusedCollector, worth: EpisodeReward) -> GroupEpisodes:
    """Return the episodes of a rollout at whose start every row was reset; errors as `episode_accounts`."""
    before, after = collector.rows(after=False), collector.rows()
    accounts = episode_accounts(collector.env, before, after, collector.reward, worth)
    assert collector.observation is not None
    seen = flat_view(collector.observation, batch_dims=2)
    done, log_prob = collector.actions, collector.extras["log_prob"]
    return GroupEpisodes(**vars(accounts), observation=seen, action=done, log_prob=log_prob)


def audit(episodes: EpisodeAccounts, with_spread: Tensor) -> dict[str, float]:
    """Return metrics that reveal reward hacking.

    They are the mean ``episode_reward``; the ``share/…`` of each reward part in the sum of the absolute parts;
    ``no_spread``, the share of zero-variance groups; where worlds can fail, the share of those that ``failed``, whose
    episodes count for nothing else; and, of the episodes that are not masked out, with an account the shares of steps
    without trades (``hold``), with net purchases (``buy``) and with net sales (``sell``), ``invalid`` actions per step
    where the task tells them, and the mean ``length`` in steps.
    """
    rewards, failures = episodes.reward.sum(0), {}
    days, kept = episodes.mask.sum(), episodes.mask.any(0)
    if episodes.failed is not None:
        failures["failed"] = float(episodes.failed.double().mean())
        rewards = rewards[~episodes.failed]
    amounts = {name: float(part.abs().sum()) for name, part in episodes.parts.items()}
    total = max(sum(amounts.values()), 1e-12)
    traded, invalid = {}, {}
    if episodes.invalid is not None:
        invalid = {"invalid": float(episodes.invalid[kept].sum() / days.clamp(min=1))}
    if episodes.flow is not None:
        flow = episodes.flow[episodes.mask]
        signs = {"hold": flow == 0, "buy": flow > 0, "sell": flow < 0}
        traded = {name: float(those.double().mean()) for name, those in signs.items()}
    return {
        "episode_reward": float(rewards.mean()),
        **{f"share/{name}": amount / total for name, amount in amounts.items()},
        **traded,
        **invalid,
        "no_spread": float((~with_spread).double().mean()),
        "length": float(days / kept.sum().clamp(min=1)),
        **failures,
    }


def has_spread(returns: Tensor) -> Tensor:
    """Return whether the returns within each group differ; equal ones have no gradient. Shape: (num_groups,)."""
    return returns.amax(-1) > returns.amin(-1)


def group_returns(episodes: EpisodeAccounts, group_size: int) -> Tensor:
    """Return the return of each episode, of one that failed the mean of its group. Shape: (num_groups, group_size)."""
    returns = episodes.reward.sum(0).view(-1, group_size)
    counted = not_failed(episodes, group_size)
    if counted is None:
        return returns
    # From one that counts: the mean of equal returns is exactly theirs, and the group has no spread.
    first = returns.gather(-1, counted.long().argmax(-1, keepdim=True))
    total = (returns - first).where(counted, 0.0).sum(-1, keepdim=True)
    return returns.where(counted, first + total / counted.sum(-1, keepdim=True).clamp(min=1))


def not_failed(episodes: EpisodeAccounts, group_size: int) -> Tensor | None:
    """Return which episodes did not fail, None where none can. Shape: (num_groups, group_size)."""
    return None if episodes.failed is None else ~episodes.failed.view(-1, group_size)


def refilled(
    own: Sequence[Episodes],
    again: Callable[[], Sequence[Episodes]],
    most: int | None,
    group_size: int,
    shards: Shards,
) -> tuple[Tensor, int]:
    """Replace zero-variance groups by groups of further rollouts in place, of which there are at most so many.

    A rollout has the episodes of each own shard. A shard's groups are replaced by its own; all play on while one of
    them, of any rank, has such a group. Steps of zero-variance groups that remain are masked out; with None for
    ``most`` all groups stay as they are. Return which groups of the first rollout have non-zero variance, shape
    (num_groups,), and the number of further rollouts.
    """
    spreads = [has_spread(group_returns(part, group_size)) for part in own]
    with_spread, refills = torch.cat(spreads), 0
    if most is None:
        return with_spread, 0
    empty = [(~part).nonzero().squeeze(-1) for part in spreads]
    while refills < most and float(shards.mean([torch.tensor(float(len(groups))) for groups in empty])):
        others = again()
        refills += 1
        for place, (part, other) in enumerate(zip(own, others, strict=True)):
            found = has_spread(group_returns(other, group_size)).nonzero().squeeze(-1)[: len(empty[place])]
            part.put(_rows(empty[place][: len(found)], group_size), other, _rows(found, group_size))
            empty[place] = empty[place][len(found) :]
    for part, groups in zip(own, empty, strict=True):
        part.mask[:, _rows(groups, group_size)] = False
    return with_spread, refills


def _rows(groups: Tensor, group_size: int) -> Tensor:
    """Return the row indices of groups. Shape: (M,) -> (M group_size,)."""
    member = torch.arange(group_size, device=groups.device)
    return (groups.unsqueeze(-1) * group_size + member).flatten()
