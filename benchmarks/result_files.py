"""Result files of benchmarks in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks") / "results"
"""Default folder of results, within a checkout."""


def plain(config: Any) -> dict[str, Any]:  # noqa: ANN401, a dataclass
    """Return the settings of a benchmark, paths as text; of a place on this machine its last name."""
    return {name: _place(value) if isinstance(value, Path) else value for name, value in asdict(config).items()}


def _place(path: Path) -> str:
    return path.name if path.is_absolute() else str(path)


def write_result(folder: Path | None, stem: str, result: Mapping[str, Any]) -> None:
    """Write a result to a folder, which is created, and print the path; without a folder do nothing."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.json"
    write_json(path, result)
    print(f"wrote {path}")


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write a JSON file atomically: to a temporary file, then rename."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(result, indent=1) + "\n")
    beside.replace(path)
