"""A folder of paths is a market of as many paths, whole or not at all."""

import json

import pytest

import vecenv
from vecenv.market.generators import known_days
from vecenv.market.inspect_bars import inspect
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.path_folders import RECORD, WEIGHTS
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.validation import MarketDataError
from vecenv.tasks.experiment.markets import ByShare
from vecenv.worldmodel.commands.generate import _long_table

DAYS = 60


@pytest.fixture
def folder(tmp_path):
    bars = synthetic_bars(5, DAYS, ["A", "B"], seed=1)
    for path in range(5):
        _long_table(bars, bars.dates, bars.ohlcv[path]).to_parquet(tmp_path / f"path_{path:04d}.parquet")
    record = {"paths": 5, "first_drawn": str(bars.dates[20]), "known_days": {"A": "2024-12-31"}}
    (tmp_path / RECORD).write_text(json.dumps(record))
    return tmp_path, bars


def test_paths_are_read_split_and_summed_up(folder):
    place, bars = folder
    tape = load_market(place, MarketOptions(symbols=("B", "A"), features=("daily_change",)))
    assert tape.symbols == ("B", "A") and (tape.ohlcv[..., 3] == bars.ohlcv[..., [1, 0], 3].float()).all()
    assert not tape.tradable[:, :20].any() and tape.tradable[:, 20:].all() and tape.first_day == 20
    split = ByShare(test_fraction=0.4)
    assert [part.num_paths for part in (split.training(tape), split.test(tape))] == [3, 2]
    assert known_days(str(place)) == {"A": "2024-12-31"}
    assert inspect(place)["paths"] == 5 and inspect(place)["rows"] == 5 * DAYS * 2
    env = vecenv.make("stock_trading", 8, market=place, compile=False, features=("daily_change",), episode_length=20)
    assert env.reset()["observation"].isfinite().all() and len(env.state.path.unique()) > 1


def test_folders_that_are_not_whole_are_refused(folder):
    place, bars = folder
    record = (place / RECORD).read_text()
    weights = {f"path_{path:04d}.parquet": {"weight": 0.1} for path in range(5)}
    for name, text, told in (
        (
            WEIGHTS,
            json.dumps({"paths": weights | {"path_0004.parquet": {"weight": 0.2}}}),
            "of different weights",
        ),
        (
            WEIGHTS,
            json.dumps({"paths": dict(list(weights.items())[1:])}),
            "its paths are not the files of",
        ),
        (WEIGHTS, json.dumps({"paths": 3}), "its paths are not the files of the folder"),
        (WEIGHTS, "{", r"weights\.json: cannot be read"),
        (WEIGHTS, json.dumps({"paths": weights, "probability": 0.5}), None),
        (RECORD, record.replace("5", "6", 1), "5 paths, and 6 in paths.json: not written to its end, or changed since"),
        (RECORD, "[]", r"paths\.json: cannot be read"),
        (RECORD, json.dumps({"paths": 5, "first_drawn": "soon"}), "first_drawn 'soon' is no date"),
        (RECORD, None, "5 paths, and none in paths.json"),
    ):
        (place / name).unlink(missing_ok=True) if text is None else (place / name).write_text(text)
        if told is None:
            load_market(place, MarketOptions(features=("daily_change",)))
            continue
        with pytest.raises(MarketDataError, match=told):
            load_market(place, MarketOptions(features=("daily_change",)))
    (place / RECORD).write_text(record)
    _long_table(bars, bars.dates[1:], bars.ohlcv[3, 1:]).to_parquet(place / "path_0003.parquet")
    with pytest.raises(MarketDataError, match=r"path_0003\.parquet: other symbols, days or columns than those"):
        load_market(place, MarketOptions(features=("daily_change",)))
    with pytest.raises(MarketDataError, match="a folder of paths, as a market to trade; here one of its files"):
        read_bars(place)
