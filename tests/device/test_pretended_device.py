"""The project on a pretended GPU: see the README of this folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import guard

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
REASON = guard.missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
PATHS, FAULTS = (str(HERE / f"check_{name}.py") for name in ("paths", "faults"))


def check(*arguments: str, **more: str) -> None:
    """Run checks in a process that has never asked whether there is a GPU, and that ends with them.

    Args:
        *arguments: of pytest.
        **more: variables of the environment.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    found = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=--strict-markers -ra", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "-p", "tests.device.plugin", *arguments],
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": found} | more,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert ran.returncode == 0, ran.stdout[-8_000:] + ran.stderr[-2_000:]


@pytest.mark.assembly
def test_representative_paths_and_planted_faults():
    check(PATHS, FAULTS, "-m", "not nightly")


@pytest.mark.nightly
@pytest.mark.parametrize("names", ["stock", "not stock"])
def test_all_other_paths(names):
    check(PATHS, "-m", "nightly", "-k", names)
