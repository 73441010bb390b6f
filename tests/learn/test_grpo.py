"""GRPO of tensor policies: losses and advantages by hand, groups, episodes, and what cannot be compared."""

import math
from dataclasses import replace

import pytest
import torch

import vecenv
from tests.learn.small_tasks import HORIZON, chain_env, planted_env
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.learn.group_episodes import (
    EpisodeAccounts,
    EpisodeReward,
    audit,
    group_episodes,
    group_returns,
    has_spread,
    refilled,
    rollout_seed,
)
from vecenv.learn.grpo import (
    GRPO,
    GroupObjective,
    GRPOConfig,
    group_advantages,
    group_losses,
    step_advantages,
    step_anchors,
    step_credit,
)
from vecenv.learn.shards import Shards

RETURN = EpisodeReward(grade=0.0, total_return=1.0)
SMALL = GRPOConfig(total_frames=4 * HORIZON * 16, epochs=2, minibatches=2, hidden=(8, 8), reward=RETURN)
GROUP = 4


def logs(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


RATIOS = logs([1.5, 0.5, 1.1], [0.7, 1.3, 1.0])
ADVANTAGE = torch.tensor([[2.0], [-1.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, True, True]])


def loss(objective, log_prob=RATIOS, reference=None):
    return group_losses(log_prob, torch.zeros_like(log_prob), ADVANTAGE, MASK, objective, 5, reference)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # Gains: min(3, 2.56), min(1, 1.6) of the first sequence; min(-0.7, -0.8), min(-1.3, -1.28), -1 of the second.
        ("sequence_mean", -((2.56 + 1.0) / 2 + (-0.8 - 1.3 - 1.0) / 3) / 2),
        ("token_mean", -(2.56 + 1.0 - 0.8 - 1.3 - 1.0) / 5),
        ("fixed_length", -(2.56 + 1.0 - 0.8 - 1.3 - 1.0) / (2 * 5)),
    ],
)
def test_token_ratios_by_hand(aggregation, expected):
    objective = GroupObjective("token", aggregation, 0.2, 0.28)
    found = loss(objective)
    assert float(found.policy) == pytest.approx(expected)
    # 1.5, 0.5, 0.7 and 1.3 of five tokens are beyond 0.8 and 1.28.
    assert float(found.clip_fraction) == pytest.approx(4 / 5)
    k3 = sum(ratio - 1 - math.log(ratio) for ratio in (1.5, 0.5, 0.7, 1.3, 1.0))
    assert float(found.approx_kl) == pytest.approx(k3 / 5)
    assert float(found.reference_kl) == 0
    # Halves and doubles of the first sequence; what is beyond its end counts for nothing.
    reference = RATIOS + logs([2.0, 0.5, 9.0], [1.0, 1.0, 4.0])
    away = [2 - 1 - math.log(2), 0.5 - 1 - math.log(0.5), 0.0, 0.0, 4 - 1 - math.log(4)]
    averages = {"sequence_mean": (sum(away[:2]) / 2 + sum(away[2:]) / 3) / 2, "token_mean": sum(away) / 5}
    told = loss(objective, reference=reference).reference_kl
    assert float(told) == pytest.approx(averages.get(aggregation, sum(away) / 10))


def test_tokens_of_a_sequence_ratio_learn_by_their_own_advantages():
    """Eq. 13 of the paper: a token's ratio has the sequence's value, and a gradient in its own probability alone."""
    torch.manual_seed(2)
    mask = torch.rand(6, 9) < 0.7
    mask[:, 0] = True
    own, old, advantage = (size * torch.randn(6, 9, dtype=torch.float64) for size in (0.05, 0.05, 1.0))
    one, other = own.clone().requires_grad_(), own.clone().requires_grad_()
    losses = group_losses(one, old, advantage, mask, GroupObjective("sequence", "sequence_mean", 0.005, 0.01), 9)
    sequence = (((own - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()
    ratio = sequence * (other - own).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.995, 1.01) * advantage) * mask
    expected = -(gain.sum(-1) / mask.sum(-1)).mean()
    torch.testing.assert_close(losses.policy, expected)
    clipped = ((sequence < 0.995) | (sequence > 1.01)).expand(6, 9)[mask].double().mean()
    assert float(losses.clip_fraction) == pytest.approx(float(clipped)) and 0 < clipped < 1
    losses.policy.backward(), expected.backward()
    torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "fixed_length"])
