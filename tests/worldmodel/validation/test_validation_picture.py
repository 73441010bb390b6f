"""Pictures of validation: colours, orders of stocks, bands, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from vecenv.worldmodel.metrics.forecast import forecast_scores
from vecenv.worldmodel.metrics.intervals import drawn_origins
from vecenv.worldmodel.metrics.windows import Windows, align_windows
from vecenv.worldmodel.validation.picture import COLOURS, OTHER_COLOURS, cluster_order, colours
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


def test_bands_are_quantiles_of_the_curves_of_drawn_origins():
    real = windows()
    found = bands(real, draws=20)
    assert found.keys() == CURVES.keys()
    for name in ("volatility", "drawdown"):
        again = [CURVES[name](real.select(drawn)) for drawn in drawn_origins(12, draws=20)]
        for band, share in zip(found[name], (0.025, 0.975), strict=True):
            assert band == pytest.approx(np.quantile(again, share, axis=0))
    # Nine origins are three blocks.
    assert bands(windows(9), draws=2).keys() == CURVES.keys() and bands(windows(8)) == {}


def test_tails_and_fans_by_their_definitions():
    real = windows()
    drawn, returns = sketch(real, forecast_scores(torch.randn(5, 300, 4), torch.zeros(5, 4))), real.returns[:, 0]
    assert drawn.pit.shape == (20,) and 0.3 < drawn.pit.mean() < 0.7 and sketch(real).pit.shape == (0,)
    assert drawn.curves["volatility"] == pytest.approx(np.sqrt((real.standardised.numpy() ** 2).mean((0, 1, 3))))
    z = ((returns - returns.mean((0, 1))) / returns.flatten(0, 1).std(0, correction=0)).abs().flatten().sort().values
    assert drawn.tail[0] == pytest.approx(float(z[-1])) and drawn.tail_share[0] == 1 / len(z)
    assert drawn.tail[-1] == pytest.approx(float(z[len(z) // 2])) and drawn.tail_share[-1] == 0.5
    market = 100 * np.expm1(returns.mean(-1).cumsum(-1).numpy())
    assert drawn.fan.shape == (5, 12, 40) and all(fan == pytest.approx(market) for fan in drawn.fan)
