"""All architectures behind one interface: normalised densities, draws that follow them, and what each may hear."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tests.worldmodel.neural_market import matrices_of
from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import Move, encode_bars
from vecenv.worldmodel.data.features import FEATURES, observe_history
from vecenv.worldmodel.network.architectures import RUNNING_MEAN_CHAIN, Architecture, model_name, network_settings
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import DayLogProb, MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
JOINT: tuple[Architecture, ...] = ("joint", "running-mean")
INDEPENDENT: tuple[Architecture, ...] = ("published", "cnn-gru")
DAYS = 40

TRANSFORMER = TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0)
CNN_GRU = CnnGruSettings(layers=2, channels=8, kernel=3, width=16, reach=30, dropout=0.0)


def small_settings(architecture: Architecture) -> NetworkSettings:
    settings = network_settings(architecture, TransformerSettings(), CnnGruSettings(), ("india", "us"))
    recurrent = isinstance(settings.trunk, CnnGruSettings)
    return replace(settings, trunk=CNN_GRU if recurrent else TRANSFORMER, head=16)


def market_of(architecture: Architecture) -> NeuralMarket:
    """Random weights, those of the returns larger, so that laws are skewed and differ.

    Those of the wicks' laws are smaller: the bound of wicks would bend heavy tails.
    """
    torch.manual_seed(0)
    network = MarketNetwork(small_settings(architecture)).requires_grad_(False)
    for parameter in network.returns.parameters():
        parameter.mul_(2.0)
    for parameter in (*network.bars.upper[-1].parameters(), *network.bars.lower[-1].parameters()):
        parameter.mul_(0.3)
    return NeuralMarket(network, "india")


@pytest.fixture(params=ARCHITECTURES)
def market(request) -> NeuralMarket:
    return market_of(request.param)


def history_of(symbols: int) -> Bars:
    return synthetic_bars(1, DAYS, symbols, seed=7, regime="crisis")


def moves_after(history: Bars, bars: Tensor) -> Tensor:
    """Scaled moves of each path's first day. Shape: (P, K, 5), float32."""
    paths = torch.cat([history.ohlcv.expand(len(bars), -1, -1, -1), bars[:, :1]], dim=1)
    return observe_history(encode_bars(paths)).scaled[:, -1].float()


def chained(market: NeuralMarket, history: Bars, scaled: Tensor) -> Tensor:
    """Log-densities of the scaled returns of the next day. Shape: (P, K, 5) -> (P, K)."""
    valid = torch.ones(scaled.shape[:-1], dtype=torch.bool)
    return density_of(market, history, scaled, valid).chained


def density_of(market: NeuralMarket, history: Bars, scaled: Tensor, valid: Tensor) -> DayLogProb:
    """Log-densities of the scaled moves of the next day. Shapes: (P, K, 5), (P, K)."""
    start = market.starts(history)
    state, matrices = start.state, matrices_of(market, history)
    given = (matrices, state.scales.features()[0], state.volatility[0].float(), market.market)
    return market.network.log_prob(start.known[0], scaled, valid, *given)


@pytest.mark.assembly
def test_the_density_of_a_day_is_normalised_and_drawn_returns_follow_it(market):
    """Of two symbols on a grid of both returns x = sinh(u): mass, means, deviations and correlation of u."""
    history = history_of(2)
    u = torch.linspace(-6.0, 6.0, 97, dtype=torch.float64)
    pairs = torch.cartesian_prod(u, u)
    scaled = torch.zeros(len(pairs), 2, 5)
    scaled[..., Move.BODY] = pairs.sinh()
    mass = (chained(market, history, scaled).double().sum(-1) + pairs.cosh().log().sum(-1)).exp() * (u[1] - u[0]) ** 2
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


class DayDensity(torch.nn.Module):
    """Log-density of a day's bars as a function of the parameters.

    Args:
        market: whose network it is.
        history: what the day is drawn after.
    """

    def __init__(self, market: NeuralMarket, history: Bars) -> None:
        super().__init__()
        self.network, self.market = market.network, market.market
        start = market.starts(history)
        self.known, self.scales, self.matrices = (
            start.known[0],
            start.state.scales.features()[0],
            matrices_of(market, history),
        )
        self.volatility = start.state.volatility[0].float()

    def forward(self, scaled: Tensor) -> Tensor:
        everyone = torch.ones(len(scaled), dtype=torch.bool)
        given = (self.matrices, self.scales, self.volatility, self.market)
        read = self.network.log_prob(self.known, scaled, everyone, *given)
        return read.chained.sum() + read.shape.sum()


