"""Files of neural markets: whole, unaltered and of this version, or a clear refusal."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from vecenv.worldmodel.network.architectures import Architecture, network_settings
from vecenv.worldmodel.network.checkpoint import FORMAT, load_network, save_network
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
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


def test_a_network_comes_back_with_its_settings_and_record(saved):
    path, network = saved
    back = load_network(path)
    assert back.network.settings == SMALL and not back.network.training
    assert back.record == {"note": [1, 2]} and torch.equal(back.extra["more"], torch.arange(3))
    for name, tensor in network.state_dict().items():
        assert torch.equal(back.network.state_dict()[name], tensor)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_every_architecture_comes_back(tmp_path, architecture):
    recurrent = architecture == "cnn-gru"
    sizes = (TransformerSettings(), CnnGruSettings(channels=4, width=8)) if recurrent else (TRUNK, CnnGruSettings())
    network = MarketNetwork(network_settings(architecture, *sizes, ("a",))).eval()
    save_network(tmp_path / "m.safetensors", network, {}, {})
    back = load_network(tmp_path / "m.safetensors").network
    assert back.settings == network.settings and type(back.trunk) is type(network.trunk)
    features = torch.randn(2, 5, 17)
    assert torch.equal(back.trunk(features), network.trunk(features))
    assert back.bars.joint == network.bars.joint


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trunk": {"layers": 1}}, "m.*: unknown trunk None"),
        ({"trunk": {"kind": "lstm"}}, "m.*: unknown trunk 'lstm'; there are transformer, cnn-gru"),
        ({"trunk": {"kind": "cnn-gru", "heads": 2}}, "m.*: its settings cannot be read .*heads"),
        ({"joint": "all"}, "m.*: its settings cannot be read .unknown joint 'all'"),
    ],
)
def test_settings_of_no_architecture_are_refused(saved, changes, told):
    path, _ = saved
    rewrite(path, settings=json.dumps(json.loads(metadata_of(path)["settings"]) | changes))
    with pytest.raises(ValueError, match=told):
        load_network(path)


def metadata_of(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def rewrite(path, tensors=None, **changes):
    save_file(tensors or load_file(path), path, metadata_of(path) | changes)


def test_a_truncated_file_is_refused(saved):
    path, _ = saved
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"market.safetensors: not a whole"):
        load_network(path)


def test_altered_tensors_are_refused(saved):
    path, _ = saved
    tensors = load_file(path)
    tensors["network.returns.inner.bias"][0] += 1
    rewrite(path, tensors)
    with pytest.raises(ValueError, match="digest of its tensors does not match"):
        load_network(path)


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


def test_other_versions_and_other_files_are_refused(saved, tmp_path):
    path, _ = saved
    rewrite(path, version="0")
    with pytest.raises(ValueError, match="version 0 of the format"):
        load_network(path)
    rewrite(path, format="other")
    with pytest.raises(ValueError, match="not of a neural market"):
        load_network(path)
    with pytest.raises(FileNotFoundError, match="absent"):
        load_network(tmp_path / "absent.safetensors")


def test_metadata_of_no_network_and_tensors_of_another_are_refused(saved):
    path, network = saved
    for changes, told in (
        ({"settings": "{"}, "its settings cannot be read"),
        ({"settings": "[]"}, "its settings cannot be read"),
        ({"settings": "{}"}, "unknown trunk None"),
        ({"settings": json.dumps({"trunk": {"kind": "transformer"}})}, "its settings cannot be read .'markets'"),
        ({"record": ""}, "its record cannot be read"),
    ):
        save_network(path, network, {}, {})
        rewrite(path, **changes)
        with pytest.raises(ValueError, match=rf"market\.safetensors: {told}") as error:
            load_network(path)
        assert "\n" not in str(error.value)
    save_network(path, network, {}, {"network.more": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"market\.safetensors: its network also has more"):
        load_network(path)
    save_network(path, network, {}, {"network.drifts": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"its network\.drifts is float32 of shape \(3,\) instead of float32 of shape"):
        load_network(path)


@pytest.mark.parametrize("fault", ["full", "interrupted"])
def test_a_network_that_cannot_be_written_leaves_the_one_before(saved, monkeypatch, fault):
    path, network = saved
    before = path.read_bytes()

    def half(self, data):
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device") if fault == "full" else KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises((OSError, KeyboardInterrupt)):
        patch.setattr(Path, "write_bytes", half)
        save_network(path, network, {}, {})
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_settings_are_readable_without_torch(saved):
    metadata = metadata_of(saved[0])
    assert metadata["format"] == FORMAT and json.loads(metadata["settings"])["trunk"]["width"] == 8