def test_tokens_of_others_count_for_nothing(ratio, aggregation):
    """Whatever stands there, infinities and NaN too, neither loss nor gradient sees it."""
    objective, clean, dirty = GroupObjective(ratio, aggregation, 0.2, 0.2), RATIOS.clone(), RATIOS.clone()
    dirty[~MASK] = math.nan
    policies = []
    for each in (clean, dirty):
        found = loss(objective, each.requires_grad_(), reference=RATIOS.roll(1, 1))
        (found.policy + found.reference_kl).backward()
        assert all(bool(part.isfinite()) for part in found)
        policies.append(found.policy.detach())
    assert torch.equal(clean.grad.where(MASK, 0.0), clean.grad)
    assert torch.equal(clean.grad, dirty.grad) and policies[0] == policies[1]


def test_advantages_by_hand():
    """1, 2, 6 has mean 3 and unbiased variance (4 + 1 + 9) / 2 = 7."""
    returns = torch.tensor([[1.0, 2.0, 6.0], [0.5, 0.5, 0.5]], dtype=torch.float64)
    assert has_spread(returns).tolist() == [True, False]
    centred = torch.tensor([[-2.0, -1.0, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(group_advantages(returns, scaled=False), centred)
    torch.testing.assert_close(group_advantages(returns, scaled=True), centred / (math.sqrt(7) + 1e-6))
    with pytest.raises(ValueError, match="at least 2 members to compare, got 1"):
        group_advantages(torch.zeros(4, 1), scaled=True)
    # Of steps by their anchors: 7 has 1, 2, 6; 3 has 4, 4; 9 is alone; the last step does not count.
    returns = torch.tensor([[1.0, 4.0, 5.0], [2.0, 6.0, 4.0], [0.0, 0.0, 100.0]], dtype=torch.float64)
    anchor, mask = torch.tensor([[7, 3, 9], [7, 7, 3], [5, 5, 7]]), torch.ones(3, 3, dtype=torch.bool)
    mask[2, 2] = False
    centred = torch.tensor([[-2.0, 0.0, 0.0], [-1.0, 3.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(step_advantages(returns, anchor, mask, scaled=False), centred)
    torch.testing.assert_close(step_advantages(returns, anchor, mask, scaled=True), centred / (math.sqrt(7) + 1e-6))
    # Steps that did equally well teach nothing although their mean is rounded.
    returns, mask = torch.full((1, 3), 0.1, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    assert float(returns.sum() / 3) != 0.1
    for scaled in (True, False):
        assert not bool(step_advantages(returns, mask.long(), mask, scaled).any())


def accounts(reward):
    """Two groups of two episodes of three steps, of which the last has two."""
    mask = torch.tensor([[True] * 4, [True] * 4, [True, True, True, False]])
    exposure = torch.tensor([[0.0, 0.1, 0.0, 0.0], [0.2, 0.25, 1.0, 0.9], [0.0, 0.0, 0.0, 0.0]])
    nothing = torch.zeros(4, dtype=torch.float64)
    return EpisodeAccounts(mask, torch.tensor(reward, dtype=torch.float64), {}, exposure, None, nothing)


REWARD = [[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 5.0], [0.0, 1.0, 4.0, 0.0]]


def credit(variant="grpo", progress=0.0, **settings):
    return step_credit(accounts(REWARD), GRPOConfig(variant=variant, **settings), 2, progress)


def test_the_credit_of_steps_and_what_is_logged_of_groups_by_hand():
    """Returns of 1 and 3, and of 4 and 5."""
    plain = credit("dr_grpo")
    assert plain.tolist() == [[-1.0, 1.0, -0.5, 0.5]] * 3 and plain.dtype == torch.float32
    first, later, scaled = credit("capo", progress=0.24), credit("capo", progress=0.25), credit()
    assert torch.equal(first, scaled.clamp(min=0.0)) and torch.equal(later, scaled)
    # One whose world failed is compared with none, nor is any with it.
    episodes = replace(accounts(REWARD), failed=torch.tensor([False, False, False, True]), parts={})
    three = group_advantages(torch.tensor([[1.0, 3.0, 4.0]], dtype=torch.float64), scaled=True).float()
    torch.testing.assert_close(step_credit(episodes, GRPOConfig(), 4, 0.0)[:, :3], three.expand(3, 3))
    told = audit(episodes, torch.tensor([True]))
    assert (told["failed"], told["episode_reward"]) == (0.25, pytest.approx(8 / 3))
    alike = replace(accounts([[0.1, 0.1, 0.1, 9.0]]), failed=episodes.failed)
    assert group_returns(alike, 4).tolist() == [[0.1] * 4]
    exposure = torch.tensor([0.0, 0.24, 0.25, 1.0, 0.0, -0.3, 1.7, 0.99]).expand(20, 8)
    episodes = replace(accounts(REWARD), mask=exposure < 9, reward=torch.zeros(20, 8), exposure=exposure)
    assert step_anchors(episodes, 4, 4)[0].tolist() == [0, 0, 1, 3, 80, 80, 83, 83]
    # Returns-to-go at 0.5, compared where day and fifth of the exposure are alike: on the first day of both groups, on
    # the second of both, and on the third of the first; the second group's last step is alone.
    returns = torch.tensor([[1.0, 1.25, 1.0, 2.5], [0.0, 2.5, 2.0, 5.0], [0.0, 1.0, 4.0, 0.0]]).view(3, 2, 2)
    away = returns - returns.mean(-1, keepdim=True)
    own = (away / (returns.std(-1, keepdim=True) + 1e-6)).view(3, 4)
    own[2, 2:] = 0.0
    steps = credit("gigpo", step_gamma=0.5, step_weight=2.0)
    torch.testing.assert_close(steps, scaled + 2.0 * own, rtol=1e-4, atol=1e-5)
    parts = {"steps": torch.tensor([3.0, -1.0, 0.0, 0.0]), "grade": torch.tensor([1.0, 1.0, 1.0, 1.0])}
    flow = torch.tensor([[1, 0, -1, 0], [0, 0, 0, 0], [0, 1, 0, 1]])
    episodes = replace(accounts(REWARD), parts=parts, flow=flow, invalid=torch.tensor([1, 0, 0, 1]))
    assert audit(episodes, torch.tensor([True, False])) == pytest.approx(
        {
            "episode_reward": 13 / 4, "share/steps": 0.5, "share/grade": 0.5, "hold": 8 / 11, "buy": 2 / 11,
            "sell": 1 / 11, "invalid": 2 / 11, "no_spread": 0.5, "length": 11 / 4,
        }
    )  # fmt: skip
    assert [rollout_seed(5, 0), rollout_seed(5, 2), rollout_seed(2**63 - 1, 1)] == [5, 5 + 2**33, 2**32 - 1]


def tier_env(num_envs: int = 32, **rules: object) -> VecEnv:
    options = {"num_paths": 4, "num_days": 400}
    return vecenv.make("single_stock", num_envs, market="planted", market_options=options, compile=False, **rules)


def test_an_episode_is_what_happened_before_its_first_end() -> None:
    """Lengths differ between groups, whose members share their market; later steps are of other episodes."""
    env = planted_env(24, min_episode_length=3)
    worth = EpisodeReward(grade=0.5, total_return=2.0, steps=3.0)
    learner = GRPO(env, replace(SMALL, reward=worth), GROUP)
    learner.collect()
    collector = learner.collector
    state = collector.rows(after=False).state.clone()
    for numbers in (state.path[0], state.start_day[0], collector.observation[0, :, -1]):
        assert bool((numbers.view(-1, GROUP) == numbers.view(-1, GROUP)[:, :1]).all())
    assert len(collector.actions[0].unique()) > 12
    episodes = group_episodes(collector, worth)
    done, after, lengths = collector.truncated | collector.terminated, collector.rows(), set()
    for row in range(env.num_envs):
        last = int(done[:, row].nonzero()[0])
        lengths.add(last + 1)
        assert episodes.mask[:, row].tolist() == [step <= last for step in range(HORIZON)]
        ended = after[last : last + 1, row]
        bound = env.engine.bound().of_rows(torch.tensor([row]))
        info, grade = bound.info(ended), float(bound.grade(ended))
        total = float(info["portfolio_value"] / info["start_value"] - 1)
        rewards = 3.0 * collector.reward[:, row].double()
        steps, end = float(rewards[: last + 1].sum()), 0.5 * grade + 2.0 * total
        assert float(episodes.reward[:, row].sum()) == pytest.approx(steps + end)
        assert float(episodes.reward[last, row]) == pytest.approx(float(rewards[last]) + end)
        assert not bool(episodes.reward[last + 1 :, row].any())
        parts = {name: float(part[row]) for name, part in episodes.parts.items()}
        assert parts == pytest.approx({"steps": steps, "grade": 0.5 * grade, "return": 2.0 * total, "invalid": 0.0})
    assert len(lengths) > 2
    learner.collect()
    assert not torch.equal(collector.rows(after=False).state.start_day[0], state.start_day[0])


def given(env: VecEnv, group: int, actions: list[tuple[tuple, object]]) -> FusedCollector:
    """Return a rollout of groups with actions of zero but for some."""
    collector = FusedCollector(env, "given", env.scenario.longest)
    collector.actions.zero_()
    for place, action in actions:
        collector.actions[place] = torch.as_tensor(action)
    collector.extras["log_prob"] = torch.zeros(collector.actions.shape[:2])
    env.reset_groups(env.num_envs // group, group, 0)
    collector.rollout()
    return collector


def test_trades_are_orders_whatever_their_size_and_interest_is_none_and_invalid_ones_count() -> None:
    """A short position costs cash every day, but it was sold on the first day alone."""
    env = planted_env(4, shorting=True, borrow_rate=0.5, hmax=5)
    collector = given(env, 4, [((0, slice(None, None, 2)), -1.0)])
    cash = collector.rows().state.cash
    assert bool((cash[2:, 0] < cash[1:-1, 0]).all())
    episodes = group_episodes(collector, RETURN)
    assert episodes.flow[:, 0].tolist() == [-1] + [0] * (HORIZON - 1) and not bool(episodes.flow[:, 1].any())
    assert bool((episodes.exposure[1:, 0] < 0).all())
    orders = ((1.0, 0.0, 0.5), (1.0, 0.0, 0.1), (2.0, 0.0, 0.1), (2.0, 0.0, 1.0))
    actions = [((day, 0, 0), order) for day, order in enumerate(orders)]
    episodes = group_episodes(given(tier_env(2, action="orders"), 2, actions), EpisodeReward())
    assert episodes.flow[:5].T.tolist() == [[1, 1, -1, -1, 0], [0] * 5]
    # Every second row acts invalidly on a day, as a language model may, one of them on two: it is taken away once.
    every_second = (3, slice(None, None, 2), 0, 0)
    collector = given(tier_env(8, action="orders"), 4, [(every_second, 3.0), ((5, 4, 0, 0), 3.0)])
    episodes = group_episodes(collector, EpisodeReward(grade=0.0, steps=1e-9, invalid=1.0))
    assert episodes.parts["invalid"].tolist() == [-1.0, 0.0] * 4
    assert episodes.invalid.tolist() == [1, 0, 1, 0, 2, 0, 1, 0]
    told = audit(episodes, torch.ones(2, dtype=torch.bool))
    assert told["invalid"] == pytest.approx(5 / (8 * len(collector.actions))) and told["hold"] == 1.0


def test_groups_without_spread_are_filled_from_further_rollouts_or_left_out() -> None:
    """Members that all hold cash earn the same; dapo draws others."""
    episodes, others = accounts([[1.0, 1.0, 0.0, 2.0], [0.0] * 4, [0.0] * 4]), accounts([[3.0, 5.0, 7.0, 7.0]] * 3)
    calls = []
    again = lambda: calls.append(1) or [others]  # noqa: E731
    with_spread, refills = refilled([episodes], again, GRPOConfig(variant="dapo").most_refills, 2, Shards())
    assert with_spread.tolist() == [False, True] and refills == len(calls) == 1
    assert episodes.reward[0].tolist() == [3.0, 5.0, 0.0, 2.0] and bool(episodes.mask[0].all())
    alike, same = accounts([[1.0, 1.0, 0.0, 2.0], [0.0] * 4, [0.0] * 4]), accounts([[1.0] * 4] * 3)
    _, refills = refilled([alike], lambda: [same], GRPOConfig(variant="dapo", refills=3).most_refills, 2, Shards())
    assert refills == 3 and alike.mask[0].tolist() == [False, False, True, True]
    # What is left out counts for nothing.
    alike.invalid.copy_(torch.tensor([9, 9, 1, 0]))
    told = audit(alike, torch.tensor([False, True]))
    assert told["length"] == 2.5 and told["invalid"] == pytest.approx(1 / 5)
    assert refilled([alike], again, GRPOConfig().most_refills, 2, Shards())[1] == 0 and len(calls) == 1
    learner = GRPO(tier_env(64), replace(SMALL, variant="dapo", reward=EpisodeReward(), refills=50), GROUP)
    learner.collect()
    first = group_episodes(learner.collector, learner.config.reward).owned()
    kept = has_spread(first.reward.sum(0).view(-1, GROUP))
    assert 0 < int(kept.sum()) < 16
    episodes, with_spread, refills = learner._episodes()
    assert torch.equal(with_spread, kept) and 0 < refills < 50
    assert bool(has_spread(episodes.reward.sum(0).view(-1, GROUP)).all()) and bool(episodes.mask.any(0).all())
    same = (episodes.observation == first.observation).all(-1).all(0).view(-1, GROUP).all(-1)
    assert torch.equal(same, kept)


def test_the_reference_is_renewed_by_its_rule() -> None:
    """After every second update; and a learner that goes on from a state has the reference of that state."""
    config = replace(SMALL, total_frames=5 * HORIZON * 16, kl_coef=0.1, renew_reference=2)
    learner, other = (GRPO(planted_env(16), config, GROUP) for _ in range(2))
    weights = [[tensor.clone() for tensor in learner.actor]]
    for update, referred in enumerate((0, 0, 2, 2, 4)):
        if update == 3:
            other.load_state_dict(learner.state_dict())
        learner.update()
        weights.append([tensor.clone() for tensor in learner.actor])
        assert all(map(torch.equal, learner.reference, weights[referred])), update
        assert not all(map(torch.equal, learner.reference, weights[-1]))
    for _ in range(2):
        other.update()
    assert all(map(torch.equal, [*other.actor, *other.reference], [*learner.actor, *learner.reference]))


def test_what_cannot_be_compared_is_refused() -> None:
    for size in (1, 5):
        with pytest.raises(ValueError, match=rf"divide the 16 sub-environments, got {size}"):
            GRPO(planted_env(16), SMALL, size)
    with pytest.raises(ValueError, match="16 episodes cannot be split into 5 equal minibatches"):
        GRPO(planted_env(16), replace(SMALL, minibatches=5), GROUP)
    options = {"num_paths": 2, "num_days": 500}
    mixed = vecenv.make("curriculum", 16, market="planted", market_options=options, compile=False)
    with pytest.raises(ValueError, match="compared although they differ in their rule"):
        GRPO(mixed, SMALL, GROUP)
    with pytest.raises(ValueError, match="chain does not say how long an episode may be"):
        GRPO(chain_env(16), SMALL, GROUP)
