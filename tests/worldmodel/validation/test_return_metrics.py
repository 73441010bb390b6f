"""Distributions, dependence and paths of returns, and scores of forecasts, against SciPy and plain loops."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.worldmodel.validation.simulated_windows import NAN, correlated, normal, windows_of, with_gaps
from vecenv.worldmodel.validation import returns as of
from vecenv.worldmodel.validation.criteria import CRITERIA, by_day
from vecenv.worldmodel.validation.figures import Evidence, figures_of
from vecenv.worldmodel.validation.forecast import energy_score, forecast_scores, summarise, variogram_score
from vecenv.worldmodel.validation.returns import (
    autocorrelation,
    correlation_rmse,
    cross_correlation,
    leverage,
    max_drawdowns,
    memorisation,
)
from vecenv.worldmodel.validation.windows import Windows

BY_KEY = {criterion.key: criterion for criterion in CRITERIA}


def judged(criteria, real, synthetic) -> dict[str, float]:
    """Return figures of returns alone, for which there are neither forecasts nor training days."""
    evidence = Evidence(real, synthetic, 1, torch.empty(0), None, 1)
    return {key: figure.mean for key, figure in figures_of(criteria, evidence).items()}


def pair():
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    sides = with_gaps(normal(4, 1, 12, 3, seed=1)), with_gaps(1.4 * normal(4, 3, 12, 3, seed=2))
    return [Windows(returns * scale, scale) for returns in sides]


def present(values):
    return values[~values.isnan()].numpy()


@pytest.mark.parametrize("decimals", [0, 9])
@pytest.mark.parametrize("copies", [1, 3])
def test_distances_of_samples_and_of_sums_are_those_of_scipy(decimals, copies):
    real, synthetic = normal(50, seed=3).round(decimals=decimals), 1.3 * normal(50 * copies, seed=4) + 0.2
    synthetic = synthetic.round(decimals=decimals)
    found = of.sample_distances(real, synthetic)
    assert found.ks == pytest.approx(stats.ks_2samp(real.numpy(), synthetic.numpy()).statistic, abs=1e-12)
    assert found.wasserstein == pytest.approx(stats.wasserstein_distance(real.numpy(), synthetic.numpy()), abs=1e-12)
    for shift in (-10.0, 10.0):
        assert of.sample_distances(real, real + shift) == (1.0, pytest.approx(10.0))
    assert of.sample_distances(real, real.repeat_interleave(4).float()) == (0.0, pytest.approx(0.0, abs=1e-7))
    with pytest.raises(ValueError, match="multiple of the 50 real values, got 60"):
        of.sample_distances(real, normal(60))
    with pytest.raises(ValueError, match="multiple of the 0"):
        of.sample_distances(torch.full((3,), math.nan), normal(3))
    for days in (1, 5):
        sides, sums = pair(), []
        for windows in sides:
            r = (windows.returns / windows.scale).numpy()
            pooled = np.stack([r[:, :, d : d + days].sum(2) for d in range(0, 12 - days + 1, days)]).ravel()
            sums.append(pooled[~np.isnan(pooled)])
        found = of.horizon_distances(*sides, days)
        assert found.ks == pytest.approx(stats.ks_2samp(*sums).statistic, abs=1e-12)
        assert found.wasserstein == pytest.approx(stats.wasserstein_distance(*sums) / np.std(sums[0]), abs=1e-12)


def test_volatility_shape_and_tails_by_their_definitions():
    sides = pair()
    pooled = [np.std(present(w.returns / w.scale)) for w in sides]
    market = [np.std(np.nanmean(w.returns.numpy(), axis=-1)) for w in sides]
    stock = [np.nanstd(w.returns.numpy().reshape(-1, 3), axis=0) for w in sides]
    expected = (pooled[1] / pooled[0], market[1] / market[0], *np.quantile(stock[1] / stock[0], [0.5, 0.05, 0.95]))
    found = (of.volatility_ratio(*sides), of.market_volatility_ratio(*sides), *of.stock_volatility_ratios(*sides))
    assert found == pytest.approx(expected)
    z = normal(4, 2, 12, 5, seed=6)
    returns = with_gaps(torch.sinh(z * torch.arange(1, 6) / 3.0) + 0.3 * z.square() + 7.0)
    columns = [present(returns[..., stock]) for stock in range(5)]
    expected = [np.median([measure(c) for c in columns]) for measure in (stats.kurtosis, stats.skew)]
    assert [of.excess_kurtosis(windows_of(returns)), of.skew(windows_of(returns))] == pytest.approx(expected)
    returns = with_gaps(torch.sinh(normal(10, 3, 40, 3, seed=7)) * torch.tensor([1.0, 4.0, 9.0]) - 0.5)
    columns = [present(returns[..., stock]) for stock in range(3)]
    z = np.concatenate([(c - c.mean()) / c.std() for c in columns])

    def hill(sample, share):
        top = np.sort(sample)[::-1][: int(share * len(z))]
        return 1 / np.mean(np.log(top / top[-1]))

    expected = (hill(abs(z), 0.01), hill(abs(z), 0.025), hill(-z, 0.01))
    found = tuple(BY_KEY[name].statistic(windows_of(returns)) for name in ("hill", "hill_wide", "hill_left"))
    assert found == pytest.approx(expected)


def lagged_pairs(values, lag):
    pooled = values.reshape(-1, values.shape[-1])
    z = (values - np.nanmean(pooled, axis=0)) / np.nanstd(pooled, axis=0)
    pairs = np.stack([z[:, :, :-lag], z[:, :, lag:]], axis=-1).reshape(-1, 2)
    return pairs[~np.isnan(pairs).any(1)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_autocorrelation_and_leverage_by_their_definitions(dtype):
    gapped = with_gaps(normal(3, 2, 9, 3, seed=1) * torch.tensor([1.0, 3.0, 0.1]) + 0.2).to(dtype)
    pairs = [lagged_pairs(gapped.double().numpy(), lag) for lag in (1, 2, 3, 4)]
    assert autocorrelation(gapped, 4).tolist() == pytest.approx([p.prod(1).mean() for p in pairs], abs=1e-6)
    expected = [np.corrcoef(p[:, 0], p[:, 1] ** 2)[0, 1] for p in pairs]
    assert leverage(gapped, 4).tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="lags must be 1 to 8 in windows of 9 days, got 9"):
        autocorrelation(gapped, 9)
    assert len(autocorrelation(gapped, 8)) == 8 and len(autocorrelation(normal(1, 1, 30, 2))) == 20
    assert len(leverage(normal(1, 1, 30, 2))) == 10
    sides = [windows_of(torch.cat([windows.returns] * 3, 2)) for windows in pair()]
    for key, mean, statistic in (
        ("return_acf_error", None, autocorrelation),
        ("magnitude_acf_error", "magnitude_acf", lambda returns: autocorrelation(returns.abs())),
        ("leverage_error", "leverage", leverage),
    ):
        real, synthetic = (statistic(side.returns) for side in sides)
        assert judged([BY_KEY[key]], *sides)[key] == float((synthetic - real).abs().mean())
        if mean is not None:
            few = synthetic[:5] if mean == "leverage" else synthetic
            assert judged([BY_KEY[mean]], *sides)[mean] == pytest.approx(float(few.mean()))


def test_correlations_by_their_definitions():
    values = normal(30_000, 4, seed=4) + 0.5 * normal(30_000, 1, seed=5)
    values[::3, 0], values[1::2, 1], values[:, 3] = NAN, NAN, NAN
    values[0, 3] = 1.0
    found = of.correlation_matrix(values)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        both = values[~(values[:, i].isnan() | values[:, j].isnan())].numpy()
        assert float(found[i, j]) == float(found[j, i]) == pytest.approx(np.corrcoef(both[:, i], both[:, j])[0, 1])
    assert found[3].isnan().all()
    apart = of.pair_correlations(normal(4, 2, 9, 3))
    assert apart.tolist() == pytest.approx(np.corrcoef(normal(4, 2, 9, 3).reshape(-1, 3).T)[[0, 0, 1], [1, 2, 2]])
    values = torch.full((5, 2), NAN)
    values[:3, 0], values[2:, 1] = torch.tensor([0.1, 0.7, 0.3]), torch.tensor([0.3, 0.9, 0.1])
    assert of.correlation_matrix(values)[0, 1].isnan()
    values[1, 1] = 0.2
    assert float(of.correlation_matrix(values)[0, 1]) == pytest.approx(-1.0, abs=1e-5)
    # Days without any stock are not among the worst.
    returns = correlated((5, 2, 40, 6), 0.3, seed=1) * torch.arange(1, 7)
    days, upper = returns.reshape(-1, 6).numpy(), np.triu_indices(6, 1)
    matrix, worst = np.corrcoef(days.T), days[np.argsort(days.mean(1))[:20]]
    found = cross_correlation(windows_of(returns))
    expected = (matrix[upper].mean(), np.linalg.eigvalsh(matrix)[-1] / 6, np.corrcoef(worst.T)[upper].mean())
    assert found[1:] == pytest.approx(expected)
    other = cross_correlation(windows_of(normal(5, 2, 40, 6)))
    expected = np.sqrt(np.mean((np.corrcoef(normal(5, 2, 40, 6).reshape(-1, 6).numpy().T) - matrix)[upper] ** 2))
    assert correlation_rmse(found, other) == pytest.approx(expected) and correlation_rmse(found, found) == 0.0
    longer = cross_correlation(windows_of(torch.cat([returns, returns * NAN], dim=2)))
    lacking = cross_correlation(windows_of(torch.cat([returns, NAN * returns[..., :1]], dim=-1)))
    assert longer.worst_days == pytest.approx(found.worst_days) and lacking[1:] == pytest.approx(found[1:])
    with pytest.raises(ValueError, match="at least 2 stocks"):
        cross_correlation(windows_of(returns[..., :1]))
    returns[:2, ..., 0], returns[2:, ..., 3] = NAN, NAN
    assert math.isnan(cross_correlation(windows_of(returns)).first_eigenvalue)


def test_drawdowns_by_hand_and_drift_by_its_definition():
    """From 120 to 90; from the origin's close, whose last day is beyond four days; and none. Gaps have none."""
    prices = [[100, 120, 90, 130, 117, 125], [100, 80, 90, 95, 99, 70], [100, 101, 102, 103, 104, 105]]
    windows = windows_of(torch.tensor(np.diff(np.log(prices)))[None, :, :, None])
    assert max_drawdowns(windows, 5).flatten().tolist() == pytest.approx([25.0, 30.0, 0.0])
    assert max_drawdowns(windows, 4).flatten().tolist() == pytest.approx([25.0, 20.0, 0.0])
    real, synthetic = (windows_of(with_gaps(0.02 * normal(3, m, 45, 3, seed=m))) for m in (1, 4))
    falls = [max_drawdowns(side) for side in (real, synthetic)]
    assert int(falls[1].isnan().sum()) == 4 * 2
    falls = [present(each) for each in falls]
    expected = (falls[0].mean(), falls[1].mean(), stats.wasserstein_distance(*falls))
    mean, distance = BY_KEY["drawdown_mean"], BY_KEY["drawdown_w1"]
    found = (mean.statistic(real), *judged([mean, distance], real, synthetic).values())
    assert found == pytest.approx(expected)
    real, synthetic = normal(20, 1, 40, 5, seed=5), normal(20, 6, 40, 5, seed=6)
    synthetic[:, :, 30:] *= 2.0
    for first, last in ((1, 10), (31, 40)):
        found = judged(by_day(first, last), windows_of(real, 0.5), windows_of(synthetic, 0.5))
        observed, generated = real[:, :, first - 1 : last], synthetic[:, :, first - 1 : last]
        ratios = [float(side[1].std(correction=0) / side[0].std(correction=0))
                  for side in ((observed, generated), (observed.mean(-1), generated.mean(-1)))]  # fmt: skip
        expected = dict(zip(("volatility_ratio", "market_volatility_ratio"), ratios, strict=True))
        expected["ks"] = stats.ks_2samp(observed.flatten(), generated.flatten()).statistic
        for name, part in (("return", torch.clone), ("magnitude", torch.abs)):
            curves = [autocorrelation(part(side), 9) for side in (generated, observed)]
            expected[f"{name}_acf_error"] = float((curves[0] - curves[1]).abs().mean())
        assert found == pytest.approx({f"{name}_days_{first}_{last}": value for name, value in expected.items()})
    windows = windows_of(normal(4, 1, 80, 5))
    assert list(judged(by_day(41, 80), windows, windows).values()) == [1.0, 1.0, 0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="days 41 to 250"):
        judged(by_day(41, 250), windows, windows)


