"""Cuts of bars: every tensor is cut alike, and what is left of a warm-up is known."""

from __future__ import annotations

from dataclasses import replace

import torch

from vecenv.market.synthetic import synthetic_bars


def test_days_cut_every_tensor_and_what_is_left_of_the_warm_up():
    bars = synthetic_bars(2, 12, 3)
    values = torch.rand(2, 12, 3, dtype=torch.float64)
    bars = replace(bars, columns={"score": values}, context={"vix": values[..., 0]}, warm_up=5)
    cut = bars.days(3, 9)
    assert list(cut.dates) == list(bars.dates[3:9]) and cut.symbols == bars.symbols
    assert torch.equal(cut.ohlcv, bars.ohlcv[:, 3:9])
    assert torch.equal(cut.columns["score"], values[:, 3:9]) and torch.equal(cut.context["vix"], values[:, 3:9, 0])
    assert cut.warm_up == 2 and bars.days(6, 12).warm_up == 0
    assert str(bars.dates[8]) in cut.source
