"""What a GPU would compute for the steps that are shipped: see the README of this folder."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.device import guard
from tests.device.test_pretended_device import check

REASON = guard.missing() or (None if find_spec("triton") else "Triton is not installed")


@pytest.mark.nightly
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_every_shipped_step_rounds_once(tmp_path):
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    # Two workers: compiling a step takes half a minute, and nothing else runs beside this in CI.
    check(str(Path(__file__).with_name("check_arithmetic.py")), "-n", "2", "--dist", "worksteal", **caches)


@pytest.mark.nightly
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_the_machine_of_programs_gives_the_numbers_of_the_graph():
    check(str(Path(__file__).with_name("check_programs.py")), TRITON_INTERPRET="1")
