"""Rewards, portfolio, correlations and grade are those of the page, which the oracle has in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle import Oracle
from rating_tapes import holed_tape

from vecenv.core.env import VecEnv
from vecenv.tasks.signals.rating.config import NewsSignalsConfig
from vecenv.tasks.signals.rating.feedback import feedback
from vecenv.tasks.signals.rating.scenario import NewsSignals

RULES = (
    {},
    {"horizon": 3, "demeaned": True, "commission": 0.01},
    {"horizon": 5, "feedback": "sign", "move_threshold": 0.04, "signal_cost": 0.3, "threshold": 4},
    {"picks": 1, "feedback": "sign"},
    {"picks": 2, "demeaned": True, "threshold": 7, "signal_cost": 0.1},
)


def oracle_of(scenario: NewsSignals, start: int) -> Oracle:
    """Return the oracle of the only path."""
    config = {name: getattr(scenario.config, name) for name in NewsSignalsConfig.__dataclass_fields__}
    close, bar = scenario.tape.price_ticks()[0].tolist(), scenario.tape.tradable[0].tolist()
    return Oracle(config, close, bar, start, config["initial_cash"] / scenario.tape.tick_size)


@pytest.mark.parametrize("action", ["levels", "continuous", "signals"])
@pytest.mark.parametrize("rules", RULES)
def test_an_episode_is_the_oracles(rules, action):
    draw = np.random.default_rng(len(action))
    spoken = action == "signals"
    config = NewsSignalsConfig(**rules, episode_length=12, recent_days=2, action="levels" if spoken else action)
    scenario = NewsSignals(holed_tape(3), config)
    env = VecEnv(scenario, 6, seed=8, compiled=False)
    oracles = [oracle_of(scenario, start) for start in env.state.start_day.tolist()]
    for step in range(12):
        # Few different signals, so that there are ties.
        signals = draw.choice([-10, -7, -4, -1, 0, 0, 2, 6, 10], (6, 5))
        signals[0] *= step % 3 > 0
        if spoken:
            signals[1, 2] = 11 if step == 4 else signals[1, 2]
        if action == "continuous":
            actions = torch.from_numpy(signals / 10).float()
        else:
            actions = torch.from_numpy(signals).unsqueeze(-1) if spoken else torch.from_numpy(signals) + 10
        rewards = env.advance(actions)
        expected = [oracle.step(row.tolist()) for oracle, row in zip(oracles, signals, strict=True)]
        assert rewards.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        info = env.info()
        for name, value in oracles[0].outcomes().items():
            others = [value, *(oracle.outcomes()[name] for oracle in oracles[1:])]
            assert info[name].tolist() == pytest.approx(others, abs=1e-9), (name, step)
        assert env.grade().tolist() == pytest.approx([oracle.grade() for oracle in oracles], abs=1e-6)
        tick = scenario.tape.tick_size
        for name, told in (("cash", "cash"), ("value", "portfolio_value"), ("traded", "traded"), ("costs", "costs")):
            assert (info[told] / tick).tolist() == pytest.approx([getattr(one, name) for one in oracles], rel=1e-9)
    assert env.state.invalid_actions.tolist() == [oracle.invalid for oracle in oracles]
    assert bool(env.rows.truncated.all())


@pytest.mark.parametrize("rules", [{}, {"feedback": "sign"}, {"picks": 1}, {"demeaned": True, "horizon": 3}])
def test_no_wrong_direction_is_rewarded(rules):
    """Long where the price falls and short where it rises, alone and with all other signals 0; a row for each."""
    config = NewsSignalsConfig(episode_length=20, recent_days=0, **rules)
    scenario = NewsSignals(holed_tape(5), config)
    env = VecEnv(scenario, 10, seed=2, compiled=False)
    symbol, side = torch.arange(10) % 5, torch.tensor([-10] * 5 + [10] * 5)
    signal = torch.zeros(10, 5, 1, dtype=torch.int64)
    signal[torch.arange(10), symbol, 0] = side
    for _ in range(20):
        move = scenario.shared["move"][env.state.day, symbol]
        reward = env.advance(signal)
        assert bool((reward[move * side < 0] < 0).all())
        assert bool((reward[move * side > 0] > 0).all())


def test_a_short_earns_what_a_long_one_of_the_opposite_move_earns():
    move, cost = torch.tensor([0.02, -0.01, 0.0], dtype=torch.float64), torch.tensor(0.1)
    signal = torch.tensor([-4, 3, 10])
    for form in ("return", "sign"):
        config = NewsSignalsConfig(feedback=form)
        assert feedback(signal, move, cost, config) == feedback(-signal, -move, cost, config)


def test_a_ruined_portfolio_ends_the_episode():
    tape = holed_tape(3)
    scenario = NewsSignals(tape, NewsSignalsConfig(episode_length=5, recent_days=0, random_start=False))
    scenario.shared["close"][1:] *= 3.0
    env = VecEnv(scenario, 1, seed=0, compiled=False)
    env.advance(torch.full((1, 5, 1), -10))
    assert bool(env.rows.terminated) and env.grade().isfinite().all()
