"""The command that judges models: one run end to end, and what it refuses before any work."""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.worldmodel.validation.validation_market import TEST, market_file, split_ends
from vecenv.market.sources import read_bars
from vecenv.tasks.commands.cli import BAD_INPUT, main
from vecenv.worldmodel.baselines.resampled import GeometricBrownianMotion
from vecenv.worldmodel.commands import validate as validate_command
from vecenv.worldmodel.metrics import discriminator_classifiers
from vecenv.worldmodel.network.checkpoint import save_network
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.return_chain import Joint
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling import blocks
from vecenv.worldmodel.validation.judge import HORIZON
from vecenv.worldmodel.validation.rows import RUNNING_MEAN_CHAIN, rows
from vecenv.worldmodel.validation.table import cells

QUICK = ("--paths", "8", "--draws", "199", "--every", "20", "--forecast-every", "60", "--memory", "251")
QUICK += ("--discriminator-seeds", "1")


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    return market_file(tmp_path_factory.mktemp("market"))


@pytest.fixture(scope="module")
def ends(market) -> tuple[str, str]:
    return split_ends(market)


def save_checkpoint(path: Path, ends: tuple[str, str], joint: Joint = "correlations", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    trunk = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8)
    record = {"sources": {"a": {"train_end": ends[0], "validation_end": ends[1], "symbols": []}}}
    save_network(path, MarketNetwork(NetworkSettings(trunk, head=8, markets=("a", "b"), joint=joint)), record, {})
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, ends) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("model") / "m.safetensors", ends)


@pytest.fixture(scope="module")
def chain(tmp_path_factory, ends) -> Path:
    """A checkpoint of a running-mean chain."""
    return save_checkpoint(tmp_path_factory.mktemp("chain") / "c.safetensors", ends, "running mean")


@pytest.fixture(scope="module")
def run(market, checkpoint, chain, tmp_path_factory):
    """A run with a network, whose paths are drawn in small blocks, another one beside it, and all baselines."""
    out = tmp_path_factory.mktemp("run") / "out"
    words = ["--history", market, "--out", out, "--model", checkpoint, "--beside", chain, "--market", "a"]
    words += ["--long-days", "80", *QUICK]
    file = out.parent / "result.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(blocks.LIMITS, "cpu", blocks.BlockLimits(32, 2, 32, 32, 1, 1))
        patch.setattr(discriminator_classifiers, "GRU_STEPS", 10)
        assert main(["worldmodel", "validate", *map(str, words), "--json", str(file)]) == 0
    return out, json.loads(file.read_text())


