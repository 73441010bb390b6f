"""``vecenv worldmodel train``: one whole run, and runs that go on from their files."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.worldmodel.neural_market import TINY
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.tasks.commands.cli import BAD_INPUT, main
from vecenv.worldmodel.commands import train as train_command
from vecenv.worldmodel.commands.train import _extra, _progress, _restore, running_path
from vecenv.worldmodel.network.checkpoint import load_network, save_network
from vecenv.worldmodel.network.market_network import NetworkSettings
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training.fit import TrainingSettings, TrainingState, Validation, new_state, train_network

SETTINGS = NetworkSettings(TINY.trunk, TINY.head, ("m",))
TRAINING = TrainingSettings(steps=4, days=32, evaluate_every=2)
RECORD = {"sources": {"m": {"sha256": "0"}}, "settings": {"steps": 4}, "embargo": 20}


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    bars = synthetic_bars(1, 320, 4, seed=0)
    table = pd.DataFrame(bars.ohlcv[0].reshape(-1, 5).numpy(), columns=["open", "high", "low", "close", "volume"])
    table.insert(0, "symbol", np.tile(bars.symbols, 320))
    table.insert(0, "date", np.repeat(bars.dates, 4))
    table["currency"] = "EUR"
    path = tmp_path_factory.mktemp("market") / "prices.parquet"
    table.sort_values(["symbol", "date"]).to_parquet(path, index=False)
    return path


def train(file: Path, out: Path, *words: str) -> int:
    small = ("--network.layers", "1", "--network.width", "16", "--network.heads", "2", "--network.hidden", "32")
    small += ("--network.window", "8", "--days", "32", "--evaluate-every", "2", "--bars.steps", "2")
    return main(["worldmodel", "train", "--market", str(file), "--out", str(out), *small, *words])


@pytest.mark.assembly
def test_training_writes_a_network_with_its_data_and_split(file, tmp_path):
    out, result = tmp_path / "m.safetensors", tmp_path / "result.json"
    assert train(file, out, "--steps", "4", "--label", "mine", "--json", str(result)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "result.json"]
    told, record, bars = json.loads(result.read_text()), load_network(out).record, read_bars(file)
    assert [entry["step"] for entry in told["history"]] == [2, 4]
    assert [entry["step"] for entry in told["bar_history"]] == [0, 2]
    source = told["sources"]["prices"]
    assert source.pop("sha256") and source == {
        "file": "prices.parquet",
        "symbols": list(bars.symbols),
        "first_day": str(bars.dates[0]),
        "train_end": str(bars.dates[223]),
        "validation_end": str(bars.dates[255]),
        "currency": "EUR",
    }
    assert record["starts"] == {"prices": list(bars.symbols)} and record["label"] == "mine"
    assert record["embargo"] == 20 and record["settings"]["steps"] == 4 and record["bars"]["steps"] == 2


@pytest.fixture(scope="module")
def market() -> TrainingMarket:
    return TrainingMarket.from_bars("m", synthetic_bars(1, 160, 3, seed=1), Split(100, 110, 160))


def trained(market: TrainingMarket, state: TrainingState, stop: int = TRAINING.steps) -> TrainingState:
    train_network(state, [market], TRAINING, lambda *_: None, lambda *_: None, lambda: state.step == stop)
    return state


def save_run(path: Path, state: TrainingState, record: dict = RECORD) -> None:
    save_network(path, state.network, record | _progress(state), _extra(state))


def test_a_run_that_goes_on_from_its_file_repeats_one_that_was_not_interrupted(market, tmp_path):
    """Weights, their running means, the optimiser's moments and the history."""
    whole, half = trained(market, new_state(SETTINGS, TRAINING)), trained(market, new_state(SETTINGS, TRAINING), 2)
    save_run(tmp_path / "run.safetensors", half)
    state = new_state(SETTINGS, TRAINING)
    _restore(state, tmp_path / "run.safetensors", RECORD)
    assert state.step == 2 and _progress(state) == _progress(half)
    trained(market, state)
    assert _progress(state) == _progress(whole) and state.step == 4
    for one, other in ((state.network.state_dict(), whole.network.state_dict()), (_extra(state), _extra(whole))):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_goes_on_with_its_own_settings_data_and_tensors_alone(market, tmp_path):
    running, state = tmp_path / "run.safetensors", trained(market, new_state(SETTINGS, TRAINING), 2)
    record, extra = RECORD | _progress(state), _extra(state)
    average = next(name for name in extra if name.startswith("average."))
    moment = next(name for name in extra if name.endswith(".exp_avg"))
    for change, tensors, told in (
        ({"settings": {"steps": 6}}, {}, "its settings are not those of this command"),
        ({"sources": {}}, {}, "its sources are not those of this command"),
        ({}, {average: torch.zeros(3)}, f"its state.{average} is float32 of shape (3,) instead of"),
        ({}, {average: None}, f"its state lacks {average}"),
        ({}, {moment: torch.zeros(3)}, "its optimiser.state.0.exp_avg is float32 of shape (3,) instead of"),
        ({}, {"optimizer.x": torch.zeros(3)}, "its optimiser.state also has x"),
        ({"step": "two"}, {}, "its record.step is str instead of a number"),
        ({"history": None}, {}, "its record.history is nothing instead of list"),
    ):
        changed = {name: tensor for name, tensor in (extra | tensors).items() if tensor is not None}
        save_network(running, state.network, record | change, changed)
        with pytest.raises(ValueError) as error:
            _restore(new_state(SETTINGS, TRAINING), running, RECORD)
        assert str(error.value).startswith(f"{running}: {told}")
    save_network(running, state.network, record, extra)
    with pytest.raises(ValueError, match="its network is another, or of other sizes"):
        _restore(new_state(NetworkSettings(TINY.trunk, 8, ("m",)), TRAINING), running, RECORD)
    with pytest.raises(FileNotFoundError, match=r"none\.running\.safetensors"):
        _restore(state, running_path(tmp_path / "none.safetensors"), RECORD)


def test_a_full_disk_ends_training_in_a_sentence_that_names_what_is_kept(file, tmp_path, monkeypatch, capsys):
    def full(path, network, record, extra):
        if record["step"] == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_network(path, network, record, extra)

    def validated_twice(state, markets, settings, on_step, on_validation):
        for state.step in (2, 4):
            on_step(state, 0.5)
            on_validation(state, {"prices": Validation(1.0, 2.0, 3.0)})

    out = tmp_path / "m.safetensors"
    monkeypatch.setattr(train_command, "save_network", full)
    monkeypatch.setattr(train_command, "train_network", validated_twice)
    assert train(file, out, "--steps", "4") == BAD_INPUT
    told = capsys.readouterr()
    kept = f"the checkpoint of step 2, {running_path(out)}, is kept"
    assert told.err == f"vecenv worldmodel: error: {tmp_path}: the disk is full; {kept}\n"
    assert "step 2: prices: 1.0000 alone, 2.0000 joint" in told.out
    assert list(tmp_path.iterdir()) == [running_path(out)]
