"""DDPG, TD3 and SAC learn known optima, keep to the bounds, resume bit for bit, and refuse what they cannot learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import vecenv
from tests.learn.chain_task import chain_env, same
from tests.learn.planted_env import episode_returns, planted_env
from vecenv import FusedCollector, VecEnv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.continuous import ContinuousLearner
from vecenv.learn.ddpg import DDPG, DDPGConfig
from vecenv.learn.initial_policy import start_from
from vecenv.learn.network_learner import Trained
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import CHECKPOINT, load_run, run
from vecenv.learn.sac import SAC, SACConfig
from vecenv.learn.td3 import TD3, TD3Config
from vecenv.market.planted import planted_optimal_growth

SMALL: dict[str, Any] = {
    "num_steps": 4, "total_frames": 4 * 16 * 4, "minibatches": 3, "minibatch_size": 32, "hidden": (8,), "gamma": 0.8,
    "buffer_size": 200, "checkpoint_every": 2,
}  # fmt: skip
LEARNERS: dict[str, tuple[Any, Any]] = {"ddpg": (DDPG, DDPGConfig), "td3": (TD3, TD3Config), "sac": (SAC, SACConfig)}


def small_env(seed: int = 0, num_envs: int = 16, **rules: Any) -> VecEnv:
    return planted_env(num_envs, seed=seed, num_symbols=3, **({"action": "weights"} | rules))


def made(name: str, env: VecEnv | None = None, **settings: Any) -> ContinuousLearner[Any]:
    kind, config = LEARNERS[name]
    return kind(small_env() if env is None else env, config(**(SMALL | settings)))


def trained(name: str, folder: Path | None = None, env: VecEnv | None = None, **settings: Any) -> Trained[Any]:
    learner = made(name, env, **settings)
    return Trained(learner, run(learner, folder))


def policy_of(learner: ContinuousLearner[Any]) -> ActorPolicy:
    """Return the policy of a learner as it is, without noise."""
    return ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LEARNERS)
def test_reaches_the_optimum_of_the_planted_signal(name: str) -> None:
    env = planted_env(512)
    settings = {
        "num_steps": 4, "total_frames": 512 * 20 * 15, "minibatches": 16, "minibatch_size": 1024, "hidden": (16, 16),
        "buffer_size": 131_072, "gamma": 0.9,
    }  # fmt: skip
    untrained = policy_of(made(name, env, **settings))
    policies = [trained(name, env=planted_env(512), **settings).policy(), untrained]
    optimum = planted_optimal_growth(20, 1, strength=0.01, flip=0.2) - 1
    reached, before = (
        episode_returns(planted_env(2048, market_seed=1, seed=1), policy).mean().item() / optimum for policy in policies
    )
    assert reached >= 0.9 and before < 0.3


@pytest.mark.parametrize("name", LEARNERS)
def test_the_buffer_has_what_the_environment_did(name: str) -> None:
    """Actions within their bounds, in half widths, and what followed each."""
    learner = made(name, initial_std=2.0)
    learner.collect()
    actions, kept = learner.collector.actions, learner._transitions()
    assert torch.equal(kept["action"], (2 * actions.flatten(0, 1) - 1).clamp(-1, 1))
    assert (kept["action"].abs() == 1).any() or name == "sac"
    given = FusedCollector(small_env(), "given", num_steps=4)
    given.actions.copy_((kept["action"].view(4, 16, 3) + 1) / 2)
    given.rollout()
    torch.testing.assert_close(given.reward, learner.collector.reward, rtol=0, atol=1e-6)
    following = kept["next_observation"].view(4, 16, -1)[:-1]
    inner = ~(learner.collector.terminated | learner.collector.truncated)[:-1]
    assert torch.equal(following[inner], learner.collector.observation[1:][inner])


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.assembly
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path, name: str) -> None:
    whole = trained(name, tmp_path / "whole")

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["update"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made(name), tmp_path / "parts", on_update=interrupt)
    parts = made(name, small_env(seed=9))
    assert [metrics["update"] for metrics in run(parts, tmp_path / "parts", resume=True)] == [4]
    assert same(parts.parameters, whole.learner.parameters) and same(parts.target, whole.learner.target)
    one, other = (learner.replay[:] for learner in (parts, whole.learner))
    assert all(torch.equal(kept, other[key]) for key, kept in one.items())


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.assembly
def test_equal_seeds_learn_equally_and_others_do_not(name: str) -> None:
    first, again, other = (trained(name, seed=seed).learner for seed in (1, 1, 2))
    assert same(first.parameters, again.parameters) and not same(first.parameters, other.parameters)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LEARNERS)
def test_compiled_learning_equals_eager(name: str) -> None:
    eager, compiled = (trained(name, env=small_env(compile=flag)).learner for flag in (False, True))
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.assembly
def test_a_loaded_policy_acts_as_the_trained_one(tmp_path: Path, name: str) -> None:
    policy, env = trained(name, tmp_path).policy(), small_env(seed=4)
    loaded = load_policy(tmp_path / CHECKPOINT, env)
    assert torch.equal(episode_returns(small_env(seed=4), policy), episode_returns(env, loaded))
    assert loaded.deterministic


@pytest.mark.parametrize("name", LEARNERS)
def test_target_networks_start_equal_and_follow_at_their_rate(name: str) -> None:
    learner = made(name, target_rate=0.25, minibatches=1, target_every=1)
    learner.prepare()
    assert same(learner.target, learner.followed())
    before = [tensor.clone() for tensor in learner.target]
    learner.collect(), learner.generator.manual_seed(0), learner.learn()
    for own, old, parameter in zip(learner.target, before, learner.followed(), strict=True):
        torch.testing.assert_close(own, 0.75 * old + 0.25 * parameter)
    assert not same(learner.target, before)


@pytest.mark.parametrize("name", LEARNERS)
def test_the_deviation_of_exploration_is_not_learned(name: str) -> None:
    """It is that of DDPG and TD3; SAC's depends on what is seen."""
    learner = trained(name, initial_std=0.7).learner
    own = learner.network.head_parameters(learner.actor)
    assert len(own) == (name != "sac")
    for tensor in own:
        # Half the width of a weight's bounds is a half.
        torch.testing.assert_close(tensor.exp(), torch.full((3,), 0.35))


