"""Result files of benchmarks in JSON: small enough to be read, and written whole or not at all."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import vecenv
from vecenv.system.files import replacing
from vecenv.system.settings import Settings

RESULTS = Path("benchmarks") / "results"
"""Default folder of results, within a checkout."""

DIGITS = 5
"""Significant digits of the numbers of a summary."""

WIDTH = 160
"""Longest line of a group of numbers."""


def result_of(config: Any, device: Any = "cpu", **found: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what was found, with the conditions: time, device, versions and settings."""
    import torch

    from vecenv.benchmarks import device as machine

    return {
        "version": vecenv.__version__,
        "torch": torch.__version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.device_name(torch.device(device)),
        "config": {name: _plain(value) for name, value in asdict(config).items()},
        **found,
    }


def _plain(value: object) -> object:
    """Return a setting as text where JSON lacks its type; of a place on this machine its last name."""
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Path):
        return value.name if value.is_absolute() else str(value)
    return value if isinstance(value, dict | str | int | float | bool | None) else str(value)


Page = Callable[[Mapping[str, Any]], str]
"""The page of a result, in Markdown."""


@dataclass(frozen=True)
class StudyConfig(Settings):
    """Settings of a study."""

    output: Path | None = field(default=RESULTS, kw_only=True)
    """Folder for the JSON, and for a page or picture; none are written without it."""

    def written(self, stem: str, page: Page | None = None, **found: Any) -> dict[str, Any]:  # noqa: ANN401
        """Write what was found as JSON, and the page of it, which is printed too; return the JSON."""
        result = result_of(self, **found)
        text = None if page is None else page(result)
        if text is not None:
            print(text)
        write_result(self.output, stem, result, text)
        return result


def write_result(folder: Path | None, stem: str, result: Mapping[str, Any], page: str | None = None) -> None:
    """Write a summary, and a page in Markdown, to a folder, which is created; without a folder do nothing."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{stem}.json", summary_text(result))
    if page is not None:
        write_text(folder / f"{stem}.md", page)
    print(f"wrote {folder / stem}.json")


def spelled(value: Any, scale: float = 1.0, digits: int = 2) -> str:  # noqa: ANN401
    bounds = [value[name] for name in ("mean", "low", "high")] if isinstance(value, Mapping) else [value]
    known = [bound is not None and not math.isnan(bound) for bound in bounds]
    shown = [f"{scale * bound:.{digits}f}" if told else "–" for bound, told in zip(bounds, known, strict=True)]
    return f"{shown[0]} ({shown[1]} … {shown[2]})" if len(shown) == 3 and all(known) else shown[0]


def markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join([lines[0], "|---" * (lines[0].count(" | ") + 1) + "|", *lines[1:]])


def write_text(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text)


def summary_text(value: object, indent: int = 0) -> str:
    """Return JSON with rounded numbers, NaN as null, and a line for each group that fits into one."""
    told = _rounded(value)
    return _lines(told, indent) + "\n"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {str(name): _rounded(entry) for name, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def _lines(value: object, indent: int) -> str:
    line = json.dumps(value, ensure_ascii=False, default=str)
    if len(line) + indent <= WIDTH or not isinstance(value, dict | list):
        return line
    inner, outer = " " * (indent + 1), " " * indent
    if isinstance(value, dict):
        parts = [
            f"{inner}{json.dumps(name, ensure_ascii=False)}: {_lines(entry, indent + 1)}"
            for name, entry in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{outer}}}"
    if all(isinstance(entry, int | float | None) for entry in value):
        return textwrap.fill(line, WIDTH, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)
    return "[\n" + ",\n".join(inner + _lines(entry, indent + 1) for entry in value) + f"\n{outer}]"
