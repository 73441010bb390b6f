"""The table of realism: real days in the right place, bars judged as they are written, one run end to end."""

from __future__ import annotations

import json
import math
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tasks.cli import BAD_INPUT, main
from vecenv.market.bars import CLOSE
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.metrics import Interval
from worldmodel import rollout, validate_command
from worldmodel.baselines import GeometricBrownianMotion
from worldmodel.checkpoint import save_network
from worldmodel.market_model import MarketModel
from worldmodel.metrics import discriminator_classifiers
from worldmodel.network import MarketNetwork, NetworkSettings
from worldmodel.return_chain import Joint
from worldmodel.temperature_sweep import MEASURES, sweep_cells, sweep_temperatures
from worldmodel.transformer import TransformerSettings
from worldmodel.validate_command import BASELINES
from worldmodel.validation import HORIZON, choose_trial, sample_forecasts, sample_paths
from worldmodel.validation_figures import (
    DISCRIMINATORS,
    PERFECT,
    average,
    density_figures,
    discriminator_figures,
    drift_figures,
    forecast_figures,
    path_figures,
    point,
    real_figures,
)
from worldmodel.validation_table import RUNNING_MEAN_CHAIN, cells, markdown, reference, rows, verdict

NAN = float("nan")
TRAIN, VALIDATION, TEST, SYMBOLS = 260, 20, 110, 4
QUICK = ("--paths", "8", "--draws", "199", "--every", "20", "--forecast-every", "60", "--memory", "251")
QUICK += ("--discriminator-seeds", "1")


def market_table() -> pd.DataFrame:
    """Bars of six symbols; the last has none in the training days, and the fifth none on one test day."""
    days = TRAIN + VALIDATION + TEST
    bars = synthetic_bars(1, days, SYMBOLS + 2, seed=3)
    table = pd.DataFrame(bars.ohlcv[0].reshape(-1, 5).numpy(), columns=["open", "high", "low", "close", "volume"])
    table.insert(0, "symbol", np.tile([f"S{number}" for number in range(SYMBOLS + 2)], days))
    table.insert(0, "date", np.repeat(bars.dates, SYMBOLS + 2))
    late = (table["symbol"] == "S5") & (table["date"] < bars.dates[TRAIN])
    absent = (table["symbol"] == "S4") & (table["date"] == bars.dates[TRAIN + VALIDATION + 3])
    return table[~late & ~absent].sort_values(["symbol", "date"])


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("market") / "prices.parquet"
    market_table().to_parquet(path, index=False)
    return path


@pytest.fixture(scope="module")
def ends(market) -> tuple[str, str]:
    dates = read_bars(market).dates
    return str(dates[TRAIN - 1]), str(dates[TRAIN + VALIDATION - 1])


def save_checkpoint(path: Path, ends: tuple[str, str], joint: Joint = "correlations") -> Path:
    torch.manual_seed(0)
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
def trial(market, ends):
    return choose_trial(read_bars(market), *ends, every=6, forecast_every=30, memory=251)[0]


@pytest.fixture(scope="module")
def run(market, checkpoint, chain, tmp_path_factory):
    """A run with a network, whose paths are drawn in small blocks, another one beside it, and all baselines."""
    out = tmp_path_factory.mktemp("run") / "out"
    words = ["--history", market, "--out", out, "--model", checkpoint, "--beside", chain, "--market", "a"]
    words += ["--long-days", "80", *QUICK]
    file = out.parent / "result.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rollout.LIMITS, "cpu", rollout.BlockLimits(32, 32, 32, 1, 1))
        patch.setattr(discriminator_classifiers, "GRU_STEPS", 10)
        assert main(["worldmodel", "validate", *map(str, words), "--json", str(file)]) == 0
    return out, json.loads(file.read_text())


class Prophet(MarketModel):
    """Draws what happens."""

    name = "prophet"

    def __init__(self, bars):
        self.bars = bars

    def log_density(self, bars):
        density = torch.as_tensor(np.searchsorted(self.bars.dates, bars.dates)).double()
        return density[:, None].where(bars.listed[0], NAN)

    def generate(self, history, num_paths, num_days, seed=0):
        day = int(np.searchsorted(self.bars.dates, history.dates[-1]))
        return self.bars.ohlcv[:, day + 1 : day + 1 + num_days].expand(num_paths, -1, -1, -1)


