"""Every path on the pretended device is that of the CPU, bit for bit, and meets the host only where it may.

Run by ``test_pretended_device.py`` in processes of their own, since a device once pretended stays.
"""

from __future__ import annotations

import pytest

from tests.device.allowed import faults
from tests.device.learner_paths import LEARNER_PATHS, learner_path
from tests.device.market_paths import MARKETS, market_path, market_text
from tests.device.task_paths import DONATED, TASKS, donated_path, draws, task_path
from tests.device.text_paths import TEXT_PATHS
from tests.device.trial import on_both
from tests.device.worldmodel_paths import WORLDMODEL_PATHS, shipped_tape

QUICK = {
    "stock_trading short", "single_stock_costs discrete", "PPO stock_trading", "A2C stock_trading", "DQN variants",
    "TD3", "exact tilt", "text tools", "worldmodel rollout", "worldmodel training",
}  # fmt: skip
"""Paths that every gate has; the others are nightly."""

OTHERS = {name: learner_path(name) for name in LEARNER_PATHS}
OTHERS |= TEXT_PATHS | WORLDMODEL_PATHS | {name: market_path(name) for name in MARKETS}
OTHERS |= {"market text": market_text}


def marked(names):
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in names]


@pytest.mark.parametrize("name", marked(TASKS))
def test_a_task(name):
    said = faults(name, *on_both(task_path(name)))
    assert not said, "\n".join(said)


@pytest.mark.parametrize("name", marked(OTHERS))
def test_another_path(name):
    said = faults(name, *on_both(OTHERS[name]))
    assert not said, "\n".join(said)


@pytest.mark.parametrize("name", DONATED)
def test_donated_fields(name):
    said = faults(name, *on_both(donated_path(name)))
    assert not said, "\n".join(said)


def test_actions_are_drawn_without_the_host():
    assert not faults("draws", *on_both(draws))


@pytest.mark.nightly
def test_a_neural_market_differs_by_rounding_alone():
    """Where each device multiplies in its own way, prices, which are whole ticks, hide it, and volumes show it."""
    cpu, device = (trial.kept for trial in on_both(shipped_tape))
    prices, volumes = (tensor[..., :4] for tensor in (cpu["ohlcv"], device["ohlcv"])), (cpu, device)
    one, other = prices
    assert ((one - other).abs() <= 1e-6 * one.abs()).all()
    one, other = (kept["ohlcv"][..., 4].double() for kept in volumes)
    assert 0 < float(((one - other).abs() / one.clamp(min=1.0)).max()) < 1e-5
