"""Forecasts: moves and measures by their definitions, models that see only earlier rows, and files that say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

import vecenv
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.crypto_lob.clock import ClockedBooks, clocked
from vecenv.tasks.crypto_lob.config import BookSource, CryptoLobConfig
from vecenv.tasks.crypto_lob.factors.series import BookSeries
from vecenv.tasks.crypto_lob.factors.table import book_series
from vecenv.tasks.crypto_lob.forecasts.command import ApplyFactors, TrainFactors, apply, rows_of, train
from vecenv.tasks.crypto_lob.forecasts.fit import FitSettings, forecasts, new_network
from vecenv.tasks.crypto_lob.forecasts.folds import walk_forward
from vecenv.tasks.crypto_lob.forecasts.forecast_file import forecasts_of_rows
from vecenv.tasks.crypto_lob.forecasts.linear import chosen_ridge, least_squares
from vecenv.tasks.crypto_lob.forecasts.model_file import ForecastModel
from vecenv.tasks.crypto_lob.forecasts.moves import HORIZONS, smoothed_moves
from vecenv.tasks.crypto_lob.forecasts.quality import quality
from vecenv.tasks.crypto_lob.forecasts.walk_forward import FLOW, NETWORK, RIDGE, forecast_forward
from vecenv.tasks.crypto_lob.snapshots import snapshots_of

BOOKS = BookSource(synthetic_hours=2.0, step_gap=1.0, levels=5)
QUICK = FitSettings(epochs=1, hidden=8)


def books_of(source: BookSource) -> ClockedBooks:
    return clocked(snapshots_of(source), source.step_gap, source.max_age)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of forecasts of two hours."""
    out = tmp_path_factory.mktemp("forecasts")
    train(TrainFactors(out=out, books=BOOKS, folds=2, first_share=0.4, fit=QUICK))
    return out


def test_moves_are_those_of_a_loop():
    draw = np.random.default_rng(0)
    rows = 700
    price = 1000.0 + np.cumsum(draw.integers(-1, 2, (rows, 1)), 0)
    sizes, is_open = np.ones((rows, 1)), draw.random(rows) > 0.2
    series = BookSeries(is_open, price, sizes, price + 1, sizes, sizes[:, 0], sizes[:, 0], 1.0)
    got = smoothed_moves(series)
    log = 1e4 * np.log(price[:, 0] + 0.5)
    told = 0
    for row in range(rows):
        for place, horizon in enumerate(HORIZONS):
            after = np.arange(row + 1, row + horizon + 1)
            if after[-1] >= rows or not is_open[row] or is_open[after].sum() < 0.75 * horizon:
                assert np.isnan(got[row, place])
            else:
                assert got[row, place] == pytest.approx(log[after].mean() - log[row], abs=1e-6)
                told += 1
    assert told > 500


@pytest.mark.parametrize("count", [1, 3, 7])
def test_folds_learn_from_rows_whose_moves_end_before_the_forecasts(count):
    purge = 400
    folds = walk_forward(20_000, count, 0.3, purge, 0.2)
    assert folds[0].first == 6_000 and folds[-1].end == 20_000
    assert [fold.end for fold in folds[:-1]] == [fold.first for fold in folds[1:]]
    for fold in folds:
        # The last move of a row ends `purge` rows later.
        assert fold.fitted - 1 + purge < fold.judged
        assert fold.learned - 1 + purge < fold.first


def test_too_few_rows_for_the_folds_are_refused():
    with pytest.raises(ValueError, match="1,200 rows are too few for 6 folds"):
        walk_forward(1_200, 6, 0.25, 400, 0.15)


def test_regressions_are_least_squares():
    draw = np.random.default_rng(1)
    factors = draw.standard_normal((500, 3)) * [1.0, 20.0, 0.1] + 4.0
    moves = np.stack([factors @ [1.0, -0.2, 3.0], -factors[:, 0]], 1) + draw.standard_normal((500, 2))
    moves[::7, 0] = np.nan
    got = least_squares(factors, moves)(factors)
    for place in range(2):
        known = np.isfinite(moves[:, place])
        inputs = np.column_stack([np.ones(500), factors])
        wanted = inputs @ np.linalg.lstsq(inputs[known], moves[known, place], rcond=None)[0]
        assert got[:, place] == pytest.approx(wanted, abs=1e-5)


def test_ridge_takes_the_penalty_that_judges_best():
    """Without any signal, the strongest is best."""
    draw = np.random.default_rng(2)
    factors, moves = draw.standard_normal((600, 30)), draw.standard_normal((600, 1))
    chosen = chosen_ridge(factors, moves, 300, slice(300, 600))
    assert np.abs(chosen.weights).sum() < 0.6 * np.abs(least_squares(factors[:300], moves[:300]).weights).sum()


