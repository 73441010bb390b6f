"""PPO of several members in one batch: each is a single run, and goes on as one."""

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
BATCH = {"num_steps": 8, "total_frames": 4 * 8 * ROWS, "epochs": 2, "minibatches": 2, "hidden": (8, 8)}
SMALL = PPOConfig(**BATCH, by_reference=False, learning_rate=1e-2, gamma=0.95)
# Active penalties of very different size from the first update on.
PENALTIES = {"beta": 5.0, "nu_start": 3.0, "lam_start": 0.5, "lam_lr": 0.1, "cvar_clip_ratio": 0.5}
TAILS = CPPOConfig(**asdict(SMALL), **PENALTIES, reward_unit=100.0, cvar_clip_of="advantage")
UNSCALED = {"normalise_rewards": False, "normalise_observations": False, "normalise_advantages": False}
TRADING = {"task": "stock_trading", "action": "tilt", "episode_length": 12, "min_episode_length": 3}
CASES = {
    "flat": (TRADING, SMALL),
    "tails": (TRADING, TAILS),
    "symbol": (TRADING, replace(SMALL, policy="symbol", gamma=0.0, benchmark_kl=0.01, entropy_coef=0.01)),
    "raw": (TRADING, replace(SMALL, **UNSCALED)),
    "masked": ({"task": "multi_stock_3", "days": 6}, replace(SMALL, gamma=0.99)),
}

TOLD = {
    "reward", "episodes", "market_rows", "grade", "return_percent", "policy_loss", "value_loss", "entropy",
    "approx_kl", "clip_fraction", "benchmark_kl", "explained_variance", *CVAR_METRICS,
}  # fmt: skip
"""Metrics of a single run that each member has too."""


def make(rules, num_envs, **identity):
    market = {"market": "synthetic", "market_options": {"num_paths": 3, "num_days": 300}}
    return vecenv.make(num_envs=num_envs, compile=False, **market, **rules, **identity)


def ensemble(case="flat", seeds=SEEDS, **settings):
    rules, config = CASES[case]
    env = make(rules, ROWS * len(seeds), **row_seeds(seeds, ROWS))
    return (EnsembleCPPO if case == "tails" else EnsemblePPO)(env, replace(config, **settings), seeds)


def single(case, seed):
    rules, config = CASES[case]
    return (CPPO if case == "tails" else PPO)(make(rules, ROWS, seed=seed), replace(config, seed=seed))


@pytest.mark.parametrize(
    "case", [name if name in ("flat", "tails") else pytest.param(name, marks=pytest.mark.assembly) for name in CASES]
)
def test_a_member_learns_what_a_single_run_of_its_seed_does_and_goes_on_as_one(case):
    together, alone = ensemble(case), [single(case, seed) for seed in SEEDS]
    start = [parameter.clone() for parameter in together.parameters]
    for update in range(3):
        if update == 2:
            resumed, rows = single(case, SEEDS[1]), slice(ROWS, 2 * ROWS)
            resumed.load_state_dict(together.member_state(1))
            assert resumed.update_number == 2 and same_bits(resumed.actor[0], together.actor[0][1])
            discounted = resumed.reward_scale.discounted_return
            assert same_bits(discounted, together.reward_scale.discounted_return[rows])
        metrics = together.update()
        for seed, learner in zip(SEEDS, alone, strict=True):
            own = learner.update()
            told = {name: metrics[member_metric(name, seed)] for name in own if name in TOLD}
            assert told == pytest.approx({name: own[name] for name in told}, rel=2e-3, abs=1e-5, nan_ok=True)
    assert metrics["entropy"] == pytest.approx(sum(metrics[member_metric("entropy", seed)] for seed in SEEDS) / 3)
    assert metrics["frames"] == 3 * 8 * ROWS
    resumed.update()
    for number, learner in (*enumerate(alone), (1, resumed)):
        pairs = zip([*together.parameters, *together.moments], [*learner.parameters, *learner.moments], strict=True)
        for stacked, own in pairs:
            torch.testing.assert_close(stacked[number], own, rtol=1e-4, atol=2e-5)
        elapsed = together.env.rows[number * ROWS : (number + 1) * ROWS].elapsed
        torch.testing.assert_close(elapsed, learner.env.rows.elapsed)
    moved = max(float((now - before).abs().max()) for now, before in zip(together.parameters, start, strict=True))
    assert moved > 100 * 2e-5
    if case == "tails":
        assert told["penalised_fraction"] > 0.2 and len({float(nu) for nu in together.nu}) == len(SEEDS)
        assert together.multiplier[1] == alone[1].multiplier == resumed.multiplier
        torch.testing.assert_close(together.carried_return[rows], alone[1].carried_return, rtol=1e-4, atol=1e-4)


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
        EnsemblePPO(make({"task": "curriculum", "tiers": ("single_stock",)}, 36), SMALL, SEEDS)
    with pytest.raises(ValueError, match=r"the checkpoint has the members \[3, 7, 5\], not \[3, 7, 6\]"):
        ensemble(seeds=(3, 7, 6)).load_state_dict({"members": [3, 7, 5]})


def test_rows_and_metrics_of_members_by_hand():
    told = row_seeds((3, 7), 2)
    assert told["seed"].tolist() == [3, 3, 7, 7] and told["env_ids"].tolist() == [0, 1, 0, 1]
    row = {"update": 2.0, "loss": 3.0, "loss.seed_3": 2.0, "loss.seed_7": 4.0, "grade.seed_3": math.nan}
    row |= {"grade.seed_7": 1.0}
    assert means_of_members(row, (3, 7)) == {"loss": 3.0, "grade": 1.0}
    assert metrics_of_member(row, 7) == {"update": 2.0, "loss": 4.0}
