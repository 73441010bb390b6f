"""``python -m vecenv.benchmarks.studies NAME``: run a study, a matrix of commands or a script."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import tyro

from vecenv.benchmarks.studies.matrix import MatrixConfig, run_matrix

FOLDER = Path(__file__).parent

NOT_STUDIES = {
    "__init__",
    "__main__",
    "matrix",
    "fixed_policies",
    "book_sessions",
    "book_statistics",
    "zero_intelligence",
    "signal_figures",
}
"""Modules that studies share."""


def studies() -> dict[str, str]:
    scripts = {path.stem for path in FOLDER.glob("*.py")} - NOT_STUDIES
    return dict.fromkeys(sorted(path.stem for path in FOLDER.glob("*.yaml")), "matrix") | dict.fromkeys(
        sorted(scripts), "script"
    )


def main(words: Sequence[str]) -> int:
    """Run the study that the first word names, with the options that follow; return the exit code."""
    known = studies()
    if not words or words[0] not in known:
        print(f"python -m vecenv.benchmarks.studies NAME; there are {', '.join(known)}", file=sys.stderr)
        return 2
    name, options, program = words[0], list(words[1:]), f"python -m vecenv.benchmarks.studies {words[0]}"
    if known[name] == "matrix":
        return run_matrix(FOLDER / f"{name}.yaml", tyro.cli(MatrixConfig, prog=program, args=options))
    study = import_module(f"vecenv.benchmarks.studies.{name}").main
    (kind,) = (hint for key, hint in get_type_hints(study).items() if key != "return")
    study(tyro.cli(kind, prog=program, args=options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
