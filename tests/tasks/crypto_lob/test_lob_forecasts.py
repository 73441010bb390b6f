"""Forecasts: moves and measures by their definitions, models that see only earlier rows, and files that say so."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr

import vecenv
from vecenv.learn.checkpoints import save_sealed
from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.tasks.crypto_lob.clock import ClockedBooks, clocked
from vecenv.tasks.crypto_lob.config import BookOptions, BookSource, CryptoLobConfig
from vecenv.tasks.crypto_lob.factors import FACTORS, BookSeries
from vecenv.tasks.crypto_lob.forecast_file import HORIZONS, forecasts_of_rows
from vecenv.tasks.crypto_lob.forecasts import fit
from vecenv.tasks.crypto_lob.forecasts.command import ApplyFactors, TrainFactors
from vecenv.tasks.crypto_lob.forecasts.fit import (
    Fold,
    ForecastModel,
    fitted_network,
    forecasts,
    new_network,
    smoothed_moves,
    walk_forward,
)
from vecenv.tasks.crypto_lob.forecasts.models import PENALTIES, chosen_ridge, deviations, least_squares
from vecenv.tasks.crypto_lob.forecasts.quality import quality
from vecenv.tasks.crypto_lob.forecasts.runs import apply, rows_of, train
from vecenv.tasks.crypto_lob.forecasts.settings import FitSettings
from vecenv.tasks.crypto_lob.tape import snapshots_of, tape_of_options

BOOKS = BookSource(synthetic_hours=2.0, step_gap=4.0, levels=5)
"""1,800 rows, of which the longest horizon is 100."""
QUICK = FitSettings(epochs=2, hidden=8, learning_rate=0.01)


def books_of(source: BookSource) -> ClockedBooks:
    return clocked(snapshots_of(source), source.step_gap, source.max_age)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of forecasts of two hours, what the command has returned, and the table."""
    out = tmp_path_factory.mktemp("forecasts")
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    result = train(TrainFactors(out=out, books=BOOKS, folds=2, first_share=0.4, judged_share=0.2, fit=QUICK))
    assert torch.equal(torch.rand(3), wanted), "training leaves the caller's random numbers"
    return out, result, pd.read_parquet(out / "forecasts.parquet")


def test_moves_are_those_of_a_loop():
    draw, rows, told = np.random.default_rng(0), 700, 0
    price = 1000.0 + np.cumsum(draw.integers(-1, 2, (rows, 1)), 0)
    sizes, is_open = np.ones((rows, 1)), draw.random(rows) > 0.2
    got = smoothed_moves(
        BookSeries(np.arange(rows), is_open, price, sizes, price + 1, sizes, sizes[:, 0], sizes[:, 0], 1.0)
    )
    log = 1e4 * np.log(price[:, 0] + 0.5)
    for row, (place, horizon) in itertools.product(range(rows), enumerate(HORIZONS)):
        after = np.arange(row + 1, row + horizon + 1)
        if after[-1] >= rows or not is_open[row] or is_open[after].sum() < 0.75 * horizon:
            assert np.isnan(got[row, place])
        else:
            assert got[row, place] == pytest.approx(log[after].mean() - log[row], abs=1e-6)
            told += 1
    assert told > 500


def test_folds_learn_from_rows_whose_moves_end_before_the_forecasts():
    """20,000 rows, a purge of 400: the first of three blocks begins at 6,000, and a fifth of 5,600 rows judges."""
    folds = walk_forward(20_000, 3, 0.3, 400, 0.2)
    assert folds[0] == Fold(fitted=4_080, judged=4_480, learned=5_600, first=6_000, end=10_666)
    assert [(fold.first, fold.end) for fold in folds[1:]] == [(10_666, 15_333), (15_333, 20_000)]
    # As few rows as there can be: as many to fit to as the longest horizon, and one to judge by.
    assert walk_forward(1_202, 1, 1_201 / 1_202, 400, 0.001)[0] == Fold(400, 800, 801, 1_201, 1_202)
    few = ((1_200, 6, 0.25, 0.15), (1_202, 1, 1_200 / 1_202, 0.001), (9_000, 4, 0.9999, 0.2))
    for rows, count, share, judged in few:
        with pytest.raises(ValueError, match=f"{rows:,} rows are too few for {count} folds"):
            walk_forward(rows, count, share, 400, judged)


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
    """What is read is the rows before, whatever the first row that is asked for."""
    torch.manual_seed(0)
    network, rows = new_network(replace(QUICK, network=kind), 5, 8).eval(), torch.randn(1_000, 5)
    torch.nn.init.normal_(network.head.weight)
    changed = torch.cat([rows[:600], torch.randn(400, 5)])
    before, after = (forecasts(network, seen, 0, 1_000) for seen in (rows, changed))
    assert torch.equal(before[:600], after[:600]) and not torch.isclose(before[600:], after[600:]).any(1).all()
    assert torch.allclose(forecasts(network, rows, 333, 900), before[333:900], atol=1e-6)


