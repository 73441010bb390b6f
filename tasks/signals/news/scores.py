"""Scores on disk, so that a run that was killed goes on where it was.

The file is a line that names the format, then records of equal size that are only ever appended: a key (the first 16
bytes of the SHA-256 hash of scorer and text), sentiment, risk, whether the text was known, and a CRC-32 checksum of
these. Scorers may share a file. What a killed process or a full disk left of the last record is cut off when the file
is opened.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from vecenv.market.validation import MarketDataError, MarketDataWarning
from vecenv.system.files import WriteLock


class Scores(NamedTuple):
    """Scores of N texts. Shape of each: (N,).

    Sentiment is from 1, very negative, to 5, very positive, risk from 1, very low, to 5, very high; NaN where
    unreadable or not scored. ``known``: the scorer found something in the text that tells anything.
    """

    sentiment: np.ndarray
    risk: np.ndarray
    known: np.ndarray


_HEADER = b"vecenv news scores 1\n"
_RECORD = np.dtype([("key", "V16"), ("sentiment", "<f8"), ("risk", "<f8"), ("known", "u1"), ("check", "<u4")])
_CHECKED = _RECORD.itemsize - 4


class ScoreCache:
    """Context manager of a file of scores, made where there is none; only one process has it at a time.

    Raises on entry MarketDataError if the file is no such cache, BlockingIOError if another process has it, OSError if
    it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[bytes, int] = {}
        self._records: list[np.ndarray] = []
        self._count = 0

    def __enter__(self) -> ScoreCache:
        if not self.path.absolute().parent.is_dir():
            raise MarketDataError(f"{self.path}: there is no folder {self.path.parent}")
        with ExitStack() as opened:
            opened.enter_context(WriteLock.beside(self.path))
            self._file = opened.enter_context(open(self.path, "a+b"))
            self._load()
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    @staticmethod
    def keys(identity: str, texts: Sequence[str]) -> list[bytes]:
        begun = hashlib.sha256(identity.encode() + b"\0")
        keys = []
        for text in texts:
            own = begun.copy()
            own.update(text.encode("utf-8", "surrogatepass"))
            keys.append(own.digest()[:16])
        return keys

    def find(self, keys: Sequence[bytes]) -> tuple[np.ndarray, Scores]:
        """Return which keys are cached, shape (N,), bool, and their scores in this order."""
        rows = np.array([self._rows.get(key, -1) for key in keys], dtype=np.int64)
        records = np.concatenate([np.zeros(0, _RECORD), *self._records])
        self._records = [records]
        return rows >= 0, _scores(records[rows[rows >= 0]])

    def append(self, keys: Sequence[bytes], scores: Scores) -> None:
        """Write scores, and wait until they are on the disk."""
        records = np.zeros(len(keys), _RECORD)
        records["key"] = np.frombuffer(b"".join(keys), "V16")
        records["sentiment"], records["risk"], records["known"] = scores
        records["check"] = _checks(records)
        self._file.write(records.tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._keep(records)

    def _load(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        if len(content) < len(_HEADER) and _HEADER.startswith(content):
            # New, or of a process that was killed at its first line.
            self._cut(0, len(content))
            self._file.write(_HEADER)
            return
        if not content.startswith(_HEADER):
            raise MarketDataError(f"{self.path}: no cache of scores; name a file that is, or a new one")
        whole = (len(content) - len(_HEADER)) // _RECORD.itemsize
        records = np.frombuffer(content, _RECORD, whole, len(_HEADER)).copy()
        bad = records["check"] != _checks(records)
        good = int(bad.argmax()) if bad.any() else whole
        self._cut(len(_HEADER) + good * _RECORD.itemsize, len(content))
        self._keep(records[:good])

    def _cut(self, length: int, found: int) -> None:
        """Cut off what lies behind the last whole record."""
        if found > length:
            what = f"the last {found - length:,} bytes are damaged and are cut off; their texts are scored again"
            warnings.warn(f"{self.path}: {what}", MarketDataWarning, stacklevel=5)
            self._file.truncate(length)

    def _keep(self, records: np.ndarray) -> None:
        keys = records["key"].tobytes()
        self._rows |= {keys[16 * row : 16 * row + 16]: self._count + row for row in range(len(records))}
        self._records.append(records)
        self._count += len(records)


def _scores(records: np.ndarray) -> Scores:
    return Scores(records["sentiment"], records["risk"], records["known"].astype(bool))


def _checks(records: np.ndarray) -> np.ndarray:
    content, size = records.tobytes(), _RECORD.itemsize
    starts = range(0, len(content), size)
    return np.fromiter((zlib.crc32(content[start : start + _CHECKED]) for start in starts), np.uint32, len(records))
