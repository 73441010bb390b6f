"""Trading on scores in batches: rows as environments of their own, and the gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.small_env import assert_same_bits, numbers, random_actions, snapshot, step
from vecenv.core.env import VecEnv
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.task import SIGNALS

STRENGTHS = torch.tensor([0.0, 0.01, 0.1, 0.45])


@pytest.fixture(scope="module")
def tape() -> MarketTape:
    options = MarketOptions(features=("daily_change",), scores=True, num_paths=3, num_days=40, symbols=["A", "B", "C"])
    return load_market("news", options)


def make(tape, num_envs, params=None, env_ids=None, smooth=False, **rules: Any) -> VecEnv:
    given = {
        "features": ("daily_change",), "observed": ("risk", "sentiment"), "sentiment_strength": 0.1,
        "risk_strength": 0.2, "episode_length": 9, "min_episode_length": 3, "initial_cash": 20_000.0,
    }  # fmt: skip
    config = SignalsConfig(**(given | rules))
    config = SIGNALS.smooth(config) if smooth else config
    return VecEnv(SIGNALS.build(tape, config), num_envs, 1, "cpu", False, params, env_ids)


@pytest.mark.parametrize("name", ["sentiment_strength", "risk_strength"])
@pytest.mark.parametrize("action", ["shares", "weights", "tilt"])
def test_a_strength_of_each_row_is_as_good_as_environments_of_their_own(tape, action, name):
    """The configuration leaves the strength at 0, which would switch the rule off."""
    together = make(tape, 4, params={name: STRENGTHS}, action=action, **{name: 0.0})
    alone = [
        make(tape, 1, env_ids=torch.tensor([row]), action=action, **{name: strength})
        for row, strength in enumerate(STRENGTHS.tolist())
    ]
    plain, differ = make(tape, 4, action=action, **{name: 0.0}), torch.zeros(4, dtype=torch.bool)
    for env in (together, plain, *alone):
        env.reset()
    for index, given in enumerate(random_actions(8, len(alone), *together.action_spec.shape[1:])):
        many = [*numbers(step(together, given)), *snapshot(together.rows)]
        for row, env in enumerate(alone):
            one = [*numbers(step(env, given[row : row + 1])), *snapshot(env.rows)]
            assert_same_bits(one, [tensor[row : row + 1] for tensor in many], f"row {row} at step {index}")
        differ |= (step(plain, given)["reward"] != many[1]).squeeze(-1)
    # A strength of 0 changes nothing, and the largest does.
    assert not differ[0] and differ[-1]


@pytest.mark.parametrize(("form", "action"), [("reward", "shares"), ("published", "tilt")])
def test_the_gradient_through_both_rules_is_that_of_finite_differences(tape, action, form):
    """Rewards of four days by all actions, to the precision that risk levels in single precision leave."""
    env = make(
        tape, 2, smooth=True, action=action, risk_form=form, dtype="float64", reward="log_return", reward_scale=1.0
    )
    bound, start = env.engine.bound(), env.rows

    def rewards(actions: torch.Tensor) -> torch.Tensor:
        rows, total = start, torch.zeros(2, dtype=torch.float64)
        for given in actions:
            outcome = bound.step(rows, given)
            rows, total = outcome.rows, total + outcome.reward
        return total

    shape = (4, *env.action_spec.shape)
    actions = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 0.8
    given = actions.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(rewards(given).sum(), given)
    assert float(gradient.abs().max()) > 1e-4
    size = 1e-3
    for place in range(actions.numel()):
        moved = torch.zeros(actions.numel(), dtype=torch.float64)
        moved[place] = size
        above, below = (rewards(actions + sign * moved.view(shape)).sum() for sign in (1, -1))
        expected = float((above - below) / (2 * size))
        assert float(gradient.flatten()[place]) == pytest.approx(expected, rel=1e-3, abs=1e-5)
