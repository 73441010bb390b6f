"""Ensembles: the mean of what several policies do, the vote, and how they differ."""

import math

import pytest
import torch
from torchrl.data import Bounded, Categorical, MultiCategorical

import vecenv
from tests.small_env import same_bits
from vecenv.learn import Trained
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.ensemble import (
    Diversity,
    MeanPolicy,
    NoEnsembleError,
    SignVotePolicy,
    VotePolicy,
    best_of,
    disagreement,
    diversity,
    diversity_line,
    draws_actions,
    load_ensemble,
    played_observations,
    sharpe_weights,
)
from vecenv.learn.evaluation import PolicyAgent
from vecenv.learn.policies import ActorPolicy, load_policy
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.sac import SAC, SACConfig
from vecenv.learn.settings.ensemble import Combination
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape

FEATURES = ("daily_change", "rsi_14")


def market_env(num_envs=6, **options):
    tape = MarketTape.from_bars(synthetic_bars(num_paths=3, num_days=100, symbols=3, seed=1), FEATURES)
    options = {"features": FEATURES, "episode_length": 20, "action": "tilt"} | options
    return vecenv.make("stock_trading", num_envs, market=tape, compile=False, **options)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Three policies that differ by their seed, with scores large enough to leave the bounds."""
    folder = tmp_path_factory.mktemp("policies")
    paths = []
    for seed in range(3):
        learner = PPO(market_env(), PPOConfig(num_steps=4, minibatches=1, hidden=(8,), seed=seed))
        generator = torch.Generator().manual_seed(seed)
        for parameter in learner.actor:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        paths.append(folder / f"{seed}.pt")
        save_checkpoint(learner.state_dict(), paths[-1])
    return paths


class Says:
    def __init__(self, action):
        self.parameters, self.extras, self.action = [action], {}, action

    def act(self, parameters, observation, key, elapsed):
        return (parameters[0].expand(len(observation), *parameters[0].shape),)


def said_by(policy, count=4):
    action, *more = policy.act(policy.parameters, torch.zeros(count, 1), None, None)
    assert bool((action == action[:1]).all())
    return [action[0].tolist(), *(float(told[0]) for told in more)]


def test_a_vote_is_the_choice_of_most_and_of_the_first_among_equals():
    for said, voted, agreement in (
        ([[0, 1], [2, 1], [2, 0]], [2, 1], 1 / 3),
        ([[0, 1], [1, 1], [2, 1]], [0, 1], 1 / 3),
        ([[1, 0], [0, 1], [0, 1], [1, 0]], [1, 0], 2 / 4),
        ([[0, 0]] * 3, [0, 0], 1.0),
    ):
        policy = VotePolicy([Says(torch.tensor(action)) for action in said], MultiCategorical([3, 2]))
        assert said_by(policy) == [voted, pytest.approx(agreement)]
    env = vecenv.make("crypto_lob", 4, compile=False, synthetic_hours=1.0, episode_steps=50)
    same, other = (Says(torch.tensor([choice])) for choice in (1, 2))
    assert disagreement(VotePolicy([same, same, same], env.scenario.action_spec), env, 0, 10) == 0.0
    assert disagreement(VotePolicy([same, same, other], env.scenario.action_spec), env, 0, 10) == 1.0
    # A vote on signs has the mean size of those that agree.
    for said, acted, agreement in (
        # Two of three buy 0.2 and 0.4 of the first; of the second all sell.
        ([[0.2, -0.3], [0.4, -0.6], [-0.9, -0.9]], [0.3, -0.6], 2 / 3),
        # One each: the first counts.
        ([[-0.5, 0.5], [0.5, 0.5]], [-0.5, 0.5], 1 / 2),
        # Zero is a sign, and sizes are taken within the bounds.
        ([[0.0, 5.0], [0.0, 0.5], [0.7, -1.0]], [0.0, 0.75], 2 / 3),
    ):
        policy = SignVotePolicy([Says(torch.tensor(action)) for action in said], Bounded(-1.0, 1.0, (2,)))
        assert said_by(policy) == [pytest.approx(acted), pytest.approx(agreement)]


def test_weighted_means_and_votes():
    e, weights = torch.e, [0.6, 0.3, 0.1]
    assert sharpe_weights([1.0, 0.0], 1.0) == pytest.approx([e / (1 + e), 1 / (1 + e)])
    assert sharpe_weights([1.0, 0.0], 0.5) == pytest.approx([e**2 / (1 + e**2), 1 / (1 + e**2)])
    assert best_of([0.1, 0.7, 0.7]) == 1
    assert best_of([math.nan, 0.1, 0.7]) == 2 and best_of([-1.0, math.nan]) == 0
    mean = MeanPolicy([Says(torch.tensor([value])) for value in (0.5, -0.5, 9.0)], Bounded(-1.0, 1.0, (1,)), weights)
    assert said_by(mean)[0] == pytest.approx([0.3 - 0.15 + 0.1])
    # Of observations by name too.
    assert float(mean.act(mean.parameters, {"board": torch.zeros(1, 2)}, None, None)[0]) == pytest.approx(0.25)
    vote = VotePolicy([Says(torch.tensor([choice])) for choice in (2, 1, 1)], Categorical(3, (1,)), weights)
    assert said_by(vote)[0] == [2]
    with pytest.raises(NoEnsembleError, match=r"actions of MultiCategorical with dtype torch\.int64 have no mean"):
        MeanPolicy([Says(torch.zeros(2))], MultiCategorical([3, 2]))
    with pytest.raises(ValueError, match="an ensemble needs a policy"):
        MeanPolicy([], Bounded(-1.0, 1.0, (2,)))


def test_checkpoints_are_combined_by_the_sharpe_ratios_of_their_validations(checkpoints, tmp_path):
    env, paths = market_env(), [tmp_path / path.name for path in checkpoints]
    for source, path, sharpe in zip(checkpoints, paths, (0.2, 1.4, -0.3), strict=True):
        state = load_checkpoint(source, torch.device("cpu"))
        best = {"score": 0.0, "update": 1, "sharpe": sharpe, "actor": state["actor"], "moments": state["moments"]}
        save_checkpoint(state | {"best": best}, path)
    single = [PolicyAgent(load_policy(path, env)).act(env) for path in paths]
    chosen = PolicyAgent(load_ensemble(paths, env, Combination("select"))).act(env)
    assert same_bits(chosen, single[1])
    weighted = PolicyAgent(load_ensemble(paths, env, Combination("weighted", 0.5))).act(env)
    weights = torch.softmax(torch.tensor([0.2, 1.4, -0.3]) / 0.5, 0)
    expected = sum(weight * action.clamp(-1, 1) for weight, action in zip(weights, single, strict=True))
    torch.testing.assert_close(weighted, expected, rtol=0, atol=1e-6)
    assert isinstance(load_ensemble(paths, env, Combination("vote")), SignVotePolicy)
    for kind in ("weighted", "select"):
        with pytest.raises(ValueError, match=r"0\.pt: holds no Sharpe ratio of a validation; train with"):
            load_ensemble(checkpoints, env, Combination(kind))


def policies_of(env, biases):
    """Policies of constant outputs: all weights are zero but the last biases."""
    learner = PPO(env, PPOConfig(num_steps=2, minibatches=1, hidden=(4,), by_reference=False))
    policies = []
    for bias in biases:
        actor = [torch.zeros_like(tensor) for tensor in learner.actor]
        place = 2 * learner.network.layers - 1
        actor[place] = torch.tensor(bias).expand(learner.network.head.size).clone()
        policies.append(ActorPolicy(learner.network, learner.moments, actor, deterministic=True))
    return policies


def test_numbers_differ_by_sign_distance_and_divergence_and_choices_by_their_share():
    env = market_env(4, episode_length=5)
    policies = policies_of(env, (0.5, -0.5, 3.0))
    told = diversity(policies, policies[0], env, 0, 3)
    size = policies[0].network.head.size
    # Signs of two of three pairs are opposite; 3 is taken as 1.
    assert told.disagreement == pytest.approx(2 / 3)
    assert told.distance == pytest.approx(math.sqrt((1.0 + 0.5**2 + 1.5**2) / 3))
    # The deviations are exp(0): half the squared distance for each component.
    assert told.divergence[0] == pytest.approx([0.0, size * 0.5, size * 2.5**2 / 2])
    assert told.mean_divergence == pytest.approx(size * (1.0 + 2.5**2 + 3.5**2) / 6)
    line = diversity_line(told)
    assert "signs are opposite at 66.7%" in line and "RMS distance of actions 1.08" in line and "nats" in line
    assert Diversity.from_json(told.to_json()) == told
    # Nothing is no opposite of something.
    (nothing,) = policies_of(env, (0.0,))
    assert diversity([policies[0], nothing], policies[0], env, 0, 2).disagreement == 0.0
    squashed = Trained(SAC(env, SACConfig(num_steps=2, minibatches=1, hidden=(4,))), []).policy()
    assert diversity([policies[0], squashed], policies[0], env, 0, 2).divergence is None
    # Choices differ by their share.
    env = vecenv.make("crypto_lob", 4, compile=False, synthetic_hours=1.0, episode_steps=5)
    learner = PPO(env, PPOConfig(num_steps=2, minibatches=1, hidden=(4,)))
    size, policies = learner.network.head.size, []
    for choice in (0, 0, 1):
        actor = [torch.zeros_like(tensor) for tensor in learner.actor]
        actor[-1] = 2.0 * torch.nn.functional.one_hot(torch.tensor(choice), size).float()
        policies.append(ActorPolicy(learner.network, learner.moments, actor, deterministic=True))
    told = diversity(policies, policies[0], env, 0, 3)
    assert told.disagreement == pytest.approx(2 / 3) and told.distance is None
    apart = 2.0 * (math.e**2 - 1) / (math.e**2 + size - 1)
    assert told.divergence[0] == pytest.approx([0.0, 0.0, apart], abs=1e-6)
    assert "choices differ at 66.7%" in diversity_line(told)
    assert diversity(policies, policies[0], env, 0, 3, random=False).divergence is None


def test_observations_are_those_of_the_episodes_that_are_played(tmp_path):
    env, other = (market_env(4, episode_length=6, min_episode_length=3) for _ in range(2))
    (policy,) = policies_of(env, (0.3,))
    seen = played_observations(policy, env, 5, 8)
    other.reset_groups(4, 1, 5)
    expected, agent = [], PolicyAgent(policy)
    while not bool(other.rows.done.all()):
        expected.append(other.observations()[~other.rows.done])
        other.advance(agent.act(other))
    assert torch.equal(seen, torch.cat(expected)) and len(seen) < 8 * 4
    with pytest.raises(ValueError, match="diversity needs at least two policies, got 1"):
        diversity([policy], policy, env, 0)
    # Learners of entropy draw their actions.
    configs = ({"entropy_coef": 0.0}, {"target_entropy": -1.0}, {"gamma": 0.9}, None)
    told = []
    for config in configs:
        save_checkpoint({"config": config}, tmp_path / "checkpoint.pt")
        told.append(draws_actions(tmp_path / "checkpoint.pt"))
    assert told == [True, True, False, False]
