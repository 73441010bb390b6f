"""One thread for each worker, as two workers of two threads wait for each other on two cores; a limit of long tests."""

from __future__ import annotations

import os
import time

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported, and for the processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

LONG_UNTIL = "VECENV_LONG_UNTIL"
"""Environment variable with the Unix time after which no long test begins."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with another file in each limited run, so that runs that do not reach all long tests reach each in turn."""
    until = os.environ.get(LONG_UNTIL)
    if not until or not items:
        return
    files = list(dict.fromkeys(item.path for item in items))
    first = int(float(until)) // 60 % len(files)
    place = {file: (number - first) % len(files) for number, file in enumerate(files)}
    items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip long tests on a machine that is too slow for all of them."""
    until = os.environ.get(LONG_UNTIL)
    if until and item.get_closest_marker("long") and time.time() > float(until):
        pytest.skip("long, and the time for long tests is over")
