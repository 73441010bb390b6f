"""Forecasts of a whole tape, block by block, each by models of earlier rows, with linear baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vecenv.tasks.crypto_lob.factors.table import FACTORS
from vecenv.tasks.crypto_lob.forecasts.fit import FitSettings, fitted_network, forecasts
from vecenv.tasks.crypto_lob.forecasts.folds import Fold
from vecenv.tasks.crypto_lob.forecasts.linear import chosen_ridge, least_squares
from vecenv.tasks.crypto_lob.forecasts.network import ForecastNetwork

NETWORK, RIDGE, FLOW = "network", "ridge on all factors", "regression on order flow"
"""Names of the forecasters."""

FLOW_FACTORS = ("flow_10", "flow_30", "flow_60", "flow_300")
"""Factors of the regression on order-flow imbalance."""


@dataclass(frozen=True, eq=False)
class WalkForward:
    """Forecasts of a tape, (T, H), by forecaster; NaN before the first fold.

    For each row, ``mean`` is the mean move of the rows that its models learned from, (T, H), and ``learned`` the end of
    the rows whose moves they have seen, 0 for none, (T,).
    """

    forecasts: dict[str, np.ndarray]
    mean: np.ndarray
    learned: np.ndarray


def forecast_forward(
    factors: np.ndarray, moves: np.ndarray, folds: Sequence[Fold], settings: FitSettings, told: Callable[[Fold], None]
) -> WalkForward:
    """Fit the models of each fold, in order of time, and forecast its block; ``told`` is called after each.

    ``factors`` are all of `FACTORS`, in its order, (T, F), ``moves`` in basis points, NaN where unknown, (T, H).
    """
    flows = factors[:, [list(FACTORS).index(name) for name in FLOW_FACTORS]]
    made = {name: np.full(moves.shape, np.nan, np.float32) for name in (NETWORK, RIDGE, FLOW)}
    mean, learned = np.full(moves.shape, np.nan), np.zeros(len(moves), np.int64)
    for fold in folds:
        rows, before = slice(fold.first, fold.end), slice(0, fold.learned)
        flow = least_squares(flows[before], moves[before])
        ridge = chosen_ridge(factors, moves, fold.fitted, slice(fold.judged, fold.learned))
        network = network_of(factors, moves, fold, settings)
        made[FLOW][rows] = flow(flows[rows])
        made[RIDGE][rows] = ridge(factors[rows])
        made[NETWORK][rows] = forecasts(network, torch.from_numpy(factors), fold.first, fold.end).numpy()
        mean[rows], learned[rows] = flow.mean, fold.learned
        told(fold)
    return WalkForward(made, mean, learned)


def network_of(factors: np.ndarray, moves: np.ndarray, fold: Fold, settings: FitSettings) -> ForecastNetwork:
    """Fit a network to the rows of a fold, from the ridge regression on."""
    ridge = chosen_ridge(factors, moves, fold.fitted, slice(fold.judged, fold.learned))
    return fitted_network(torch.from_numpy(factors), torch.from_numpy(moves).float(), fold, ridge, settings)
