"""One thread for each worker, as two workers of two threads wait for each other on two cores."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported, and for the processes that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
