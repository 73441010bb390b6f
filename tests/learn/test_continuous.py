"""DDPG, TD3 and SAC: losses by hand, what the buffer keeps, what moves when, and the action of the largest reward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.learn.chain_task import chain_env, same
from tests.learn.planted_env import planted_env
from vecenv import FusedCollector, VecEnv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.advantages import bootstrapped
from vecenv.learn.continuous import ContinuousLearner, critic_losses
from vecenv.learn.ddpg import DDPG, DDPGConfig
from vecenv.learn.runs import run
from vecenv.learn.sac import SAC, SACConfig
from vecenv.learn.td3 import TD3, TD3Config

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


def test_targets_by_hand() -> None:
    told = bootstrapped(torch.tensor([1.0, 2.0]), torch.tensor([False, True]), torch.tensor([4.0, 9.0]), 0.5)
    assert told.tolist() == [3.0, 2.0]


def test_the_critics_loss_by_hand() -> None:
    losses = critic_losses([torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0])], torch.tensor([0.0, 3.0]))
    assert [float(term) for term in losses] == [(1 + 1) / 2 + (0 + 1) / 2, 3 / 4, 7 / 4, 1.5]


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
    learner = made(name, initial_std=0.7)
    learner.update()
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


def test_what_cannot_be_learned_is_refused() -> None:
    for name in LEARNERS:
        with pytest.raises(ValueError, match="numbers within finite bounds, those here are Categorical"):
            made(name, chain_env())
    with pytest.raises(ValueError, match="policy must be flat for this learner, got symbol"):
        made("sac", policy="symbol")


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
    policy, env = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True), learner.env
    action = policy.act(policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)[0]
    torch.testing.assert_close((2 * action - 1).mean(0), best, rtol=0, atol=0.2)
