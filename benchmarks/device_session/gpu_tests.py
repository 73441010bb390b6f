"""The project's tests marked ``gpu``, one by one, with what became of each."""

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

# Without the options of the project: workers that share a device disturb each other.
OPTIONS = ["-c", str(TESTS.parent / "pyproject.toml"), "-o", "addopts=", "-m", "gpu", "-p", "no:cacheprovider", "-ra"]


def points(place: Place) -> Sequence[Point]:
    """Return these tests as points of a session."""
    del place
    return [Point(name, partial(run_gpu_tests, test)) for name, test in gpu_tests().items()]


def gpu_tests(folder: Path = TESTS) -> dict[str, str]:
    """Return the tests that are marked ``gpu``: each by its name within a folder, and as pytest is to be given it.

    A file that cannot be read, or is skipped as a whole, stands for its tests.

    Raises:
        FileNotFoundError: there are none, as where the packages are installed without the project.
    """
    files = [
        path for path in sorted(folder.rglob("test_*.py")) if re.search(r"\bpytest\.mark\.gpu\b", path.read_text())
    ]
    if not files:
        raise FileNotFoundError(f"{folder}: no tests marked gpu")
    tests = [test for file in files for test in _tests_of(str(file))]
    return {test.removeprefix(f"{folder}/"): test for test in tests}


def run_gpu_tests(test: str) -> dict[str, Any]:
    """Run a test, or a file's that are marked ``gpu``; pytest's own report goes to the standard output."""
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
    """Tests of a file as pytest finds them."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the tests that were not deselected."""
        self.tests = [item.nodeid.partition("::")[2] for item in session.items]


class _Outcomes:
    """What became of tests, as pytest tells it."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.faults: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test; an error before or after it is one too."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            self._fault(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that is skipped, or cannot be read."""
        if report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            self._fault(report)

    def _fault(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        self.faults.append(lines[0][1:].strip() if lines else "failed")
