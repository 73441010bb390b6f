"""GRPO of tensor policies: groups, episodes, variants, the optimum of a known signal, and runs that go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vecenv
from tests.learn.chain_task import chain_env
from tests.learn.planted_env import HORIZON, planted_env
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.learn.group_credit import group_returns, has_spread
from vecenv.learn.group_episodes import audit, group_episodes
from vecenv.learn.grpo import GRPO, EpisodeReward, GRPOConfig

RETURN = EpisodeReward(grade=0.0, total_return=1.0)
SMALL = GRPOConfig(total_frames=4 * HORIZON * 16, epochs=2, minibatches=2, hidden=(8, 8), reward=RETURN)
GROUP = 4


def tier_env(num_envs: int = 32, **rules: object) -> VecEnv:
    options = {"num_paths": 4, "num_days": 400}
    return vecenv.make("single_stock", num_envs, market="planted", market_options=options, compile=False, **rules)


def collected(learner: GRPO) -> FusedCollector:
    learner.collect()
    return learner.collector


@pytest.mark.assembly
def test_members_of_a_group_differ_by_their_actions_alone() -> None:
    """Path, first day and prices are the same bit for bit; the next rollout begins elsewhere."""
    learner = GRPO(tier_env(), SMALL, GROUP)
    starts = []
    for _ in range(2):
        collector = collected(learner)
        state = collector.rows(after=False).state
        for numbers in (state.path, state.start_day, state.day):
            groups = numbers.view(len(numbers), -1, GROUP)
            assert bool((groups == groups[..., :1]).all())
        shown = collector.observation[0].view(-1, GROUP, collector.observation.shape[-1])
        assert bool((shown == shown[:, :1]).all())
        action = collector.actions[0].view(-1, GROUP, *collector.actions.shape[2:])
        assert not bool((action == action[:, :1]).all())
        starts.append(state.start_day[0].clone())
    assert len(starts[0].unique()) > 1 and not torch.equal(*starts)


def test_an_episode_is_what_happened_before_its_first_end() -> None:
    """Lengths differ between groups; later steps are of other episodes and count for nothing."""
    env = planted_env(24, min_episode_length=3)
    worth = EpisodeReward(grade=0.5, total_return=2.0, steps=3.0)
    learner = GRPO(env, replace(SMALL, reward=worth), GROUP)
    collector = collected(learner)
    episodes = group_episodes(collector, worth)
    done, after = collector.truncated | collector.terminated, collector.rows()
    lengths = set()
    for row in range(env.num_envs):
        last = int(done[:, row].nonzero()[0])
        lengths.add(last + 1)
        assert episodes.mask[:, row].tolist() == [step <= last for step in range(HORIZON)]
        ended = after[last : last + 1, row]
        bound = env.engine.bound().of_rows(torch.tensor([row]))
        info, grade = bound.info(ended), float(bound.grade(ended))
        total = float(info["portfolio_value"] / info["start_value"] - 1)
        steps = 3.0 * float(collector.reward[: last + 1, row].double().sum())
        assert float(episodes.reward[:, row].sum()) == pytest.approx(steps + 0.5 * grade + 2.0 * total)
        assert float(episodes.reward[last, row]) == pytest.approx(
            3.0 * float(collector.reward[last, row]) + 0.5 * grade + 2.0 * total
        )
        assert not bool(episodes.reward[last + 1 :, row].any())
        parts = {name: float(part[row]) for name, part in episodes.parts.items()}
        assert parts == pytest.approx({"steps": steps, "grade": 0.5 * grade, "return": 2.0 * total, "invalid": 0.0})
    assert len(lengths) > 2
    told = audit(episodes, torch.ones(6, dtype=torch.bool))
    assert told["length"] == pytest.approx(float(episodes.mask.sum()) / 24)
    assert sum(told[f"share/{name}"] for name in episodes.parts) == pytest.approx(1.0)
    assert told["hold"] + told["buy"] + told["sell"] == pytest.approx(1.0)


def test_the_format_gate_takes_away_once() -> None:
    """Every second row acts invalidly on a day, as a language model may, one of them on two."""
    env = tier_env(8, action="orders")
    collector = FusedCollector(env, "given", env.scenario.longest)
    collector.actions.zero_()
    collector.actions[3, ::2, 0, 0] = 3.0
    collector.actions[5, 4, 0, 0] = 3.0
    collector.extras["log_prob"] = torch.zeros(collector.actions.shape[:2])
    env.reset_groups(2, 4, 0)
    collector.rollout()
    worth = EpisodeReward(grade=0.0, steps=1e-9, invalid=1.0)
    episodes = group_episodes(collector, worth)
    assert episodes.parts["invalid"].tolist() == [-1.0, 0.0] * 4
    assert episodes.invalid.tolist() == [1, 0, 1, 0, 2, 0, 1, 0]
    told = audit(episodes, torch.ones(2, dtype=torch.bool))
    assert told["invalid"] == pytest.approx(5 / (8 * env.scenario.longest)) and told["hold"] == 1.0


def test_interest_is_no_trade() -> None:
    """A short position costs cash every day, but it was sold on the first day alone."""
    env = planted_env(4, shorting=True, borrow_rate=0.5, hmax=5)
    collector = FusedCollector(env, "given", HORIZON)
    collector.actions.zero_()
    collector.actions[0, ::2] = -1.0
    collector.extras["log_prob"] = torch.zeros(collector.actions.shape[:2])
    env.reset_groups(1, 4, 0)
    collector.rollout()
    cash = collector.rows().state.cash
    assert bool((cash[2:, 0] < cash[1:-1, 0]).all())
    episodes = group_episodes(collector, RETURN)
    assert episodes.flow[:, 0].tolist() == [-1] + [0] * (HORIZON - 1) and not bool(episodes.flow[:, 1].any())
    assert bool((episodes.exposure[1:, 0] < 0).all())


def test_a_smaller_trade_after_a_larger_one_is_a_trade() -> None:
    env = tier_env(2, action="orders")
    collector = FusedCollector(env, "given", env.scenario.longest)
    collector.actions.zero_()
    for day, (kind, fraction) in enumerate(((1.0, 0.5), (1.0, 0.1), (2.0, 0.1), (2.0, 1.0))):
        collector.actions[day, 0, 0] = torch.tensor((kind, 0.0, fraction))
    collector.extras["log_prob"] = torch.zeros(collector.actions.shape[:2])
    env.reset_groups(1, 2, 0)
    collector.rollout()
    episodes = group_episodes(collector, EpisodeReward())
    assert episodes.flow[:5].T.tolist() == [[1, 1, -1, -1, 0], [0] * 5]


@pytest.mark.assembly
def test_groups_without_spread_are_filled_anew() -> None:
    """Members that all hold cash earn the same; dapo draws others, and what it cannot fill counts for nothing."""
    learner = GRPO(tier_env(64), replace(SMALL, variant="dapo", reward=EpisodeReward(), refills=50), GROUP)
    learner.collect()
    first = group_episodes(learner.collector, learner.config.reward).owned()
    empty = ~has_spread(group_returns(first, GROUP))
    assert 0 < int(empty.sum()) < 16
    learner.rollouts = 0
    learner.collect()
    episodes, with_spread, refills = learner._episodes()
    assert torch.equal(with_spread, ~empty) and 0 < refills < 50
    assert bool(has_spread(group_returns(episodes, GROUP)).all()) and bool(episodes.mask.any(0).all())
    kept = (~empty).repeat_interleave(GROUP)
    assert torch.equal(episodes.observation[:, kept], first.observation[:, kept])
    filled = ~kept
    assert not torch.equal(episodes.observation[0, filled], first.observation[0, filled])
    shown = episodes.observation[0].view(16, GROUP, -1)
    assert bool((shown == shown[:, :1]).all())

    never = GRPO(tier_env(64), replace(SMALL, variant="dapo", reward=EpisodeReward(), refills=0), GROUP)
    never.collect()
    episodes, _, refills = never._episodes()
    assert refills == 0 and not bool(episodes.mask[:, filled].any()) and bool(episodes.mask[:, kept].all())


def test_what_cannot_be_compared_is_refused() -> None:
    for size in (1, 5):
        with pytest.raises(ValueError, match=rf"divide the 16 sub-environments, got {size}"):
            GRPO(planted_env(16), SMALL, size)
    with pytest.raises(ValueError, match="16 episodes cannot be split into 5 equal minibatches"):
        GRPO(planted_env(16), replace(SMALL, minibatches=5), GROUP)
    mixed = vecenv.make(
        "curriculum", 16, market="planted", market_options={"num_paths": 2, "num_days": 500}, compile=False
    )
    with pytest.raises(ValueError, match="compared although they differ in their rule"):
        GRPO(mixed, SMALL, GROUP)
    with pytest.raises(ValueError, match="chain does not say how long an episode may be"):
        GRPO(chain_env(16), SMALL, GROUP)
