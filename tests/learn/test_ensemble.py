"""Ensembles: the mean of what several policies do, and the vote."""

from __future__ import annotations

import pytest
import torch
from torchrl.data import Bounded, Categorical, MultiCategorical

import vecenv
from tests.small_env import same_bits
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.combination import Combination, best_of, sharpe_weights
from vecenv.learn.ensemble import (
    MeanPolicy,
    NoEnsembleError,
    SignVotePolicy,
    VotePolicy,
    disagreement,
    load_ensemble,
)
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPO, PPOConfig
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


def test_what_cannot_be_averaged_is_refused(checkpoints):
    env = vecenv.make("multi_stock_3", 2, market_options={"num_paths": 2, "num_days": 260}, compile=False)
    with pytest.raises(NoEnsembleError, match=r"actions of MultiCategorical with dtype torch\.int64 have no mean"):
        MeanPolicy([load_policy(checkpoints[0], market_env())], env.scenario.action_spec)
    with pytest.raises(ValueError, match="an ensemble needs a policy"):
        MeanPolicy([], Bounded(-1.0, 1.0, (2,)))


class Says:
    """A policy that always says the same."""

    def __init__(self, action):
        self.parameters, self.extras, self.action = [action], {}, action

    def act(self, parameters, observation, key, elapsed):
        return (parameters[0].expand(len(observation), *parameters[0].shape),)


@pytest.mark.parametrize(
    ("said", "voted", "agreement"),
    [
        ([[0, 1], [2, 1], [2, 0]], [2, 1], 1 / 3),
        ([[0, 1], [1, 1], [2, 1]], [0, 1], 1 / 3),
        ([[1, 0], [0, 1], [0, 1], [1, 0]], [1, 0], 2 / 4),
        ([[0, 0]] * 3, [0, 0], 1.0),
    ],
)
def test_a_vote_is_the_choice_of_most_and_of_the_first_among_equals(said, voted, agreement):
    policy = VotePolicy([Says(torch.tensor(action)) for action in said], MultiCategorical([3, 2]))
    action, agreed = policy.act(policy.parameters, torch.zeros(5, 1), None, None)
    assert action.tolist() == [voted] * 5 and agreed.tolist() == pytest.approx([agreement] * 5)


def test_disagreement_is_measured_on_the_votes_episodes():
    env = vecenv.make("crypto_lob", 4, compile=False, synthetic_hours=1.0, episode_steps=50)
    same, other = (Says(torch.tensor([choice])) for choice in (1, 2))
    assert disagreement(VotePolicy([same, same, same], env.scenario.action_spec), env, 0, 10) == 0.0
    assert disagreement(VotePolicy([same, same, other], env.scenario.action_spec), env, 0, 10) == 1.0


@pytest.mark.parametrize(
    ("said", "acted", "agreement"),
    [
        # Two of three buy 0.2 and 0.4 of the first; of the second all sell.
        ([[0.2, -0.3], [0.4, -0.6], [-0.9, -0.9]], [0.3, -0.6], 2 / 3),
        # One each: the first counts.
        ([[-0.5, 0.5], [0.5, 0.5]], [-0.5, 0.5], 1 / 2),
        # Zero is a sign, and sizes are taken within the bounds.
        ([[0.0, 5.0], [0.0, 0.5], [0.7, -1.0]], [0.0, 0.75], 2 / 3),
    ],
)
def test_a_vote_on_signs_has_the_mean_size_of_those_that_agree(said, acted, agreement):
    policy = SignVotePolicy([Says(torch.tensor(action)) for action in said], Bounded(-1.0, 1.0, (2,)))
    action, agreed = policy.act(policy.parameters, torch.zeros(4, 1), None, None)
    torch.testing.assert_close(action, torch.tensor([acted] * 4))
    assert agreed.tolist() == pytest.approx([agreement] * 4)


def test_weights_are_a_softmax_of_ratios():
    e = torch.e
    assert sharpe_weights([1.0, 0.0], 1.0) == pytest.approx([e / (1 + e), 1 / (1 + e)])
    assert sharpe_weights([1.0, 0.0], 0.5) == pytest.approx([e**2 / (1 + e**2), 1 / (1 + e**2)])
    assert best_of([0.1, 0.7, 0.7]) == 1
    assert best_of([float("nan"), 0.1, 0.7]) == 2 and best_of([-1.0, float("nan")]) == 0
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        Combination("weighted", 0.0)


def test_weighted_means_and_votes():
    weights = [0.6, 0.3, 0.1]
    mean = MeanPolicy([Says(torch.tensor([value])) for value in (0.5, -0.5, 9.0)], Bounded(-1.0, 1.0, (1,)), weights)
    assert mean.act(mean.parameters, torch.zeros(1, 1), None, None)[0].item() == pytest.approx(0.3 - 0.15 + 0.1)
    vote = VotePolicy([Says(torch.tensor([choice])) for choice in (2, 1, 1)], Categorical(3, (1,)), weights)
    assert vote.act(vote.parameters, torch.zeros(1, 1), None, None)[0].tolist() == [[2]]


def validated_copies(checkpoints, folder, sharpes):
    paths = []
    for path, sharpe in zip(checkpoints, sharpes, strict=True):
        state = load_checkpoint(path, torch.device("cpu"))
        best = {"score": 0.0, "update": 1, "sharpe": sharpe, "actor": state["actor"], "moments": state["moments"]}
        paths.append(folder / path.name)
        save_checkpoint(state | {"best": best}, paths[-1])
    return paths


def test_checkpoints_are_combined_by_the_sharpe_ratios_of_their_validations(checkpoints, tmp_path):
    env = market_env()
    paths = validated_copies(checkpoints, tmp_path, (0.2, 1.4, -0.3))
    single = [PolicyAgent(load_policy(path, env)).act(env) for path in paths]
    chosen = PolicyAgent(load_ensemble(paths, env, Combination("select"))).act(env)
    assert same_bits(chosen, single[1])
    weighted = PolicyAgent(load_ensemble(paths, env, Combination("weighted", 0.5))).act(env)
    weights = torch.softmax(torch.tensor([0.2, 1.4, -0.3]) / 0.5, 0)
    expected = sum(weight * action.clamp(-1, 1) for weight, action in zip(weights, single, strict=True))
    torch.testing.assert_close(weighted, expected, rtol=0, atol=1e-6)
    assert isinstance(load_ensemble(paths, env, Combination("vote")), SignVotePolicy)


@pytest.mark.parametrize("kind", ["weighted", "select"])
def test_a_run_without_validation_cannot_be_weighted(checkpoints, kind):
    with pytest.raises(ValueError, match=r"0\.pt: holds no Sharpe ratio of a validation; train with"):
        load_ensemble(checkpoints, market_env(), Combination(kind))
