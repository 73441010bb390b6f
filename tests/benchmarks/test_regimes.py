"""The benchmark of regimes: figures by hand, typical windows, and a whole run with a small network."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from tests.worldmodel.neural_market import small_network
from vecenv.benchmarks.realism.regimes import (
    FIGURES,
    RegimesConfig,
    figures_of,
    main,
    most_typical,
    real_windows,
)
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.sampling.generator import REGIMES

DAYS = 420


def bars():
    return synthetic_bars(1, DAYS, ("AA", "BB", "CC", "OWN"), seed=3)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    table = pd.DataFrame(bars().ohlcv[0].reshape(-1, 5).numpy(), columns=["open", "high", "low", "close", "volume"])
    table.insert(0, "symbol", np.tile(bars().symbols, DAYS))
    table.insert(0, "date", np.repeat(bars().dates, 4))
    path = tmp_path_factory.mktemp("history") / "bars.parquet"
    table.sort_values(["symbol", "date"]).to_parquet(path, index=False)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint that says it knows three of the symbols; paths that go on from a history need no stored start."""
    path = tmp_path_factory.mktemp("model") / "small.safetensors"
    save_network(path, small_network(), {"starts": {"india": ["AA", "BB", "CC"]}}, {})
    return path


@pytest.mark.assembly
def test_a_run_writes_every_regime(history, model, tmp_path):
    config = RegimesConfig(history, "india", str(model), days=20, paths=8, output=tmp_path)
    result = main(config)
    written = json.loads((tmp_path / "regimes-india.json").read_text())
    assert written == result and result["symbols"] == ["AA", "BB", "CC"]
    assert list(result["regimes"]) == ["any", *REGIMES]
    text = (tmp_path / "regimes-india.md").read_text()
    assert text.count("\n| ") == 1 + len(FIGURES) * 5 and "–" not in text.split("|---|")[1]
    means = {
        name: {side: sides[side]["mean"]["mean"] for side in ("real", "generated")}
        for name, sides in result["regimes"].items()
    }
    for side in ("real", "generated"):
        assert means["bear"][side] < means["any"][side] < means["bull"][side]
    assert result["regimes"]["any"]["real"]["windows"] == 80 and result["regimes"]["bull"]["real"]["windows"] == 10
    assert result["regimes"]["crisis"]["generated"]["windows"] == 8


def test_figures_are_those_of_numpy():
    closes, _ = real_windows(bars(), 30)
    found = figures_of(closes)
    assert list(found) == list(FIGURES)
    for window in (0, 17):
        prices = closes[window].numpy()
        returns = np.diff(np.log(prices), axis=0)
        pairs = np.corrcoef(returns.T)[np.triu_indices(4, 1)]
        level = np.exp(np.concatenate([[0.0], returns.mean(1).cumsum()]))
        expected = [
            returns.std(0, ddof=1).mean(),
            returns.mean(1).std(ddof=1),
            pairs.mean(),
            max(1 - level[day] / level[: day + 1].max() for day in range(31)),
            math.log(level[-1]) / 30,
        ]
        assert [float(values[window]) for values in found.values()] == pytest.approx(expected)


def test_windows_are_real_days_and_the_typical_ones_lead():
    closes, firsts = real_windows(bars(), 30)
    assert firsts.tolist() == list(range(0, DAYS - 30, 5)) and closes.shape == (len(firsts), 31, 4)
    assert torch.equal(closes[3], bars().ohlcv[0, 15:46, :, 3])
    mean = figures_of(closes)["mean"]
    chosen = most_typical(closes, "bear")
    others = torch.ones(len(mean), dtype=torch.bool).index_fill(0, chosen, False)
    assert len(chosen) == len(closes) // 8 and float(mean[chosen].max()) < float(mean[others].min())
    assert len(most_typical(closes, "any")) == len(closes)


def test_what_cannot_be_compared_is_told(history, model):
    for name in ("paths", "days", "max_symbols", "threads"):
        with pytest.raises(ValueError, match=f"{name} must be at least"):
            RegimesConfig(history, "india", **{name: 0})
    config = RegimesConfig(history, "india", str(model), output=None)
    with pytest.raises(ValueError, match="no start of a market 'moon'; it knows india"):
        main(replace(config, market="moon"))
    with pytest.raises(ValueError, match="420 days are 1 windows of 418, at least 8 are needed"):
        main(replace(config, days=418))
