"""FinRL's CSV to Parquet and back loses nothing; the summary of a file tells what is in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from vecenv.market.convert import convert
from vecenv.market.inspect_bars import inspect
from vecenv.market.sources import read_bars
from vecenv.market.validation import MarketDataError, MarketDataWarning

FINRL = ["date", "tic", "open", "high", "low", "close", "volume", "day"]


def _finrl(frame: pd.DataFrame) -> pd.DataFrame:
    """The fixture in FinRL's format, with two indicators and the context."""
    frame = frame.rename(columns={"symbol": "tic"}).sort_values(["date", "tic"])
    frame["day"] = pd.to_datetime(frame["date"]).dt.day_of_week
    codes = pd.factorize(frame["date"])[0]
    rng = np.random.default_rng(3)
    frame["macd"], frame["rsi_30"] = rng.normal(size=len(frame)), rng.uniform(0, 100, len(frame))
    frame.iloc[4, frame.columns.get_loc("macd")] = np.nan
    frame["vix"], frame["turbulence"] = 20 + codes / 3, np.sqrt(codes)
    return frame.set_index(codes)


@pytest.fixture
def finrl_csv(long_frame: pd.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "finrl.csv"
    _finrl(long_frame).to_csv(path)
    return path


def test_finrl_to_parquet_and_back(finrl_csv: Path, tmp_path: Path) -> None:
    """The very file; a table of other sources becomes the same form, and is protected by a digest."""
    target = tmp_path / "bars.parquet"
    assert convert(finrl_csv, target) == 26
    table = pd.read_parquet(target)
    names = [*FINRL[:-1], "macd", "rsi_30", "vix", "turbulence"]
    assert list(table.columns) == ["date", "symbol", *names[2:]]
    assert table[["symbol", "date"]].equals(table[["symbol", "date"]].sort_values(["symbol", "date"]))
    original = pd.read_csv(finrl_csv).sort_values(["tic", "date"])
    for name in names[2:]:
        np.testing.assert_array_equal(table[name], original[name])
    assert len(pq.read_metadata(target).metadata[b"vecenv.sha256"]) == 64
    convert(target, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == finrl_csv.read_text()
    closes = np.exp(np.random.default_rng(0).normal(size=(12, 3)) / 50)
    np.savez(tmp_path / "arrays.npz", price_ary=closes, tech_ary=np.ones((12, 6)))
    convert(tmp_path / "arrays.npz", tmp_path / "arrays.csv")
    written = pd.read_csv(tmp_path / "arrays.csv")
    assert list(written.columns) == ["Unnamed: 0", *FINRL, "tech_0", "tech_1"]
    assert written["Unnamed: 0"].tolist() == pd.factorize(written["date"])[0].tolist()
    # 2000-01-03 is a Monday.
    assert written["day"].tolist()[::3] == [0, 1, 2, 3, 4] * 2 + [0, 1]


def test_closes_adjusted_alone_survive_a_round_trip(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    long_frame["close"] *= 0.9
    _finrl(long_frame).to_csv(tmp_path / "finrl.csv")
    with pytest.warns(MarketDataWarning, match="close is adjusted"):
        convert(tmp_path / "finrl.csv", tmp_path / "bars.parquet")
        convert(tmp_path / "bars.parquet", tmp_path / "again.csv")
        first, second = read_bars(tmp_path / "finrl.csv"), read_bars(tmp_path / "bars.parquet")
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "finrl.csv").read_text()
    np.testing.assert_array_equal(first.ohlcv, second.ohlcv)


def test_a_fault_or_a_bad_target_writes_nothing(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(MarketDataError, match=r"bars.xlsx: unknown extension .xlsx; known are .csv, .parquet"):
        convert(long_frame, tmp_path / "bars.xlsx")
    with pytest.raises(MarketDataError, match="there is no folder"):
        convert(long_frame, tmp_path / "none" / "bars.csv")
    long_frame.loc[3, "close"] *= 0.5
    with pytest.raises(MarketDataError, match="symbol AAA, date 2024-01-04, column close"):
        convert(long_frame, tmp_path / "bars.parquet")
    assert list(tmp_path.iterdir()) == []


def test_inspect(long_frame: pd.DataFrame) -> None:
    long_frame.loc[long_frame["symbol"] == "AAA", ["open", "high", "low", "close"]] *= 3
    gap = (long_frame["symbol"] == "BBB") & (long_frame["date"] == "2024-01-04")
    frame = long_frame[~gap].assign(score=1.0, vix=20.0)
    summary = inspect(frame)
    assert json.loads(json.dumps(summary)) == summary
    assert summary["source"] == "DataFrame"
    assert summary["span"] == ["2024-01-01", "2024-01-12"]
    assert (summary["days"], summary["symbols"], summary["rows"]) == (10, 3, 25)
    assert (summary["columns"], summary["context"]) == (["score"], ["vix"])
    assert summary["price_range"] == [frame["low"].min(), frame["high"].max()]
    assert summary["listings"] == {
        "AAA": {"first": "2024-01-01", "last": "2024-01-12", "bars": 10, "missing": 0},
        "BBB": {"first": "2024-01-01", "last": "2024-01-12", "bars": 9, "missing": 1},
        "CCC": {"first": "2024-01-05", "last": "2024-01-12", "bars": 6, "missing": 0},
    }
    moves = frame.assign(move=frame.groupby("symbol")["close"].pct_change())
    largest = moves.loc[moves["move"].abs().sort_values(ascending=False).index[:5]]
    assert [(m["symbol"], m["date"]) for m in summary["largest_moves"]] == list(
        zip(largest["symbol"], largest["date"], strict=True)
    )
    np.testing.assert_allclose([m["move"] for m in summary["largest_moves"]], largest["move"])
