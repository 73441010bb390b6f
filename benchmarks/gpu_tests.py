"""The project's tests marked ``gpu``, file by file, with what became of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.session_point import Place, Point

TESTS = Path(__file__).parents[1] / "tests"


def files_with_gpu_tests(folder: Path = TESTS) -> list[Path]:
    """Return the files that mark a test ``gpu``.

    Raises:
        FileNotFoundError: there are none, as where the packages are installed without the project.
    """
    files = [path for path in sorted(folder.rglob("test_*.py")) if re.search(r"\bmark\.gpu\b", path.read_text())]
    if not files:
        raise FileNotFoundError(f"{folder}: no tests marked gpu")
    return files


def points(place: Place) -> Sequence[Point]:
    """Return these files as points of a session."""
    del place
    return [Point(str(file.relative_to(TESTS)), partial(run_gpu_tests, file)) for file in files_with_gpu_tests()]


class _Outcomes:
    """What became of the tests of a file, as pytest tells it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.counts = Counter[str]()
        self.faults: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test; an error before or after it is one too."""
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            self._fault(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be read."""
        if report.failed:
            self.counts["failed"] += 1
            self._fault(report)

    def _fault(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        test = "::".join(report.nodeid.split("::")[1:])
        name = f"{self.file}::{test}" if test else self.file
        self.faults.append(f"{name}: {lines[0][1:].strip() if lines else 'failed'}")


def run_gpu_tests(file: Path) -> dict[str, Any]:
    """Run the tests of a file that are marked ``gpu``; pytest's own report goes to the standard output."""
    outcomes = _Outcomes(file.name)
    # Without the options of the project: workers that share a device disturb each other.
    options = [
        "-c",
        str(TESTS.parent / "pyproject.toml"),
        "-o",
        "addopts=",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        "-ra",
    ]
    code = pytest.main([str(file), *options], plugins=[outcomes])
    counts = {name: outcomes.counts[name] for name in ("passed", "failed", "skipped")}
    if not outcomes.faults and code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        outcomes.faults.append(f"pytest ended with code {int(code)}")
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return {"headline": told or "no tests", **counts, "faults": outcomes.faults}