def test_quality_is_that_of_scipy_and_of_the_definition():
    draw = np.random.default_rng(3)
    move = draw.standard_normal(400)
    forecast = np.round(0.5 * move + draw.standard_normal(400), 1)
    mean, block = np.full(400, 0.1), np.arange(400) // 20
    got = quality(forecast, move, mean, block)
    assert got.information_coefficient.mean == pytest.approx(spearmanr(forecast, move).statistic)
    assert got.r_squared.mean == pytest.approx(1 - ((forecast - move) ** 2).sum() / ((mean - move) ** 2).sum())
    for interval in (got.information_coefficient, got.r_squared):
        assert interval.low < interval.mean < interval.high
    constant = quality(np.zeros(400), move, np.zeros(400), block)
    assert constant.information_coefficient.mean == 0.0 and constant.r_squared.mean == 0.0


@pytest.mark.parametrize("kind", ["gru", "convolution"])
def test_networks_read_no_later_row(kind):
    torch.manual_seed(0)
    network = new_network(replace(QUICK, network=kind), 5, 8).eval()
    torch.nn.init.normal_(network.head.weight)
    rows = torch.randn(1_000, 5)
    before = forecasts(network, rows, 0, 1_000)
    changed = rows.clone()
    changed[600:] = torch.randn(400, 5)
    after = forecasts(network, changed, 0, 1_000)
    assert torch.equal(before[:600], after[:600]) and not torch.isclose(before[600:], after[600:]).any(1).all()
    # What is read is the rows before, whatever the first row that is asked for.
    assert torch.allclose(forecasts(network, rows, 333, 900), before[333:900], atol=1e-6)


@pytest.mark.assembly
def test_forecasts_do_not_know_the_future():
    """Whatever comes after a row, all forecasts up to it stay the same, bit for bit: models, baselines, choices."""
    rows = rows_of(BOOKS)
    other = rows_of(replace(BOOKS, synthetic_seed=5))
    count = len(rows.moves)
    folds = walk_forward(count, 2, 0.4, 400, 0.2)
    cut = folds[0].first + 300
    factors = np.concatenate([rows.factors[:cut], other.factors[cut:]])
    moves = rows.moves.copy()
    # Moves reach into later rows by their horizons.
    for place, horizon in enumerate(HORIZONS):
        moves[cut - horizon :, place] = other.moves[cut - horizon :, place]
    before, after = (
        forecast_forward(*table, folds, QUICK, lambda fold: None)
        for table in ((rows.factors, rows.moves), (factors, moves))
    )
    for name in (NETWORK, RIDGE, FLOW):
        got, again = before.forecasts[name], after.forecasts[name]
        assert np.array_equal(got[:cut], again[:cut], equal_nan=True)
        assert np.isfinite(got[folds[0].first :]).all() and np.isnan(got[: folds[0].first]).all()
        assert not np.array_equal(got[folds[1].first :], again[folds[1].first :])


@pytest.mark.assembly
def test_planted_pressure_is_forecast_and_a_random_walk_is_not():
    coefficients = {}
    for strength in (0.5, 0.0):
        source = replace(BOOKS, synthetic_hours=3.0, synthetic_strength=strength)
        rows = rows_of(source)
        folds = walk_forward(len(rows.moves), 1, 0.5, 400, 0.2)
        made = forecast_forward(rows.factors, rows.moves, folds, replace(QUICK, epochs=3), lambda fold: None)
        place = HORIZONS.index(40)
        known = np.isfinite(rows.moves[:, place]) & np.isfinite(made.forecasts[NETWORK][:, place])
        block = np.arange(len(known)) // 600
        coefficients[strength] = quality(
            made.forecasts[NETWORK][known, place],
            rows.moves[known, place],
            made.mean[known, place],
            block[known],
        )
    assert coefficients[0.5].information_coefficient.low > 0.15
    assert coefficients[0.0].information_coefficient.low < 0.05


def test_training_leaves_the_callers_random_numbers(tmp_path):
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    train(TrainFactors(out=tmp_path, books=BOOKS, folds=1, first_share=0.6, fit=replace(QUICK, epochs=0)))
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.assembly
def test_files_say_what_the_models_have_seen(folder):
    table = pd.read_parquet(folder / "forecasts.parquet")
    seen = table["models_seen_until_ms"]
    none = seen == 0
    assert 0.39 < none.mean() < 0.41 and table[none].filter(like="forecast_").isna().all().all()
    assert (seen[~none] < table["ts_ms"][~none]).all()
    # Two blocks, each by models of all rows before it.
    firsts = table[~none].groupby("models_seen_until_ms")["ts_ms"].first()
    assert len(firsts) == 2 and (firsts - firsts.index == 1_000).all()
    assert (folder / "quality.png").stat().st_size > 10_000


