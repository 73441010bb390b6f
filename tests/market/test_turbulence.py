"""Turbulence against a plain pandas reference; gaps, late listings, flat symbols."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from vecenv.market.bar_series import turbulence

LOOKBACK = 20


def random_closes(seed: int, paths: int, days: int, symbols: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shocks = torch.randn(paths, days, symbols, generator=generator, dtype=torch.float64)
    market = torch.randn(paths, days, 1, generator=generator, dtype=torch.float64)
    return 100.0 * (0.01 * (shocks + market)).cumsum(1).exp()


def ragged(seed: int) -> tuple[Tensor, Tensor]:
    """Closes with a late listing, a gap, an early end and a symbol that never lists."""
    close = random_closes(seed, 2, 90, 5)
    listed = torch.ones_like(close, dtype=torch.bool)
    listed[0, :30, 0] = False
    listed[0, 45, 1] = False
    listed[1, 60:, 2] = False
    listed[:, :, 4] = False
    return close.masked_fill(~listed, torch.nan), listed


def reference(closes: pd.DataFrame, lookback: int) -> np.ndarray:
    """FinRL's definition for one path, a day at a time, of the symbols without a missing return."""
    returns = closes / closes.shift() - 1.0
    values = np.zeros(len(closes))
    for day in range(lookback + 1, len(closes)):
        window = returns.iloc[day - lookback : day + 1].dropna(axis=1)
        if window.shape[1] > 0:
            deviation = window.iloc[-1] - window.iloc[:-1].mean()
            inverse = np.linalg.pinv(np.atleast_2d(np.cov(window.iloc[:-1].T)), hermitian=True)
            values[day] = deviation @ inverse @ deviation
    return values


def test_equals_a_plain_reference(monkeypatch: pytest.MonkeyPatch):
    close, listed = ragged(seed=1)
    whole = turbulence(close, listed, LOOKBACK)
    for path in range(len(close)):
        expected = reference(pd.DataFrame(close[path].numpy()), LOOKBACK)
        np.testing.assert_allclose(whole[path].numpy(), expected, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr("vecenv.market.bar_series.MAX_WINDOW_ELEMENTS", 1)
    torch.testing.assert_close(turbulence(close, listed, LOOKBACK), whole, rtol=1e-12, atol=1e-12)
    close = random_closes(seed=2, paths=1, days=40, symbols=30)
    listed = torch.ones_like(close, dtype=torch.bool)
    expected = reference(pd.DataFrame(close[0].numpy()), LOOKBACK)
    values = turbulence(close, listed, LOOKBACK)
    np.testing.assert_allclose(values[0].numpy(), expected, rtol=1e-6)
    assert (values[:, : LOOKBACK + 1] == 0.0).all() and (values[:, LOOKBACK + 1 :] > 0.0).all()
    few, here = close[..., :4], listed[..., :4]
    with_flat = torch.cat([few, torch.full_like(few[..., :1], 103.3)], -1)
    flat = turbulence(with_flat, listed[..., :5], LOOKBACK)
    torch.testing.assert_close(flat, turbulence(few, here, LOOKBACK))
    gaps = here.clone()
    gaps[:, ::LOOKBACK] = False
    assert (turbulence(few, gaps, LOOKBACK) == 0.0).all()
    assert (turbulence(few[:, : LOOKBACK + 1], here[:, : LOOKBACK + 1], LOOKBACK) == 0.0).all()
    with pytest.raises(ValueError, match="at least 2 days, got 1"):
        turbulence(few, here, lookback=1)
    with pytest.raises(ValueError, match=r"listed \(1, 39, 4\)"):
        turbulence(few, here[:, 1:])


@pytest.mark.realdata
@pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set")
def test_equals_column_of_finrl_file():
    """On the file's last days, which alone have a year of returns before them in the file."""
    table = pd.read_csv(Path(os.environ["VECENV_DATA"]) / "finrl_format_dow29.csv")
    close = torch.tensor(table.pivot(index="date", columns="tic", values="close").to_numpy())[None]
    values = turbulence(close, torch.ones_like(close, dtype=torch.bool))[0, 253:].numpy()
    np.testing.assert_allclose(values, table.groupby("date").turbulence.first()[253:], rtol=1e-6)
