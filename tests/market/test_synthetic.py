"""The synthetic market: stylised facts, valid bars, and paths that depend on seed and number alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME, Bars
from vecenv.market.synthetic import CLOSE_BOUNDS, DAILY_LIMIT, PRICE_BOUNDS, REGIMES, synthetic_bars

CENT = 0.005


@pytest.fixture(scope="module")
def bars() -> Bars:
    return synthetic_bars(num_paths=64, num_days=1000, symbols=30, seed=5)


@pytest.fixture(scope="module")
def pinned() -> dict[str, Bars]:
    return {name: synthetic_bars(32, 400, 20, seed=1, regime=name) for name in REGIMES}


def log_returns(bars: Bars) -> Tensor:
    return bars.ohlcv[..., CLOSE].log().diff(dim=1)


def annual_volatility(bars: Bars) -> Tensor:
    return log_returns(bars).std(dim=1) * 252**0.5


def autocorrelation(series: Tensor, lag: int) -> Tensor:
    centred = series - series.mean(dim=1, keepdim=True)
    return (centred[:, lag:] * centred[:, :-lag]).mean(dim=1) / centred.square().mean(dim=1)


def correlations(bars: Bars) -> Tensor:
    """Return the correlation matrix of every path. Shape: (P, K, K)."""
    return torch.stack([torch.corrcoef(path.T) for path in log_returns(bars)])


def mean_correlation(bars: Bars) -> Tensor:
    matrix = correlations(bars)
    num_symbols = matrix.shape[-1]
    return (matrix.sum(dim=(1, 2)) - num_symbols) / (num_symbols * (num_symbols - 1))


@pytest.mark.assembly
def test_bars_are_valid(bars: Bars) -> None:
    open_, high, low, close = (bars.ohlcv[..., field] for field in (OPEN, HIGH, LOW, CLOSE))
    assert bars.ohlcv.isfinite().all()
    assert (low <= torch.minimum(open_, close)).all()
    assert (high >= torch.maximum(open_, close)).all()
    assert (high > low).double().mean() > 0.99
    volume = bars.ohlcv[..., VOLUME]
    assert (volume >= 1).all()
    assert torch.equal(volume, volume.round())


def test_shapes_names_and_dates() -> None:
    bars = synthetic_bars(2, 30, ["RELIANCE", "INFY"])
    assert bars.symbols == ("RELIANCE", "INFY")
    assert bars.ohlcv.shape == (2, 30, 2, 5)
    assert bars.ohlcv.dtype == torch.float64
    assert bars.dates.dtype == np.dtype("datetime64[D]")
    assert bars.dates.shape == (30,)
    assert np.is_busday(bars.dates).all()
    assert np.array_equal(bars.dates, np.unique(bars.dates))
    assert synthetic_bars(1, 2, 3).symbols == ("SYN00", "SYN01", "SYN02")


@pytest.mark.nightly
def test_prices_stay_in_range_on_long_histories() -> None:
    for regime in (None, "bull", "bear"):
        bars = synthetic_bars(4, 6000, 20, seed=2, regime=regime)
        close = bars.ohlcv[..., CLOSE]
        assert close.min() >= CLOSE_BOUNDS[0] - CENT
        assert close.max() <= CLOSE_BOUNDS[1] + CENT
        assert bars.ohlcv[..., :VOLUME].min() >= PRICE_BOUNDS[0]
        assert bars.ohlcv[..., :VOLUME].max() <= PRICE_BOUNDS[1] < 2**23 * 1e-4
        cents = bars.ohlcv[..., :VOLUME] * 100
        assert torch.allclose(cents, cents.round(), rtol=0, atol=1e-8)
        # Bounded, yet never stuck at a bound; near the lower one a day's move may be less than a cent.
        assert (log_returns(bars) != 0).double().mean() > 0.9


def test_no_move_beyond_the_daily_limit(bars: Bars) -> None:
    close = bars.ohlcv[..., CLOSE]
    rounding = 2 * CENT / torch.minimum(close[:, :-1], close[:, 1:])
    assert (log_returns(bars).abs() <= DAILY_LIMIT + rounding).all()


def test_volatility(bars: Bars) -> None:
    volatility = annual_volatility(bars)
    assert 0.25 < volatility.mean() < 0.34
    assert volatility.quantile(0.05) > 0.15
    assert volatility.quantile(0.95) < 0.45


def test_fat_tails(bars: Bars) -> None:
    returns = log_returns(bars)
    centred = returns - returns.mean(dim=1, keepdim=True)
    kurtosis = centred.pow(4).mean(dim=1) / centred.square().mean(dim=1).square()
    assert 5 < kurtosis.median() < 9
    assert (kurtosis > 4).double().mean() > 0.9


def test_volatility_clusters_and_returns_do_not(bars: Bars) -> None:
    returns = log_returns(bars)
    assert autocorrelation(returns, 1).mean().abs() < 0.02
    for lag, low, high in ((1, 0.12, 0.25), (5, 0.1, 0.22), (20, 0.05, 0.14)):
        assert low < autocorrelation(returns.abs(), lag).mean() < high


def test_regimes_add_persistence_to_the_clusters(bars: Bars, pinned: dict[str, Bars]) -> None:
    alone = torch.stack([autocorrelation(log_returns(one).abs(), 20).mean() for one in pinned.values()])
    assert autocorrelation(log_returns(bars).abs(), 20).mean() > alone.max() + 0.02


def test_correlation_and_sectors(bars: Bars) -> None:
    assert 0.25 < mean_correlation(bars).mean() < 0.36
    matrix = correlations(bars).mean(dim=0)
    sector = torch.arange(30) % 6
    same = (sector[:, None] == sector) & ~torch.eye(30, dtype=torch.bool)
    other = sector[:, None] != sector
    assert matrix[same].mean() > matrix[other].mean() + 0.05


def test_overnight_share_and_range(bars: Bars) -> None:
    open_, high, low, close = (bars.ohlcv[..., field].log() for field in (OPEN, HIGH, LOW, CLOSE))
    overnight = (open_[:, 1:] - close[:, :-1]).square().mean()
    assert 0.17 < overnight / log_returns(bars).square().mean() < 0.24
    # Parkinson 1980: the mean squared range of a Brownian day is 4 log 2 times its variance.
    parkinson = (high - low).square().mean() / (4 * np.log(2))
    assert 0.95 < parkinson / (close - open_).square().mean() < 1.15


def test_extremes_know_nothing_of_the_day_s_shock(bars: Bars) -> None:
    """Beyond open and close, high and low lie as far apart on average however large the move is."""
    open_, high, low, close = (bars.ohlcv[..., field].log() for field in (OPEN, HIGH, LOW, CLOSE))
    body = (close - open_).square()
    # Of a Brownian bridge each is the day's variance times an exponential number; what they share cancels.
    above, below = (((2 * extreme - open_ - close).square() - body).clamp(min=1e-9) for extreme in (high, low))
    size = (body + 1e-8).log()
    together = torch.corrcoef(torch.stack([(above / below).log().flatten(), size.flatten()]))[0, 1]
    assert abs(together) < 0.02


def test_volume_follows_volatility(bars: Bars) -> None:
    volume = bars.ohlcv[:, 1:, :, VOLUME].log()
    size = log_returns(bars).abs()
    assert autocorrelation(volume, 1).mean() > 0.5
    centred = [x - x.mean(dim=1, keepdim=True) for x in (volume, size)]
    together = (centred[0] * centred[1]).mean(dim=1) / (volume.std(dim=1) * size.std(dim=1))
    assert together.mean() > 0.1


def test_regimes_differ_in_the_right_direction(pinned: dict[str, Bars]) -> None:
    drift = {name: log_returns(bars).mean().item() * 252 for name, bars in pinned.items()}
    assert drift["bull"] > drift["sideways"] > drift["bear"] > drift["crisis"]
    volatility = {name: annual_volatility(bars).mean().item() for name, bars in pinned.items()}
    assert volatility["crisis"] > 1.5 * volatility["bear"]
    assert volatility["bear"] > 1.2 * volatility["sideways"]
    assert volatility["bear"] > 1.2 * volatility["bull"]
    correlation = {name: mean_correlation(bars).mean().item() for name, bars in pinned.items()}
    assert correlation["crisis"] > correlation["bear"] > correlation["bull"] > correlation["sideways"]


def test_regimes_keep_their_stated_drift(pinned: dict[str, Bars]) -> None:
    for name in ("bull", "bear", "sideways"):
        path_means = log_returns(pinned[name]).mean(dim=(1, 2)) * 252
        error = path_means.std() / len(path_means) ** 0.5
        assert abs(path_means.mean() - REGIMES[name].drift) < 4 * error


def test_exits_are_laws_over_the_other_regimes() -> None:
    for name, regime in REGIMES.items():
        assert set(regime.exits) == set(REGIMES) - {name}
        assert sum(regime.exits.values()) == pytest.approx(1)


def test_path_depends_on_seed_and_number_alone() -> None:
    many = synthetic_bars(9, 300, 12, seed=7).ohlcv
    few = synthetic_bars(4, 200, 5, seed=7).ohlcv
    assert torch.equal(few, many[:4, :200, :5])
    assert torch.equal(few, synthetic_bars(4, 200, ["A", "B", "C", "D", "E"], seed=7).ohlcv)


def test_path_is_the_same_in_another_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = synthetic_bars(5, 100, 3, seed=7).ohlcv
    monkeypatch.setattr("vecenv.market.synthetic._BARS_PER_BLOCK", 600)
    assert torch.equal(whole, synthetic_bars(5, 100, 3, seed=7).ohlcv)


def test_paths_symbols_and_seeds_differ() -> None:
    returns = log_returns(synthetic_bars(3, 300, 3, seed=7))
    other_seed = log_returns(synthetic_bars(1, 300, 1, seed=8))
    series = torch.cat([returns.transpose(1, 2).reshape(9, -1), other_seed[..., 0]])
    matrix = torch.corrcoef(series) - torch.eye(10)
    assert matrix.abs().max() < 0.9
    assert matrix[:3, 3:].abs().max() < 0.25
    assert matrix[9, :9].abs().max() < 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_paths": 0}, "num_paths"),
        ({"num_days": 0}, "num_days"),
        ({"symbols": 0}, "symbol"),
        ({"symbols": []}, "symbol"),
        ({"symbols": "RELIANCE"}, "RELIANCE"),
        ({"symbols": ["TCS", "INFY", "TCS"]}, "repeated symbols: TCS"),
        ({"regime": "boom"}, "bull, bear, sideways, crisis"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        synthetic_bars(**{"num_days": 10, "symbols": 2, **arguments})


@pytest.mark.gpu
def test_cuda_agrees_with_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    on_cpu = synthetic_bars(2, 300, 4, seed=7).ohlcv
    on_gpu = synthetic_bars(3, 300, 4, seed=7, device="cuda").ohlcv[:2].cpu()
    # The devices' logarithms differ in the last bit, which may move a rounded price by a cent.
    assert (on_cpu - on_gpu).abs()[..., :VOLUME].max() < 3 * CENT
    assert torch.equal(on_gpu, synthetic_bars(2, 300, 4, seed=7, device="cuda").ohlcv.cpu())
