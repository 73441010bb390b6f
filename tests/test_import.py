"""Importing the package is cheap and leaves the GPU alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import sys, torch
from vecenv import FusedCollector, MarketTape, VecEnv, make
heavy = ("pandas", "pyarrow", "matplotlib", "rich", "tyro")
print([name for name in heavy if name in sys.modules], torch.cuda.is_initialized())
"""


@pytest.mark.assembly
def test_the_public_names_bring_no_reader_and_do_not_start_cuda():
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["[]", "False"]


def test_importing_alone_does_not_even_load_torch():
    code = "import sys, vecenv; print('torch' in sys.modules, vecenv.__version__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split()[0] == "False"
