"""Results of benchmarks as JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks") / "results"
"""Where results are written unless another folder is named: in a checkout, where they are kept."""


def plain(config: Any) -> dict[str, Any]:  # noqa: ANN401, a dataclass
    """Return the settings of a benchmark, paths as text."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()}


def write_result(folder: Path | None, stem: str, result: Mapping[str, Any]) -> None:
    """Write a result to a folder, which is made, and say where; without one nothing is written."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.json"
    write_json(path, result)
    print(f"wrote {path}")


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write a file that is the old or the new one at every moment: beside it first, then in its place."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(result, indent=1) + "\n")
    beside.replace(path)
