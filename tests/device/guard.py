"""Builds and loads what a CPU build of PyTorch lacks to take a tensor for one of a GPU: see ``guard.cpp``."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.cpp")


def _torch() -> Path:
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def compiler() -> str | None:
    """Return the C++ compiler of this machine, the one that CXX names if any."""
    return shutil.which(os.environ["CXX"]) if "CXX" in os.environ else shutil.which("g++") or shutil.which("clang++")


def missing() -> str | None:
    """Say why no device can be pretended here; None where it can."""
    if (_torch() / "lib" / "libtorch_cuda.so").exists():
        return "this PyTorch is built for CUDA: no device needs to be pretended"
    return None if compiler() else "no C++ compiler to build the device guard with"


def built() -> Path:
    """Return the guard's library, built once for each PyTorch and kept in the user's cache."""
    torch = _torch()
    version = (torch / "version.py").read_bytes()
    name = hashlib.sha256(SOURCE.read_bytes() + version + str(torch).encode()).hexdigest()[:16]
    library = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vecenv" / f"device_guard_{name}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            command = [str(compiler()), "-O0", "-std=c++20", "-shared", "-fPIC", str(SOURCE), "-o", str(made)]
            command += [f"-I{torch / 'include'}", f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}"]
            subprocess.run([*command, "-lc10", "-ltorch_cpu"], check=True, capture_output=True, text=True, timeout=120)
            # In one stroke: another process may be building it too.
            os.replace(made, library)
    return library


def load() -> None:
    """Register the guard in this process, for good.

    Raises:
        RuntimeError: PyTorch has been imported, and has asked whether there is a GPU.
    """
    if "torch" in sys.modules:
        raise RuntimeError("the device guard must be loaded before torch is imported")
    ctypes.CDLL(str(built()))
