"""C++ kernels for CPUs, built by the machine's compiler when they are first asked for, without headers of PyTorch."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch

from vecenv.system.cache import cache_folder

_FLAGS = {"AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"), "AVX2": ("-mavx2",)}
"""Compiler flags by what PyTorch says of the processor: a library in a shared folder runs on all of its kind."""


def compiler() -> str | None:
    """Return the C++ compiler of this machine, the one that CXX names if any; None without one."""
    return shutil.which(os.environ["CXX"]) if "CXX" in os.environ else shutil.which("g++") or shutil.which("clang++")


@cache
def built_library(source: Path, *own_flags: str) -> ctypes.CDLL | None:
    """Load the library of a source file, built if it is new; None, after one warning, without a working compiler.

    ``own_flags`` of the compiler are added to those of all libraries.
    """
    found = compiler()
    reason = "no C++ compiler was found"
    if found is not None:
        try:
            return ctypes.CDLL(str(_built(found, source, own_flags)))
        except (OSError, subprocess.SubprocessError) as error:
            lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
            reason = lines[0] if lines else type(error).__name__
    warnings.warn(
        f"{source.stem}.cpp is not built, PyTorch does its work (slower): {reason}", RuntimeWarning, stacklevel=2
    )
    return None


def _built(found: str, source: Path, own_flags: tuple[str, ...]) -> Path:
    flags = (
        "-O3",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-fopenmp-simd",
        *_FLAGS.get(torch.backends.cpu.get_cpu_capability(), ()),
        *own_flags,
    )
    # What it may include lies beside it.
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.hpp")))]
    name = hashlib.sha256(b"\0".join(texts) + " ".join((found, *flags)).encode()).hexdigest()[:16]
    built = cache_folder() / f"{source.stem}_{name}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder) / built.name
            command = [found, *flags, str(source), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
            # In one stroke: another process may be building it too.
            os.replace(made, built)
    return built
