"""Figures of a model: real days in the right place, densities, discriminators, and other temperatures."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.worldmodel.validation.validation_market import TEST, TRAIN, VALIDATION, market_file, split_ends
from vecenv.learn.metrics import Interval
from vecenv.market.bars import CLOSE
from vecenv.market.sources import read_bars
from vecenv.worldmodel.baselines.resampled import GeometricBrownianMotion
from vecenv.worldmodel.commands.validate import BASELINES
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.metrics.bar_discriminator import BAR_FORMS, Told
from vecenv.worldmodel.metrics.bar_statistics import gap_kurtosis
from vecenv.worldmodel.validation.bar_figures import bar_discriminator_figures, bar_figures, real_bar_figures
from vecenv.worldmodel.validation.figures import (
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
from vecenv.worldmodel.validation.judge import HORIZON, choose_trial, sample_forecasts, sample_paths
from vecenv.worldmodel.validation.rows import rows
from vecenv.worldmodel.validation.table import reference
from vecenv.worldmodel.validation.temperature_sweep import MEASURES, sweep_cells, sweep_temperatures

NAN = float("nan")


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    return market_file(tmp_path_factory.mktemp("market"))


@pytest.fixture(scope="module")
def ends(market) -> tuple[str, str]:
    return split_ends(market)


@pytest.fixture(scope="module")
def trial(market, ends):
    return choose_trial(read_bars(market), *ends, every=6, forecast_every=30, memory=251)[0]


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
    # The first origin sees the days before the test, the next ones also the test days before them.
    assert list(lengths) == [251 + 6 * number for number in range(len(days))] and len(set(seeds)) == len(seeds)
    assert int(np.searchsorted(trial.bars.dates, np.datetime64(days[-1]))) + HORIZON < len(trial.bars.dates)


def test_real_days_after_any_origins(trial):
    """Twice as many origins, half as far apart, whose every other one is an origin of paths."""
    dense = trial.dense_origins
    assert list(dense[::2]) == list(trial.origins()) and dense[1] - dense[0] == 3
    assert bool((trial.real_after(dense).returns[::2] == trial.real.returns).all())


def test_densities_are_of_the_test_days_alone_per_stock_and_day(trial):
    """With the number of the day as log-density, whatever the history that is read before."""
    figures = density_figures(trial, Prophet(trial.bars))
    mean = sum(range(TRAIN + VALIDATION, TRAIN + VALIDATION + TEST)) / TEST
    assert figures["nll"].mean == pytest.approx(-mean) and figures["nll"].low < -mean < figures["nll"].high
    assert figures["joint_nll"].mean == pytest.approx(-mean)


def test_figures_of_several_seeds_are_averaged():
    runs = [{"crps": Interval(1.0, 0.0, 2.0)}, {"crps": Interval(3.0, 1.0, 5.0)}]
    assert average(runs) == {"crps": Interval(2.0, 0.5, 3.5)}


def test_a_figure_without_an_interval_has_its_range_over_the_runs():
    assert average([{"drift": point(each)} for each in (2.0, -1.0, 5.0)]) == {"drift": Interval(2.0, -1.0, 5.0)}
    alone = average([{"drift": point(2.0)}])["drift"]
    assert alone.mean == 2.0 and math.isnan(alone.low) and math.isnan(alone.high)


def test_discriminative_scores_are_distances_from_chance():
    accuracies = dict.fromkeys(DISCRIMINATORS, Interval(0.4, 0.3, 0.45))
    accuracies |= {"gru": Interval(0.52, 0.48, 0.61), "panel_gru": point(0.7), "lstm": Interval(0.8, 0.75, 0.9)}
    figures = discriminator_figures(accuracies)
    keys = {row.key for row in rows()}
    assert figures.keys() == {*(f"{name}_score" for name in DISCRIMINATORS), "lstm_error"} <= keys
    assert figures["boosting_score"] == pytest.approx((0.1, 0.05, 0.2))
    assert figures["gru_score"] == pytest.approx((0.02, 0.0, 0.11))
    assert figures["lstm_error"] == pytest.approx((0.2, 0.1, 0.25))
    assert figures["panel_gru_score"] == pytest.approx((0.2, NAN, NAN), nan_ok=True)


@pytest.mark.nightly
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


def test_figures_of_whole_bars_are_those_of_the_real_days_for_who_draws_them(trial):
    real, synthetic = trial.aligned(sample_paths(trial, Prophet(trial.bars), 3, seed=1).double())
    known, figures = real_bar_figures(real, trial.every, draws=20), bar_figures(synthetic, trial.every)
    keys = {row.key for row in rows() if not row.earlier and not row.key.endswith(("_score", "_auc"))}
    assert known.keys() == figures.keys() == keys
    for name in keys:
        assert figures[name].mean == pytest.approx(known[name].mean, rel=1e-3, abs=1e-3), name
    assert known["drift"].low < known["drift"].mean < known["drift"].high
    assert known["drift"].mean == pytest.approx(1e4 * float(real.returns.mean()))


def test_kurtosis_of_gaps_is_of_windows_that_do_not_overlap(trial):
    """Of origins six days apart every seventh is taken."""
    real = trial.real
    apart = real.select(torch.arange(0, len(real.returns), 7))
    assert bar_figures(real, trial.every)["gap_kurtosis"].mean == gap_kurtosis(apart)
    assert bar_figures(real, HORIZON)["gap_kurtosis"].mean == gap_kurtosis(real)


def test_discriminators_of_whole_bars_tell_accuracy_and_auc():
    told = {name: Told(Interval(0.4, 0.3, 0.45), Interval(0.35, 0.2, 0.4)) for name in BAR_FORMS}
    figures = bar_discriminator_figures(told)
    assert figures.keys() == {row.key for row in rows() if not row.earlier and row.key.endswith(("_score", "_auc"))}
    assert figures["bars_gru_score"] == pytest.approx((0.1, 0.05, 0.2))
    assert figures["panel_bars_boosting_auc"] == Interval(0.35, 0.2, 0.4)
