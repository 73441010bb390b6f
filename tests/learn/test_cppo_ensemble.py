"""CVaR-PPO of several members in one batch: each has its own threshold and multiplier, as a single run has."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from tests.learn.test_ppo_ensemble import ROWS, SEEDS, SMALL, TRADING, make, rows_of
from tests.small_env import same_bits
from vecenv.learn.cppo import CPPO, CVAR_METRICS, CPPOConfig, EnsembleCPPO
from vecenv.learn.ppo_ensemble import member_metric, row_seeds

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


def ensemble():
    return EnsembleCPPO(make(TRADING, ROWS * len(SEEDS), **row_seeds(SEEDS, ROWS)), TAILS, SEEDS)


@pytest.mark.assembly
def test_a_member_learns_what_a_single_run_of_its_seed_does():
    together = ensemble()
    alone = [CPPO(make(TRADING, ROWS, seed=seed), replace(TAILS, seed=seed)) for seed in SEEDS]
    for _ in range(3):
        metrics = together.update()
        for number, learner in enumerate(alone):
            own = learner.update()
            told = {name: metrics[member_metric(name, SEEDS[number])] for name in CVAR_METRICS}
            assert told == pytest.approx({name: own[name] for name in CVAR_METRICS}, rel=2e-3, abs=1e-5)
    assert own["penalised_fraction"] > 0.2 and len({float(nu) for nu in together.nu}) == len(SEEDS)
    for number, learner in enumerate(alone):
        for stacked, parameter in zip(together.parameters, learner.parameters, strict=True):
            torch.testing.assert_close(stacked[number], parameter, rtol=1e-4, atol=2e-5)
        carried = together.carried_return[rows_of(number)]
        torch.testing.assert_close(carried, learner.carried_return, rtol=1e-4, atol=1e-4)


@pytest.mark.assembly
def test_it_resumes_bit_for_bit_and_a_member_s_state_is_that_of_a_single_run():
    first = ensemble()
    first.update()
    again = ensemble()
    again.load_state_dict(first.state_dict())
    single = CPPO(make(TRADING, ROWS, seed=SEEDS[1]), replace(TAILS, seed=SEEDS[1]))
    single.load_state_dict(first.member_state(1))
    first.update()
    again.update()
    single.update()
    pairs = zip(*([*one.parameters, one.nu, one.multiplier] for one in (first, again)), strict=True)
    for left, right in pairs:
        assert same_bits(left.detach(), right.detach())
    torch.testing.assert_close(single.nu, first.nu[1], rtol=1e-3, atol=1e-4)
    assert single.multiplier == first.multiplier[1]
