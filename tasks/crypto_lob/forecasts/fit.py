"""Walk-forward training of forecasting models, and their forecasts of a whole tape, block by block.

What is forecast are smoothed moves of the mid over several horizons. Folds walk forward: a model learns from rows whose
outcomes are known before the first row that it forecasts.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from vecenv.core.foreign_json import read_json
from vecenv.learn.checkpoints import check_same_form, load_sealed, network_of, save_sealed
from vecenv.system.memory import check_memory
from vecenv.tasks.crypto_lob.factors import FACTORS, BookSeries
from vecenv.tasks.crypto_lob.forecast_file import HORIZONS
from vecenv.tasks.crypto_lob.forecasts.models import (
    CONTEXT,
    ForecastNetwork,
    Regression,
    chosen_ridge,
    deviations,
    least_squares,
)
from vecenv.tasks.crypto_lob.forecasts.settings import FitSettings

LEAST_OPEN = 0.75
"""Share of the rows of a horizon that must be no holes."""


def smoothed_moves(series: BookSeries) -> np.ndarray:
    """Return the mean logarithm of the mid over the rows of each horizon less that of the row, in basis points.

    Smoothed labels as in Zhang, Zohren and Roberts, "DeepLOB", IEEE Transactions on Signal Processing 67(11), 2019,
    equation (3), from the row's own mid. NaN where the row is a hole, where the tape ends before the horizon, or where
    more than a quarter of its rows are holes. Shape: (T, H), float64.
    """
    level = series.log_mid - series.log_mid[0]
    moves = np.full((len(level), len(HORIZONS)), np.nan)
    for place, rows in enumerate(map(series.rows, HORIZONS)):
        if rows >= len(level):
            continue
        known = _sums_after(series.open.astype(np.float64), rows) >= LEAST_OPEN * rows
        mean = _sums_after(level, rows) / rows
        now = level[: len(mean)]
        moves[: len(mean), place] = np.where(known & series.open[: len(mean)], mean - now, np.nan)
    return moves


def _sums_after(values: np.ndarray, rows: int) -> np.ndarray:
    """Return the sum of the ``rows`` values after each row that has them. Shape: (T - rows,)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[rows + 1 :] - total[1 : len(values) - rows + 1]


@dataclass(frozen=True)
class Fold:
    """Rows of one model. A move of a row before ``learned`` ends before ``first``, where the forecasts begin.

    Weights are fitted to rows before ``fitted``; those from ``judged`` to ``learned`` choose among weights. Rows
    between share moves with both.
    """

    fitted: int
    judged: int
    learned: int
    first: int
    end: int


def fold_before(first: int, end: int, purge: int, judged_share: float) -> Fold:
    """Return the fold of a model that forecasts from a row on.

    ``purge`` is the rows of the longest horizon, ``judged_share`` the share of the rows before, their end, that chooses
    among weights.
    """
    learned = first - purge
    judged = learned - round(judged_share * learned)
    return Fold(fitted=judged - purge, judged=judged, learned=learned, first=first, end=end)


