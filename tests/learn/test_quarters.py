"""Windows of quarterly selection: disjoint, apart by the embargo, growing, and tiled; and their threshold."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from vecenv.learn.quarters import QuarterConfig, Span, quarters, turbulence_threshold

SMALL = QuarterConfig(min_training=50, validation=20, trading=10, embargo=3)


def test_windows_by_hand():
    first, second, third = quarters(first_day=5, num_days=113, config=SMALL)
    # 5 + 50 days, 3 apart, 21 days of 20 returns, 3 apart, 11 days of 10 returns.
    assert (first.training, first.validation, first.trading) == (Span(0, 55), Span(58, 79), Span(82, 93))
    assert (second.training, second.validation, second.trading) == (Span(0, 65), Span(68, 89), Span(92, 103))
    assert third.trading == Span(102, 113)


@pytest.mark.parametrize("embargo", [0, 1, 20])
def test_windows_share_no_day_and_quarters_no_return(embargo):
    config = QuarterConfig(min_training=60, validation=30, trading=15, embargo=embargo)
    found = quarters(10, 400, config)
    for quarter in found:
        days = [set(range(*span)) for span in (quarter.training, quarter.validation, quarter.trading)]
        for one, other in pairwise(days):
            assert min(other) - max(one) == embargo + 1
    for one, other in pairwise(found):
        assert other.trading.start == one.trading.stop - 1 and other.training.stop > one.training.stop
    assert found[-1].trading.stop + config.trading > 400


def test_a_market_without_a_whole_quarter_is_refused():
    assert len(quarters(5, 93, SMALL)) == 1
    with pytest.raises(ValueError, match="a quarter of trading needs 93 days, 5 of them warm-up; there are 92"):
        quarters(5, 92, SMALL)


def test_the_threshold_is_a_quantile_of_the_days_that_have_a_value():
    series = torch.cat([torch.zeros(50), torch.arange(1.0, 102.0)])
    assert turbulence_threshold(series, QuarterConfig(turbulence_quantile=0.9)) == pytest.approx(91.0)
    assert turbulence_threshold(series, QuarterConfig(turbulence_quantile=1.0)) == pytest.approx(101.0)
    with pytest.raises(ValueError, match="the turbulence index has no value in the training window"):
        turbulence_threshold(torch.zeros(9), QuarterConfig())