def test_the_actor_of_td3_moves_with_every_other_step_only() -> None:
    moved: list[bool] = []

    class Watched(TD3):
        def after_step(self, number: int) -> None:
            moved.append(not same(before, self.actor))
            before[:] = [tensor.clone() for tensor in self.actor]
            super().after_step(number)

    learner = Watched(small_env(), TD3Config(**SMALL, policy_every=2))
    before = [tensor.clone() for tensor in learner.actor]
    learner.update(), learner.update()
    assert moved == [False, True, False, True, False, True]
    steps = [int(learner.optimiser.state[tensor]["step"]) for tensor in (learner.actor[0], learner.critic[0])]
    assert steps == [3, 6]


def test_noise_on_targets_is_clipped_and_differs_by_update() -> None:
    learner = made("td3", target_std=1.0, target_noise_clip=0.4)
    drawn = [learner.generator.manual_seed(seed) and learner.noise()[0] for seed in (1, 1, 2)]
    assert drawn[0].shape == (96, 3) and float(drawn[0].abs().max()) == pytest.approx(0.4)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_the_temperature_holds_the_entropy() -> None:
    """It rises while the entropy is below its target, and falls while it is above."""
    for target, sign in ((3.0, 1), (-30.0, -1)):
        learner = made("sac", target_entropy=target, initial_std=0.5)
        before = float(learner.critic[-1])
        learner.update()
        assert sign * (float(learner.critic[-1]) - before) > 0


def test_gradients_of_actor_and_critics_are_clipped_apart() -> None:
    learner = made("sac", max_grad_norm=1e-3, minibatches=1)
    learner.update()
    groups, first = [], 0
    for count in learner.clipped_together():
        groups.append(torch.cat([tensor.grad.flatten() for tensor in learner.parameters[first : first + count]]))
        first += count
    assert [float(group.norm()) for group in groups] == pytest.approx([1e-3] * 3, rel=1e-2)


