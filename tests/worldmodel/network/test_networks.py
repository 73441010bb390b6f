"""Networks of all architectures: densities, draws that follow them, what each may hear, and files of them."""

from __future__ import annotations

import errno
import hashlib
import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tests.worldmodel.neural_market import (
    DAYS,
    assert_valid_bars,
    extended,
    history_of,
    matrices_of,
    small_network,
    tiny_network,
)
from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.worldmodel.data.bar_moves import Move, encode_bars
from vecenv.worldmodel.data.features import FEATURES, observe_history
from vecenv.worldmodel.network.architectures import RUNNING_MEAN_CHAIN, Architecture, model_name, network_settings
from vecenv.worldmodel.network.checkpoint import FORMAT, VERSION, load_network, save_network
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import DayLogProb, MarketNetwork, NetworkSettings, one_market_network
from vecenv.worldmodel.network.named_weights import JUDGED, SHIPPED, is_named, model_file, weights_named
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket

ARCHITECTURES = get_args(Architecture)
INDEPENDENT = ("published", "cnn-gru")


TRANSFORMER = TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0)
CNN_GRU = CnnGruSettings(layers=2, channels=8, kernel=3, width=16, reach=30, dropout=0.0)


def default_settings(architecture: Architecture) -> NetworkSettings:
    return network_settings(architecture, TransformerSettings(), CnnGruSettings(), ("india", "us"))


def market_of(architecture: Architecture) -> NeuralMarket:
    """Random weights, those of the returns larger, so that laws are skewed and differ.

    Those of the wicks' laws are smaller: the bound of wicks would bend heavy tails.
    """
    torch.manual_seed(0)
    settings = default_settings(architecture)
    trunk = CNN_GRU if isinstance(settings.trunk, CnnGruSettings) else TRANSFORMER
    network = MarketNetwork(replace(settings, trunk=trunk, head=16)).requires_grad_(False)
    for parameter in network.returns.parameters():
        parameter.mul_(2.0)
    for parameter in (*network.bars.upper[-1].parameters(), *network.bars.lower[-1].parameters()):
        parameter.mul_(0.3)
    return NeuralMarket(network, "india")


@pytest.fixture(params=ARCHITECTURES)
def market(request) -> NeuralMarket:
    return market_of(request.param)


class DayDensity(torch.nn.Module):
    """Log-densities of the day after a history, as a function of the parameters."""

    def __init__(self, market: NeuralMarket, history: Bars) -> None:
        super().__init__()
        start = market.starts(history)
        self.network, self.known = market.network, start.known[0]
        scales, volatility = start.state.scales.features()[0], start.state.volatility[0].float()
        self.given = (matrices_of(market, history), scales, volatility, market.market)

    def read(self, scaled: Tensor) -> DayLogProb:
        return self.network.log_prob(self.known, scaled, torch.ones(scaled.shape[:-1], dtype=torch.bool), *self.given)

    def forward(self, scaled: Tensor) -> Tensor:
        read = self.read(scaled)
        return read.chained.sum() + read.shape.sum()


def test_drawn_days_follow_the_joint_density(market):
    """E[d log p(x) / d theta] = 0 for x drawn from p, for every parameter of the heads that are scored."""
    # Of a calm market: where volatility is high, the bound of wicks cuts off what is drawn.
    history = history_of(3, regime="sideways")
    density, bars = DayDensity(market, history), market.generate(history, 2048, 1, seed=8)
    paths = torch.cat([history.ohlcv.expand(2048, -1, -1, -1), bars], dim=1)
    drawn = observe_history(encode_bars(paths)).scaled[:, -1].float()
    parameters = dict(density.named_parameters())
    free = {name: value for name, value in parameters.items() if name.startswith(("network.returns.", "network.bars."))}
    fixed = {name: value for name, value in parameters.items() if name not in free}

    def log_prob(heads: dict[str, Tensor], moves: Tensor) -> Tensor:
        return functional_call(density, {**fixed, **heads}, (moves,))

    scores = vmap(grad(log_prob), in_dims=(None, 0))(free, drawn)
    table = torch.cat([score.flatten(1) for score in scores.values()], dim=1).double()
    table = table[:, table.std(0) > 1e-6]
    ratio = table.mean(0) / table.std(0) * math.sqrt(len(table))
    assert table.shape[1] > 300 and float(ratio.abs().max()) < 4.5 and float(ratio.square().mean()) < 1.6


