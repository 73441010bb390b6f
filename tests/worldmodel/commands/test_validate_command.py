"""The command that judges models: a run of networks beside baselines, and one of a baseline alone."""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.worldmodel.validation.validation_market import TEST, market_file, split_ends
from vecenv.tasks.commands.cli import main
from vecenv.worldmodel.baselines.resampled import GeometricBrownianMotion, StationaryBootstrap
from vecenv.worldmodel.commands import validate as validate_command
from vecenv.worldmodel.metrics import discriminator_classifiers
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.return_chain import Joint
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling import blocks
from vecenv.worldmodel.validation.figures import real_figures
from vecenv.worldmodel.validation.rows import LAST_YEAR_BOOTSTRAP, RUNNING_MEAN_CHAIN, rows

QUICK = ("--paths", "8", "--draws", "199", "--every", "20", "--forecast-every", "60", "--memory", "251")


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    return market_file(tmp_path_factory.mktemp("market"))


def save_checkpoint(path: Path, ends: tuple[str, str], joint: Joint = "correlations", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    trunk = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8)
    record = {"sources": {"a": {"train_end": ends[0], "validation_end": ends[1], "symbols": []}}}
    save_network(path, MarketNetwork(NetworkSettings(trunk, head=8, markets=("a", "b"), joint=joint)), record, {})
    return path


@pytest.mark.assembly
def test_a_run_has_every_figure_of_every_model(market, tmp_path, monkeypatch):
    """Two weights of one architecture, another one beside them, and baselines; paths are drawn in small blocks."""
    monkeypatch.setitem(blocks.LIMITS, "cpu", blocks.BlockLimits(32, 2, 32, 32, 1, 1))
    for name, few in (("GRU_STEPS", 5), ("LSTM_EPOCHS", 1), ("TREES", 10)):
        monkeypatch.setattr(discriminator_classifiers, name, few)
    monkeypatch.setattr(validate_command, "real_figures", partial(real_figures, draws=20))
    last_year = partial(StationaryBootstrap.fit, last_days=250)
    monkeypatch.setattr(validate_command, "BASELINES", (GeometricBrownianMotion.fit, last_year))
    ends, out, file = split_ends(market), tmp_path / "out", tmp_path / "result.json"
    models = [save_checkpoint(tmp_path / f"{seed}.safetensors", ends, seed=seed) for seed in (0, 1)]
    chain = save_checkpoint(tmp_path / "c.safetensors", ends, "running mean")
    words = ["--history", market, "--out", out, "--model", *models, "--beside", chain, "--market", "a"]
    words += ["--long-days", "80", "--temperatures", "0.5", "--discriminator-seeds", "1", *QUICK]
    assert main(["worldmodel", "validate", *map(str, words), "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert sorted(path.name for path in out.iterdir()) == ["validation.json", "validation.md", "validation.png"]
    assert json.loads((out / "validation.json").read_text()) == result
    assert (out / "validation.png").read_bytes().startswith(b"\x89PNG")
    assert list(result["models"]) == ["neural", RUNNING_MEAN_CHAIN, "GBM", LAST_YEAR_BOOTSTRAP]
    keys = {row.key for row in rows(80)}
    for name, figures in result["models"].items():
        lacking = {"nll", "joint_nll"} if name == LAST_YEAR_BOOTSTRAP else set()
        assert keys - set(figures) == lacking and set(figures) <= keys, name
        assert all(math.isfinite(figure["mean"]) for figure in figures.values())
        assert figures["invalid_bars"]["mean"] == 0.0
    assert result["symbols"] == ["S0", "S1", "S2", "S3"] and result["left_out"] == ["S4", "S5"]
    assert result["test"]["days"] == TEST and result["origins"] == 4 and result["forecast_days"] == 2
    assert result["judged"] == "neural" and list(result["temperatures"]) == ["0.5"]
    assert result["settings"]["model"] == [str(model) for model in models]
    # Without an interval of its own a figure shows its range over the weights.
    drift = result["models"]["neural"]["drift"]
    assert drift["low"] < drift["mean"] < drift["high"]
    assert drift["mean"] == pytest.approx((drift["low"] + drift["high"]) / 2)
    means = {name: figures["crps"]["mean"] for name, figures in result["models"].items()}
    assert set(result["differences"]["energy_score"]) == set(means) - {"neural"}
    for name, less in result["differences"]["crps"].items():
        assert less["mean"] == pytest.approx(means["neural"] - means[name], abs=1e-4)
    assert (
        result["bars"]["joint_nll"]["met"] is not None
        and "neural: means over 2 weights" in (out / "validation.md").read_text()
    )


@pytest.mark.assembly
def test_without_models_and_discriminators_scikit_learn_is_not_needed(market, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    monkeypatch.setattr(validate_command, "BASELINES", (GeometricBrownianMotion.fit,))
    monkeypatch.setattr(validate_command, "FilteredHistoricalSimulation", GeometricBrownianMotion)
    monkeypatch.setattr(validate_command, "real_figures", partial(real_figures, draws=20))
    train_end, validation_end = split_ends(market)
    words = ["--history", market, "--out", tmp_path, "--train-end", train_end, "--validation-end", validation_end]
    assert main(["worldmodel", "validate", *map(str, words), *QUICK, "--discriminator-seeds", "0"]) == 0
    result = json.loads((tmp_path / "validation.json").read_text())
    assert "gru_score" not in result["models"]["GBM"] and "gru_score" not in result["real"]
    assert "bars" not in result and result["temperatures"] == {}
