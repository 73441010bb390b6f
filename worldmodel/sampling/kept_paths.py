"""Paths kept on disk: what the same code has drawn by the same options on the same processor is not drawn again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

import vecenv.market
import vecenv.worldmodel
from vecenv.core import random
from vecenv.learn.checkpoints import load_sealed, save_sealed
from vecenv.system.cache import cache_folder, processor

WORTHWHILE = 200_000
"""Fewest drawn days of symbols that are kept: a core draws 20,000 to 35,000 a second."""

MOST_BYTES = 2**30
"""Of all kept files together; the one that was read longest ago goes first."""

FORMAT = "vecenv drawn paths"


def kept_or_drawn(model: Path, drawn: tuple[object, ...], stock_days: int, draw: Callable[[], Tensor]) -> Tensor:
    """Return bars as ``draw`` makes them on a CPU, from the file of an earlier draw if there is a whole one.

    ``drawn`` is all that decides them beside the model, the code, PyTorch and the processor, of ``stock_days`` days of
    symbols. A file that cannot be read or written is no error.
    """
    if not WORTHWHILE <= stock_days <= MOST_BYTES // 160:
        return draw()
    told = (drawn, _digest([model]), _CODE, _machine())
    file = _folder() / f"{hashlib.sha256(repr(told).encode()).hexdigest()[:32]}.safetensors"
    with suppress(ValueError):
        bars = load_sealed(file, FORMAT, "drawn paths", "cpu")[0]["bars"]
        with suppress(OSError):
            os.utime(file)
        return bars
    bars = draw()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        save_sealed(file, FORMAT, {"bars": bars}, {})
        for old in _beyond(MOST_BYTES):
            old.unlink(missing_ok=True)
    return bars


def _beyond(limit: int) -> Iterator[Path]:
    size = 0
    # With those that an interrupted write has left.
    for file in sorted(_folder().glob("*.safetensors*"), key=lambda file: -file.stat().st_mtime):
        size += file.stat().st_size
        if size > limit:
            yield file


def _folder() -> Path:
    return cache_folder() / "paths"


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _code() -> str:
    """Return a hash of the code that draws, and of all that it computes with."""
    packages = [Path(package.__path__[0]) for package in (vecenv.market, vecenv.worldmodel)]
    files = [file for place in packages for kind in ("py", "cpp") for file in sorted(place.rglob(f"*.{kind}"))]
    return _digest([Path(random.__file__), *files])


# Not at the first draw, before which the files may have become others than those that run.
_CODE = _code()


def _machine() -> tuple[object, ...]:
    """PyTorch and the processor, by which it and its libraries choose how they add and multiply."""
    chosen = sorted(item for item in os.environ.items() if item[0].startswith(("ATEN_", "MKL_", "ONEDNN_", "DNNL_")))
    precision = torch.get_float32_matmul_precision()
    return torch.__version__, torch.backends.cpu.get_cpu_capability(), precision, processor(), chosen
