"""No two purposes draw from the same random stream."""

from __future__ import annotations

from itertools import pairwise

import pytest

from vecenv.core.streams import FIRST_OF_GENERATORS, EpisodeStream
from vecenv.market.streams import BaselineStream, NeuralStream, PlantedStream, PortfolioStream, SyntheticStream

WIDTH = 1 << 24
"""Streams that belong to each number from the first market's on."""


@pytest.mark.parametrize("market", [SyntheticStream, PlantedStream, BaselineStream, NeuralStream])
def test_streams_of_a_market_and_its_episodes_lie_apart(market):
    ranges = sorted((*market, *PortfolioStream))
    assert len(EpisodeStream) == len(EpisodeStream.__members__) and len(market) == len(market.__members__)
    assert max(EpisodeStream) < FIRST_OF_GENERATORS <= ranges[0]
    assert all(after - before >= WIDTH for before, after in pairwise(ranges))
    assert ranges[-1] + WIDTH <= 1 << 32