def test_who_draws_what_happens_is_perfect(trial):
    """Origins, histories, and the days compared are the same on both sides."""
    model = Prophet(trial.bars)
    real, synthetic = trial.aligned(sample_paths(trial, model, 3, seed=1).double())
    close = trial.train.ohlcv[0, :, :, CLOSE]
    figures = path_figures(real, synthetic, (close[1:] / close[:-1]).log())
    figures |= forecast_figures(sample_forecasts(trial, model, 199, seed=1), block=3)
    zero = ("w1_1", "w1_5", "energy_score", "variogram_score", "return_acf_error", "leverage_error", "crps", "mae")
    zero += ("correlation_rmse", "drawdown_w1", "sampled_mae")
    assert {name: figures[name].mean for name in zero} == pytest.approx(dict.fromkeys(zero, 0.0), abs=1e-4)
    # Paths in single precision and real days are not equal, but adjacent.
    for name in ("ks_1", "ks_20", "gap_ks", "range_ks", "ks_days_11_20"):
        assert figures[name].mean < 0.02
    assert figures["direction_accuracy"].mean == 1.0
    known = real_figures(real, draws=20)
    assert known["hill"].low < known["hill"].mean < known["hill"].high
    for row in rows():
        if row.key in figures and row.key in known and row.key not in PERFECT:
            # The tail's threshold is another one for three times as many days.
            assert figures[row.key].mean == pytest.approx(known[row.key].mean, rel=0.05, abs=1e-4)
        if "volatility_ratio" in row.key:
            assert figures[row.key].mean == pytest.approx(reference(row, known).mean)
    assert figures["memory_ratio"].mean == pytest.approx(1.0)


def test_long_paths_have_fewer_origins_and_the_same_days(trial):
    long = 70
    assert len(trial.origins(long)) == (TEST - long) // 6 + 1 < len(trial.origins()) == (TEST - HORIZON) // 6 + 1
    real, synthetic = trial.aligned(sample_paths(trial, Prophet(trial.bars), 2, seed=0, days=long).double())
    assert drift_figures(real, synthetic, [(41, long)])["ks_days_41_70"].mean < 0.02


def test_origins_start_on_the_day_before_the_test_and_every_one_has_a_seed(trial):
    seen = []

    class Spy(Prophet):
        def generate(self, history, num_paths, num_days, seed=0):
            seen.append((str(history.dates[-1]), len(history.dates), seed))
            return super().generate(history, num_paths, num_days, seed)

    sample_paths(trial, Spy(trial.bars), 2, seed=5)
    days, lengths, seeds = zip(*seen, strict=True)
    first = TRAIN + VALIDATION - 1
    assert list(days) == [str(trial.bars.dates[first + 6 * number]) for number in range(len(days))]
    assert set(lengths) == {251} and len(set(seeds)) == len(seeds)
    assert int(np.searchsorted(trial.bars.dates, np.datetime64(days[-1]))) + HORIZON < len(trial.bars.dates)


def test_densities_are_of_the_test_days_alone_per_stock_and_day(trial):
    """With the number of the day as log-density, whatever the history that is read before."""
    figures = density_figures(trial, Prophet(trial.bars))
    mean = sum(range(TRAIN + VALIDATION, TRAIN + VALIDATION + TEST)) / TEST
    assert figures["nll"].mean == pytest.approx(-mean) and figures["nll"].low < -mean < figures["nll"].high
    assert figures["joint_nll"].mean == pytest.approx(-mean)


@pytest.mark.slow
def test_a_density_that_is_missing_is_left_out_and_shown_as_a_dash(run):
    _, result = run
    models = result["models"]
    assert "nll" not in models["bootstrap"] and "joint_nll" not in models["bootstrap"]
    assert "nll" in models["FHS"] and "joint_nll" not in models["FHS"]
    assert {"nll", "joint_nll"} <= set(models["GBM"]) & set(models["neural"])
    headings, lines = cells(rows()[:2], {}, {"bootstrap": {}})
    assert headings[-1] == "bootstrap" and [line[-1] for line in lines] == ["–", "–"]


