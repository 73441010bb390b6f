"""PPO on observations by reference: the same policy and gradients up to rounding, and the same account exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import vecenv
from tests.small_env import assert_same_bits, make_env, small_tape
from vecenv.core.collector import FusedCollector
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.referencing_policy import ReferencingActorPolicy

CONFIG = PPOConfig(num_steps=8, total_frames=4 * 8 * 16, epochs=2, minibatches=2, hidden=(8, 8), by_reference=True)


def learner(by_reference: bool = True, compiled: bool = False, **settings: Any) -> PPO:
    config = replace(CONFIG, by_reference=by_reference, **settings)
    return PPO(make_env(16, compiled), config)


def trained(updates: int = 3, **settings: Any) -> PPO:
    """A learner whose weights and moments are no longer those of the start."""
    made = learner(**settings)
    for _ in range(updates):
        made.update()
    return made


@pytest.mark.assembly
def test_the_account_is_that_of_the_same_actions():
    """Bit for bit, observations included."""
    made = trained()
    given = FusedCollector(make_env(16), "given", num_steps=8)
    given.env.load_state_dict(made.env.state_dict())
    made.collect()
    given.actions.copy_(made.collector.actions)
    given.rollout()
    for one, other in zip(given.row_buffers, made.collector.row_buffers, strict=True):
        assert_same_bits([one], [other], "rows")
    assert_same_bits([given.reward], [made.collector.reward], "rewards")
    assert given.observation is not None and made.collector.observation is not None
    assert_same_bits([given.observation], [made.collector.observation], "observations")
    assert "observation" not in made.collector.batch()


@pytest.mark.assembly
def test_updates_are_those_of_whole_observations_up_to_rounding():
    whole, parts = learner(by_reference=False), learner()
    assert whole.collector.references is None and parts.collector.references is not None
    for _ in range(2):
        told = [one.update() for one in (whole, parts)]
        for name in ("policy_loss", "value_loss", "entropy", "reward", "explained_variance"):
            assert told[1][name] == pytest.approx(told[0][name], rel=1e-3, abs=1e-4), name
    for one, other in zip(whole.parameters, parts.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
    for one, other in zip(whole.moments, parts.moments, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.assembly
def test_the_table_follows_weights_moments_and_market():
    made = trained()
    made.collect()
    policy, bound = made.collector.policy, made.env.engine.bound()
    assert isinstance(policy, ReferencingActorPolicy) and made.collector.references is not None

    def expected() -> Tensor:
        return policy.table_of(policy.parameters[:-1], made.collector.references.table(bound))

    assert torch.equal(policy.table, expected())
    before = policy.table.clone()
    other = make_env(16, tape=small_tape(seed=5)).scenario.shared
    made.env.write_shared(other)
    made.collect()
    assert torch.equal(policy.table, expected()) and not torch.equal(policy.table, before)
    before = policy.table.clone()
    made.update()
    made.collect()
    assert torch.equal(policy.table, expected()) and not torch.equal(policy.table, before)


def test_it_is_chosen_where_a_batch_has_twice_as_many_steps_as_the_market_has_days():
    def by_default(num_envs: int, **settings: Any) -> bool:
        made = PPO(make_env(num_envs), replace(CONFIG, by_reference=None, **settings))
        return made.collector.references is not None

    # 40 days, rollouts of 8 steps.
    assert by_default(10) and not by_default(9)
    assert not by_default(10, policy="symbol") and not by_default(10, hidden=())


@pytest.mark.parametrize(
    ("task", "settings", "told"),
    [
        ("stock_trading", {"policy": "symbol"}, "they need a flat policy with a hidden layer"),
        ("stock_trading", {"hidden": ()}, "they need a flat policy with a hidden layer"),
        ("single_stock", {}, "those of single_stock are not made of shared tensors"),
    ],
)
def test_what_has_no_references_is_refused(task, settings, told):
    rules = {"action": "tilt"} if task == "stock_trading" else {}
    market = {"num_paths": 1, "num_days": 330, "symbols": 3} if task == "stock_trading" else {"num_paths": 1}
    env = vecenv.make(task, 16, market="synthetic", market_options=market, compile=False, **rules)
    with pytest.raises(ValueError, match=f"no observations by reference: {told}"):
        PPO(env, replace(CONFIG, **settings))
    made = PPO(env, replace(CONFIG, by_reference=None, **settings))
    assert made.collector.references is None
