"""Session part that runs the project's tests marked ``gpu`` one by one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vecenv
from vecenv.benchmarks.device_session.point import Place, Point

TESTS = Path(vecenv.__file__).parents[1] / "tests"

# Without the project's pytest options: parallel workers would share the device.
OPTIONS = ["-c", str(TESTS.parent / "pyproject.toml"), "-o", "addopts=", "-m", "gpu", "-p", "no:cacheprovider", "-ra"]


def points(place: Place) -> Sequence[Point]:
    """Return these tests as points of a session."""
    del place
    return [Point(name, partial(run_gpu_tests, test)) for name, test in gpu_tests().items()]


def gpu_tests(folder: Path = TESTS) -> dict[str, str]:
    """Return the tests marked ``gpu``: names within a folder, and pytest arguments.

    A file that fails to load, or is skipped as a whole, is listed instead of its tests.

    Raises:
        FileNotFoundError: there are none, such as outside a checkout.
    """
    files = [
        path for path in sorted(folder.rglob("test_*.py")) if re.search(r"\bpytest\.mark\.gpu\b", path.read_text())
    ]
    if not files:
        raise FileNotFoundError(f"{folder}: no tests marked gpu")
    tests = [test for file in files for test in _tests_of(str(file))]
    return {test.removeprefix(f"{folder}/"): test for test in tests}


def run_gpu_tests(test: str) -> dict[str, Any]:
    """Run a test, or a file's tests marked ``gpu``; pytest's report goes to the standard output."""
    outcomes = _Outcomes()
    code = pytest.main([test, *OPTIONS], plugins=[outcomes])
    counts = {name: outcomes.counts[name] for name in ("passed", "failed", "skipped")}
    if not outcomes.faults and code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        outcomes.faults.append(f"pytest ended with code {int(code)}")
    told = ", ".join(f"{count} {name}" if sum(counts.values()) > 1 else name for name, count in counts.items() if count)
    return {"headline": told or "no tests", **counts, "faults": outcomes.faults}


def _tests_of(file: str) -> list[str]:
    collected = _Collected()
    pytest.main([file, "--collect-only", "-q", *OPTIONS], plugins=[collected])
    return [f"{file}::{test}" for test in collected.tests] or [file]


class _Collected:
    """Pytest plugin that collects the tests of a file."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the tests that were not deselected."""
        self.tests = [item.nodeid.partition("::")[2] for item in session.items]


class _Outcomes:
    """Pytest plugin that records the outcomes of tests."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.faults: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test; an error in setup or teardown counts as an error."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            self._fault(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that is skipped or fails to load."""
        if report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            self._fault(report)

    def _fault(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        self.faults.append(lines[0][1:].strip() if lines else "failed")
