"""Parameters that differ per sub-environment are as good as environments of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.small_env import assert_same_bits, make_env, numbers, random_actions, small_tape, snapshot, step
from vecenv.core.env import VecEnv

NUM_SYMBOLS = 3
RATES = torch.tensor([0.0, 0.001, 0.0049, 0.02], dtype=torch.float64)
VARIED = {
    "commission": RATES,
    "slippage": RATES.flip(0),
    "initial_cash": torch.tensor([2_000.0, 5_000.0, 12_345.6789, 90_000.0], dtype=torch.float64),
    "hmax": torch.tensor([1.0, 20.0, 77.0, 100.0], dtype=torch.float64),
    "initial_holdings": torch.tensor([[0.0, 0, 0], [1, 2, 3], [9, 0, 4], [50, 60, 70]], dtype=torch.float64),
    "ruin_fraction": torch.tensor([0.0, 0.5, 0.95, 0.99], dtype=torch.float64),
    "stop_loss": torch.tensor([0.0, 0.02, 0.05, 0.5], dtype=torch.float64),
    "min_episode_length": torch.tensor([0, 2, 5, 9]),
}


def account(env: VecEnv, action: torch.Tensor) -> list[torch.Tensor]:
    """Step and return what came of it and the account, without the numbers that only some rules keep."""
    result, state = numbers(step(env, action)), env.state
    names = ("cash", "holdings", "portfolio_value", "start_value", "traded", "costs", "day", "end_day")
    return [*result, *(getattr(state, name) for name in names)]


def test_varied_parameters_are_as_good_as_environments_of_their_own():
    """The configuration of those together leaves the parameters at values that switch their rules off."""
    actions = random_actions(12, 4, NUM_SYMBOLS)
    off = {name: 0 for name in VARIED if name not in ("hmax", "initial_cash")}
    together = make_env(4, params=VARIED, **off)
    alone = []
    for row in range(4):
        own = {
            name: tuple(values[row].tolist()) if values.ndim > 1 else values[row].item()
            for name, values in VARIED.items()
        }
        alone.append(make_env(1, env_ids=torch.tensor([row]), **own))
    for env in (together, *alone):
        env.reset()
    for index, action in enumerate(actions):
        many = account(together, action)
        for row, env in enumerate(alone):
            one = account(env, action[row : row + 1])
            assert_same_bits(one, [tensor[row : row + 1] for tensor in many], f"row {row} at step {index}")


@pytest.mark.parametrize("rates", [0.001, (0.001, 0.0, 0.0)], ids=["one", "per symbol"])
@pytest.mark.parametrize("name", ["slippage", "commission"])
def test_a_varied_rate_of_a_round_price_is_not_a_tick_too_much(name, rates):
    """0.1% of 100.00 is 0.1000: rates used in single precision are rounded down first, varied ones too."""
    tape = small_tape()
    ohlcv = torch.full_like(tape.ohlcv, 100.0)
    tape = replace(tape, ohlcv=ohlcv, tradable=torch.ones_like(tape.tradable))
    off = (0.0,) * 3 if isinstance(rates, tuple) else 0.0
    rules = {"slippage": 0.0, "commission": 0.0, "gate": "none", "initial_holdings": 0.0, "stop_loss": 0.0}
    together = make_env(
        1, tape=tape, params={name: torch.tensor([rates], dtype=torch.float64)}, **(rules | {name: off})
    )
    alone = make_env(1, tape=tape, **(rules | {name: rates}))
    for env in (together, alone):
        env.reset()
        step(env, torch.tensor([[0.5, 0.0, 0.0]]))
        assert env.state.cash.item() == 50_000_000 - 20 * 1_001_000
    assert_same_bits(snapshot(together.rows), snapshot(alone.rows))


def test_varied_parameters_of_a_wrong_name_or_shape_are_refused():
    with pytest.raises(ValueError, match=r"unknown parameter 'comission'; stock_trading has .*commission"):
        make_env(4, params={"comission": RATES})
    for wrong in (RATES[:3], RATES[0], RATES[:, None], RATES.expand(4, 4)):
        with pytest.raises(ValueError, match=r"'commission' must have shape \(4,\).*got"):
            make_env(4, params={"commission": wrong})
    with pytest.raises(ValueError, match=r"'initial_holdings' must have shape \(4, 3\)"):
        make_env(4, params={"initial_holdings": RATES})
