"""The synthetic market: stylised facts, valid bars, and paths that depend on seed and number alone."""

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
    """Return the mean over paths of their correlation matrices. Shape: (K, K)."""
    return torch.stack([torch.corrcoef(path.T) for path in log_returns(bars)]).mean(0)


def mean_correlation(bars: Bars) -> float:
    """Of two different symbols."""
    matrix = correlations(bars)
    return float(matrix[~torch.eye(len(matrix), dtype=torch.bool)].mean())


def test_bars_are_valid(bars: Bars):
    open_, high, low, close = (bars.ohlcv[..., field] for field in (OPEN, HIGH, LOW, CLOSE))
    assert bars.ohlcv.isfinite().all() and bars.ohlcv.dtype == torch.float64
    assert (low <= torch.minimum(open_, close)).all() and (high >= torch.maximum(open_, close)).all()
    volume = bars.ohlcv[..., VOLUME]
    assert (volume >= 1).all() and torch.equal(volume, volume.round())
    rounding = 2 * CENT / torch.minimum(close[:, :-1], close[:, 1:])
    assert (log_returns(bars).abs() <= DAILY_LIMIT + rounding).all()
    named = synthetic_bars(2, 30, ["RELIANCE", "INFY"])
    assert named.symbols == ("RELIANCE", "INFY") and named.ohlcv.shape == (2, 30, 2, 5)
    assert np.array_equal(named.dates, np.busday_offset("2010-01-04", np.arange(30)))
    assert synthetic_bars(1, 2, 3).symbols == ("SYN00", "SYN01", "SYN02")
    for regime in ("bull", "bear"):
        bars = synthetic_bars(2, 4000, 10, seed=2, regime=regime)
        close, cents = bars.ohlcv[..., CLOSE], bars.ohlcv[..., :VOLUME] * 100
        assert CLOSE_BOUNDS[0] - CENT <= close.min() and close.max() <= CLOSE_BOUNDS[1] + CENT
        assert bars.ohlcv[..., :VOLUME].min() >= PRICE_BOUNDS[0]
        assert bars.ohlcv[..., :VOLUME].max() <= PRICE_BOUNDS[1] < 2**23 * 1e-4
        assert torch.allclose(cents, cents.round(), rtol=0, atol=1e-8)
        # Bounded, yet never stuck at a bound; near the lower one a day's move may be less than a cent.
        assert (log_returns(bars) != 0).double().mean() > 0.9
        assert close.min() < 2.5 if regime == "bear" else close.max() > 700
    for arguments, message in (
        ({"num_paths": 0}, "num_paths must be at least 1, got 0"),
        ({"symbols": 0}, "at least one symbol is needed"),
        ({"symbols": "RELIANCE"}, "got the string 'RELIANCE'"),
        ({"symbols": ["TCS", "INFY", "TCS"]}, "repeated symbols: TCS"),
        ({"symbols": ["B", "A\x1b"]}, r"control characters in symbols: 'A\\x1b'"),
        ({"regime": "boom"}, "unknown regime 'boom', expected one of bull, bear, sideways, crisis"),
    ):
        with pytest.raises(ValueError, match=message):
            synthetic_bars(**{"num_days": 10, "symbols": 2, **arguments})