def test_drawn_days_follow_the_joint_density(market):
    """E[d log p(x) / d theta] = 0 for x drawn from p, for every parameter of the heads that are scored."""
    # Of a calm market: where volatility is high, the bound of wicks cuts off what is drawn.
    history = synthetic_bars(1, DAYS, 3, seed=7, regime="sideways")
    density = DayDensity(market, history)
    drawn = moves_after(history, market.generate(history, 2048, 1, seed=8))
    scored = ("network.returns.", "network.bars.")
    parameters = dict(density.named_parameters())
    free = {name: value for name, value in parameters.items() if name.startswith(scored)}
    fixed = {name: value for name, value in parameters.items() if name not in free}

    def log_prob(heads: dict[str, Tensor], moves: Tensor) -> Tensor:
        return functional_call(density, {**fixed, **heads}, (moves,))

    scores = vmap(grad(log_prob), in_dims=(None, 0))(free, drawn)
    table = torch.cat([score.flatten(1) for score in scores.values()], dim=1).double()
    table = table[:, table.std(0) > 1e-6]
    assert table.shape[1] > 300
    ratio = table.mean(0) / table.std(0) * math.sqrt(len(table))
    assert float(ratio.abs().max()) < 4.5
    assert float(ratio.square().mean()) < 1.6


def test_paths_are_repeatable_valid_and_fed_back_as_history_is_read(market, monkeypatch):
    """Path p is the same whatever the number of paths; the last state is what reading its bars again gives."""
    history = history_of(3)
    bars = market.generate(history, 40, 12, seed=3)
    assert torch.equal(market.generate(history, 2, 5, seed=3), bars[:2, :5])
    # Two paths are one chunk, which the trunk reads day by day.
    known = []
    step = market.network.trunk.step
    monkeypatch.setattr(market.network.trunk, "step", lambda *given: known.append(step(*given)) or known[-1])
    assert torch.equal(market.generate(history, 2, 12, seed=3), bars[:2])
    monkeypatch.undo()
    assert bool(bars.isfinite().all()) and float(bars[..., :VOLUME].min()) > 0
    assert bool(
        (bars[..., 1] >= bars[..., [0, 3]].amax(-1)).all() and (bars[..., 2] <= bars[..., [0, 3]].amin(-1)).all()
    )
    dates = np.concatenate([history.dates, history.dates[-1] + np.arange(1, 12)])
    again = replace(history, dates=dates, ohlcv=torch.cat([history.ohlcv, bars[1:2, :11]], dim=1))
    assert torch.allclose(known[10][0][3:6], market.starts(again).known[0], atol=1e-3)


def test_the_joint_density_of_independent_symbols_is_the_sum_of_their_own(market):
    history = history_of(3)
    together = market.joint_log_density(history)[1:] - market.log_density(history)[1:].sum(-1)
    if market.network.settings.joint == "none":
        assert torch.allclose(together, torch.zeros_like(together), atol=1e-4)
    else:
        assert float(together.abs().mean()) > 0.05


def other_symbol_changed(history: Bars) -> Bars:
    """The history with other bars of the last of three symbols, on its last day and before."""
    ohlcv = history.ohlcv.clone()
    factor = torch.exp(0.05 * torch.randn(DAYS, generator=torch.Generator().manual_seed(2))).double().cumprod(0)
    ohlcv[0, :, 2, :VOLUME] *= factor[:, None]
    ohlcv[0, ::2, 2, VOLUME] *= 3.0
    return replace(history, ohlcv=ohlcv)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_independent_symbols_hear_nothing_of_each_other(architecture):
    """Neither what others did before nor what they do today counts: in densities, and in whole drawn bars."""
    market = market_of(architecture)
    history = history_of(3)
    other = other_symbol_changed(history)
    density, changed = (market._densities(each) for each in (history, other))
    paths, changed_paths = (market.generate(each, 3, 5)[:, :, :2] for each in (history, other))
    shapes, changed_shapes = density.shape[1:, :2], changed.shape[1:, :2]
    pairs = [(paths, changed_paths), (shapes, changed_shapes), (density.alone[1:, :2], changed.alone[1:, :2])]
    independent = architecture in INDEPENDENT
    assert [torch.allclose(*pair, atol=1e-6) for pair in pairs] == [independent] * 3
    reordered = replace(
        history, symbols=tuple(reversed(history.symbols)), ohlcv=history.ohlcv.flip(2)
    )  # The two come last, after the other one.
    last = market._densities(reordered).chained.flip(1)[1:, :2]
    assert torch.allclose(last, density.chained[1:, :2], atol=1e-5) == independent


