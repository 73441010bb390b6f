"""One thread for each worker, no pools of compilers, the longest tests first, and the same examples in every run."""

import os

# Inductor's own pool of processes costs each process that compiles 15 s of processor time; the first page has it.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported, and for the processes that tests start: two workers of two threads wait for each other
    # on two cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

# Else an example may take 0.2 s, which on a busy machine any does at times, and examples are drawn anew in each run.
settings.register_profile("gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gate")

FIRST = ("tests/distributed/", "tests/device/", "tests/test_pages.py::test_commands_of_a_page")
"""The longest tests, which no worker shall begin last; those that count processes are stolen by no other worker."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


@pytest.fixture
def one_thread():
    """As ranks have: sums of several threads depend on their number."""
    # Here, as not all tests load it.
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
