"""Importing the package is cheap and leaves the GPU alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEASURE = """
import time
start = time.perf_counter()
import torch, torchrl, torchrl.envs, tensordict
theirs = time.perf_counter()
import vecenv
bare = time.perf_counter()
vecenv.make, vecenv.VecEnv, vecenv.FusedCollector, vecenv.MarketTape
used = time.perf_counter()
print(theirs - start, bare - theirs, used - bare, torch.cuda.is_initialized())
"""


def measured() -> tuple[float, float, float, str]:
    """Return seconds for torch and torchrl, for ``import vecenv``, and for its public names after that."""
    ran = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=120, check=True)
    *seconds, cuda = ran.stdout.split()
    theirs, bare, used = map(float, seconds)
    return theirs, bare, used, cuda


@pytest.mark.slow
def test_importing_adds_under_half_a_second_and_does_not_start_cuda():
    """The fastest of three processes, because a busy machine only ever adds time."""
    runs = [measured() for _ in range(3)]
    assert all(cuda == "False" for *_, cuda in runs)
    assert min(bare for _, bare, _, _ in runs) < 0.5
    # Pandas and the rest load with the first use of a public name.
    assert min(used for _, _, used, _ in runs) < 1.5


def test_importing_alone_does_not_even_load_torch():
    code = "import sys, vecenv; print('torch' in sys.modules, vecenv.__version__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split()[0] == "False"