def test_agents_are_shown_the_forecasts(folder):
    options = {name: getattr(BOOKS, name) for name in ("synthetic_hours", "levels")}
    config = CryptoLobConfig(forecasts=str(folder / "forecasts.parquet"), episode_steps=60, **options)
    with pytest.warns(MarketDataWarning, match="no forecast for 2,880 of 7,200 rows"):
        env = vecenv.make("crypto_lob", 64, config=config, compile=False)
    assert env.scenario.feature_names[-8:] == tuple(f"forecast_{seconds}" for seconds in HORIZONS)
    shown = env.reset()["observation"][:, -8:]
    table = pd.read_parquet(folder / "forecasts.parquet").filter(like="forecast_").fillna(0.0).to_numpy()
    assert np.array_equal(shown.numpy(), table[env.state.row.numpy()].astype(np.float32))


def test_files_of_other_books_are_refused(folder, tmp_path):
    path = folder / "forecasts.parquet"
    with pytest.raises(MarketDataError, match=r"forecasts.parquet: row 0, mid: .*made of another book"):
        forecasts_of_rows(path, books_of(replace(BOOKS, synthetic_seed=9)))
    with pytest.raises(MarketDataError, match=r"no row at .*, a time of the tape; made with another step_gap"):
        forecasts_of_rows(path, books_of(replace(BOOKS, step_gap=0.5)))
    with pytest.raises(MarketDataError, match="no such file of forecasts; vecenv factors train writes one"):
        forecasts_of_rows(tmp_path / "none.parquet", books_of(BOOKS))
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(MarketDataError, match=r"text.parquet: no Parquet file of forecasts"):
        forecasts_of_rows(tmp_path / "text.parquet", books_of(BOOKS))
    table = pd.read_parquet(path)
    for name, column, message in (
        ("leak", {"models_seen_until_ms": table["ts_ms"]}, "row 0, models_seen_until_ms: not before the row"),
        ("nan", {"forecast_60": np.nan}, "row 2880, forecast_60: not a number"),
    ):
        table.assign(**column).to_parquet(tmp_path / f"{name}.parquet")
        with pytest.raises(MarketDataError, match=message):
            forecasts_of_rows(tmp_path / f"{name}.parquet", books_of(BOOKS))
    table.drop(columns="mid").to_parquet(tmp_path / "columns.parquet")
    with pytest.raises(MarketDataError, match="missing columns mid"):
        forecasts_of_rows(tmp_path / "columns.parquet", books_of(BOOKS))


def test_models_forecast_later_books_only(folder, tmp_path):
    model, out = folder / "model.safetensors", tmp_path / "later.parquet"
    with pytest.raises(ValueError, match=r"nothing is later than .*, until which .*model.safetensors has seen"):
        apply(ApplyFactors(model=model, out=out, books=BOOKS))
    longer = replace(BOOKS, synthetic_hours=2.5)
    got = apply(ApplyFactors(model=model, out=out, books=longer))
    assert got["rows"] == 9_000 and got["forecast_rows"] == 1_800
    table = pd.read_parquet(out)
    rows = rows_of(longer)
    wanted = forecasts(ForecastModel.load(model).network, torch.from_numpy(rows.factors), 7_200, 9_000)
    assert np.array_equal(table.filter(like="forecast_").to_numpy()[7_200:], wanted.numpy())
    assert (table["models_seen_until_ms"][7_200:] == table["ts_ms"][7_199]).all()
    with pytest.raises(ValueError, match=r"of rows of 1 s, not 2 s"):
        apply(ApplyFactors(model=model, out=out, books=replace(longer, step_gap=2.0)))


def test_what_is_no_model_is_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such model; vecenv factors train writes one"):
        ForecastModel.load(tmp_path / "none.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:500])
    with pytest.raises(ValueError, match="no model of vecenv factors, or a damaged one"):
        ForecastModel.load(tmp_path / "cut.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": 0}, "folds must be at least 1"),
        ({"first_share": 1.0}, "first_share must be between 0 and 1"),
    ],
)
def test_settings_are_checked(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        TrainFactors(out=tmp_path, **change)


@pytest.mark.parametrize("change", [{"hidden": 0}, {"epochs": -1}, {"dropout": 1.0}])
def test_settings_of_networks_are_checked(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        FitSettings(**change)


def test_all_books_without_holes_have_moves():
    moves = smoothed_moves(book_series(books_of(BOOKS), 1.0))
    assert [int(np.isfinite(moves[:, place]).sum()) for place in range(8)] == [7_200 - h for h in HORIZONS]
