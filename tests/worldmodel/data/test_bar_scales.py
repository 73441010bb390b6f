"""Causal scales of gap, wicks and volume against plain numbers."""

from __future__ import annotations

import math

import pytest
import torch

from vecenv.worldmodel.data.bar_scales import BarScales

DAYS = [[0.5, 0.2, 0.1, 0.3, 0.4], [0.0, -0.3, 0.0, 0.0, -9.0], [-7.0, 1.0, 20.0, 3.0, 0.1]]
"""Gap, body, upper and lower wick, volume of one symbol."""


def limited(number, bound):
    return max(-bound, min(bound, number))


def test_means_by_plain_numbers():
    gap, wicks, volume, still = 0.25, -0.4, 0.16, 0.05
    scales = BarScales.typical(torch.zeros(1, dtype=torch.float64))
    for day in DAYS:
        scaled = torch.tensor([day], dtype=torch.float64)
        log_wicks = math.log(min(day[2] + day[3], 8.0) + 0.05)
        expected = [limited(day[0], 4.0) / math.sqrt(gap), (log_wicks - wicks) / 0.6, day[4] / math.sqrt(volume)]
        assert scales.standardised(scaled)[0].tolist() == pytest.approx(expected)
        scales = scales.after(BarScales.of_day(scaled), torch.tensor([True]))
        gap = 0.99 * gap + 0.01 * limited(day[0], 4.0) ** 2
        wicks = 0.99 * wicks + 0.01 * log_wicks
        volume = 0.99 * volume + 0.01 * limited(day[4], 4.0) ** 2
        still = 0.99 * still + 0.01 * (day[0] == 0)
        assert [float(part) for part in scales] == pytest.approx([gap, wicks, volume, still])
    shown = [0.5 * math.log(gap / 0.25), wicks + 0.4, 0.5 * math.log(volume / 0.16), 5 * (still - 0.05)]
    assert scales.features()[0].tolist() == pytest.approx(shown, rel=1e-6)


def test_a_symbol_without_a_bar_keeps_its_scales_and_those_of_still_days_stay_above_zero():
    scales, here = BarScales.typical(torch.zeros(2, dtype=torch.float64)), torch.tensor([True, False])
    for _ in range(2000):
        after = scales.after(BarScales.of_day(torch.zeros(2, 5, dtype=torch.float64)), here)
        assert all(float(new[1]) == float(old[1]) for old, new in zip(scales, after, strict=True))
        scales = after
    assert [float(part[0]) for part in scales] == pytest.approx([1e-4, math.log(0.05), 1e-4, 1.0], rel=1e-6)