def test_training_finds_what_a_regression_cannot_and_reads_nothing_later():
    """A signal of the row before is found, the same each time and whatever comes from `learned` on."""
    draw = np.random.default_rng(0)
    factors = draw.standard_normal((1_500, 4)).astype(np.float32)
    moves = np.stack([3 * factors[:, 0], np.roll(factors[:, 1], 1)], 1) + 0.01 * draw.standard_normal((1_500, 2))
    fold = Fold(fitted=1_000, judged=1_100, learned=1_400, first=1_500, end=1_500)
    settings = FitSettings("convolution", hidden=16, epochs=8, batch=1, learning_rate=0.03, dropout=0.0)
    start = least_squares(factors[:1_000], moves[:1_000])
    given = torch.from_numpy(factors), torch.from_numpy(moves).float()
    network = fitted_network(*given, fold, start, settings)
    first, judged = torch.from_numpy(start(factors)), slice(1_100, 1_400)
    told = forecasts(network, given[0], 0, 1_500)
    error, error_before = (float(((part - given[1])[judged, 1] ** 2).mean()) for part in (told, first))
    assert error < 0.2 * error_before, "the second move is in the row before"
    torch.rand(3)
    later = [part.clone() for part in given]
    for part in later:
        part[1_400:] = 77.0
    other = fitted_network(*later, fold, start, settings)
    assert all(torch.equal(one, two) for one, two in zip(network.parameters(), other.parameters(), strict=True))
    unknown = fitted_network(given[0], given[1] * torch.nan, fold, start, settings)
    assert torch.allclose(forecasts(unknown, given[0], 0, 10), first[:10].float(), atol=1e-5)


def test_regressions_are_least_squares_and_ridge_takes_the_penalty_that_judges_best():
    draw = np.random.default_rng(1)
    factors = draw.standard_normal((500, 3)) * [1.0, 20.0, 0.1] + 4.0
    moves = np.stack([factors @ [1.0, -0.2, 3.0], -factors[:, 0]], 1) + draw.standard_normal((500, 2))
    moves[::7, 0] = np.nan
    got, inputs = least_squares(factors, moves)(factors), np.column_stack([np.ones(500), factors])
    for place in range(2):
        known = np.isfinite(moves[:, place])
        wanted = inputs @ np.linalg.lstsq(inputs[known], moves[known, place], rcond=None)[0]
        assert got[:, place] == pytest.approx(wanted, abs=1e-5)
    # Without any signal, the strongest penalty is best; of a signal, the weakest.
    factors = draw.standard_normal((600, 30))
    for moves, place in ((draw.standard_normal((600, 1)), -1), (factors[:, :1] * 2.0, 0)):
        chosen = chosen_ridge(factors, moves, 300, slice(300, 600))
        assert np.array_equal(chosen.weights, least_squares(factors[:300], moves[:300], PENALTIES[place]).weights)
    known = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    assert deviations(known).tolist() == [1.0, 1.0] and deviations(known * 2)[0] == 2.0


def test_forecasts_do_not_know_the_future():
    """Whatever comes after a row, a network's forecasts up to it stay the same, and regressions are of earlier rows."""
    rows, other = rows_of(BOOKS), rows_of(replace(BOOKS, synthetic_seed=5))
    assert rows.description == "synthetic: 2024-01-01 00:00:00 to 2024-01-01 01:59:56"
    folds, told = walk_forward(len(rows.moves), 2, 0.4, 100, 0.2), []
    cut = folds[0].first + 300
    factors, moves = np.concatenate([rows.factors[:cut], other.factors[cut:]]), rows.moves.copy()
    for place, horizon in enumerate(HORIZONS):
        # Moves reach into later rows by their horizons.
        moves[cut - round(horizon / 4) :, place] = other.moves[cut - round(horizon / 4) :, place]
    before, after = (
        fit.forecast_forward(*table, folds, QUICK, told.append)
        for table in ((rows.factors, rows.moves), (factors, moves))
    )
    assert told == folds * 2 and before.learned.tolist() == [0] * 720 + [620] * 540 + [1_160] * 540
    got, again = (made.forecasts[fit.NETWORK] for made in (before, after))
    assert np.array_equal(got[:cut], again[:cut], equal_nan=True) and not np.array_equal(got[1_260:], again[1_260:])
    assert np.isfinite(got[720:]).all() and np.isnan(got[:720]).all()
    flows = rows.factors[:, [list(FACTORS).index(name) for name in fit.FLOW_FACTORS]]
    flow = least_squares(flows[:620], rows.moves[:620])
    ridge = chosen_ridge(rows.factors, rows.moves, 396, slice(496, 620))
    for name, wanted in ((fit.FLOW, flow(flows[720:1_260])), (fit.RIDGE, ridge(rows.factors[720:1_260]))):
        assert np.array_equal(before.forecasts[name][720:1_260], wanted.astype(np.float32))
    assert np.array_equal(before.mean[1_000], flow.mean) and np.isnan(before.mean[719]).all()
    assert np.isfinite(rows.moves).sum(0).tolist() == [1_800 - max(1, round(horizon / 4)) for horizon in HORIZONS]