@pytest.mark.nightly
def test_a_run_has_every_figure_of_every_model(run):
    out, result = run
    assert sorted(file.name for file in out.iterdir()) == ["validation.json", "validation.md", "validation.png"]
    assert json.loads((out / "validation.json").read_text()) == result
    statistical = ["GBM", "bootstrap", "bootstrap, last 250 days", "GARCH-t", "FHS"]
    assert list(result["models"]) == ["neural", RUNNING_MEAN_CHAIN, *statistical] and result["judged"] == "neural"
    keys = {row.key for row in rows(80)}
    assert {key for key in keys if key.endswith("_days_41_80")}
    for name, figures in result["models"].items():
        assert keys - set(figures) <= {"nll", "joint_nll"} and set(figures) <= keys, name
        assert all(math.isfinite(figure["mean"]) for figure in figures.values())
        assert figures["invalid_bars"]["mean"] == 0.0
    assert result["symbols"] == ["S0", "S1", "S2", "S3"] and result["left_out"] == ["S4", "S5"]
    assert result["test"]["days"] == TEST and result["origins"] == 4 and result["forecast_days"] == 2
    lines = (out / "validation.md").read_text().splitlines()
    # The second table is of the two paired scores.
    assert len([line for line in lines if line.startswith("|")]) == 2 + len(keys) + 2 + 2
    assert "## neural less each other model" in lines
    assert (out / "validation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
def test_a_density_that_is_missing_is_left_out_and_shown_as_a_dash(run):
    _, result = run
    models = result["models"]
    assert "nll" not in models["bootstrap"] and "joint_nll" not in models["bootstrap"]
    assert "nll" in models["FHS"] and "joint_nll" not in models["FHS"]
    assert {"nll", "joint_nll"} <= set(models["GBM"]) & set(models["neural"])
    headings, lines = cells(rows()[:2], {}, {"bootstrap": {}})
    assert headings[-1] == "bootstrap" and [line[-1] for line in lines] == ["–", "–"]


@pytest.mark.nightly
def test_rivals_of_the_bars_are_in_the_run(run):
    """Also the running-mean chain; only four origins give real figures and paired differences no intervals."""
    out, result = run
    unknown = ["crps", "energy_score", "excess_kurtosis", "hill"]
    assert [key for key, bar in result["bars"].items() if bar["met"] is None] == unknown
    assert [key for key, bar in result["former_bars"].items() if bar["met"] is None] == unknown[2:]
    for kind, lost in (("bars", 4), ("former_bars", 2)):
        met = [bar["met"] for bar in result[kind].values()]
        assert result["counts"][kind] == {"met": met.count(True), "undecided": 0, "of": len(met) - lost}
    told = result["counts"]["former_bars"]
    assert f"it meets {told['met']} of {told['of']}." in (out / "validation.md").read_text()
    rivals = set(result["models"]) - {"neural"}
    assert set(result["differences"]["crps"]) == set(result["differences"]["energy_score"]) == rivals
    means = {name: figures["crps"]["mean"] for name, figures in result["models"].items()}
    for name, less in result["differences"]["crps"].items():
        assert less["mean"] == pytest.approx(means["neural"] - means[name], abs=1e-4)
    assert RUNNING_MEAN_CHAIN in result["bars"]["joint_nll"]["bar"]


@pytest.mark.nightly
def test_real_days_drawn_again_are_nearer_to_the_real_ones_than_a_normal_law(run):
    _, result = run
    models = result["models"]
    assert models["bootstrap"]["excess_kurtosis"]["mean"] > 0.3 > abs(models["GBM"]["excess_kurtosis"]["mean"])
    assert models["bootstrap, last 250 days"]["ks_1"]["mean"] < models["GBM"]["ks_1"]["mean"]


@pytest.mark.nightly
def test_the_real_column_does_not_depend_on_the_models(run, market, ends, tmp_path, monkeypatch):
    _, result = run
    monkeypatch.setattr(validate_command, "BASELINES", (GeometricBrownianMotion.fit,))
    monkeypatch.setattr(validate_command, "FilteredHistoricalSimulation", GeometricBrownianMotion)
    monkeypatch.setattr(discriminator_classifiers, "GRU_STEPS", 10)
    file = tmp_path / "result.json"
    words = ["--history", market, "--out", tmp_path / "out", "--train-end", ends[0], "--validation-end", ends[1]]
    assert main(["worldmodel", "validate", *map(str, words), *QUICK, "--seed", "9", "--json", str(file)]) == 0
    other = json.loads(file.read_text())
    assert other["real"] == result["real"] and "bars" not in other
    assert other["models"]["GBM"]["nll"] == result["models"]["GBM"]["nll"]
    assert other["models"]["GBM"]["ks_1"] != result["models"]["GBM"]["ks_1"]


@pytest.mark.nightly
def test_figures_of_several_weights_are_their_means(market, ends, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(validate_command, "BASELINES", (GeometricBrownianMotion.fit,))
    other = save_checkpoint(tmp_path / "other.safetensors", ends, seed=1)

    def judged(*models: Path) -> dict[str, dict[str, dict[str, float]]]:
        words = ["--history", market, "--out", tmp_path / "out", "--market", "a", "--model", *models]
        assert main(["worldmodel", "validate", *map(str, words), *QUICK, "--discriminator-seeds", "0"]) == 0
        return json.loads((tmp_path / "out" / "validation.json").read_text())

    one, two, both = (judged(*models) for models in ((checkpoint,), (other,), (checkpoint, other)))
    found = [result["models"]["neural"] for result in (one, two, both)]
    for key in ("nll", "crps", "volatility_ratio", "drift"):
        first, second, mean = (figures[key]["mean"] for figures in found)
        assert first != second and mean == pytest.approx(0.5 * (first + second)), key
    # Without an interval of its own a figure shows its range over the weights.
    assert [found[2]["drift"][part] for part in ("low", "high")] == sorted(
        figures["drift"]["mean"] for figures in found[:2]
    )
    first, second, mean = (result["differences"]["crps"]["GBM"]["mean"] for result in (one, two, both))
    assert first != second and mean == pytest.approx(0.5 * (first + second))


@pytest.mark.nightly
def test_without_discriminators_scikit_learn_is_not_needed(market, ends, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    monkeypatch.setattr(validate_command, "BASELINES", (GeometricBrownianMotion.fit,))
    monkeypatch.setattr(validate_command, "FilteredHistoricalSimulation", GeometricBrownianMotion)
    words = ["--history", market, "--out", tmp_path, "--train-end", ends[0], "--validation-end", ends[1], *QUICK[:-1]]
    assert main(["worldmodel", "validate", *map(str, words), "0"]) == 0
    result = json.loads((tmp_path / "validation.json").read_text())
    assert "gru_score" not in result["models"]["GBM"] and "gru_score" not in result["real"]


def refused(capsys, *words: object) -> str:
    assert main(["worldmodel", "validate", *map(str, words)]) == BAD_INPUT
    return capsys.readouterr().err


def test_discriminators_need_scikit_learn_and_twice_as_many_days(capsys, market, ends, tmp_path, monkeypatch):
    words = ("--history", market, "--out", tmp_path / "out", "--train-end", ends[0], "--validation-end")
    late = str(read_bars(market).dates[-60])
    assert "1 origins in each half" in refused(capsys, *words, late)
    assert "discriminator_seeds must be at least 0, got -1" in refused(
        capsys, *words, ends[1], "--discriminator-seeds", "-1"
    )
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert "pip install 'vecenv[validate]'" in refused(capsys, "--history", "none", *words[2:], ends[1])
    assert not (tmp_path / "out").exists()


@pytest.mark.assembly
def test_bad_input_is_named_before_any_work(capsys, market, ends, checkpoint, tmp_path):
    out = tmp_path / "out"
    of_model = partial(refused, capsys, "--history", market, "--out", out, "--model", checkpoint)
    alone = partial(refused, capsys, "--history", market, "--out", out, "--train-end", ends[0])
    last = str(read_bars(market).dates[-1])
    assert "knows the markets a, b; choose one with --market" in of_model()
    assert "unknown market 'mars'; the network knows a, b" in of_model("--market", "mars")
    assert "does not say when its training ended" in of_model("--market", "b")
    early = of_model("--market", "a", "--train-end", "2010-01-01", "--validation-end", "2010-06-01")
    assert f"chosen on days up to {ends[1]}" in early
    assert "S9" in of_model("--market", "a", "--symbols", "S0", "S9")
    assert "1 symbols with 250 training returns" in of_model("--market", "a", "--symbols", "S0", "S5")
    assert "give both train_end and validation_end" in alone()
    assert f"no test day after {last}" in alone("--validation-end", last)
    assert "none are left to train on" in refused(
        capsys, "--history", market, "--out", out, "--train-end", "1990-01-01", "--validation-end", "1990-02-01"
    )
    assert "train_end and validation_end are needed" in refused(capsys, "--history", market, "--out", out)
    few = alone("--validation-end", str(read_bars(market).dates[-10]))
    assert f"9 test days after {read_bars(market).dates[-10]}, at least {HORIZON} are needed" in few
    assert "long_days=80" in alone("--validation-end", str(read_bars(market).dates[-70]), "--long-days", "80")
    for words, message in (
        (("--draws", "100"), "draws must be at least 199, got 100"),
        (("--paths", "1"), "paths must be at least 2, got 1"),
        (("--memory", "200"), "memory must be at least 251, got 200"),
        (("--every", "0"), "every must be at least 1, got 0"),
        (("--long-days", "30"), "long_days must be 0 or at least 42, got 30"),
        (("--temperature", "0"), "temperature must be positive"),
        (("--temperatures", "1", "-1"), "temperature must be positive"),
    ):
        assert message in of_model("--market", "a", *words)
    split = ("--train-end", ends[0], "--validation-end", ends[1])
    assert "of a model, and none is given" in refused(
        capsys, "--history", market, "--out", out, *split, "--temperatures", "0.5"
    )
    assert "no checkpoint" in refused(capsys, "--history", market, "--out", out, "--model", tmp_path / "none")
    assert not out.exists()


def test_bad_checkpoints_beside_are_named_before_any_work(capsys, market, ends, checkpoint, chain, tmp_path):
    out = tmp_path / "out"
    beside = partial(refused, capsys, "--history", market, "--out", out, "--model", checkpoint, "--market", "a")
    assert f"{chain}: the architecture '{RUNNING_MEAN_CHAIN}', that of {checkpoint} is 'neural'" in beside(
        "--model", checkpoint, chain
    )
    assert "shipped.safetensors: unknown market 'a'" in beside("--beside", "shipped")
    told = beside("--beside", checkpoint)
    assert f"{checkpoint}: a second model of the name 'neural'" in told
    assert f"{chain}: a second model of the name '{RUNNING_MEAN_CHAIN}'" in beside("--beside", chain, chain)
    late = save_checkpoint(tmp_path / "late.safetensors", (ends[1], str(read_bars(market).dates[-60])), "none")
    assert f"{late} was chosen on days up to {read_bars(market).dates[-60]}" in beside("--beside", chain, late)
    assert "no checkpoint" in beside("--beside", tmp_path / "none")
    alone = partial(refused, capsys, "--history", market, "--out", out, "--beside", chain)
    assert "train_end and validation_end are needed" in alone()
    given = partial(alone, "--train-end", ends[0], "--validation-end", ends[1])
    assert f"{chain} knows the markets a, b; choose one with --market" in given()
    assert f"{chain}: unknown market 'mars'; the network knows a, b" in given("--market", "mars")
    assert not out.exists()
