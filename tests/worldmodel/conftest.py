"""A model, and a market to validate on, that the tests of generators, commands and validation share."""

from pathlib import Path

import pytest

from tests.worldmodel import neural_market as small
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.network.settings import NetworkSettings
from vecenv.worldmodel.sampling import stationary
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import StationaryStart

TEST_STARTS = small.TRAIN + small.VALIDATION


@pytest.fixture(scope="session")
def started_model(tmp_path_factory) -> Path:
    network = small.tiny_network(NetworkSettings(small.TRUNK, 16, ("one", "two")))
    symbols, starts, tensors = {"one": (*small.KNOWN, "LATE"), "two": ("DD", "EE")}, {}, {}
    for seed, (name, names) in enumerate(symbols.items(), 1):
        market = small.started_market(name, names, seed)
        market.encoded.valid[:, :200, 3:] = False
        starts[name], start = StationaryStart.learn(market, names)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stationary, "BURN_IN", small.BURN_IN)
            tensors |= start.with_warm_up(NeuralMarket(network, name)).tensors(name)
    sources = {name: {"symbols": list(names)} for name, names in symbols.items()}
    path = tmp_path_factory.mktemp("started") / "small.safetensors"
    save_network(path, network, {"sources": sources, "starts": starts}, tensors)
    return path


@pytest.fixture(scope="session")
def validated_file(tmp_path_factory) -> Path:
    """Bars of six symbols; the last has none in the training days, and the fifth none on one test day."""
    bars = synthetic_bars(1, TEST_STARTS + small.TEST, [f"S{number}" for number in range(6)], seed=3)
    bars.ohlcv[0, : small.TRAIN, 5] = bars.ohlcv[0, TEST_STARTS + 3, 4] = float("nan")
    return small.write_market(tmp_path_factory.mktemp("market") / "prices.parquet", bars)


@pytest.fixture(scope="session")
def ends(validated_file) -> tuple[str, str]:
    dates = read_bars(validated_file).dates
    return str(dates[small.TRAIN - 1]), str(dates[TEST_STARTS - 1])