def test_files_say_what_the_models_have_seen_and_agents_are_shown_them(trained):
    folder, result, table = trained
    assert (result["rows"], result["forecast_rows"], result["horizons_s"]) == (1_800, 1_080, list(HORIZONS))
    assert [(fold["first"], fold["end"]) for fold in result["folds"]] == [(720, 1_260), (1_260, 1_800)]
    assert result["books"].startswith("synthetic: 2024-01-01") and result["settings"]["hidden"] == 8
    assert json.loads((folder / "quality.json").read_text()) == result
    time = table["ts_ms"].to_numpy()
    # Two blocks, each by models of all rows before it.
    seen = np.repeat([0, time[719], time[1_259]], [720, 540, 540])
    assert table["models_seen_until_ms"].tolist() == seen.tolist() and np.diff(time).tolist() == [4_000] * 1_799
    assert table[:720].filter(like="forecast_").isna().all().all()
    measured = result["quality"][fit.NETWORK][0]["information_coefficient"]
    assert measured["low"] < measured["mean"] < measured["high"]
    model = ForecastModel.load(folder / "model.safetensors")
    assert (model.seen_until, model.step_gap, model.settings, model.source) == (time[-1], 4.0, QUICK, result["books"])
    options = {name: getattr(BOOKS, name) for name in ("synthetic_hours", "levels", "step_gap")}
    config = CryptoLobConfig(forecasts=str(folder / "forecasts.parquet"), episode_steps=60, **options)
    with pytest.warns(MarketDataWarning, match="no forecast for 720 of 1,800 rows"):
        env = vecenv.make("crypto_lob", 64, config=config, compile=False)
    assert env.scenario.feature_names[-8:] == tuple(f"forecast_{seconds}" for seconds in HORIZONS)
    told = table.filter(like="forecast_").fillna(0.0).to_numpy()[env.state.row.numpy()]
    assert np.array_equal(env.reset()["observation"][:, -8:].numpy(), told.astype(np.float32))


def test_files_of_other_books_are_refused(trained, tmp_path):
    """By one row that does not fit."""
    (folder, _, table), books = trained, books_of(BOOKS)
    with pytest.raises(MarketDataError, match=r"no row at .*, a time of the tape; made with another step_gap"):
        forecasts_of_rows(folder / "forecasts.parquet", books_of(replace(BOOKS, step_gap=2.0)))
    with pytest.raises(MarketDataError, match="no such file of forecasts; vecenv factors train writes one"):
        forecasts_of_rows(tmp_path / "none.parquet", books)
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(MarketDataError, match=r"text.parquet: no file of forecasts: damaged or not Parquet"):
        forecasts_of_rows(tmp_path / "text.parquet", books)
    file, at = tmp_path / "changed.parquet", np.arange(1_800) == 900
    for changed, message in (
        (table.assign(mid=table["mid"] + at), r"row 900, mid: .*made of another book"),
        (table.assign(models_seen_until_ms=table["ts_ms"] * at), "row 900, models_seen_until_ms: not before the row"),
        (table.assign(forecast_60=table["forecast_60"].mask(at)), "row 900, forecast_60: not a number"),
        (table.assign(models_seen_until_ms=table["ts_ms"].where(~at) * 0), "row 900, models_seen_until_ms: nan"),
        (table.assign(models_seen_until_ms=-1), "row 0, models_seen_until_ms: -1"),
        (table.assign(ts_ms=table["ts_ms"].astype(str)), "ts_ms: needs numbers, not "),
        (table.iloc[:0], "no rows"),
        (table.drop(columns="mid"), "missing columns mid"),
        (table.drop(columns=table.filter(like="forecast_").columns), "missing columns forecast_…"),
    ):
        changed.to_parquet(file)
        with pytest.raises(MarketDataError, match=message):
            forecasts_of_rows(file, books)
    whole = parquet.read_table(folder / "forecasts.parquet")
    parquet.write_table(whole.set_column(3, "forecast_10", [whole["forecast_20"]]), file)
    with pytest.raises(MarketDataError, match="damaged: the digest of its values does not match"):
        forecasts_of_rows(file, books)
    # A file that was written again is read again.
    options = BookOptions(**vars(BOOKS), forecasts=str(file))
    for bias in (1.0, -2.0):
        table.assign(models_seen_until_ms=1, forecast_10=bias).fillna(0.0).to_parquet(file)
        tape = tape_of_options(options)
        assert (tape.factors[:, tape.factor_names.index("forecast_10")] == bias).all()
    # Values are kept within bounds; where every row has a forecast, nothing is said.
    table.assign(models_seen_until_ms=1, forecast_10=77.0, forecast_20=-77.0).fillna(0.0).to_parquet(file)
    values, names = forecasts_of_rows(file, books)
    assert (values[:, 0] == 50.0).all() and (values[:, 1] == -50.0).all() and names[0] == "forecast_10"