def test_paths_are_repeatable_valid_and_fed_back_as_history_is_read(market, monkeypatch):
    """Path p is the same whatever the number of paths; the trunk reads its days as it reads its bars again."""
    history = history_of(3, 60)
    history.ohlcv[0, 25:28, 0] = history.ohlcv[0, :20, 1] = history.ohlcv[0, 50] = float("nan")
    before, bars = history.ohlcv.clone(), market.generate(history, 40, 12, seed=3)
    assert_valid_bars(bars)
    returns = (bars[:, 1:, :, CLOSE] / bars[:, :-1, :, CLOSE]).flatten()
    assert len(returns.unique()) == len(returns) and torch.equal(history.ohlcv.nan_to_num(), before.nan_to_num())
    # Two paths are one chunk, which the trunk reads day by day.
    seen, step = [], market.network.trunk.step
    monkeypatch.setattr(
        market.network.trunk, "step", lambda *given: seen.append((given[0].clone(), *step(*given))) or seen[-1][1:]
    )
    assert torch.equal(market.generate(history, 2, 12, seed=3), bars[:2])
    monkeypatch.undo()
    fed = torch.stack([inputs[3:6, : len(FEATURES)] for inputs, *_ in seen])
    read = observe_history(encode_bars(extended(history, bars[1:2, :11]).ohlcv)).features[0, -11:]
    assert torch.allclose(fed, market.network.inputs(read, market.market)[..., : len(FEATURES)], atol=1e-4)
    again = market.starts(extended(history, bars[1:2, :11]))
    assert torch.allclose(seen[10][1][3:6], again.known[0], atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_independent_symbols_hear_nothing_of_each_other(architecture):
    """Neither what others did before nor what they do today counts: in densities, and in whole drawn bars."""
    market, history, independent = market_of(architecture), history_of(3, regime="crisis"), architecture in INDEPENDENT
    ohlcv = history.ohlcv.clone()
    factor = torch.exp(0.05 * torch.randn(DAYS, generator=torch.Generator().manual_seed(2))).double().cumprod(0)
    ohlcv[0, :, 2, :VOLUME] *= factor[:, None]
    ohlcv[0, ::2, 2, VOLUME] *= 3.0
    other = replace(history, ohlcv=ohlcv)
    density, changed = (market._densities(each) for each in (history, other))
    pairs = [tuple(market.generate(each, 3, 5)[:, :, :2] for each in (history, other))]
    pairs += [
        (one[1:, :2], two[1:, :2]) for one, two in zip(density, changed, strict=True) if one is not density.chained
    ]
    assert [torch.allclose(*pair, atol=1e-6) for pair in pairs] == [independent] * 3
    # The two come last, after the other one.
    reordered = replace(history, symbols=tuple(reversed(history.symbols)), ohlcv=history.ohlcv.flip(2))
    last = market._densities(reordered).chained.flip(1)[1:, :2]
    assert torch.allclose(last, density.chained[1:, :2], atol=1e-5) == independent
    together = market.joint_log_density(history)[1:] - market.log_density(history)[1:].sum(-1)
    assert float(together.abs().max()) < 1e-4 if independent else float(together.abs().mean()) > 0.05
    shown = market.network.inputs(torch.ones(2, len(FEATURES)), "us")
    hidden = [name for name, number in zip(FEATURES, shown[0].tolist(), strict=False) if number == 0.0]
    of_market = [name for name in FEATURES if "market" in name or name in ("mean_volatility", "relative_return")]
    assert hidden == of_market * independent and shown[:, len(FEATURES) :].tolist() == [[0.0, 1.0]] * 2


def test_the_running_mean_chain_hears_the_mean_alone():
    """The last symbol's density is the same whatever the order of those before it, and whoever took which return."""
    returns = torch.tensor([[0.5, -1.0, 2.0, 0.3], [2.0, 0.5, -1.0, 0.3], [0.5, 0.5, 0.5, 0.3], [0.7, -1.0, 2.0, 0.3]])
    scaled = torch.zeros(4, 4, 5)
    scaled[..., Move.BODY] = returns
    for architecture, same in (("running-mean", [True, True, True, False]), ("joint", [True, False, False, False])):
        density = DayDensity(market_of(architecture), history_of(4)).read(scaled).chained[:, -1]
        assert torch.isclose(density, density[0], atol=1e-5).tolist() == same


def test_names_sizes_and_settings_of_the_networks():
    """As published: 1.2 million parameters within a quarter, and about 140 thousand."""
    expected = {
        "joint": ("neural", 1_070_830),
        "running-mean": (RUNNING_MEAN_CHAIN, 1_070_830),
        "published": ("independent transformer, 3 Gaussians", 1_070_443),
        "cnn-gru": ("CNN+GRU, 3 Gaussians", 140_331),
    }
    for architecture, (name, size) in expected.items():
        settings = default_settings(architecture)
        assert model_name(settings) == market_of(architecture).name == name
        assert sum(tensor.numel() for tensor in MarketNetwork(settings).parameters()) == size
    other = replace(default_settings("cnn-gru"), joint="correlations")
    assert model_name(other) == "CNN+GRU, correlations, gaussian"
    weights = MarketNetwork(NetworkSettings()).state_dict()
    assert not bool(weights["drifts"].any()) and bool((weights["couplings"] == 1.0).all())
    # Files of version 4 hold these.
    told = [f"{name} {tuple(tensor.shape)}" for name, tensor in weights.items()]
    assert hashlib.sha256("\n".join(told).encode()).hexdigest()[:16] == "b4ed1b5b91211268"
    for name, told in (("joint", "correlations, running mean, none"), ("density", "student-t, gaussian")):
        with pytest.raises(ValueError, match=f"unknown {name} 'all'; there are {told}"):
            NetworkSettings(**{name: "all"})


@pytest.mark.parametrize(
    ("make", "markets", "tolerance"),
    [
        (small_network, ("india", "us"), 1e-4),
        (lambda: tiny_network(NetworkSettings(CNN_GRU, 8, ("a", "b", "c"), "none", "gaussian")), ("b",), 1e-4),
        (lambda: load_network(SHIPPED).network, ("india", "us"), 0.0),
    ],
)
def test_a_network_of_one_market_continues_it_and_leaves_the_other_alone(make, markets, tolerance):
    """The same densities, of each symbol and jointly, and the same paths: bit for bit of the shipped weights.

    The product with fewer flags may sum in another order, which leaves a tolerance for rounding.
    """
    network, bars, densities = make(), history_of(3), []
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for market in markets:
        alone = one_market_network(network, market, "mine")
        one, other = NeuralMarket(network, market), NeuralMarket.of_file(Path(), alone, None, 1.0)
        assert other.market == "mine" and other.network.settings.markets == ("mine",)
        densities.append(one.log_density(bars)[1:])
        for first, second in (
            (densities[-1], other.log_density(bars)[1:]),
            (one.joint_log_density(bars)[1:], other.joint_log_density(bars)[1:]),
            (one.generate(bars, 2, 3, seed=5), other.generate(bars, 2, 3, seed=5)),
        ):
            assert bool(((first - second).abs() <= tolerance * second.abs().clamp(min=1.0)).all())
        for tensor in alone.state_dict().values():
            tensor.add_(1.0)
    assert len(markets) == 1 or float((densities[0] - densities[1]).abs().max()) > 1e-2
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    known = ", ".join(network.settings.markets)
    with pytest.raises(ValueError, match=f"unknown market 'mars'; the network knows {known}"):
        one_market_network(network, "mars", "mine")


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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_network_comes_back_with_its_settings_and_record(saved, tmp_path, architecture):
    path, network = saved
    back, metadata = load_network(path), metadata_of(path)
    assert back.network.settings == SMALL and not back.network.training
    assert back.record == {"note": [1, 2]} and torch.equal(back.extra["more"], torch.arange(3))
    for name, tensor in network.state_dict().items():
        assert torch.equal(back.network.state_dict()[name], tensor)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert (FORMAT, VERSION, metadata["version"]) == ("vecenv-neural-market", 4, "4")
    assert metadata["format"] == FORMAT and json.loads(metadata["settings"])["trunk"]["width"] == 8
    network = market_of(architecture).network.eval()
    save_network(path, network, {}, {})
    back, features = load_network(path).network, torch.randn(2, 5, 18)
    assert back.settings == network.settings and back.bars.joint == network.bars.joint
    assert torch.equal(back.trunk(features), network.trunk(features))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": "0"}, "version 0 of the format, 4 is needed: retrain it"),
        ({"format": "other"}, "a safetensors file, but not of a neural market"),
        ({"settings": "{"}, "its settings cannot be read"),
        ({"settings": "[]"}, "its settings cannot be read"),
        ({"settings": {"trunk": {"layers": 1}}}, "unknown trunk None; there are transformer, cnn-gru"),
        ({"settings": {"trunk": {"kind": "transformer"}}}, "its settings cannot be read .'markets'"),
        ({"settings": {"trunk": {"kind": "cnn-gru", "heads": 2}, "markets": []}}, "its settings cannot .*heads"),
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


def test_other_tensors_are_refused(saved, tmp_path):
    """Truncated, altered, those of another network, or estimates of correlations out of range."""
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
    for buffer, wrong, right, told in (
        ("decays", (1.0, 0.0, float("nan")), (0.5,), "decays of correlations must lie between 0 and 1, got "),
        ("shrinkages", (1.5, -0.1), (0.0, 1.0), r"shrinkages of correlations must be 0 to 1, got \[0.0, "),
    ):
        for value in (*wrong, *right):
            getattr(network, buffer)[1] = value
            save_network(path, network, {}, {})
            with nullcontext() if value in right else pytest.raises(ValueError, match=told):
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


def test_shipped_weights_are_of_one_recipe_and_go_by_their_names():
    judged, shipped = (load_network(file) for file in (JUDGED, SHIPPED))
    assert (judged.record["label"], shipped.record["label"]) == ("judged", "shipped")
    assert judged.network.settings == shipped.network.settings
    assert judged.record["settings"] | {"bf16": None} == shipped.record["settings"] | {"bf16": None}
    for name, source in judged.record["sources"].items():
        later = shipped.record["sources"][name]
        assert later["symbols"] == source["symbols"] and later["sha256"] != source["sha256"]
        assert source["validation_end"] < later["train_end"] < later["validation_end"]
    assert model_file("judged") == JUDGED and model_file("mine.safetensors") == Path("mine.safetensors")
    assert model_file("shipped") == SHIPPED and model_file(Path("folder/judged")) == Path("folder/judged")
    assert is_named(weights_named("shipped")) and is_named(JUDGED) and not is_named(Path("judged.safetensors"))
    with pytest.raises(ValueError, match="unknown weights 'best'; there are shipped, judged"):
        weights_named("best")
