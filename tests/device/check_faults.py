"""Faults that the check must see, planted and told with their line."""

from importlib import import_module
from itertools import count

import pytest
import torch

from tests.device.allowed import ALLOWED, Allowed, faults
from tests.device.learner_paths import learner_path
from tests.device.pretended import Refused
from tests.device.task_paths import make
from tests.device.trial import Path, Trial, on_both
from tests.device.worldmodel_paths import rollout
from vecenv import FusedCollector
from vecenv.core import engine
from vecenv.core.rows import leaves, with_leaves
from vecenv.learn.learner import Learner
from vecenv.tasks.stock_trading.scenario import StockTrading
from vecenv.worldmodel.network.market_network import MarketNetwork

RULES = {"task": "stock_trading", "episode_length": 5, "min_episode_length": 3}


def line_of(function, offset: int) -> str:
    return f"tests/device/check_faults.py:{function.__code__.co_firstlineno + offset}"


def rolled(trial: Trial) -> None:
    collector = FusedCollector(make(trial.device, **RULES), num_steps=3, mode="eager")
    with trial.part("rollout"):
        trial.keep("reward", collector.rollout()["next", "reward"])


def captured(trial: Trial) -> None:
    """Roll out twice, on the device by one graph."""
    collector = FusedCollector(make(trial.device, **RULES), num_steps=3)
    for name in ("first", "second"):
        with trial.part("rollout"):
            trial.keep(name, collector.rollout()["next", "reward"].clone())


def stepped(trial: Trial) -> None:
    made = make(trial.device, **RULES)
    action = made.action_spec.zero()
    with trial.part("step"):
        trial.keep("reward", made.advance(action))


def said_of(path: str | Path, allowed: tuple[Allowed, ...] = ALLOWED) -> list[str]:
    if isinstance(path, str):
        return faults(path, *on_both(learner_path(path)), allowed=allowed)
    return faults("a path", *on_both(path), allowed=allowed)


def test_the_paths_without_a_fault_are_right_and_stale_entries_are_told():
    assert said_of(captured) == said_of(stepped) == said_of(rolled) == []
    assert said_of(rolled, (*ALLOWED, Allowed("a path", {"rollout": 1}))) == ["rollout: allowed and not met"]


def test_a_constant_of_the_host_in_a_step(monkeypatch):
    step = StockTrading.step

    def faulty(self, state, action, params, market):
        action = action * torch.ones(action.shape[-1])
        return step(self, state, action, params, market)

    monkeypatch.setattr(StockTrading, "step", faulty)
    with pytest.raises(Refused, match="expected all tensors to be on the same device") as told:
        on_both(stepped)
    lines = [f"tests/device/{entry.path.name}:{entry.lineno + 1}" for entry in told.traceback]
    assert line_of(faulty, 1) in lines


def test_an_item_in_the_collector(monkeypatch):
    whole = FusedCollector._observe_and_step

    def faulty(self, *tensors):
        assert tensors[0].item() >= 0
        return whole(self, *tensors)

    monkeypatch.setattr(FusedCollector, "_observe_and_step", faulty)
    assert f"rollout: {line_of(faulty, 1)} _local_scalar_dense in a rollout" in said_of(rolled)
    with pytest.raises(Refused, match=f"when stream is capturing: {line_of(faulty, 1)}"):
        on_both(captured)


def test_a_mask_write(monkeypatch):
    def faulty(mask, chosen, other):
        kept = [leaf.clone() for leaf in leaves(other)]
        for leaf, new in zip(kept, leaves(chosen), strict=True):
            leaf[mask] = new[mask]
        return with_leaves(other, kept)

    monkeypatch.setattr(engine, "select_rows", faulty)
    (said,) = said_of(stepped)
    assert said.startswith("step: ") and " 0 allowed: " in said and f"{line_of(faulty, 3)} mask" in said


def test_a_copy_to_the_host_in_every_update(monkeypatch):
    whole = Learner.update_moments

    def faulty(self):
        whole(self)
        self.moments[0].copy_(self.moments[0].cpu())

    monkeypatch.setattr(Learner, "update_moments", faulty)
    (said,) = said_of("PPO stock_trading")
    assert said.startswith("update: 8 meetings, 6 allowed: ") and said.count(line_of(faulty, 2)) == 2


def test_an_item_in_a_window_of_the_exact_gradient(monkeypatch):
    whole = StockTrading.items

    def faulty(self, observation):
        assert observation.sum().item() < 1e12
        return whole(self, observation)

    monkeypatch.setattr(StockTrading, "items", faulty)
    assert any(line_of(faulty, 1) in line and "in a window" in line for line in said_of("exact tilt"))


def test_another_meeting_where_some_are_allowed(monkeypatch):
    module = import_module("torch.optim.adam")
    adam = module._fused_adam

    def faulty(parameters, *arguments, **keywords):
        assert parameters[0].sum().item() < 1e9
        return adam(parameters, *arguments, **keywords)

    monkeypatch.setattr(module, "_fused_adam", faulty)
    inside, counted = said_of("PPO stock_trading")
    assert inside == f"update: {line_of(faulty, 1)} _local_scalar_dense in an optimiser step"
    assert " meetings, 6 allowed: " in counted


def test_what_a_graph_would_freeze(monkeypatch):
    """A number of Python's that changes from step to step: a graph repeats the one that it was captured with."""
    reward, numbers = StockTrading.reward, count()

    def faulty(self, *arguments):
        return reward(self, *arguments) + float(next(numbers))

    monkeypatch.setattr(StockTrading, "reward", faulty)
    assert "second is not the same on the device" in said_of(captured)


def test_a_number_written_in_a_captured_day(monkeypatch):
    def faulty(self, features, market):
        flag = features.new_zeros(len(self.settings.markets))
        flag[self._index(market)] = 1.0
        return torch.cat([features, flag.expand(*features.shape[:-1], -1)], dim=-1)

    monkeypatch.setattr(MarketNetwork, "inputs", faulty)
    with pytest.raises(Refused, match=f"when stream is capturing: {line_of(faulty, 2)} to device"):
        on_both(rollout)