def test_stylised_facts(bars: Bars) -> None:
    """Ranges of what real daily bars show; the sources are with the generator's constants."""
    returns, volatility = log_returns(bars), annual_volatility(bars)
    centred = returns - returns.mean(dim=1, keepdim=True)
    kurtosis = centred.pow(4).mean(dim=1) / centred.square().mean(dim=1).square()
    open_, high, low, close = (bars.ohlcv[..., field].log() for field in (OPEN, HIGH, LOW, CLOSE))
    matrix, sector = correlations(bars), torch.arange(30) % 6
    same = (sector[:, None] == sector) & ~torch.eye(30, dtype=torch.bool)
    volume, size = bars.ohlcv[:, 1:, :, VOLUME].log(), returns.abs()
    parts = [x - x.mean(dim=1, keepdim=True) for x in (volume, size)]
    together = (parts[0] * parts[1]).mean(dim=1) / (volume.std(dim=1) * size.std(dim=1))
    # Beyond open and close, high and low lie as far apart on average however large the move is: of a Brownian bridge
    # each is the day's variance times an exponential number, and what they share cancels.
    body = (close - open_).square()
    above, below = (((2 * extreme - open_ - close).square() - body).clamp(min=1e-9) for extreme in (high, low))
    pair = torch.stack([(above / below).log().flatten(), (body + 1e-8).log().flatten()])
    for name, value, lowest, highest in (
        ("volatility", volatility.mean(), 0.25, 0.34),
        ("of calm symbols", volatility.quantile(0.05), 0.15, 0.25),
        ("of wild symbols", volatility.quantile(0.95), 0.3, 0.45),
        ("fat tails", kurtosis.median(), 5, 9),
        ("of most symbols", (kurtosis > 4).double().mean(), 0.9, 1),
        ("autocorrelation of returns", autocorrelation(returns, 1).mean(), -0.02, 0.02),
        ("clusters of volatility, 1 day", autocorrelation(size, 1).mean(), 0.12, 0.25),
        ("5 days", autocorrelation(size, 5).mean(), 0.1, 0.22),
        ("20 days", autocorrelation(size, 20).mean(), 0.05, 0.14),
        ("correlation", mean_correlation(bars), 0.25, 0.36),
        ("more in a sector", matrix[same].mean() - matrix[sector[:, None] != sector].mean(), 0.05, 0.2),
        ("overnight", (open_[:, 1:] - close[:, :-1]).square().mean() / returns.square().mean(), 0.17, 0.24),
        # Parkinson 1980: the mean squared range of a Brownian day is 4 log 2 times its variance.
        ("range", (high - low).square().mean() / (4 * np.log(2)) / body.mean(), 0.95, 1.15),
        ("extremes and move", torch.corrcoef(pair)[0, 1], -0.02, 0.02),
        ("persistent volume", autocorrelation(volume, 1).mean(), 0.5, 1),
        ("volume and move", together.mean(), 0.1, 0.5),
    ):
        assert lowest < float(value) < highest or float(value) == highest, (name, float(value))


def test_regimes_are_what_they_are_called_and_paths_depend_on_seed_and_number_alone(
    bars: Bars, pinned: dict[str, Bars], monkeypatch: pytest.MonkeyPatch
):
    drift = {name: log_returns(one).mean().item() * 252 for name, one in pinned.items()}
    assert drift["bull"] > drift["sideways"] > drift["bear"] > drift["crisis"]
    for name in ("bull", "bear", "sideways"):
        path_means = log_returns(pinned[name]).mean(dim=(1, 2)) * 252
        assert abs(path_means.mean() - REGIMES[name].drift) < 4 * path_means.std() / len(path_means) ** 0.5
    volatility = {name: annual_volatility(one).mean().item() for name, one in pinned.items()}
    assert volatility["crisis"] > 1.5 * volatility["bear"] > 1.8 * max(volatility["sideways"], volatility["bull"])
    correlation = {name: mean_correlation(one) for name, one in pinned.items()}
    assert correlation["crisis"] > correlation["bear"] > correlation["bull"] > correlation["sideways"]
    alone = torch.stack([autocorrelation(log_returns(one).abs(), 20).mean() for one in pinned.values()])
    assert autocorrelation(log_returns(bars).abs(), 20).mean() > alone.max() + 0.02
    for name, regime in REGIMES.items():
        assert set(regime.exits) == set(REGIMES) - {name} and sum(regime.exits.values()) == pytest.approx(1)
    many = synthetic_bars(9, 300, 12, seed=7).ohlcv
    few = synthetic_bars(4, 200, 5, seed=7).ohlcv
    assert torch.equal(few, many[:4, :200, :5])
    monkeypatch.setattr("vecenv.market.synthetic._BARS_PER_BLOCK", 600)
    assert torch.equal(few, synthetic_bars(4, 200, ["A", "B", "C", "D", "E"], seed=7).ohlcv)
    returns = log_returns(synthetic_bars(3, 300, 3, seed=7))
    other_seed = log_returns(synthetic_bars(1, 300, 1, seed=8))
    matrix = torch.corrcoef(torch.cat([returns.transpose(1, 2).reshape(9, -1), other_seed[..., 0]])) - torch.eye(10)
    assert matrix.abs().max() < 0.9
    assert matrix[:3, 3:].abs().max() < 0.25 and matrix[9, :9].abs().max() < 0.25
