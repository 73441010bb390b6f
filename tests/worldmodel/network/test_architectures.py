"""All architectures behind one interface: normalised densities, draws that follow them, and what each may hear."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tests.worldmodel.neural_market import (
    DAYS,
    TINY,
    assert_valid_bars,
    extended,
    matrices_of,
    small_network,
    tiny_network,
)
from vecenv.market.bars import VOLUME, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import Move, encode_bars
from vecenv.worldmodel.data.features import FEATURES, observe_history
from vecenv.worldmodel.network.architectures import RUNNING_MEAN_CHAIN, Architecture, model_name, network_settings
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import DayLogProb, MarketNetwork, NetworkSettings, one_market_network
from vecenv.worldmodel.network.named_weights import SHIPPED
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
INDEPENDENT: tuple[Architecture, ...] = ("published", "cnn-gru")

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


def history_of(symbols: int, regime: str = "crisis") -> Bars:
    return synthetic_bars(1, DAYS, symbols, seed=7, regime=regime)


def moves_after(history: Bars, bars: Tensor) -> Tensor:
    """Scaled moves of each path's first day. Shape: (P, K, 5), float32."""
    paths = torch.cat([history.ohlcv.expand(len(bars), -1, -1, -1), bars[:, :1]], dim=1)
    return observe_history(encode_bars(paths)).scaled[:, -1].float()


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


@pytest.mark.assembly
def test_the_density_of_a_day_is_normalised_and_drawn_returns_follow_it(market):
    """Of two symbols on a grid of both returns x = sinh(u): mass, means, deviations and correlation of u."""
    history = history_of(2)
    u = torch.linspace(-6.0, 6.0, 97, dtype=torch.float64)
    pairs = torch.cartesian_prod(u, u)
    scaled = torch.zeros(len(pairs), 2, 5)
    scaled[..., Move.BODY] = pairs.sinh()
    density = DayDensity(market, history).read(scaled).chained.double().sum(-1)
    mass = (density + pairs.cosh().log().sum(-1)).exp() * (u[1] - u[0]) ** 2
    assert float(mass.sum()) == pytest.approx(1.0, abs=5e-3)
    moves = moves_after(history, market.generate(history, 8_000, 1, seed=6))
    drawn = torch.asinh(moves[..., Move.GAP] + moves[..., Move.BODY]).double()
    expected = torch.cov(pairs.T, aweights=mass)
    deviation = expected.diagonal().sqrt()
    assert torch.allclose(drawn.mean(0), mass @ pairs, atol=float(4 * deviation.max() / math.sqrt(8_000)))
    assert torch.allclose(drawn.std(0), deviation, rtol=0.04)
    together = expected[0, 1] / deviation.prod()
    assert torch.allclose(torch.corrcoef(drawn.T)[0, 1], together, atol=0.04)
    assert (float(together.abs()) > 0.05) == (market.network.settings.joint != "none")


def test_drawn_days_follow_the_joint_density(market):
    """E[d log p(x) / d theta] = 0 for x drawn from p, for every parameter of the heads that are scored."""
    # Of a calm market: where volatility is high, the bound of wicks cuts off what is drawn.
    history = history_of(3, "sideways")
    density, drawn = DayDensity(market, history), moves_after(history, market.generate(history, 2048, 1, seed=8))
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
    """Path p is the same whatever the number of paths; the last state is what reading its bars again gives."""
    history = history_of(3)
    bars = market.generate(history, 40, 12, seed=3)
    assert_valid_bars(bars)
    # Two paths are one chunk, which the trunk reads day by day.
    known, step = [], market.network.trunk.step
    monkeypatch.setattr(market.network.trunk, "step", lambda *given: known.append(step(*given)) or known[-1])
    assert torch.equal(market.generate(history, 2, 12, seed=3), bars[:2])
    monkeypatch.undo()
    again = market.starts(extended(history, bars[1:2, :11]))
    assert torch.allclose(known[10][0][3:6], again.known[0], atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_independent_symbols_hear_nothing_of_each_other(architecture):
    """Neither what others did before nor what they do today counts: in densities, and in whole drawn bars."""
    market, history, independent = market_of(architecture), history_of(3), architecture in INDEPENDENT
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


def test_names_and_sizes_of_the_networks():
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


def test_the_default_network_keeps_its_names_and_shapes():
    """Files of version 4 hold these."""
    weights = MarketNetwork(NetworkSettings()).state_dict()
    assert not bool(weights["drifts"].any()) and bool((weights["couplings"] == 1.0).all())
    told = [f"{name} {tuple(tensor.shape)}" for name, tensor in weights.items()]
    assert hashlib.sha256("\n".join(told).encode()).hexdigest()[:16] == "b4ed1b5b91211268"


def test_bad_settings_are_named():
    for name, told in (("joint", "'all'; there are correlations, running mean, none"),
                       ("density", "'all'; there are student-t, gaussian")):  # fmt: skip
        with pytest.raises(ValueError, match=f"unknown {name} {told}"):
            NetworkSettings(**{name: "all"})


@pytest.mark.parametrize(
    ("make", "market", "tolerance"),
    [
        (small_network, "india", 1e-4),
        (small_network, "us", 1e-4),
        (lambda: tiny_network(NetworkSettings(CNN_GRU, 8, ("a", "b", "c"), "none", "gaussian")), "b", 1e-4),
        (lambda: tiny_network(NetworkSettings(TINY.trunk, 8, ("a",))), "a", 1e-4),
        (lambda: load_network(SHIPPED).network, "india", 0.0),
        (lambda: load_network(SHIPPED).network, "us", 0.0),
    ],
)
def test_a_network_of_one_market_continues_it(make, market, tolerance):
    """The same densities, of each symbol and jointly, and the same paths: bit for bit of the shipped weights.

    The product with fewer flags may sum in another order, which leaves a tolerance for rounding.
    """
    network, bars = make(), history_of(3)
    one, other = NeuralMarket(network, market), NeuralMarket(one_market_network(network, market, "mine"), "mine")
    assert other.network.settings.markets == ("mine",)
    for first, second in (
        (one.log_density(bars)[1:], other.log_density(bars)[1:]),
        (one.joint_log_density(bars)[1:], other.joint_log_density(bars)[1:]),
        (one.generate(bars, 2, 3, seed=5), other.generate(bars, 2, 3, seed=5)),
    ):
        assert bool(((first - second).abs() <= tolerance * second.abs().clamp(min=1.0)).all())


def test_markets_differ_and_the_other_network_stays_as_it_is():
    network: MarketNetwork = small_network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    made = {market: one_market_network(network, market, "mine") for market in ("india", "us")}
    first, second = (NeuralMarket(each, "mine").log_density(history_of(3))[1:] for each in made.values())
    assert float((first - second).abs().min()) > 0.0 and float((first - second).abs().max()) > 1e-2
    for tensor in made["us"].state_dict().values():
        tensor.add_(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    with pytest.raises(ValueError, match="unknown market 'mars'; the network knows india, us"):
        one_market_network(network, "mars", "mine")
