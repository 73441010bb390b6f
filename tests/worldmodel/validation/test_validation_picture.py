"""Pictures of validation: colours, orders of stocks, bands, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from vecenv.worldmodel.metrics.forecast import forecast_scores
from vecenv.worldmodel.metrics.windows import Windows, align_windows
from vecenv.worldmodel.validation.cluster_order import cluster_order
from vecenv.worldmodel.validation.picture import COLOURS, OTHER_COLOURS, colours
from vecenv.worldmodel.validation.sketch import CURVES, bands, sketch


def windows(origins: int = 12) -> Windows:
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(2, origins, 60 + 40, 4, generator=generator, dtype=torch.float64)
    close = 100.0 * (0.02 * steps[0]).cumsum(1).exp()
    bars = torch.stack([close, close * 1.01, close * 0.99, close, (12.0 + steps[1]).exp()], dim=-1)
    scale = torch.full((4,), 0.02, dtype=torch.float64)
    return align_windows(bars[:, :60], bars[:, 60:], bars[:, None, 60:], scale)[0]


def test_a_model_has_its_colour_whoever_else_is_in_the_run():
    assert len(set(COLOURS.values()) | set(OTHER_COLOURS)) == len(COLOURS) + len(OTHER_COLOURS)
    many, few = colours([*COLOURS, "mine", "yours"]), colours(["mine", "FHS"])
    assert many["FHS"] == few["FHS"] == COLOURS["FHS"] and many["mine"] == few["mine"] == OTHER_COLOURS[0]
    assert many["yours"] == OTHER_COLOURS[1]


def test_stocks_of_a_sector_lie_side_by_side():
    """Three sectors in a random order; each is a block, and two that are related are neighbours."""
    sector = np.array([0, 1, 2, 1, 0, 2, 2, 1, 0, 0])
    related = np.array([[0.8, 0.1, 0.3], [0.1, 0.8, 0.1], [0.3, 0.1, 0.8]])
    correlation = related[sector][:, sector]
    np.fill_diagonal(correlation, 1.0)
    ordered = sector[cluster_order(correlation)]
    changes = np.flatnonzero(np.diff(ordered))
    assert len(changes) == 2 and sorted(ordered.tolist()) == sorted(sector.tolist())
    assert [int(ordered[0]), int(ordered[-1])].count(1) == 1


def test_clusters_are_those_of_average_linkage():
    """Every cluster of SciPy's tree is a run of neighbours in the order."""
    values = np.random.default_rng(0).normal(size=(300, 12)) + np.random.default_rng(1).normal(size=(300, 3)).repeat(
        4, 1
    )
    correlation = np.corrcoef(values.T)
    place = np.argsort(cluster_order(correlation))
    tree = hierarchy.linkage(squareform(1.0 - correlation, checks=False), "average")
    leaves = {stock: [stock] for stock in range(12)}
    for number, (left, right, *_) in enumerate(tree):
        leaves[12 + number] = leaves[int(left)] + leaves[int(right)]
        places = sorted(place[leaves[12 + number]])
        assert places[-1] - places[0] == len(places) - 1


def test_unknown_correlations_are_none():
    correlation = np.array([[1.0, np.nan, 0.9], [np.nan, 1.0, 0.1], [0.9, 0.1, 1.0]])
    assert cluster_order(correlation).tolist() in ([0, 2, 1], [1, 2, 0])


def test_curves_by_their_definitions():
    real = windows()
    drawn = sketch(real, forecast_scores(torch.randn(5, 300, 4), torch.zeros(5, 4)))
    z = real.standardised.numpy()
    assert drawn.curves["volatility"] == pytest.approx(np.sqrt((z**2).mean((0, 1, 3))))
    volume = drawn.curves["volume_pairs"]
    assert len(volume) == 101 and bool((np.diff(volume) >= 0).all()) and -1 <= volume[0] <= volume[-1] <= 1
    assert drawn.pit.shape == (20,) and 0.3 < drawn.pit.mean() < 0.7
    assert sketch(real).pit.shape == (0,) and drawn.curves.keys() == CURVES.keys()


@pytest.mark.assembly
def test_bands_hold_the_real_curves():
    real = windows()
    found = bands(real, draws=100)
    assert found.keys() == CURVES.keys()
    curve = sketch(real).curves["volatility"]
    low, high = found["volatility"]
    assert low.shape == curve.shape and float(((low <= curve) & (curve <= high)).mean()) > 0.9
    assert bool((low < high).all())
    assert bands(windows(8)) == {}
