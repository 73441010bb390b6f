"""PPO of several members in one batch: each is a single run, none reaches another, and it resumes bit for bit."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch

import vecenv
from tests.small_env import same_bits
from vecenv.learn.cppo import CPPO, CVAR_METRICS, CPPOConfig, EnsembleCPPO
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.ppo_ensemble import EnsemblePPO, means_of_members, member_metric, metrics_of_member, row_seeds

SEEDS, ROWS = (3, 7, 5), 12
SMALL = PPOConfig(
    num_steps=8,
    total_frames=4 * 8 * ROWS,
    epochs=2,
    minibatches=2,
    hidden=(8, 8),
    by_reference=False,
    learning_rate=1e-2,
)
TRADING = {"task": "stock_trading", "action": "tilt", "episode_length": 12, "min_episode_length": 3}
CASES = {
    "flat": (TRADING, {"gamma": 0.95}),
    "symbol": (TRADING, {"policy": "symbol", "gamma": 0.0, "benchmark_kl": 0.01, "entropy_coef": 0.01}),
    "raw": (
        TRADING,
        {"normalise_rewards": False, "normalise_observations": False, "normalise_advantages": False},
    ),
    "masked": ({"task": "multi_stock_3", "days": 6}, {}),
}

# Active penalties of very different size from the first update on.
TAILS = CPPOConfig(
    **asdict(replace(SMALL, gamma=0.95)),
    reward_unit=100.0,
    beta=5.0,
    nu_start=3.0,
    lam_start=0.5,
    lam_lr=0.1,
    cvar_clip_ratio=0.5,
    cvar_clip_of="advantage",
)

TOLD = {
    "reward", "episodes", "market_rows", "grade", "return_percent", "policy_loss", "value_loss", "entropy",
    "approx_kl", "clip_fraction", "benchmark_kl", "explained_variance",
}  # fmt: skip
"""Metrics of a single run that each member has too."""


def make(rules, num_envs, **identity):
    rules = {"compile": False} | rules
    if rules["task"] != "crypto_lob":
        rules |= {"market": "synthetic", "market_options": {"num_paths": 3, "num_days": 300}}
    return vecenv.make(num_envs=num_envs, **rules, **identity)


def ensemble(rules=TRADING, seeds=SEEDS, config=SMALL, env_seeds=None, **settings):
    env = make(rules, ROWS * len(seeds), **row_seeds(env_seeds or seeds, ROWS))
    return EnsemblePPO(env, replace(config, **settings), seeds)


def single(seed, rules=TRADING, **settings):
    return PPO(make(rules, ROWS, seed=seed), replace(SMALL, seed=seed, **settings))


def rows_of(number):
    return slice(number * ROWS, (number + 1) * ROWS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.assembly
def test_a_member_learns_what_a_single_run_of_its_seed_does(case):
    rules, settings = CASES[case]
    together, alone = ensemble(rules, **settings), [single(seed, rules, **settings) for seed in SEEDS]
    start = [parameter.clone() for parameter in together.parameters]
    for _ in range(3):
        metrics = together.update()
        for number, learner in enumerate(alone):
            own = learner.update()
            told = {name: metrics[member_metric(name, SEEDS[number])] for name in own if name in TOLD}
            assert told == pytest.approx({name: own[name] for name in told}, rel=2e-3, abs=1e-5, nan_ok=True)
    for number, learner in enumerate(alone):
        pairs = zip([*together.parameters, *together.moments], [*learner.parameters, *learner.moments], strict=True)
        for stacked, own in pairs:
            torch.testing.assert_close(stacked[number], own, rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(together.env.rows[rows_of(number)].elapsed, learner.env.rows.elapsed)
    moved = max(float((now - before).abs().max()) for now, before in zip(together.parameters, start, strict=True))
    assert moved > 100 * 2e-5


def states_of(learner, number):
    """All tensors of a member, after two updates."""
    for _ in range(2):
        learner.update()
    own = [*learner.parameters, *learner.moments, learner.reward_scale.return_moments.mean]
    return [tensor[number].clone() for tensor in own] + [learner.collector.actions[:, rows_of(number)].clone()]


@pytest.mark.assembly
def test_nothing_of_a_member_reaches_another():
    """Another seed of weights, shuffles and data of one: the others stay bit for bit."""
    usual, weights = ensemble(), ensemble(seeds=(3, 8, 5), env_seeds=SEEDS)
    data = ensemble(env_seeds=(3, 8, 5))
    states = {name: states_of(learner, 0) for name, learner in (("usual", usual), ("weights", weights), ("data", data))}
    for name, other in (("weights", weights), ("data", data)):
        assert all(map(same_bits, states["usual"], states[name])), name
        assert not same_bits(usual.parameters[0][1], other.parameters[0][1])
        assert same_bits(usual.parameters[0][2], other.parameters[0][2])


@pytest.mark.assembly
@pytest.mark.parametrize("tails", [False, True])
def test_a_members_state_is_that_of_a_single_run_and_resumes_as_one(tails):
    """And with penalised tails a member learns what a single run does, with a threshold of its own."""
    env = make(TRADING, ROWS * len(SEEDS), **row_seeds(SEEDS, ROWS))
    together = EnsembleCPPO(env, TAILS, SEEDS) if tails else ensemble()
    alone = CPPO(make(TRADING, ROWS, seed=7), replace(TAILS, seed=7)) if tails else single(7)
    other = CPPO(make(TRADING, ROWS, seed=7), replace(TAILS, seed=7)) if tails else single(7)
    for _ in range(2):
        metrics, own = together.update(), other.update()
    names = CVAR_METRICS if tails else ()
    told = {name: metrics[member_metric(name, 7)] for name in names}
    assert told == pytest.approx({name: own[name] for name in names}, rel=2e-3, abs=1e-5)
    alone.load_state_dict(together.member_state(1))
    assert alone.update_number == 2 and same_bits(alone.actor[0], together.actor[0][1])
    assert same_bits(alone.reward_scale.discounted_return, together.reward_scale.discounted_return[rows_of(1)])
    assert alone.reward_scale.discounted_return.unique().numel() > 1
    together.update(), alone.update(), other.update()
    for stacked, *ours in zip(together.parameters, alone.parameters, other.parameters, strict=True):
        for one in ours:
            torch.testing.assert_close(stacked[1], one, rtol=1e-4, atol=2e-5)
    if tails:
        assert own["penalised_fraction"] > 0.2 and len({float(nu) for nu in together.nu}) == len(SEEDS)
        assert alone.multiplier == together.multiplier[1] == other.multiplier
        torch.testing.assert_close(together.carried_return[rows_of(1)], other.carried_return, rtol=1e-4, atol=1e-4)


def test_the_means_over_members_come_before_the_metrics_of_each():
    metrics = ensemble().update()
    own = [metrics[member_metric("entropy", seed)] for seed in SEEDS]
    assert metrics["entropy"] == pytest.approx(sum(own) / 3) and len(set(own)) == 3
    assert metrics["frames"] == 8 * ROWS


def test_what_cannot_be_one_batch_is_refused():
    with pytest.raises(ValueError, match="needs at least two members, got 1"):
        ensemble(seeds=(1,))
    with pytest.raises(ValueError, match="35 sub-environments cannot be shared evenly by 3 members"):
        EnsemblePPO(make(TRADING, 35), SMALL, SEEDS)
    with pytest.raises(ValueError, match="target_kl stops one learner's epochs"):
        ensemble(target_kl=0.01)
    with pytest.raises(ValueError, match="by_reference keeps one table for one policy"):
        ensemble(by_reference=True)
    with pytest.raises(ValueError, match="curriculum follows a schedule by its results, which members cannot share"):
        ensemble({"task": "curriculum", "tiers": ("single_stock",)})
    with pytest.raises(ValueError, match=r"the checkpoint has the members \[3, 7, 5\], not \[3, 7, 6\]"):
        ensemble(seeds=(3, 7, 6)).load_state_dict({"members": [3, 7, 5]})


def test_rows_and_metrics_of_members_by_hand():
    told = row_seeds((3, 7), 2)
    assert told["seed"].tolist() == [3, 3, 7, 7] and told["env_ids"].tolist() == [0, 1, 0, 1]
    row = {"update": 2.0, "loss": 3.0, "loss.seed_3": 2.0, "loss.seed_7": 4.0, "grade.seed_3": math.nan}
    row |= {"grade.seed_7": 1.0}
    assert means_of_members(row, (3, 7)) == {"loss": 3.0, "grade": 1.0}
    assert metrics_of_member(row, 7) == {"update": 2.0, "loss": 4.0}
