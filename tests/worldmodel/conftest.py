"""A model, and a market to validate on, that the tests of generators, commands and validation share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worldmodel.neural_market import (
    BURN_IN,
    KNOWN,
    TEST,
    TRAIN,
    VALIDATION,
    started_market,
    tiny_network,
    write_market,
)
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.network.market_network import NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling import stationary
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import StationaryStart


@pytest.fixture(scope="session")
def started_model(tmp_path_factory) -> Path:
    """Random weights with starts of two markets; the first has hardly any training day of its last symbol."""
    trunk = TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0)
    network = tiny_network(NetworkSettings(trunk=trunk, head=16, markets=("one", "two")))
    symbols = {"one": (*KNOWN, "LATE"), "two": ("DD", "EE")}
    starts, tensors = {}, {}
    for seed, (name, names) in enumerate(symbols.items(), 1):
        market = started_market(name, names, seed)
        market.encoded.valid[:, :200, 3:] = False
        starts[name], start = StationaryStart.learn(market, names)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stationary, "BURN_IN", BURN_IN)
            tensors |= start.with_warm_up(NeuralMarket(network, name)).tensors(name)
    sources = {name: {"symbols": list(names)} for name, names in symbols.items()}
    path = tmp_path_factory.mktemp("started") / "small.safetensors"
    save_network(path, network, {"sources": sources, "starts": starts}, tensors)
    return path


@pytest.fixture(scope="session")
def validated_file(tmp_path_factory) -> Path:
    """Bars of six symbols; the last has none in the training days, and the fifth none on one test day."""
    bars = synthetic_bars(1, TRAIN + VALIDATION + TEST, [f"S{number}" for number in range(6)], seed=3)
    bars.ohlcv[0, :TRAIN, 5] = bars.ohlcv[0, TRAIN + VALIDATION + 3, 4] = float("nan")
    return write_market(tmp_path_factory.mktemp("market") / "prices.parquet", bars)


@pytest.fixture(scope="session")
def ends(validated_file) -> tuple[str, str]:
    dates = read_bars(validated_file).dates
    return str(dates[TRAIN - 1]), str(dates[TRAIN + VALIDATION - 1])
