"""Files of neural markets: whole, unaltered and of this version, or a clear refusal."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from vecenv.worldmodel.network.architectures import Architecture, network_settings
from vecenv.worldmodel.network.checkpoint import FORMAT, VERSION, load_network, save_network
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.named_weights import JUDGED, SHIPPED, is_named, model_file, weights_named
from vecenv.worldmodel.network.transformer import TransformerSettings

TRUNK = TransformerSettings(layers=1, width=8, heads=2, hidden=16, window=4)
SMALL = NetworkSettings(TRUNK, head=8, markets=("a", "b"))


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    network = MarketNetwork(SMALL)
    network.drifts.copy_(torch.tensor([[0.01], [-0.02]]))
    network.decays.copy_(torch.tensor([0.99, 0.999], dtype=torch.float64))
    network.shrinkages.copy_(torch.tensor([0.0, 0.4], dtype=torch.float64))
    path = tmp_path / "market.safetensors"
    save_network(path, network, {"note": [1, 2]}, {"more": torch.arange(3)})
    return path, network


def metadata_of(path):
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def test_a_network_comes_back_with_its_settings_and_record(saved):
    path, network = saved
    back, metadata = load_network(path), metadata_of(path)
    assert back.network.settings == SMALL and not back.network.training
    assert back.record == {"note": [1, 2]} and torch.equal(back.extra["more"], torch.arange(3))
    for name, tensor in network.state_dict().items():
        assert torch.equal(back.network.state_dict()[name], tensor)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert (FORMAT, VERSION, metadata["version"]) == ("vecenv-neural-market", 4, "4")
    assert metadata["format"] == FORMAT and json.loads(metadata["settings"])["trunk"]["width"] == 8


@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_every_architecture_comes_back(tmp_path, architecture):
    recurrent = architecture == "cnn-gru"
    sizes = (TransformerSettings(), CnnGruSettings(channels=4, width=8)) if recurrent else (TRUNK, CnnGruSettings())
    network = MarketNetwork(network_settings(architecture, *sizes, ("a",))).eval()
    save_network(tmp_path / "m.safetensors", network, {}, {})
    back, features = load_network(tmp_path / "m.safetensors").network, torch.randn(2, 5, 17)
    assert back.settings == network.settings and back.bars.joint == network.bars.joint
    assert torch.equal(back.trunk(features), network.trunk(features))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": "0"}, "version 0 of the format, 4 is needed: retrain it"),
        ({"format": "other"}, "a safetensors file, but not of a neural market"),
        ({"settings": "{"}, "its settings cannot be read"),
        ({"settings": "[]"}, "its settings cannot be read"),
        ({"settings": "{}"}, "unknown trunk None; there are transformer, cnn-gru"),
        ({"settings": {"trunk": {"layers": 1}}}, "unknown trunk None"),
        ({"settings": {"trunk": {"kind": "lstm"}}}, "unknown trunk 'lstm'"),
        ({"settings": {"trunk": {"kind": "transformer"}}}, "its settings cannot be read .'markets'"),
        (
            {"settings": {"trunk": {"kind": "cnn-gru", "heads": 2}, "markets": []}},
            "its settings cannot be read .*heads",
        ),
        ({"settings": {"trunk": {"kind": "transformer"}, "markets": [], "joint": "all"}}, ".*unknown joint 'all'"),
        ({"record": ""}, "its record cannot be read"),
        ({"sha256": "0"}, "the digest of its tensors does not match"),
    ],
)
def test_metadata_of_no_network_are_refused(saved, changes, told):
    path, _ = saved
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in changes.items()}
    save_file(load_file(path), path, metadata_of(path) | texts)
    with pytest.raises(ValueError, match=rf"market\.safetensors: {told}") as error:
        load_network(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("buffer", "value", "told"),
    [
        ("decays", 1.0, r"decays of correlations must lie between 0 and 1, got \[0.99, 1.0\]"),
        ("decays", 0.0, "decays of correlations"),
        ("decays", float("nan"), "decays of correlations"),
        ("shrinkages", 1.5, r"shrinkages of correlations must be 0 to 1, got \[0.0, 1.5\]"),
        ("shrinkages", -0.1, "shrinkages of correlations"),
    ],
)
def test_estimates_of_correlations_out_of_range_are_refused(saved, buffer, value, told):
    path, network = saved
    getattr(network, buffer)[1] = value
    save_network(path, network, {}, {})
    with pytest.raises(ValueError, match=rf"market\.safetensors: {told}"):
        load_network(path)


def test_other_tensors_are_refused(saved, tmp_path):
    """Truncated, altered, or those of another network."""
    path, network = saved
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"market.safetensors: not a whole"):
        load_network(path)
    for extra, told in (
        ({"network.more": torch.zeros(1)}, "its network also has more"),
        ({"network.drifts": torch.zeros(3)}, r"its network\.drifts is float32 of shape \(3,\) instead"),
    ):
        save_network(path, network, {}, extra)
        with pytest.raises(ValueError, match=rf"market\.safetensors: {told}"):
            load_network(path)
    save_network(path, network, {}, {})
    tensors, metadata = load_file(path), metadata_of(path)
    for name, altered in (("network.returns.inner.bias", lambda tensor: tensor + 1), ("network.drifts", torch.t)):
        save_file(tensors | {name: altered(tensors[name]).contiguous()}, path, metadata)
        with pytest.raises(ValueError, match="digest of its tensors does not match"):
            load_network(path)
    with pytest.raises(FileNotFoundError, match=r"absent\.safetensors: no checkpoint of a neural market"):
        load_network(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_network_that_cannot_be_written_leaves_the_one_before(saved, monkeypatch, fault):
    path, network = saved
    before = path.read_bytes()

    def half(self, data):
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise fault

    with monkeypatch.context() as patch, pytest.raises(type(fault)):
        patch.setattr(Path, "write_bytes", half)
        save_network(path, network, {}, {})
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_shipped_weights_are_of_one_recipe_and_know_more_days():
    """A file says by its label which weights it holds."""
    judged, shipped = (load_network(file) for file in (JUDGED, SHIPPED))
    assert (judged.record["label"], shipped.record["label"]) == ("judged", "shipped")
    assert judged.network.settings == shipped.network.settings
    assert judged.record["embargo"] == shipped.record["embargo"]
    assert judged.record["settings"] | {"bf16": None} == shipped.record["settings"] | {"bf16": None}
    for name, source in judged.record["sources"].items():
        later = shipped.record["sources"][name]
        assert later["symbols"] == source["symbols"] and later["sha256"] != source["sha256"]
        assert len(source["sha256"]) == len(later["sha256"]) == 16
        assert source["validation_end"] < later["train_end"] < later["validation_end"]


def test_a_model_is_a_name_or_a_path():
    assert model_file("judged") == JUDGED and model_file("mine.safetensors") == Path("mine.safetensors")
    assert model_file("shipped") == SHIPPED and model_file(Path("folder/judged")) == Path("folder/judged")
    assert is_named(weights_named("shipped")) and is_named(JUDGED) and not is_named(Path("judged.safetensors"))
    with pytest.raises(ValueError, match="unknown weights 'best'; there are shipped, judged"):
        weights_named("best")
