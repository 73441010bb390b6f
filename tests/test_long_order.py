"""Limited runs of long tests: each begins with another file, and none begins after the limit."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILES = ("test_a.py", "test_b.py", "test_c.py")
TESTS = "import pytest\n\n@pytest.mark.nightly\ndef test_one(): pass\n\n@pytest.mark.nightly\ndef test_two(): pass\n"


def run(folder: Path, until: int | None, *words: str) -> str:
    """Return what pytest prints of long tests in three files, under a limit."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = long: takes long\n")
    for name in FILES:
        (folder / name).write_text(TESTS)
    limit = {} if until is None else {"VECENV_LONG_UNTIL": str(until)}
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words)
    done = subprocess.run(words, cwd=folder, env={"PATH": ""} | limit, capture_output=True, text=True, check=False)
    return done.stdout


def collected(folder: Path, until: int | None) -> list[str]:
    return [line for line in run(folder, until, "--collect-only").splitlines() if "::" in line]


@pytest.mark.assembly
def test_each_file_comes_first_in_turn_and_its_tests_keep_their_order(tmp_path):
    usual = collected(tmp_path, None)
    assert usual == [f"{name}::{test}" for name in FILES for test in ("test_one", "test_two")]
    minute = 30_000_000
    for later in range(4):
        order = collected(tmp_path, 60 * (minute + later) + 59)
        first = 2 * ((minute + later) % len(FILES))
        assert order == usual[first:] + usual[:first]


@pytest.mark.assembly
def test_no_long_test_begins_after_the_limit(tmp_path):
    assert "6 passed" in run(tmp_path, int(time.time()) + 600)
    assert "6 skipped" in run(tmp_path, int(time.time()) - 1, "-rs")
