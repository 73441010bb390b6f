"""Figures of a model: real days in the right place, densities, discriminators, other temperatures, and pictures."""

import math

import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from tests.worldmodel.neural_market import TEST, TRAIN, VALIDATION
from tests.worldmodel.validation.simulated_windows import valid_bars
from vecenv.learn.intervals import Interval
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.commands.validate import sweep_temperatures
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.validation import figures as of
from vecenv.worldmodel.validation.bar_statistics import gap_kurtosis
from vecenv.worldmodel.validation.criteria import CRITERIA, criteria
from vecenv.worldmodel.validation.discriminator import FORMS, Told
from vecenv.worldmodel.validation.figures import Evidence, average, point, real_figures
from vecenv.worldmodel.validation.forecast import forecast_scores
from vecenv.worldmodel.validation.picture import COLOURS, CURVES, OTHER_COLOURS, bands, cluster_order, colours, sketch
from vecenv.worldmodel.validation.trial import HORIZON, Trial, choose_trial, sample_forecasts, sample_paths
from vecenv.worldmodel.validation.windows import Windows, align_windows, drawn_origins

NAN = float("nan")


@pytest.fixture(scope="module")
def trial(validated_file, ends) -> Trial:
    return choose_trial(read_bars(validated_file), *ends, every=6, forecast_every=30, memory=251)[0]


class Prophet(MarketModel):
    name = "prophet"

    def __init__(self, bars: Bars, power: float = 1.0) -> None:
        self.bars, self.power, self.seen = bars, power, []

    def log_density(self, bars):
        density = torch.as_tensor(np.searchsorted(self.bars.dates, bars.dates)).double()
        return density[:, None].where(bars.listed[0], NAN)

    def generate(self, history, num_paths, num_days, seed=0):
        self.seen.append((str(history.dates[-1]), len(history.dates), seed))
        day = int(np.searchsorted(self.bars.dates, history.dates[-1])) + 1
        drawn = self.bars.ohlcv[:, day : day + num_days].repeat(num_paths, 1, 1, 1)
        last = history.ohlcv[0, -1, :, CLOSE]
        drawn[..., CLOSE] = last * (drawn[..., CLOSE] / last) ** self.power
        return drawn


def test_who_draws_what_happens_is_perfect(trial):
    model = Prophet(trial.bars)
    real, synthetic = trial.aligned(sample_paths(trial, model, 3, seed=1).double())
    close = trial.train.ohlcv[0, :, :, CLOSE]
    forecasts = sample_forecasts(trial, model, 199, seed=1)
    evidence = Evidence(real, synthetic, trial.every, (close[1:] / close[:-1]).log(), forecasts, 3)
    figures = of.figures_of(criteria(), evidence)
    zero = ("w1_1", "w1_5", "energy_score", "variogram_score", "return_acf_error", "leverage_error", "crps", "mae")
    zero += ("correlation_rmse", "drawdown_w1", "sampled_mae")
    assert {name: figures[name].mean for name in zero} == pytest.approx(dict.fromkeys(zero, 0.0), abs=1e-4)
    # Paths in single precision and real days are not equal, but adjacent.
    for name in ("ks_1", "ks_20", "gap_ks", "range_ks", "ks_days_11_20"):
        assert figures[name].mean < 0.02
    assert figures["direction_accuracy"].mean == 1.0
    known = real_figures(CRITERIA, real, trial.every, draws=20)
    assert known["hill"].low < known["hill"].mean < known["hill"].high
    for row in criteria():
        if row.statistic is not None:
            # The tail's threshold is another one for three times as many days.
            near = {"rel": 1e-3, "abs": 1e-3} if row.since > 1 else {"rel": 0.05, "abs": 1e-4}
            assert figures[row.key].mean == pytest.approx(known[row.key].mean, **near), row.key
        if "volatility_ratio" in row.key:
            assert figures[row.key].mean == pytest.approx(row.reference(known).mean)
    assert figures["memory_ratio"].mean == pytest.approx(1.0)
    # Figures of whole bars too; the kurtosis of gaps is of windows that do not overlap: every seventh of them.
    assert known["drift"].low < known["drift"].mean < known["drift"].high
    assert known["drift"].mean == pytest.approx(1e4 * float(real.returns.mean()))
    apart = real.select(torch.arange(0, len(real.returns), 7))
    (kurtosis,) = (row for row in criteria() if row.key == "gap_kurtosis")
    for every, windows in ((trial.every, apart), (HORIZON, real)):
        judged = Evidence(real, real, every, close, forecasts, 3)
        assert of.figures_of([kurtosis], judged)["gap_kurtosis"].mean == gap_kurtosis(windows)


