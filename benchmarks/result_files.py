"""Result files of benchmarks in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks") / "results"
"""Default folder of results, within a checkout."""


def plain(config: Any) -> dict[str, Any]:  # noqa: ANN401, a dataclass
    """Return the settings of a benchmark, paths and dates as text; of a place on this machine its last name."""
    return {name: _plain(value) for name, value in asdict(config).items()}


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return value.name if value.is_absolute() else str(value)
    return value.isoformat() if isinstance(value, date) else value


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
