"""One thread for each worker, as two workers of two threads wait for each other; and one look at what is installed."""

from __future__ import annotations

import functools
import importlib.metadata
import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported, and for the processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is installed stays the same during the tests; every task and market that is made by name asks for it again.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)
