"""Record of a session in one JSON file that is replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vecenv.benchmarks.device_session.point import Part
from vecenv.benchmarks.result_files import write_json

SUMMARY = "summary.json"
LOG = "log.txt"
RESULTS = ("done", "does not fit", "failed")
"""States of a point that are final when a session is resumed."""


class SessionRecord:
    """Figures of all parts; every change is on the disk when the call returns.

    Args:
        folder: folder of `SUMMARY`.
        machine: facts of device and software.
        parts: in the order of execution.
        minutes: of this session.
        resume: continue the record in the folder.

    Raises:
        FileExistsError: the folder has a record, without ``resume``.
        FileNotFoundError: there is no record to resume.
        ValueError: the record is of another machine, or invalid.
    """

    def __init__(
        self, folder: Path, machine: Mapping[str, Any], parts: Sequence[Part], minutes: float, resume: bool
    ) -> None:
        self.path = folder / SUMMARY
        self.data: dict[str, Any] = {"benchmark": "device_session", "machine": dict(machine), "sessions": []}
        self.data["parts"] = {}
        if resume:
            self.data = self._earlier()
        elif self.path.exists():
            raise FileExistsError(f"{self.path} exists: give another folder, or --resume to measure what it lacks")
        for part in parts:
            known = self.data["parts"].setdefault(part.name, {"status": "waiting", "seconds": 0.0, "points": {}})
            known["what"] = part.what
        folder.mkdir(parents=True, exist_ok=True)
        self.data["sessions"].append({"started": now(), "minutes": minutes, "status": "running"})
        differing = [name for name, value in machine.items() if self.data["machine"].get(name) != value]
        if differing:
            name = differing[0]
            told = f"{name} is {machine[name]!r} here and {self.data['machine'].get(name)!r} in {self.path}"
            raise ValueError(f"{told}: a record holds figures of one machine only")
        self.write()

    def _earlier(self) -> dict[str, Any]:
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path}: there is no session to resume")
        try:
            data: dict[str, Any] = json.loads(self.path.read_text())
        except ValueError as error:
            raise ValueError(f"{self.path} is no record of a session: {error}") from error
        if not isinstance(data, dict) or data.get("benchmark") != "device_session":
            raise ValueError(f"{self.path} is no record of a session")
        return data

    def write(self) -> None:
        """Write everything."""
        write_json(self.path, self.data)

    def part(self, name: str, **known: Any) -> None:  # noqa: ANN401
        """Set fields of a part."""
        self.data["parts"][name] |= known
        self.write()

    def point(self, part: str, name: str, **known: Any) -> None:  # noqa: ANN401
        """Set all fields of a point."""
        self.data["parts"][part]["points"][name] = known
        self.write()

    def points(self, part: str) -> dict[str, Any]:
        """Return the points of a part by name."""
        points: dict[str, Any] = self.data["parts"][part]["points"]
        return points

    def ended(self, part: str) -> list[str]:
        """Return the points of a part with a final state."""
        return [name for name, point in self.points(part).items() if point["status"] in RESULTS]

    def whole(self, part: str) -> bool:
        """Whether all points of a part are known and have a final state."""
        points = self.points(part)
        return bool(points) and len(self.ended(part)) == len(points)

    def figure(self, part: str, point: str, name: str) -> Any:  # noqa: ANN401
        """Return one figure, None if it has not been measured."""
        return self.data["parts"].get(part, {}).get("points", {}).get(point, {}).get("figures", {}).get(name)

    def close(self, status: str) -> None:
        """Record how the session ended."""
        self.data["sessions"][-1] |= {"ended": now(), "status": status}
        self.write()

    def failed(self) -> bool:
        """Whether any part or point failed."""
        parts = self.data["parts"].values()
        points = [point for part in parts for point in part["points"].values()]
        return any(each["status"] == "failed" for each in (*parts, *points))


def now() -> str:
    """Return the time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