def test_origins_start_on_the_day_before_the_test_and_every_one_has_a_seed(trial):
    model, first = Prophet(trial.bars), TRAIN + VALIDATION - 1
    sample_paths(trial, model, 2, seed=5)
    days, lengths, seeds = zip(*model.seen, strict=True)
    positions = [first + 6 * number for number in range(len(days))]
    assert list(days) == [str(trial.bars.dates[day]) for day in positions]
    # The first origin sees the days before the test, the next ones also the test days before them.
    assert list(lengths) == [251 + 6 * number for number in range(len(days))]
    assert list(seeds) == [5 * 2**32 + day for day in positions]
    assert len(trial.origins(70)) == (TEST - 70) // 6 + 1
    assert positions[-1] + HORIZON < len(trial.bars.dates) <= positions[-1] + HORIZON + 6
    assert list(trial.forecast_days) == list(range(first, len(trial.bars.dates) - 1, 30))
    # Twice as many origins, half as far apart, whose every other one is an origin of paths.
    dense = trial.dense_origins
    assert list(dense[::2]) == list(trial.origins()) and dense[1] - dense[0] == 3
    assert bool((trial.real_after(dense).returns[::2] == trial.real.returns).all())
    assert trial.real.context.shape[1] == 60
    # With the number of the day as log-density, whatever the history that is read before.
    figures, mean = of.density_figures(trial, model), first + (TEST + 1) / 2
    assert figures["nll"].mean == pytest.approx(-mean) and figures["nll"].low < -mean < figures["nll"].high
    assert figures["joint_nll"].mean == pytest.approx(-mean)
    model.has_joint_density = False
    assert of.density_figures(trial, model).keys() == {"nll"}
    model.has_density = False
    assert of.density_figures(trial, model) == {}


def test_averages_of_runs_and_distances_from_chance():
    runs = [{"crps": Interval(1.0, 0.0, 2.0)}, {"crps": Interval(3.0, 1.0, 5.0)}]
    assert average(runs) == {"crps": Interval(2.0, 0.5, 3.5)}
    assert average([{"drift": point(each)} for each in (2.0, -1.0, 5.0)]) == {"drift": Interval(2.0, -1.0, 5.0)}
    alone = average([{"drift": point(2.0)}])["drift"]
    assert alone.mean == 2.0 and math.isnan(alone.low) and math.isnan(alone.high)
    told = dict.fromkeys(FORMS, Told(Interval(0.4, 0.3, 0.45), Interval(0.35, 0.2, 0.4)))
    others = {"gru": Interval(0.52, 0.48, 0.61), "panel_gru": point(0.7), "lstm": Interval(0.8, 0.75, 0.9)}
    told |= {name: Told(accuracy, point(0.5)) for name, accuracy in others.items()}
    figures = of.discriminator_figures(told)
    apart = {row.key for row in criteria() if row.measure is None}
    assert figures.keys() | {"nll", "joint_nll"} == apart
    assert figures["boosting_score"] == pytest.approx((0.1, 0.05, 0.2))
    assert figures["gru_score"] == pytest.approx((0.02, 0.0, 0.11))
    assert figures["lstm_error"] == pytest.approx((0.2, 0.1, 0.25))
    assert figures["panel_gru_score"] == pytest.approx((0.2, NAN, NAN), nan_ok=True)
    assert of.distance_from_chance(Interval(0.625, 0.5, 0.75)) == (0.125, 0.0, 0.25)
    assert figures["bars_gru_score"] == pytest.approx((0.1, 0.05, 0.2))
    assert figures["panel_bars_boosting_auc"] == figures["boosting_auc"] == Interval(0.35, 0.2, 0.4)


def test_temperatures_are_measured_on_the_same_days(trial):
    steps, temperatures = [], (0.1, 1.0, 2.0)
    models = {power: Prophet(trial.bars, power) for power in temperatures}
    sweep = sweep_temperatures(trial, models, 2, 199, 0, lambda: steps.append(0))
    assert len(steps) == 3 * (len(trial.origins()) + len(trial.forecast_days))
    assert models[0.1].seen == models[2.0].seen
    for name in ("volatility_ratio", "market_volatility_ratio"):
        assert [sweep[each][name] for each in temperatures] == pytest.approx(temperatures, rel=0.02)
    for name in ("crps", "energy_score"):
        assert sweep[1.0][name] == pytest.approx(0.0, abs=1e-3) and min(sweep[0.1][name], sweep[2.0][name]) > 0.05
    assert sweep[1.0]["ks_1"] < 0.02 < sweep[0.1]["ks_1"] and sweep[1.0]["ks_20"] < 0.02 < sweep[0.1]["ks_20"]
    assert sweep[0.1]["ks_1"] != sweep[0.1]["ks_20"]


