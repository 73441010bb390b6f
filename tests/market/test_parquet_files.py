"""A Parquet file is read as it was written, or refused in a sentence."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vecenv.market.parquet_files import read_parquet, write_parquet
from vecenv.market.sources import read_bars
from vecenv.market.validation import MarketDataError


def flipped(whole: bytes, seed: int) -> list[tuple[int, bytes]]:
    """A file with one bit of each byte flipped, one at a time."""
    bits = np.random.default_rng(seed).integers(8, size=len(whole)).tolist()
    flips = enumerate(zip(whole, bits, strict=True))
    return [(place, whole[:place] + bytes([byte ^ 1 << bit]) + whole[place + 1 :]) for place, (byte, bit) in flips]


def test_damage_to_a_file_of_ours_is_found(long_frame: pd.DataFrame, tmp_path: Path):
    """Of whatever bit, where anything that is read depends on it; also a footer's change, which has no checksum."""
    path = tmp_path / "bars.parquet"
    write_parquet(long_frame, path)
    refused = 0
    cases = flipped(path.read_bytes(), 0)[::47]
    for place, damaged in cases:
        path.write_bytes(damaged)
        try:
            table = read_parquet(path)
        except ValueError as error:
            assert "damaged" in str(error) and "\n" not in str(error)
            refused += 1
        else:
            pd.testing.assert_frame_equal(table, long_frame, check_exact=True, obj=f"byte {place}")
    assert refused > len(cases) / 2
    write_parquet(long_frame, path)
    table = pq.read_table(path)
    for other in (long_frame.assign(volume=long_frame["volume"] + 1), long_frame.assign(symbol="AAA")):
        pq.write_table(pa.Table.from_pandas(other, preserve_index=False, schema=table.schema), path)
        with pytest.raises(MarketDataError, match=r"bars\.parquet: .*damaged: the digest of its values"):
            read_bars(path)


def test_damage_to_a_file_of_others_is_found_or_holds_to_the_rules(long_frame: pd.DataFrame, tmp_path: Path):
    """Without checksums some damage cannot be found; none of it is an error of another kind, or bars that are none."""
    path = tmp_path / "bars.parquet"
    # A flip in the last byte of a page of values, which no rule of the data forbids.
    table = pa.Table.from_pandas(long_frame.assign(rsi=50.0 + np.arange(len(long_frame))), preserve_index=False)
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
    column = pq.read_metadata(path).row_group(0).column(7)
    assert column.path_in_schema == "rsi"
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size - 8] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(MarketDataError, match=r"bars\.parquet: cannot be read as \.parquet: damaged"):
        read_bars(path)
    long_frame.to_parquet(path, index=False)
    for place, damaged in flipped(path.read_bytes(), 1)[::151]:
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                bars = read_bars(path).ohlcv
            except MarketDataError as error:
                assert str(path) in str(error) and "\n" not in str(error), place
            else:
                prices = bars[~bars.isnan().any(-1)]
                assert (prices[:, 1] >= prices[:, :4].max(1).values).all() and (prices > 0).any()


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """Missing values of every kind are the same, whatever bits a processor gives them."""
    path = tmp_path / "table.parquet"
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    table = pd.DataFrame(
        {
            "number": [1.5, np.nan, *odd],
            "small": np.array([1.5, 2.5, np.nan, -0.0], dtype=np.float32),
            "count": [1, 2, 3, 4],
            "flag": [True, False, True, True],
            "day": pd.to_datetime(["2020-01-01", None, "2020-01-03", "2020-01-04"]).astype("datetime64[ms]"),
            "text": ["a", None, "ü", ""],
            "kind": pd.Categorical(["x", "y", "x", None]),
        },
        index=[5, 6, 7, 8],
    )
    write_parquet(table, path)
    pd.testing.assert_frame_equal(read_parquet(path), table.reset_index(drop=True))
    assert [file.name for file in tmp_path.iterdir()] == ["table.parquet"]
