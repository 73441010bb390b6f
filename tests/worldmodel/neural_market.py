"""A small neural market with random weights, histories and files for it, and what must hold of all generated bars."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.commands.generate import _long_table
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.data.calendar import CALENDAR
from vecenv.worldmodel.data.correlation import matrices_after
from vecenv.worldmodel.data.correlation_level import with_level
from vecenv.worldmodel.data.features import observe_history
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_shocks import STATES
from vecenv.worldmodel.network.settings import Joint, NetworkSettings, TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket

DAYS = 40
"""Of the histories: a multiple of the days after which the correlation is computed again."""

TRAIN, VALIDATION, TEST = 260, 20, 110
"""Days of the market that is validated on."""

TRUNK = TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0)
TINY = NetworkSettings(replace(TRUNK, layers=1), head=16)

KNOWN, BURN_IN = ("AA", "BB", "CC"), 5
"""Symbols that the first market of the started model has a start of, and days that are dropped there."""


def small_network() -> MarketNetwork:
    """Random weights, larger of the heads, so that laws are skewed; a gap beyond its bounds would bend the return's."""
    torch.manual_seed(0)
    network = MarketNetwork(NetworkSettings(TRUNK, head=16)).requires_grad_(False)
    for part in (network.returns, network.bars.upper, network.bars.lower, network.bars.volume):
        for parameter in part.parameters():
            parameter.mul_(2.0)
    network.drifts.copy_(torch.tensor([[6e-3, 2e-3, 2e-3, 2e-3], [-4e-3, -2e-3, -2e-3, -2e-3]]))
    network.couplings.copy_(torch.tensor([1.15, 0.9]))
    network.decays.copy_(torch.tensor([0.98, 0.99]))
    network.shrinkages.copy_(torch.tensor([0.2, 0.0]))
    shocks = {(1.0, -3.0): 0.1, (0.85, 0.0): 0.2, (1.0, 0.0): 0.4, (1.5, 0.0): 0.1, (1.0, 1.0): 0.2}
    network.return_shocks.copy_(torch.tensor([shocks.get(state, 0.0) for state in STATES]))
    network.bars.calendar.copy_(torch.linspace(-1.5, 1.5, 2 * len(CALENDAR)).view(2, -1))
    return network


def tiny_network(settings: NetworkSettings = TINY) -> MarketNetwork:
    torch.manual_seed(0)
    return MarketNetwork(settings).requires_grad_(False).eval()


def history_of(symbols: int, days: int = DAYS, regime: str | None = None) -> Bars:
    return synthetic_bars(1, days, symbols, seed=7, regime=regime)


def matrices_of(market: NeuralMarket, history: Bars) -> Tensor:
    """Correlations of all quantities after a history of one path, at their levels. Shape: (4, K, K), float32."""
    observed = observe_history(encode_bars(history.ohlcv))
    slow = matrices_after(observed, *market.network.estimator_of(market.market))[0].float()
    return with_level(slow, observed.last.common.level()[0], market.network.level_shares_of(market.market))


def started_market(name: str, symbols: tuple[str, ...], seed: int) -> TrainingMarket:
    return TrainingMarket.from_bars(name, synthetic_bars(1, 330, symbols, seed=seed), Split(300, 310, 330))


def save_judged_model(path: Path, ends: tuple[str, str], joint: Joint = "correlations", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    record = {"sources": {"a": {"train_end": ends[0], "validation_end": ends[1], "symbols": []}}}
    save_network(path, MarketNetwork(NetworkSettings(TINY.trunk, 8, ("a", "b"), joint)), record, {})
    return path


def write_market(path: Path, bars: Bars) -> Path:
    _long_table(bars, bars.dates, bars.ohlcv[0]).to_parquet(path, index=False)
    return path


def extended(history: Bars, ohlcv: Tensor) -> Bars:
    later = np.busday_offset(history.dates[-1] + 1, np.arange(ohlcv.shape[1]), roll="forward")
    dates = np.concatenate([history.dates, later])
    return replace(history, dates=dates, ohlcv=torch.cat([history.ohlcv, ohlcv], dim=1))


def assert_valid_bars(bars: Tensor) -> None:
    """Finite positive prices, volumes of at least one share, and each bar encloses its open and close."""
    assert bars.dtype == torch.float64 and bool(bars.isfinite().all())
    assert float(bars[..., :VOLUME].min()) > 0 and float(bars[..., VOLUME].min()) >= 1
    assert bool((bars[..., HIGH] >= bars[..., OPEN].maximum(bars[..., CLOSE])).all())
    assert bool((bars[..., LOW] <= bars[..., OPEN].minimum(bars[..., CLOSE])).all())
