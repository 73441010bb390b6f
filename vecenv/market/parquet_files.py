"""Parquet files with integrity checks: page checksums and a digest of all values.

Parquet has page checksums, which few programs write or verify, and no checksum of its footer, which holds the names and
types of columns. Files written here have page checksums and a digest of all values; other files are checked by
whichever of these they have. Without any, only damage that breaks the format or a data check is found, not a price
changed to another plausible one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vecenv.system.files import replacing

_DIGEST = b"vecenv.sha256"


def write_parquet(table: pd.DataFrame, path: Path, metadata: Mapping[bytes, str] | None = None) -> None:
    """Write a table atomically, without its index, with further metadata, of which there is no digest."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    own = {**(arrow.schema.metadata or {}), **(metadata or {})}
    arrow = arrow.replace_schema_metadata({**own, _DIGEST: _digest(table)})
    with replacing(path) as partial:
        pq.write_table(arrow, partial, write_page_checksum=True)


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a table; ValueError if the file is damaged or not Parquet."""
    with path.open("rb") as file:
        try:
            digest = (pq.read_schema(file).metadata or {}).get(_DIGEST)
            file.seek(0)
            table = pd.read_parquet(file, page_checksum_verification=True)
            whole = digest is None or digest == _digest(table)
        except Exception as error:
            # Damaged files make readers raise any kind of exception.
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"damaged or not Parquet ({reason})") from error
    if not whole:
        raise ValueError("damaged: the digest of its values does not match")
    return table


def _digest(table: pd.DataFrame) -> bytes:
    """Return a SHA-256 hash of names and values, independent of their in-memory types."""
    digest = hashlib.sha256()
    for name, column in table.items():
        digest.update(f"{name}\n".encode())
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
            values = column.to_numpy(np.float64)
            # Parquet has one missing value, floats have several NaN bit patterns.
            digest.update(np.where(np.isnan(values), np.nan, values).tobytes())
        elif isinstance(column.dtype, np.dtype) and column.dtype.kind == "M":
            digest.update(column.to_numpy("datetime64[ns]").tobytes())
        else:
            codes, texts = pd.factorize(column)
            digest.update(codes.astype(np.int64).tobytes() + "\0".join(map(str, texts)).encode())
    return digest.hexdigest().encode()
