"""Trunks and networks of all architectures: causal in either form, draws that follow the densities, and files."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tests.worldmodel.neural_market import TRUNK, assert_valid_bars, extended, history_of, matrices_of, small_network
from vecenv.learn.checkpoints import SEAL, digest_of, save_sealed
from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.data.calendar import calendar_features
from vecenv.worldmodel.data.features import FEATURES, observe_history
from vecenv.worldmodel.network.checkpoint import (
    FORMAT,
    JUDGED,
    SHIPPED,
    VERSION,
    load_network,
    model_file,
    save_network,
)
from vecenv.worldmodel.network.cnn_gru import CnnGru
from vecenv.worldmodel.network.market_network import DayLogProb, MarketNetwork, one_market_network
from vecenv.worldmodel.network.return_shocks import STATES, no_shock
from vecenv.worldmodel.network.settings import (
    RUNNING_MEAN_CHAIN,
    Architecture,
    CnnGruSettings,
    NetworkSettings,
    TransformerSettings,
    model_name,
    network_settings,
)
from vecenv.worldmodel.network.transformer import Transformer
from vecenv.worldmodel.network.trunk import Bfloat16Trunk
from vecenv.worldmodel.sampling.neural import NeuralMarket

INPUTS, WINDOW, LENGTH = 5, 8, 43
DAYS = torch.randn(3, LENGTH, INPUTS, generator=torch.Generator().manual_seed(1))


def transformer(dropout: float = 0.0) -> Transformer:
    torch.manual_seed(0)
    trunk = Transformer(INPUTS, TransformerSettings(2, 16, 2, 32, WINDOW, dropout)).eval()
    for layer in trunk.layers:
        layer.project.weight.data.mul_(3.0)
    return trunk.requires_grad_(False)


def cnn_gru(layers: int = 2, kernel: int = 3, dropout: float = 0.0) -> CnnGru:
    torch.manual_seed(0)
    settings = CnnGruSettings(layers, channels=8, kernel=kernel, width=16, dropout=dropout)
    trunk = CnnGru(INPUTS, settings).eval().requires_grad_(False)
    for parameter in trunk.parameters():
        parameter.mul_(1.5)
    return trunk


@pytest.fixture(params=[transformer, cnn_gru])
def trunk(request):
    return request.param()


@pytest.mark.parametrize("known", [1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5])
@pytest.mark.parametrize("make", [transformer, cnn_gru, lambda: cnn_gru(kernel=1), lambda: cnn_gru(1, 4)])
def test_prefill_and_steps_equal_the_whole_sequence(make, known):
    trunk = make()
    expected = trunk(DAYS)
    hidden, cache = trunk.prefill(DAYS[:, :known])
    assert torch.allclose(hidden, expected[:, known - 1], atol=1e-5)
    shape = trunk.prefill(DAYS)[1][0].shape
    for day in range(known, LENGTH):
        assert cache[0].shape == shape and getattr(cache, "length", day) == day
        hidden, cache = trunk.step(DAYS[:, day], cache)
        assert torch.allclose(hidden, expected[:, day], atol=1e-5)


def test_caches_parameters_and_dropout(trunk):
    _, whole = trunk.prefill(DAYS[:, :-1])
    before, rows, last = whole[0].clone(), torch.tensor([2, 0, 2, 1]), DAYS[:, -1]
    hidden, _ = trunk.step(last[rows], whole.chosen(rows))
    assert torch.allclose(hidden, trunk(DAYS)[rows, -1], atol=1e-5) and torch.equal(whole[0], before)
    joined = whole.joined([trunk.prefill(part)[1] for part in DAYS[:, :-1].split(2)])
    assert torch.allclose(trunk.step(last, joined)[0], trunk(DAYS)[:, -1], atol=1e-5)
    trunk.requires_grad_(True)(torch.randn(2, 20, INPUTS)).square().mul(torch.randn(16)).sum().backward()
    for name, parameter in trunk.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0.0, name
    dropping = cnn_gru(dropout=0.1).train()
    kept = dropping(DAYS) / dropping.eval()(DAYS)
    assert torch.allclose(kept, kept[:, :1].expand_as(kept), atol=1e-4)
    assert {round(number, 3) for number in kept.flatten().tolist()} == {0.0, round(1 / 0.9, 3)}
    assert not torch.equal(transformer(0.5).train()(DAYS), transformer(0.5)(DAYS))
    for name, value in (("layers", 0), ("kernel", 0), ("reach", 0), ("dropout", 1.0)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            CnnGruSettings(**{name: value})
    for name, value in (("layers", 0), ("window", 0), ("width", 190), ("dropout", float("nan"))):
        with pytest.raises(ValueError, match=f"{name} must be"):
            TransformerSettings(**{name: value})
    assert (TransformerSettings(3, window=7).reach, CnnGruSettings().reach) == (21, 240)


def test_a_network_in_bfloat16_shares_its_heads_and_draws_nearly_the_same():
    network, bars = load_network(JUDGED).network, synthetic_bars(1, 90, 3, seed=2)
    halved = network.with_bfloat16_trunk()
    assert halved.bars is network.bars and halved.returns is network.returns and not halved.training
    assert isinstance(network.trunk, Transformer) and isinstance(halved.trunk, Bfloat16Trunk)
    exact, rough = NeuralMarket(network, "us"), NeuralMarket(halved, "us")
    differences = (rough.joint_log_density(bars) - exact.joint_log_density(bars))[60:] / 3
    assert 0 < float(differences.abs().max()) < 0.02 and abs(float(differences.mean())) < 1e-3
    few, many, whole = rough.generate(bars, 2, 2), rough.generate(bars, 5, 2), exact.generate(bars, 2, 2)
    assert torch.equal(few, many[:2]) and not torch.equal(few, whole)
    assert torch.allclose(few[..., 3], whole[..., 3], rtol=0.005)


ARCHITECTURES = get_args(Architecture)
INDEPENDENT = ("published", "cnn-gru")
CNN_GRU = CnnGruSettings(layers=2, channels=8, kernel=3, width=16, reach=30, dropout=0.0)


def default_settings(architecture: Architecture) -> NetworkSettings:
    return network_settings(architecture, TransformerSettings(), CnnGruSettings(), ("india", "us"))


def market_of(architecture: Architecture) -> NeuralMarket:
    """Random weights, larger of the returns, so that laws are skewed, and smaller of wicks, whose bound bends tails.

    Shocks are not rare: of a few, the mean of a score has no normal error.
    """
    torch.manual_seed(0)
    settings = default_settings(architecture)
    trunk = CNN_GRU if isinstance(settings.trunk, CnnGruSettings) else TRUNK
    network = MarketNetwork(replace(settings, trunk=trunk, head=16)).requires_grad_(False)
    for parameter in network.returns.parameters():
        parameter.mul_(2.0)
    for parameter in (*network.bars.upper[-1].parameters(), *network.bars.lower[-1].parameters()):
        parameter.mul_(0.3)
    network.bars.calendar[0].fill_(0.7)
    network.bars.shocks.raw[..., 0] = 3.0
    return NeuralMarket(network, "india")


@pytest.fixture(params=ARCHITECTURES)
def market(request) -> NeuralMarket:
    return market_of(request.param)


class DayDensity(torch.nn.Module):
    def __init__(self, market: NeuralMarket, history: Bars) -> None:
        super().__init__()
        start = market.starts(history)
        self.network, self.known = market.network, start.known[0]
        scales, volatility = start.state.scales.features()[0], start.state.volatility[0].float()
        # The next day is a Monday.
        calendar = calendar_features(history.dates[-1:] + 3)[0]
        self.given = (matrices_of(market, history), scales, calendar, volatility, market.market)

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
    parameters = dict(density.named_parameters()) | {"network.bars.calendar": market.network.bars.calendar}
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
    seen, trunk, step = [], market.network.trunk, market.network.trunk.step
    monkeypatch.setattr(trunk, "step", lambda *given: seen.append((given[0].clone(), *step(*given))) or seen[-1][1:])
    assert torch.equal(market.generate(history, 2, 12, seed=3), bars[:2])
    monkeypatch.undo()
    fed = torch.stack([inputs[3:6, : len(FEATURES)] for inputs, *_ in seen])
    read = observe_history(encode_bars(extended(history, bars[1:2, :11]).ohlcv)).features[0, -11:]
    assert torch.allclose(fed, market.network.inputs(read, market.market)[..., : len(FEATURES)], atol=1e-4)
    again = market.starts(extended(history, bars[1:2, :11]))
    assert torch.allclose(seen[10][1][3:6], again.known[0], atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_independent_symbols_hear_nothing_of_each_other(architecture):
    market, history, independent = market_of(architecture), history_of(3, regime="crisis"), architecture in INDEPENDENT
    other = history_of(3, regime="crisis")
    factor = torch.exp(0.05 * torch.randn(40, generator=torch.Generator().manual_seed(2))).double().cumprod(0)
    other.ohlcv[0, :, 2, :VOLUME] *= factor[:, None]
    other.ohlcv[0, ::2, 2, VOLUME] *= 3.0
    density, changed = (market._densities(each) for each in (history, other))
    pairs = [tuple(market.generate(each, 3, 5)[:, :, :2] for each in (history, other))]
    # Densities alone and of the bars' shape, which are not chained.
    pairs += [(one[1:, :2], two[1:, :2]) for one, two in zip(density[::2], changed[::2], strict=True)]
    assert [torch.allclose(*pair, atol=1e-6) for pair in pairs] == [independent] * 3
    together = market.joint_log_density(history)[1:] - market.log_density(history)[1:].sum(-1)
    assert float(together.abs().max()) < 1e-4 if independent else float(together.abs().mean()) > 0.05
    shown = market.network.inputs(torch.ones(2, len(FEATURES)), "us")
    hidden = [name for name, number in zip(FEATURES, shown[0].tolist(), strict=False) if number == 0.0]
    of_market = [name for name in FEATURES if "market" in name or name in ("mean_volatility", "relative_return")]
    assert hidden == of_market * independent and shown[:, len(FEATURES) :].tolist() == [[0.0, 1.0]] * 2


def test_names_sizes_and_settings_of_networks_and_of_shipped_weights():
    for architecture, name, size in (
        ("joint", "neural", 1_070_830),
        ("running-mean", RUNNING_MEAN_CHAIN, 1_070_830),
        ("published", "independent transformer, 3 Gaussians", 1_070_443),
        ("cnn-gru", "CNN+GRU, 3 Gaussians", 140_331),
    ):
        settings = default_settings(architecture)
        assert model_name(settings) == market_of(architecture).name == name
        assert sum(tensor.numel() for tensor in MarketNetwork(settings).parameters()) == size
    other = replace(default_settings("cnn-gru"), joint="correlations")
    assert model_name(other) == "CNN+GRU, correlations, gaussian"
    network = MarketNetwork(NetworkSettings())
    assert not bool(network.drifts.any()) and bool((network.couplings == 1.0).all())
    for name, told in (("joint", "correlations, running mean, none"), ("density", "student-t, gaussian")):
        with pytest.raises(ValueError, match=f"unknown {name} 'all'; there are {told}"):
            NetworkSettings(**{name: "all"})
    judged, shipped = (load_network(file) for file in (JUDGED, SHIPPED))
    assert (judged.record["label"], shipped.record["label"]) == ("judged", "shipped")
    assert judged.network.settings == shipped.network.settings
    for name, source in judged.record["sources"].items():
        later = shipped.record["sources"][name]
        assert later["symbols"] == source["symbols"] and later["sha256"] != source["sha256"]
        assert source["validation_end"] < later["train_end"] < later["validation_end"]
    names = {"judged": JUDGED, "shipped": SHIPPED, "mine.safetensors": Path("mine.safetensors")}
    assert {name: model_file(name) for name in names} == names
    assert model_file(Path("folder/judged")) == Path("folder/judged")


@pytest.mark.parametrize(
    ("make", "markets", "tolerance"),
    [
        (small_network, ("india", "us"), 1e-4),
        (lambda: market_of("cnn-gru").network, ("us",), 1e-4),
        (lambda: load_network(SHIPPED).network, ("india", "us"), 0.0),
    ],
)
def test_a_network_of_one_market_continues_it_and_leaves_the_other_alone(make, markets, tolerance):
    """Bit for bit of the shipped weights; the product with fewer flags may sum in another order."""
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


SMALL = NetworkSettings(TRUNK, 8, ("a", "b"))


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    network = MarketNetwork(SMALL)
    network.drifts[0], network.decays[0], network.shrinkages[0] = 0.01, 0.99, 0.0
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
    assert metadata["format"] == FORMAT and json.loads(metadata["settings"])["trunk"]["width"] == 16
    network = market_of(architecture).network.eval()
    save_network(path, network, {}, {})
    # Frozen as the first is: on some processors recurrent units with a gradient have a kernel that rounds otherwise.
    back, features = load_network(path).network.requires_grad_(False), torch.randn(2, 5, 18)
    assert back.settings == network.settings and back.bars.joint == network.bars.joint
    assert torch.equal(back.trunk(features), network.trunk(features))


def resealed(path, without=None, **texts):
    """Write the file anew without a tensor or with other texts, and the hash that belongs to them."""
    tensors, metadata = load_file(path), metadata_of(path) | texts
    tensors.pop(without, None)
    kind = metadata.pop("format")
    save_sealed(path, kind, tensors, {name: text for name, text in metadata.items() if name != SEAL})


@pytest.mark.parametrize(
    ("name", "without"), [("bars.calendar", 0.0), ("level_shares", 0.0), ("return_shocks", no_shock())]
)
def test_weights_from_before_the_calendar_levels_or_shocks_are_read_without_any(saved, name, without):
    path, network = saved
    network.get_buffer(name).fill_(1 / len(STATES))
    save_network(path, network, {}, {})
    assert torch.equal(load_network(path).network.get_buffer(name), network.get_buffer(name))
    resealed(path, f"network.{name}")
    assert bool((load_network(path).network.get_buffer(name) == without).all())


def other(**trunk):
    settings = {"trunk": {"kind": "transformer", **asdict(TRUNK), **trunk}, "head": 8, "markets": ["a", "b"]}
    return json.dumps(settings | {"joint": "correlations", "density": "student-t"})


JUNK = {
    "version": {"0": "version 0 of the format, 4 is needed: retrain it"},
    "format": {"other": "a safetensors file, but not of a neural market"},
    "settings": {
        **dict.fromkeys(("{", "[]", "", "[" * 9_999, "null"), "its settings cannot be read"),
        '{"trunk": {"layers": 1}}': "unknown trunk None; there are transformer, cnn-gru",
        '{"trunk": {"kind": "transformer"}}': "its settings cannot be read .'markets'",
        '{"trunk": {"kind": "transformer"}, "markets": [], "joint": "all"}': ".*unknown joint 'all'",
        # 72 GB, hours of making layers, and what no weight's size tells.
        other(width=10**9): r"its network.trunk.embed.weight .* instead of float32 of shape .1000000000,",
        **{other(width=odd): "its settings cannot be read" for odd in (10**30, -1)},
        **{other(**odd): "its settings cannot be read" for odd in ({"heads": 0}, {"hidden": 2.5}, {"window": 0})},
        **{other(layers=odd): "its settings cannot be read" for odd in (10**9, "2")},
        **{other(**{name: float("nan")}): "its settings cannot be read" for name in ("window", "dropout")},
    },
    "record": {
        **dict.fromkeys(("", "[1]"), "its record cannot be read"),
        '{"sources": [1]}': "the days in its record cannot be read",
        '{"init": {"known_days": {"A": "some day"}}}': "the days in its record cannot be read",
    },
}


def test_files_of_no_network_are_refused(saved):
    path, network = saved
    for name, texts in JUNK.items():
        for text, told in texts.items():
            save_network(path, network, {}, {})
            resealed(path, **{name: text})
            with pytest.raises(ValueError, match=rf"market\.safetensors: {told}"):
                load_network(path)
    # The same weights under other settings or another record, and files of before these were hashed.
    save_network(path, network, {"sources": {"a": {"symbols": ["A"], "validation_end": "2024-12-31"}}}, {})
    tensors, metadata = load_file(path), metadata_of(path)
    for name, text in (("settings", other(window=61)), ("settings", other(dropout=0.5)), ("record", "{}"), ("x", "y")):
        save_file(tensors, path, metadata | {name: text})
        with pytest.raises(ValueError, match="altered or damaged: the hash of its tensors and settings"):
            load_network(path)
    save_file(tensors, path, metadata | {SEAL: digest_of(tensors)})
    with pytest.warns(UserWarning, match="written by an older version, whose hash is of the tensors alone"):
        assert load_network(path).known_days() == {"A": "2024-12-31"}
    save_file(tensors, path, {name: text for name, text in metadata.items() if name != SEAL})
    with pytest.raises(ValueError, match="written by an older version, without a hash of what it holds: train it"):
        load_network(path)
    # Truncated, altered, those of another network, or calibrated numbers out of range.

    def refused(told):
        with pytest.raises((ValueError, FileNotFoundError), match=rf"market\.safetensors: {told}"):
            load_network(path)

    save_network(path, network, {}, {})
    path.write_bytes(path.read_bytes()[:-100])
    refused("not a whole")
    path.unlink()
    refused("no checkpoint of a neural market")
    for extra, told in (
        ({"network.more": torch.zeros(1)}, "its network also has more"),
        ({"network.drifts": torch.zeros(3)}, r"its network\.drifts is float32 of shape \(3,\) instead"),
    ):
        save_network(path, network, {}, extra)
        refused(told)
    save_network(path, network, {}, {})
    tensors, metadata = load_file(path), metadata_of(path)
    for name, altered in (("network.returns.inner.bias", lambda tensor: tensor + 1), ("network.drifts", torch.t)):
        save_file(tensors | {name: altered(tensors[name]).contiguous()}, path, metadata)
        refused("altered or damaged: the hash of its tensors and settings does not match")
    for buffer, wrong, right, told in (
        ("decays", (1.0, 0.0, float("nan")), (0.5,), "decays of correlations must lie between 0 and 1, got "),
        ("shrinkages", (1.5, -0.1), (0.0, 1.0), r"shrinkages of correlations must be 0 to 1, got \[0.0, "),
        ("level_shares", (1.5, -0.1, float("nan")), (0.0, 1.0), "shares of correlations' levels must be 0 to 1, got "),
        (
            "return_shocks",
            (1.0, -0.1, float("nan")),
            (1 / len(STATES),),
            "probabilities of common shocks must be 0 to ",
        ),
        ("bars.calendar", (float("nan"), float("inf")), (-9.0,), "moves on days of the calendar must be finite, got "),
    ):
        for value in (*wrong, *right):
            network.get_buffer(buffer)[1] = value
            save_network(path, network, {}, {})
            load_network(path) if value in right else refused(told)
    network.return_shocks[1, :2] += torch.tensor([1.0, -1.0])
    save_network(path, network, {}, {})
    refused("probabilities of common shocks must be 0 to 1, of sum 1, got ")
