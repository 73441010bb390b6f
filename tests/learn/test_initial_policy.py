"""A run that starts from another run's policy: what it takes over, what starts new, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vecenv
from tests.learn.chain_task import same
from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.exact import Exact, ExactConfig
from vecenv.learn.grpo import GRPO, GRPOConfig
from vecenv.learn.initial_policy import check_same_network, start_from
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPO, PPOConfig, train
from vecenv.learn.running_moments import RunningMoments
from vecenv.learn.runs import CHECKPOINT

CONFIG = PPOConfig(num_steps=4, total_frames=3 * 4 * 8, minibatches=2, epochs=1, policy="symbol", hidden=(8,))
RULES = {"action": "tilt", "features": ("daily_change", "momentum_10"), "episode_length": 20}


def market_env(num_symbols: int, seed: int = 0, **rules: object) -> VecEnv:
    options = {"num_paths": 3, "num_days": 90, "symbols": [f"S{k}" for k in range(num_symbols)], "seed": seed}
    return vecenv.make(
        "stock_trading", 8, market="synthetic", market_options=options, compile=False, seed=seed, **(RULES | rules)
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The checkpoint of a run on three symbols."""
    folder = tmp_path_factory.mktemp("source")
    train(market_env(3), CONFIG, folder)
    return folder / CHECKPOINT


def read(path: Path) -> dict:
    return load_checkpoint(path, torch.device("cpu"))


@pytest.mark.parametrize("num_symbols", [3, 5])
def test_it_starts_with_that_policy_and_its_critic_and_all_else_is_new(source, num_symbols):
    learner, fresh = (PPO(market_env(num_symbols, 1), replace(CONFIG, seed=9)) for _ in range(2))
    start_from(learner, source)
    state = read(source)
    assert same(learner.actor, state["actor"]) and same(learner.critic, state["critic"])
    assert same(learner.moments, state["moments"]) and not same(learner.actor, fresh.actor)
    running = learner.observation_moments.state_dict()
    assert all(torch.equal(running[name], value) for name, value in state["observation_moments"].items())
    assert learner.update_number == 0 and learner.optimiser.state_dict()["state"] == {}
    assert float(learner.reward_scale.return_moments.count) == 0 and learner.num_updates == 3
    env = market_env(num_symbols, 2)
    started = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
    assert torch.equal(PolicyAgent(started).act(env), PolicyAgent(load_policy(source, env)).act(env))


def test_the_first_rollout_is_added_to_the_moments_of_that_run(source):
    """As if it followed that run's last one: by the count of what that run has seen."""
    learner = PPO(market_env(5, 1), CONFIG)
    start_from(learner, source)
    learner.prepare()
    expected = RunningMoments((learner.network.moments_size,), torch.device("cpu"))
    expected.load_state_dict(read(source)["observation_moments"])
    # Three symbols, four steps of eight rows, three updates and the rollout before them.
    assert float(expected.count) == 3 * 4 * 8 * 4
    seen = learner.collector.observation.flatten(0, 1)
    expected.update(learner.network.samples(seen))
    assert float(learner.observation_moments.count) == 3 * 4 * 8 * 4 + 5 * 4 * 8
    assert torch.equal(learner.moments[0], expected.mean.float())
    assert torch.equal(learner.moments[1], expected.deviation().float())


def test_of_a_validated_run_it_is_the_best_policy(source, tmp_path):
    state = read(source)
    best = {"actor": [tensor + 1 for tensor in state["actor"]], "moments": [tensor + 2 for tensor in state["moments"]]}
    save_checkpoint(state | {"best": best}, tmp_path / "best.pt")
    started = PPO(market_env(4), CONFIG)
    start_from(started, tmp_path / "best.pt")
    assert same(started.actor, best["actor"]) and same(started.moments, best["moments"])
    assert torch.equal(started.observation_moments.mean, state["observation_moments"]["mean"])


def test_a_critic_that_does_not_fit_starts_new(source, tmp_path):
    """Another form of critic, and one of a learner without."""
    state = read(source)
    state["critic"] = [torch.zeros(3, 3), *state["critic"][1:]]
    save_checkpoint(state, tmp_path / "other.pt")
    save_checkpoint(state | {"critic": []}, tmp_path / "none.pt")
    for path in (tmp_path / "other.pt", tmp_path / "none.pt"):
        learner, fresh = (PPO(market_env(3), CONFIG) for _ in range(2))
        start_from(learner, path)
        assert same(learner.critic, fresh.critic) and same(learner.actor, state["actor"])
    exact = Exact(market_env(3, whole_shares=False), ExactConfig(num_steps=4, policy="symbol", hidden=(8,)))
    start_from(exact, source)
    assert same(exact.actor, state["actor"]) and exact.critic == []


def test_groups_take_the_initial_policy_as_their_reference(source):
    config = GRPOConfig(total_frames=8 * 20, epochs=1, minibatches=2, policy="symbol", hidden=(8,), kl_coef=0.1)
    learner = GRPO(market_env(4), config, 4)
    start_from(learner, source)
    assert same(learner.reference, learner.actor) and same(learner.actor, read(source)["actor"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden": (16,)}, r"trained with hidden \(8,\), which cannot start a run with hidden \(16,\)"),
        ({"policy": "attention"}, "trained with policy symbol, which cannot start a run with policy attention"),
        ({"normalise_observations": False}, "trained with normalise_observations True, which cannot"),
    ],
)
def test_another_network_is_refused(source, changes, told):
    with pytest.raises(ValueError, match=f"{CHECKPOINT}: {told}"):
        start_from(PPO(market_env(3), replace(CONFIG, **changes)), source)


def test_a_checkpoint_without_the_name_of_its_head_has_normal_actions():
    saved = {"policy": "symbol", "hidden": (8,), "normalise_observations": True}
    check_same_network(saved, CONFIG, "a.pt")
    with pytest.raises(
        ValueError, match=r"a\.pt: trained with head dirichlet, which cannot start a run with head gaus"
    ):
        check_same_network(saved | {"head": "dirichlet"}, CONFIG, "a.pt")


def test_what_is_no_policy_of_the_task_is_refused(source, tmp_path):
    learner = PPO(market_env(3), CONFIG)
    before = [tensor.clone() for tensor in learner.actor]
    state, running = read(source), read(source)["observation_moments"]
    for fault, told in (
        ({"observation_moments": None}, "its observation_moments is nothing instead of dict"),
        ({"observation_moments": running | {"count": torch.zeros(2)}}, r"its observation_moments\.count is float32"),
        ({"scenario": state["scenario"] | {"task": "portfolio"}}, r"trained for \{'task': 'portfolio', .*, not for"),
        ({"actor": [tensor.double() for tensor in state["actor"]]}, r"its actor\.0 is float64"),
    ):
        save_checkpoint(state | fault, tmp_path / "other.pt")
        with pytest.raises(ValueError, match=rf"other\.pt: {told}"):
            start_from(learner, tmp_path / "other.pt")
    with pytest.raises(FileNotFoundError):
        start_from(learner, tmp_path / "none.pt")
    with pytest.raises(ValueError, match="layers have shapes"):
        start_from(PPO(market_env(3, features=("daily_change",)), CONFIG), source)
    assert same(learner.actor, before)