def test_memorisation_by_its_definition():
    train, real, synthetic = normal(60, 2), *(windows_of(normal(4, m, 11, 2, seed=m)) for m in (1, 3))
    train[7, 1], real.returns[1, 0, 2, 0], synthetic.returns[1, :, 2, 0] = NAN, NAN, NAN

    def scaled(paths):
        whole = np.array([path for path in paths if not np.isnan(path).any()])
        whole = whole - whole.mean(1, keepdims=True)
        return whole / np.linalg.norm(whole, axis=1, keepdims=True)

    history, distances = scaled([train.numpy()[day : day + 5, i] for day in range(56) for i in range(2)]), []
    for returns in (real.returns.numpy(), synthetic.returns.numpy()):
        paths = [returns[o, m, d : d + 5, i] for o, m, i in np.ndindex(*returns.shape[:2], 2) for d in (0, 5)]
        distances.append(np.sort([np.linalg.norm(history - path, axis=1).min() for path in scaled(paths)]))
    # torch's median of an even number is the lower of the two in the middle.
    medians = [each[(len(each) - 1) // 2] for each in distances]
    expected = (medians[1] / medians[0], np.mean(distances[1] < np.quantile(distances[0], 0.01)))
    assert memorisation(train, real, synthetic, days=5) == pytest.approx(expected, abs=1e-5)
    flat = torch.cat([synthetic.returns, torch.zeros_like(synthetic.returns)], dim=1)
    assert memorisation(train, real, windows_of(flat), days=5) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="paths of 20 days need as many days of training data, got 19"):
        memorisation(normal(19, 2), real, synthetic)
    some = [memorisation(train, real, synthetic, days=5, max_paths=3, seed=seed) for seed in range(4)]
    assert some[0] == memorisation(train, real, synthetic, days=5, max_paths=3) and len(set(some)) > 1
    assert all(each.share_below * 3 == pytest.approx(round(each.share_below * 3)) for each in some)


def test_scores_of_a_stock_by_their_definitions():
    samples, outcomes = normal(3, 5, 2, seed=1), normal(3, 2, seed=2)
    outcomes[1, 1], outcomes[2, 0] = NAN, 0.0
    scores = forecast_scores(samples, outcomes)
    for day in range(3):
        for stock in range(2):
            y, x = float(outcomes[day, stock]), samples[day, :, stock].tolist()
            found = [float(part[day, stock]) for part in scores[:5]]
            if math.isnan(y):
                assert all(math.isnan(value) for value in found) and scores.covered[day, stock].isnan().all()
                continue
            error = sum(abs(a - y) for a in x) / 5
            spread = sum(abs(a - b) for a in x for b in x) / (5 * 4)
            median = sorted(x)[2]
            hit = float((median > 0) == (y > 0)) if y != 0 else NAN
            pit = (sum(a < y for a in x) + 0.5) / 6
            assert found == pytest.approx([error - spread / 2, abs(median - y), error, hit, pit], nan_ok=True)
    # An even number of draws, of which two are below, and half of a tie and half a step count: 3 of 5.
    even = forecast_scores(torch.tensor([[[1.0], [2.0], [4.0], [9.0]]]), torch.tensor([[4.0]]))
    assert float(even.median_error) == 1.0 and float(even.pit) == pytest.approx(0.6)
    # Of 199 draws the 1st and the last bound 99%, the 10th and 190th 90%, the 50th and 150th 50%.
    samples = torch.arange(1.0, 200.0)[None, :, None].expand(4, -1, 4)
    outcomes = [[0.9, 1.0, 9.9, 10.0], [49.9, 50.0, 150.0, 150.1], [190.0, 190.1, 199.0, 199.1], [NAN] * 4]
    covered = forecast_scores(samples, torch.tensor(outcomes)).covered
    assert covered[..., 0].nan_to_num(-1).tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [-1] * 4]
    assert covered[..., 1].nan_to_num(-1).tolist() == [[0, 0, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0], [-1] * 4]
    assert covered[..., 2].nan_to_num(-1).tolist() == [[0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [-1] * 4]
    # With 4 draws a quantile of 25% is a quarter of the way from the 1st to the 2nd, and 5% is out of reach.
    samples = torch.tensor([[[0.0], [4.0], [8.0], [12.0]]]).expand(4, -1, -1)
    few = forecast_scores(samples, torch.tensor([[0.9], [1.0], [11.0], [11.1]]))
    assert few.covered[:, 0, 0].tolist() == [0.0, 1.0, 1.0, 0.0] and few.covered[..., 1:].isnan().all()


def test_a_summary_is_of_what_was_observed():
    samples, outcomes = normal(30, 20, 4, seed=5), normal(30, 4, seed=6)
    outcomes[::3, 1] = NAN
    scores, known = forecast_scores(samples, outcomes), ~outcomes.isnan()
    summary = summarise(scores)
    assert summary.crps == pytest.approx(1e4 * float(scores.crps[known].mean()))
    assert summary.coverage == pytest.approx(scores.covered[known].mean(0).tolist(), nan_ok=True)
    assert summary.pit_distance == pytest.approx(stats.kstest(scores.pit[known].numpy(), "uniform").statistic)
    for shift in (-0.5, 0.5):
        aside = forecast_scores(samples + shift, outcomes)
        expected = stats.kstest(aside.pit[known].numpy(), "uniform").statistic
        assert summarise(aside).pit_distance == pytest.approx(expected) and expected > summary.pit_distance
    for samples, outcomes in (((3, 5, 2), (3, 1)), ((5, 2), (5, 2)), ((3, 1, 2), (3, 2))):
        with pytest.raises(ValueError, match=r"samples need|at least 2 draws, got 1"):
            forecast_scores(normal(*samples), normal(*outcomes))
    samples, outcomes = normal(3, 5, 2), normal(3, 2)
    samples[1, 2, 1] = NAN
    with pytest.raises(ValueError, match=r"\(1, 1\), 1 in all"):
        forecast_scores(samples, outcomes)


def test_joint_scores_by_their_definitions():
    """Of each stock's sum of the first 20 standardised returns over sqrt(20), without stocks with a gap."""
    real, synthetic = (windows_of(normal(2, m, 25, 4, seed=10 + m), 0.5) for m in (1, 6))
    real.returns[1, 0, 3, 2], synthetic.returns[1, :, 3, 2] = NAN, NAN
    energy, variogram = energy_score(real, synthetic), variogram_score(real, synthetic)
    for origin, stocks in ((0, [0, 1, 2, 3]), (1, [0, 1, 3])):
        sums = [side.returns[origin, :, :20][..., stocks].sum(1) / 0.5 / math.sqrt(20) for side in (real, synthetic)]
        (y,), x = (side.tolist() for side in sums)
        first = sum(math.dist(a, y) for a in x) / 6
        second = sum(math.dist(a, b) for a in x for b in x) / 36 * (6 / 5)
        assert float(energy[origin]) == pytest.approx((first - 0.5 * second) / math.sqrt(len(stocks)))
        pairs = [(i, j) for i in range(len(stocks)) for j in range(i)]
        gaps = [abs(y[i] - y[j]) ** 0.5 - sum(abs(a[i] - a[j]) ** 0.5 for a in x) / 6 for i, j in pairs]
        assert float(variogram[origin]) == pytest.approx(sum(g * g for g in gaps) / len(pairs))
    with pytest.raises(ValueError, match="days 1 to 30"):
        energy_score(real, synthetic, days=30)
    with pytest.raises(ValueError, match="2 draws, got 1"):
        energy_score(real, windows_of(synthetic.returns[:, :1]))
