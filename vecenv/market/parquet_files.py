"""Parquet files that tell whether they are as they were written.

Parquet has checksums of its pages, which few programs write and few compare, and none of its footer, where the names
and types of columns stand. Files written here have those of the pages and a digest of all values; files of others are
held to what they have. Of a file without any, damage shows only where it breaks the format or a rule of the data: a
price that has become another plausible one is not found.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vecenv.system.atomic_files import replacing

_DIGEST = b"vecenv.sha256"


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Write a table without its index, in one stroke.

    Raises:
        OSError: the file cannot be written.
    """
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), _DIGEST: _digest(table)})
    with replacing(path) as partial:
        pq.write_table(arrow, partial, write_page_checksum=True)


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a table.

    Raises:
        ValueError: the file is damaged, or something else.
    """
    with path.open("rb") as file:
        try:
            digest = (pq.read_schema(file).metadata or {}).get(_DIGEST)
            file.seek(0)
            table = pd.read_parquet(file, page_checksum_verification=True)
            whole = digest is None or digest == _digest(table)
        except Exception as error:
            # Damage makes readers fail in every way they know.
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"damaged, or something else ({reason})") from error
    if not whole:
        raise ValueError("damaged, its values are not those that were written")
    return table


def _digest(table: pd.DataFrame) -> bytes:
    """Return a hash of names and values, whatever the types in which a program holds them. SHA-256."""
    digest = hashlib.sha256()
    for name, column in table.items():
        digest.update(f"{name}\n".encode())
        if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
            values = column.to_numpy(np.float64)
            # Parquet has one missing value, a processor several.
            digest.update(np.where(np.isnan(values), np.nan, values).tobytes())
        elif isinstance(column.dtype, np.dtype) and column.dtype.kind == "M":
            digest.update(column.to_numpy("datetime64[ns]").tobytes())
        else:
            codes, texts = pd.factorize(column)
            digest.update(codes.astype(np.int64).tobytes() + "\0".join(map(str, texts)).encode())
    return digest.hexdigest().encode()