@pytest.mark.assembly
def test_a_run_starts_from_another_with_the_same_actor_only(tmp_path: Path) -> None:
    source = trained("ddpg", tmp_path / "ddpg").learner
    learner, fresh = (made("td3", seed=5) for _ in range(2))
    start_from(learner, tmp_path / "ddpg" / CHECKPOINT)
    # Of one critic there are no two.
    assert same(learner.actor, source.actor) and same(learner.critic, fresh.critic) and len(learner.replay) == 0
    learner.prepare()
    assert same(learner.target, learner.parameters)
    again = made("ddpg", seed=5)
    start_from(again, tmp_path / "ddpg" / CHECKPOINT)
    assert same(again.parameters, source.parameters)
    ppo = PPO(small_env(), PPOConfig(num_steps=4, minibatches=1, hidden=(8,)))
    start_from(ppo, tmp_path / "ddpg" / CHECKPOINT)
    assert same(ppo.actor, source.actor)
    with pytest.raises(ValueError, match="trained with head gaussian, which cannot start a run with head tanh_normal"):
        start_from(made("sac"), tmp_path / "ddpg" / CHECKPOINT)


@pytest.mark.parametrize("name", LEARNERS)
def test_what_cannot_be_learned_or_resumed_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="actions must be numbers within finite bounds, those here are Categorical"):
        made(name, chain_env())
    with pytest.raises(ValueError, match="policy must be flat for this learner, got symbol"):
        made(name, policy="symbol")
    with pytest.raises(ValueError, match=r"at least a rollout, num_steps 4 x num_envs 16, got 63"):
        made(name, buffer_size=63)
    with pytest.raises(ValueError, match="kept steps need"):
        made(name, buffer_size=10**13)
    trained(name, tmp_path)
    with pytest.raises(ValueError, match="other target_rate"):
        load_run(made(name, target_rate=0.3), tmp_path / CHECKPOINT)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ddpg", {"gamma": 1.2}), ("td3", {"policy_every": 0}), ("td3", {"target_std": -0.1}),
        ("td3", {"target_noise_clip": -1.0}), ("sac", {"initial_temperature": 0.0}), ("sac", {"initial_std": 0.0}),
    ],
)  # fmt: skip
def test_config_is_checked(name: str, change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(LEARNERS[name][1](), **change)


def test_actions_of_order_books_are_learned() -> None:
    """Numbers of another task and other bounds."""
    env = vecenv.make("crypto_lob", 16, compile=False, synthetic_hours=1.0, episode_steps=20, action="continuous")
    for name in LEARNERS:
        learner: ContinuousLearner[Any] = made(name, env)
        learner.update()
        assert all(tensor.isfinite().all() for tensor in learner.parameters)


@pytest.mark.nightly
@pytest.mark.parametrize("name", LEARNERS)
def test_the_action_of_the_largest_reward_is_found(name: str) -> None:
    """Rewards that are the negative squared distance from an action, whatever is seen: it is inside of the bounds."""
    best = torch.tensor([0.5, -0.5, 0.0])
    learner = made(
        name, small_env(num_envs=32), total_frames=4 * 32 * 60, minibatches=16, minibatch_size=128, gamma=0.0,
        learning_rate=3e-3, normalise_rewards=False, hidden=(32, 32), buffer_size=8192,
    )  # fmt: skip
    transitions = learner._transitions

    def rewarded() -> TensorDict:
        kept = transitions()
        kept["reward"] = -(kept["action"] - best).square().sum(-1)
        return kept

    learner._transitions = rewarded  # type: ignore[method-assign]
    run(learner)
    policy, env = policy_of(learner), learner.env
    action = policy.act(policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)[0]
    torch.testing.assert_close((2 * action - 1).mean(0), best, rtol=0, atol=0.2)