def test_trials_that_cannot_be_held_are_named(validated_file, ends):
    whole, bars, days = read_bars(validated_file), read_bars(validated_file, ["S0", "S4"]), synthetic_bars(1, 100, 2)
    last = str(whole.dates[-1])
    assert choose_trial(bars, *ends, keep_gaps=True)[0].bars.symbols == ("S0", "S4")
    assert choose_trial(whole, *ends)[1] == ("S4", "S5")
    assert choose_trial(whole, *ends, max_symbols=2)[0].bars.symbols == ("S0", "S1")
    Trial(days, 20, 60, memory=60)
    for hold, given, more, told in (
        (choose_trial, (bars, *ends), {"every": 2, "keep_gaps": True}, f"no bar on {bars.dates[283]}: S4"),
        (choose_trial, (bars, *ends), {}, "1 symbols with 250 training returns and bars on all test days"),
        (choose_trial, (whole, ends[0], last), {}, f"no test day after {last}; its days run to {last}"),
        (Trial, (days, 20, 60), {"every": 0}, "every must be at least 1, got 0"),
        (Trial, (days, 20, 60), {"forecast_every": 0}, "forecast_every must be at least 1, got 0"),
        (Trial, (days, 20, 60), {"memory": 59}, "memory must be at least 60, got 59"),
        (Trial, (days, 20, 61), {}, f"39 test days after {days.dates[60]}, at least 40 are needed"),
        (Trial, (days, 20, 59), {}, "59 days before the test, at least 60 are needed"),
    ):
        with pytest.raises(ValueError, match=told):
            hold(*given, **more)


def windows(origins: int = 12) -> Windows:
    bars, scale = valid_bars(origins, 1, 60 + 40, 4), torch.full((4,), 0.02, dtype=torch.float64)
    return align_windows(bars[:, 0, :60], bars[:, 0, 60:], bars[:, :, 60:], scale)[0]


def test_curves_bands_clusters_and_colours():
    """Every cluster of SciPy's tree is a run of neighbours in the order."""
    random = np.random.default_rng(0)
    correlation = np.corrcoef(random.normal(size=(12, 300)) + random.normal(size=(3, 300)).repeat(4, 0))
    place = np.argsort(cluster_order(correlation))
    tree = hierarchy.linkage(squareform(1.0 - correlation, checks=False), "average")
    leaves = [[stock] for stock in range(12)]
    for left, right, *_ in tree.astype(int):
        leaves.append(leaves[left] + leaves[right])
        assert np.ptp(place[leaves[-1]]) == len(leaves[-1]) - 1
    unknown = np.array([[1.0, np.nan, 0.9], [np.nan, 1.0, 0.1], [0.9, 0.1, 1.0]])
    assert cluster_order(unknown).tolist() in ([0, 2, 1], [1, 2, 0])
    many, few = colours([*COLOURS, "mine", "yours"]), colours(["mine", "FHS"])
    assert many["FHS"] == few["FHS"] == COLOURS["FHS"] and many["mine"] == few["mine"] == OTHER_COLOURS[0]
    assert many["yours"] == OTHER_COLOURS[1]
    real = windows()
    found = bands(real, draws=20)
    assert found.keys() == CURVES.keys()
    for name in ("volatility", "drawdown"):
        again = [CURVES[name](real.select(drawn)) for drawn in drawn_origins(12, draws=20)]
        for band, share in zip(found[name], (0.025, 0.975), strict=True):
            assert band == pytest.approx(np.quantile(again, share, axis=0))
    # Nine origins are three blocks.
    assert bands(windows(9), draws=2).keys() == CURVES.keys() and bands(windows(8)) == {}
    drawn, returns = sketch(real, forecast_scores(torch.randn(5, 300, 4), torch.zeros(5, 4))), real.returns[:, 0]
    assert drawn.pit.shape == (20,) and 0.3 < drawn.pit.mean() < 0.7 and sketch(real).pit.shape == (0,)
    assert drawn.curves["volatility"] == pytest.approx(np.sqrt((real.standardised.numpy() ** 2).mean((0, 1, 3))))
    z = ((returns - returns.mean((0, 1))) / returns.flatten(0, 1).std(0, correction=0)).abs().flatten().sort().values
    assert drawn.tail[0] == pytest.approx(float(z[-1])) and drawn.tail_share[0] == 1 / len(z)
    assert drawn.tail[-1] == pytest.approx(float(z[len(z) // 2])) and drawn.tail_share[-1] == 0.5
    market = 100 * np.expm1(returns.mean(-1).cumsum(-1).numpy())
    assert drawn.fan.shape == (5, 12, 40) and all(fan == pytest.approx(market) for fan in drawn.fan)