def walk_forward(num_rows: int, count: int, first_share: float, purge: int, judged_share: float) -> list[Fold]:
    """Divide a tape: the first share is only learned from, the rest is forecast in blocks of equal length.

    Raises ValueError if a fold has no rows to learn from, or to judge by.
    """
    first = round(first_share * num_rows)
    edges = [first + (num_rows - first) * number // count for number in range(count + 1)]
    folds = [fold_before(low, high, purge, judged_share) for low, high in pairwise(edges)]
    if folds[0].fitted < purge or folds[0].learned <= folds[0].judged or edges[0] == edges[1]:
        raise ValueError(
            f"{num_rows:,} rows are too few for {count} folds after the first {first_share:.0%} of them, with "
            f"{purge:,} rows between what is learned from and what is forecast"
        )
    return folds


FORMAT = "vecenv-book-forecasts"

CHUNK = 256
"""Rows of a window that are forecast, after `CONTEXT` rows that are only read."""

NETWORK, RIDGE, FLOW = "network", "ridge on all factors", "regression on order flow"
"""Names of the forecasters."""

FLOW_FACTORS = ("flow_10", "flow_30", "flow_60", "flow_300")
"""Factors of the regression on order-flow imbalance."""


def new_network(settings: FitSettings, num_factors: int, num_horizons: int) -> ForecastNetwork:
    """Return a network of some settings."""
    return ForecastNetwork(settings.network, num_factors, num_horizons, settings.hidden, settings.dropout)


def fitted_network(
    factors: Tensor, moves: Tensor, fold: Fold, start: Regression, settings: FitSettings
) -> ForecastNetwork:
    """Train a network from a linear forecast, and keep the weights with the least error on the fold's rows to judge by.

    ``moves``, (T, H), float32, are in basis points, NaN where unknown; nothing from the fold's ``learned`` on is read.
    """
    # Weights, their gradients and two moments.
    needed = 4 * 4 * settings.hidden * (factors.shape[1] + settings.hidden)
    check_memory(needed, "cpu", f"networks of a width (hidden) of {settings.hidden:,}")
    # The caller's random numbers stay as they were.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = new_network(settings, factors.shape[1], moves.shape[1])
        network.start_from(start, deviations(moves[: fold.fitted].double().numpy()))
        optimiser = torch.optim.AdamW(
            network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        best, kept, waited = _error(network, factors, moves, fold), copy.deepcopy(network.state_dict()), 0
        for _ in range(settings.epochs):
            _pass_over(network, optimiser, factors[: fold.fitted], moves[: fold.fitted], settings.batch)
            error = _error(network, factors, moves, fold)
            waited = 0 if error < best else waited + 1
            if error < best:
                best, kept = error, copy.deepcopy(network.state_dict())
            if waited >= settings.patience:
                break
        network.load_state_dict(kept)
        return network.eval()


def forecasts(network: ForecastNetwork, factors: Tensor, first: int, end: int) -> Tensor:
    """Return forecasts in basis points, each from the rows up to its own. Shapes: (T, F) -> (end - first, H)."""
    # Windows lie on a fixed grid: what a row's forecast has read does not depend on where the forecasts begin.
    starts = torch.arange(first // CHUNK * CHUNK, end, CHUNK)
    network.eval()
    with torch.inference_mode():
        parts = [network(_windows(factors[:end], part))[:, CONTEXT:] for part in starts.split(64)]
    offset = first - int(starts[0])
    return torch.cat(parts).flatten(0, 1)[offset : offset + end - first]


def _windows(rows: Tensor, starts: Tensor) -> Tensor:
    """Return context and chunk from each start; rows before the first and after the last repeat these."""
    places = starts[:, None] + torch.arange(-CONTEXT, CHUNK)
    return rows[places.clamp(0, len(rows) - 1)]


def _pass_over(
    network: ForecastNetwork, optimiser: torch.optim.Optimizer, factors: Tensor, moves: Tensor, batch: int
) -> None:
    """Update the weights on all windows, which begin at a random row, in random order."""
    network.train()
    offset = int(torch.randint(CHUNK, ()))
    # Few rows may have no window from there on.
    starts = torch.arange(offset, max(offset, len(factors) - CHUNK + 1), CHUNK)
    for part in starts[torch.randperm(len(starts))].split(batch):
        outcome = moves[part[:, None] + torch.arange(CHUNK)]
        loss = _squared_error(network(_windows(factors, part))[:, CONTEXT:], outcome, network.move)
        if loss is None:
            continue
        optimiser.zero_grad()
        loss.backward()
        clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()


def _error(network: ForecastNetwork, factors: Tensor, moves: Tensor, fold: Fold) -> float:
    """Return the mean squared error of the rows to judge by, in variances of the moves."""
    with torch.no_grad():
        forecast = forecasts(network, factors, fold.judged, fold.learned)
        error = _squared_error(forecast, moves[fold.judged : fold.learned], network.move)
    return float("inf") if error is None else float(error)


def _squared_error(forecast: Tensor, outcome: Tensor, move: Tensor) -> Tensor | None:
    """Return the mean over the known outcomes, in variances of the moves; None if none is known."""
    known = outcome.isfinite()
    if not known.any():
        return None
    return (((forecast - outcome.nan_to_num(0.0)) / move)[known] ** 2).mean()


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
        network = network_of_fold(factors, moves, fold, settings)
        made[FLOW][rows] = flow(flows[rows])
        made[RIDGE][rows] = ridge(factors[rows])
        made[NETWORK][rows] = forecasts(network, torch.from_numpy(factors), fold.first, fold.end).numpy()
        mean[rows], learned[rows] = flow.mean, fold.learned
        told(fold)
    return WalkForward(made, mean, learned)


def network_of_fold(factors: np.ndarray, moves: np.ndarray, fold: Fold, settings: FitSettings) -> ForecastNetwork:
    """Fit a network to the rows of a fold, from the ridge regression on."""
    ridge = chosen_ridge(factors, moves, fold.fitted, slice(fold.judged, fold.learned))
    return fitted_network(torch.from_numpy(factors), torch.from_numpy(moves).float(), fold, ridge, settings)


@dataclass(frozen=True, eq=False)
class ForecastModel:
    """A network in evaluation mode, and what it was fitted to.

    ``seen_until`` is the time in milliseconds of the latest price that it was fitted to, ``step_gap`` in seconds.
    """

    network: ForecastNetwork
    settings: FitSettings
    step_gap: float
    seen_until: int
    source: str

    def save(self, path: Path) -> None:
        """Write the model; an interruption leaves the file before."""
        record = {
            "settings": asdict(self.settings),
            "step_gap": self.step_gap,
            "seen_until_ms": self.seen_until,
            "source": self.source,
            "factors": list(FACTORS),
            "horizons": list(HORIZONS),
        }
        save_sealed(path, FORMAT, self.network.state_dict(), {"record": json.dumps(record)})

    @classmethod
    def load(cls, path: Path) -> ForecastModel:
        """Read a model.

        Raises FileNotFoundError if there is no such file, ValueError if it is of another kind, damaged, or of other
        factors or horizons.
        """
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such model; vecenv factors train writes one")
        tensors, metadata = load_sealed(path, FORMAT, "model of vecenv factors", "cpu")
        try:
            record = read_json(metadata["record"])
            settings = FitSettings(**record["settings"])
            known = {"settings": asdict(settings), "step_gap": 0.0, "seen_until_ms": 0, "source": ""}
            check_same_form(asdict(settings), asdict(FitSettings()), "settings")
            check_same_form(record, known | {name: record[name] for name in ("factors", "horizons")}, "record")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: its record cannot be read ({error})") from error
        if record["factors"] != list(FACTORS) or record["horizons"] != list(HORIZONS):
            raise ValueError(f"{path}: of other factors or horizons than this version's; train it again")
        network = network_of(path, lambda: new_network(settings, len(FACTORS), len(HORIZONS)), tensors)
        return cls(network.eval(), settings, record["step_gap"], record["seen_until_ms"], record["source"])