@pytest.mark.slow
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
    assert len([line for line in lines if line.startswith("|")]) == 2 + len(keys)
    assert (out / "validation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_rivals_of_the_bars_are_in_the_run(run):
    """Also the running-mean chain; only four origins give the real figures no intervals."""
    _, result = run
    assert [key for key, bar in result["bars"].items() if bar["met"] is None] == ["excess_kurtosis", "hill"]
    assert RUNNING_MEAN_CHAIN in result["bars"]["joint_nll"]["bar"]


@pytest.mark.slow
def test_real_days_drawn_again_are_nearer_to_the_real_ones_than_a_normal_law(run):
    _, result = run
    models = result["models"]
    assert models["bootstrap"]["excess_kurtosis"]["mean"] > 0.3 > abs(models["GBM"]["excess_kurtosis"]["mean"])
    assert models["bootstrap, last 250 days"]["ks_1"]["mean"] < models["GBM"]["ks_1"]["mean"]


@pytest.mark.slow
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


ROWS = {row.key: row for row in rows()}


@pytest.mark.parametrize(
    ("key", "value", "rivals", "met"),
    [
        ("nll", -2.62, {"GARCH-t": -2.59}, True),
        ("nll", -2.60, {"GARCH-t": -2.59}, False),
        ("joint_nll", -2.9, {"GARCH-t": -2.5}, None),
        ("crps", 70.0, {"FHS": 70.1, "GARCH-t": 60.0}, True),
        ("crps", 70.2, {"FHS": 70.1}, False),
        ("crps", 70.2, {}, None),
        ("energy_score", 0.66, {"FHS": 0.69, "bootstrap, last 250 days": 0.65}, False),
        ("energy_score", 0.64, {"FHS": 0.69, "bootstrap, last 250 days": 0.65}, True),
        ("volatility_ratio", 1.09, {}, False),
        ("market_volatility_ratio_days_31_40", 0.92, {}, True),
        ("ks_5", 0.02, {"GBM": 0.03, "FHS": 0.019}, False),
        ("excess_kurtosis", 4.9, {}, True),
        ("excess_kurtosis", 6.1, {}, False),
        ("magnitude_acf_error", 0.009, {"FHS": 0.001}, True),
        ("magnitude_acf_error", 0.02, {"FHS": 0.03}, True),
        ("magnitude_acf_error", 0.02, {"FHS": 0.01}, False),
        ("leverage", -0.06, {}, True),
        ("leverage", -0.04, {}, False),
        ("leverage", 0.2, {}, False),
        ("mean_correlation", 0.279, {}, True),
        ("mean_correlation", 0.21, {}, False),
        ("correlation_rmse", 0.061, {}, False),
        ("invalid_bars", 0.0, {}, True),
        ("invalid_bars", 1e-6, {}, False),
        ("direction_accuracy", 0.53, {}, False),
        ("memory_ratio", 0.99, {}, False),
        ("boosting_score", 0.02, {}, True),
        ("boosting_score", 0.021, {}, False),
        ("gru_score", 0.05, {"FHS": 0.01}, True),
        ("panel_boosting_score", 0.11, {}, False),
        ("panel_gru_score", 0.1, {}, True),
        ("lstm_error", 0.5, {}, None),
        ("skew", 0.0, {}, None),
        ("ks_1", NAN, {"GBM": 0.1}, None),
    ],
)
def test_bars(key, value, rivals, met):
    real = {
        "excess_kurtosis": Interval(5.0, 4.0, 6.0),
        "leverage": point(-0.1),
        "mean_correlation": point(0.25),
    }
    assert verdict(ROWS[key], real, {key: point(value)}, {name: {key: point(v)} for name, v in rivals.items()}) is met


def test_cells_and_markdown():
    real = {"skew": Interval(-0.356, -0.5, -0.2)}
    models = {"neural": {"skew": point(-0.3)}, "FHS": {"skew": point(NAN)}}
    headings, lines = cells([ROWS["skew"], ROWS["volatility_ratio"]], real, models, judged="neural")
    assert headings == ["figure", "better", "real", "neural", "good", "met", "FHS"]
    assert lines[0] == ["skew", "≈", "-0.36 [-0.50, -0.20]", "-0.30", "", "", "–"]
    assert lines[1] == ["volatility ratio", "≈", "1.000", "–", "0.92 to 1.08", "–", "–"]
    assert cells([ROWS["skew"]], real, models, intervals=False)[1][0][2] == "-0.36"
    assert markdown(["a", "b", "c"], [["|r|", "", "1"]]) == "| a | b | c |\n| --- | --- | ---: |\n| \\|r\\| |  | 1 |"


def test_figures_of_several_seeds_are_averaged():
    runs = [{"crps": Interval(1.0, 0.0, 2.0)}, {"crps": Interval(3.0, 1.0, 5.0)}]
    assert average(runs) == {"crps": Interval(2.0, 0.5, 3.5)}


def test_discriminative_scores_are_distances_from_chance():
    accuracies = dict.fromkeys(DISCRIMINATORS, Interval(0.4, 0.3, 0.45))
    accuracies |= {"gru": Interval(0.52, 0.48, 0.61), "panel_gru": point(0.7), "lstm": Interval(0.8, 0.75, 0.9)}
    figures = discriminator_figures(accuracies)
    assert figures.keys() == {*(f"{name}_score" for name in DISCRIMINATORS), "lstm_error"} <= ROWS.keys()
    assert figures["boosting_score"] == pytest.approx((0.1, 0.05, 0.2))
    assert figures["gru_score"] == pytest.approx((0.02, 0.0, 0.11))
    assert figures["lstm_error"] == pytest.approx((0.2, 0.1, 0.25))
    assert figures["panel_gru_score"] == pytest.approx((0.2, NAN, NAN), nan_ok=True)


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


@pytest.mark.slow
def test_without_discriminators_scikit_learn_is_not_needed(market, ends, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    monkeypatch.setattr(validate_command, "BASELINES", (GeometricBrownianMotion.fit,))
    monkeypatch.setattr(validate_command, "FilteredHistoricalSimulation", GeometricBrownianMotion)
    words = ["--history", market, "--out", tmp_path, "--train-end", ends[0], "--validation-end", ends[1], *QUICK[:-1]]
    assert main(["worldmodel", "validate", *map(str, words), "0"]) == 0
    result = json.loads((tmp_path / "validation.json").read_text())
    assert "gru_score" not in result["models"]["GBM"] and "gru_score" not in result["real"]


def test_real_days_after_any_origins(trial):
    """Twice as many origins, half as far apart, whose every other one is an origin of paths."""
    dense = trial.dense_origins
    assert list(dense[::2]) == list(trial.origins()) and dense[1] - dense[0] == 3
    assert bool((trial.real_after(dense).returns[::2] == trial.real.returns).all())


def test_temperatures_are_measured_on_the_same_days(trial):
    """Moves of a tenth of the size have a tenth of the volatility; the same draws at 1 give the same figures."""
    model = GeometricBrownianMotion.fit(trial.train)

    class Tempered(MarketModel):
        name, has_density, has_joint_density = "tempered", False, False

        def __init__(self, temperature: float) -> None:
            self.temperature = temperature

        def log_density(self, bars):
            raise NotImplementedError

        def generate(self, history, num_paths, num_days, seed=0):
            drawn = model.generate(history, num_paths, num_days, seed)
            last = history.ohlcv[0, -1, :, CLOSE]
            drawn[..., CLOSE] = last * (drawn[..., CLOSE] / last) ** self.temperature
            return drawn

    steps = []
    sweep = sweep_temperatures(trial, {t: Tempered(t) for t in (0.1, 1.0, 2.0)}, 8, 100, 0, lambda: steps.append(0))
    assert len(steps) == 3 * (len(trial.origins()) + len(trial.forecast_days))
    ratios = [sweep[t]["volatility_ratio"] for t in (0.1, 1.0, 2.0)]
    assert ratios[0] / ratios[1] == pytest.approx(0.1, rel=1e-3) and ratios[2] / ratios[1] == pytest.approx(2, rel=1e-3)
    assert sweep[0.1]["ks_1"] > sweep[1.0]["ks_1"] and sweep[2.0]["crps"] > sweep[1.0]["crps"]
    headings, lines = sweep_cells(sweep)
    best = min(sweep, key=lambda t: sweep[t]["energy_score"])
    assert [line[0] for line in lines if "best" in line[0]] == [f"{best:g} (best)"]
    assert len(headings) == len(lines[0]) == 1 + len(MEASURES)


def refused(capsys, *words: object) -> str:
    assert main(["worldmodel", "validate", *map(str, words)]) == BAD_INPUT
    return capsys.readouterr().err


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


def test_a_symbol_without_a_bar_on_an_origin_is_named(market, ends):
    bars = read_bars(market, ["S0", "S4"])
    assert choose_trial(bars, *ends, keep_gaps=True)[0].bars.symbols == ("S0", "S4")
    with pytest.raises(ValueError, match=f"no bar on {bars.dates[TRAIN + VALIDATION + 3]}: S4"):
        choose_trial(bars, *ends, every=2, keep_gaps=True)
    with pytest.raises(ValueError, match="1 symbols with 250 training returns and bars on all test days"):
        choose_trial(bars, *ends)


@pytest.mark.realdata
@pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set")
def test_the_dow_leaves_out_the_symbol_listed_in_2019():
    bars = read_bars(Path(os.environ["VECENV_DATA"]) / "us_dow30.parquet")
    trial, left_out = choose_trial(bars, "2017-12-31", "2018-12-31")
    assert left_out == ("DOW",) and len(trial.bars.symbols) == 29
    assert str(trial.bars.dates[trial.first])[:4] == "2019"


def test_baselines_have_names_of_their_own(trial):
    names = [fit(trial.train).name for fit in BASELINES]
    assert len(set(names)) == len(names) == 5