def test_the_running_mean_chain_hears_the_mean_alone():
    """The last symbol's density is the same whatever the order of those before it, and whoever took which return."""
    history = history_of(4)
    returns = torch.tensor([[0.5, -1.0, 2.0, 0.3], [2.0, 0.5, -1.0, 0.3], [0.5, 0.5, 0.5, 0.3], [0.7, -1.0, 2.0, 0.3]])
    scaled = torch.zeros(4, 4, 5)
    scaled[..., Move.BODY] = returns
    for architecture in JOINT:
        market = market_of(architecture)
        density = chained(market, history, scaled)[:, -1]
        same = torch.isclose(density, density[0], atol=1e-5).tolist()
        assert same == ([True, True, True, False] if architecture == "running-mean" else [True, False, False, False])


def test_names_and_sizes_of_the_networks():
    """As published: 1.2 million parameters within a quarter, and about 140 thousand."""
    expected = {
        "joint": ("neural", 1_070_830),
        "running-mean": (RUNNING_MEAN_CHAIN, 1_070_830),
        "published": ("independent transformer, 3 Gaussians", 1_070_443),
        "cnn-gru": ("CNN+GRU, 3 Gaussians", 140_331),
    }
    for architecture, (name, size) in expected.items():
        settings = network_settings(architecture, TransformerSettings(), CnnGruSettings(), ("india", "us"))
        assert model_name(settings) == name
        assert sum(tensor.numel() for tensor in MarketNetwork(settings).parameters()) == size
        assert market_of(architecture).name == name
    assert model_name(replace(small_settings("cnn-gru"), joint="correlations")) == "CNN+GRU, correlations, gaussian"


def test_weights_of_the_default_network_keep_their_names_and_shapes():
    """Files of version 4 hold these."""
    weights = MarketNetwork(NetworkSettings()).state_dict()
    assert not bool(weights["drifts"].any()) and bool((weights["couplings"] == 1.0).all())
    told = [f"{name} {tuple(tensor.shape)}" for name, tensor in weights.items()]
    assert hashlib.sha256("\n".join(told).encode()).hexdigest()[:16] == "b4ed1b5b91211268"


def test_the_default_network_draws_what_it_always_drew():
    """Closes of the second day, whose trunk has read the bars of the first."""
    history = synthetic_bars(1, DAYS, 3, seed=7)
    drawn = market_of("joint").generate(history, 2, 2, seed=3)[:, 1, :, CLOSE]
    expected = torch.tensor([[26.36833, 18.11493, 30.65483], [26.17439, 21.45570, 27.10089]], dtype=torch.float64)
    assert torch.allclose(drawn, expected, rtol=1e-4)


def test_market_features_are_hidden_from_independent_symbols_alone():
    features = torch.ones(2, len(FEATURES))
    for architecture in ARCHITECTURES:
        shown = MarketNetwork(small_settings(architecture)).inputs(features, "us")
        hidden = [name for name, number in zip(FEATURES, shown[0].tolist(), strict=False) if number == 0.0]
        market = [name for name in FEATURES if "market" in name or name in ("mean_volatility", "relative_return")]
        assert hidden == (market if architecture in INDEPENDENT else [])
        assert shown[:, len(FEATURES) :].tolist() == [[0.0, 1.0]] * 2


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="unknown joint 'all'; there are correlations, running mean, none"):
        NetworkSettings(joint="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown density 'cauchy'; there are student-t, gaussian"):
        NetworkSettings(density="cauchy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'cnn-gru' has no transformer"):
        network_settings("cnn-gru", TRANSFORMER, CNN_GRU, ("a",))
    with pytest.raises(ValueError, match=r"'joint' has no CNN\+GRU"):
        network_settings("joint", TRANSFORMER, CNN_GRU, ("a",))
