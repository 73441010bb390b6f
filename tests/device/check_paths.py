"""Every path on the pretended device is that of the CPU, bit for bit, and meets the host only where it may.

Run by ``test_pretended_device.py`` in processes of their own, since a device once pretended stays.
"""

import pytest

from tests.device.allowed import faults
from tests.device.learner_paths import LEARNER_PATHS, learner_path
from tests.device.task_paths import DONATED_PATHS, TASK_PATHS, draws
from tests.device.trial import on_both
from tests.device.worldmodel_paths import WORLDMODEL_PATHS, shipped_tape

QUICK = {
    "stock_trading short", "single_stock_costs discrete", "PPO stock_trading", "A2C stock_trading", "DQN variants",
    "TD3", "exact tilt", "text tools", "worldmodel rollout", "worldmodel training",
}  # fmt: skip
"""Paths that every gate has; the others are nightly."""

PATHS = TASK_PATHS | WORLDMODEL_PATHS | {name: learner_path(name) for name in LEARNER_PATHS}
ALWAYS = DONATED_PATHS | {"draws": draws}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in QUICK)) for name in PATHS]
)
def test_a_path(name):
    said = faults(name, *on_both(PATHS[name]))
    assert not said, "\n".join(said)


@pytest.mark.parametrize("name", ALWAYS)
def test_donated_fields_and_random_actions(name):
    assert not faults(name, *on_both(ALWAYS[name]))


@pytest.mark.nightly
def test_a_neural_market_differs_by_rounding_alone():
    """Where each device multiplies in its own way, prices, which are whole ticks, hide it, and volumes show it."""
    one, other = (trial.kept["ohlcv"] for trial in on_both(shipped_tape))
    assert ((one - other).abs() <= 1e-6 * one.abs())[..., :4].all()
    one, other = one[..., 4].double(), other[..., 4].double()
    assert 0 < float(((one - other).abs() / one.clamp(min=1.0)).max()) < 1e-5
