"""Observations by reference are the observations, whatever the market, and refuse tasks that have none."""

from __future__ import annotations

import pytest
import torch

import vecenv
from tests.small_env import make_env, random_actions, same_bits
from vecenv.core.references import References


@pytest.mark.parametrize(
    "rules", [{}, {"action": "tilt", "stop_loss": 0.0}, {"whole_shares": False, "dtype": "float64"}]
)
def test_parts_put_together_are_the_observation(rules):
    env = make_env(16, **rules)
    references, bound = References(env.scenario, env.block_widths), env.engine.bound()
    for step in range(12):
        *own, reference = references.parts(bound, env.rows)
        whole = references.whole(bound, torch.cat(own, dim=-1), reference)
        assert same_bits(whole, env.observations())
        assert torch.equal(reference, env.state.path * env.scenario.tape.num_days + env.state.day)
        assert same_bits(references.table(bound)[reference], references.referenced_columns(whole))
        assert same_bits(torch.cat(own, dim=-1), references.own_columns(whole))
        env.restart(env.rows.done)
        env.advance(random_actions(16, *env.scenario.action_spec.shape, seed=step))
    assert references.count == len(references.table(bound)) == env.scenario.tape.num_days
    assert sum(references.own_widths) == 1 + env.scenario.tape.num_symbols


def test_a_task_without_references_has_none():
    env = vecenv.make("single_stock", 2, market_options={"num_paths": 1, "num_days": 330}, compile=False)
    with pytest.raises(ValueError, match="single_stock has no observations by reference"):
        References(env.scenario, env.block_widths)
    for call in (lambda: env.scenario.reference(env.state), lambda: env.scenario.referenced(torch.zeros(1), {})):
        with pytest.raises(NotImplementedError, match="single_stock has no observations by reference"):
            call()