def metadata_of(path):
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


def test_models_forecast_later_books_only(trained, tmp_path):
    model, out = trained[0] / "model.safetensors", tmp_path / "later.parquet"
    with pytest.raises(ValueError, match=r"nothing is later than 2024-01-01 01:59:56, until which .* has seen"):
        apply(ApplyFactors(model=model, out=out, books=BOOKS))
    longer = replace(BOOKS, synthetic_hours=2.5)
    got = apply(ApplyFactors(model=model, out=out, books=longer))
    assert got["rows"] == 2_250 and got["forecast_rows"] == 450 and got["model"] == str(model)
    table, rows = pd.read_parquet(out), rows_of(longer)
    wanted = forecasts(ForecastModel.load(model).network, torch.from_numpy(rows.factors), 1_800, 2_250)
    assert np.array_equal(table.filter(like="forecast_").to_numpy()[1_800:], wanted.numpy())
    seen = table["models_seen_until_ms"]
    assert (seen[1_800:] == table["ts_ms"][1_799]).all() and not seen[:1_800].any()
    with pytest.raises(ValueError, match=r"of rows of 4 s, not 2 s"):
        apply(ApplyFactors(model=model, out=out, books=replace(longer, step_gap=2.0)))
    with pytest.raises(FileNotFoundError, match="no such model; vecenv factors train writes one"):
        ForecastModel.load(tmp_path / "none.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(model.read_bytes()[:500])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        ForecastModel.load(tmp_path / "cut.safetensors")
    # Another last time that it has seen, junk that is hashed, and files of before there was a hash.
    tensors, (text, kind, seal) = (
        load_file(model),
        (metadata_of(model)[name] for name in ("record", "format", "sha256")),
    )
    record, altered = json.loads(text), tmp_path / "altered.safetensors"
    save_file(tensors, altered, {"format": kind, "sha256": seal, "record": json.dumps(record | {"seen_until_ms": 0})})
    with pytest.raises(ValueError, match="altered or damaged: the hash of its tensors and settings does not match"):
        ForecastModel.load(altered)
    save_file(tensors, altered, {"format": kind, "record": text})
    with pytest.raises(
        ValueError, match="written by an older version, without a hash of what it holds: train it again"
    ):
        ForecastModel.load(altered)
    own = record["settings"]
    for junk, told in (
        *(
            (junk, "its record cannot be read")
            for junk in ([], {}, record | {"seen_until_ms": "x"}, {"settings": {"x": 1}})
        ),
        *((record | {"settings": own | {"hidden": odd}}, "its record cannot be read") for odd in (2.5, 1e30)),
        (record | {"settings": own | {"hidden": 10**9}}, "its settings make no network"),
        (record | {"settings": own | {"hidden": 10**6}}, "its network.* instead of float32 of shape .3000000,"),
        (record | {"factors": ["x"]}, "of other factors or horizons"),
    ):
        save_sealed(altered, kind, tensors, {"record": json.dumps(junk)})
        with pytest.raises(ValueError, match=rf"altered\.safetensors: {told}"):
            ForecastModel.load(altered)


def test_settings_are_checked(tmp_path):
    for name, value in (("folds", 0), ("first_share", 1.0), ("judged_share", 0.0)):
        with pytest.raises(ValueError, match=name):
            TrainFactors(tmp_path, **{name: value})
    wrong = {"hidden": 0, "patience": 0, "batch": 0, "learning_rate": float("inf"), "epochs": -1, "weight_decay": -1.0}
    for name, value in (*wrong.items(), ("dropout", 1.0), ("dropout", -0.1)):
        with pytest.raises(ValueError, match=name):
            FitSettings(**{name: value})
    FitSettings(dropout=0.0, epochs=0, weight_decay=0.0)
    assert FitSettings() == FitSettings("gru", 32, 0.1, 20, 3, 32, 1e-3, 0.01, 0)
    assert TrainFactors(tmp_path) == TrainFactors(tmp_path, BookSource(), 6, 0.25, 0.15, FitSettings(), 0)
