"""Play recorded episodes again and check that every number is the recorded one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro import conf

from vecenv.system.settings import Count, Settings


@dataclass(frozen=True)
class ReplaySettings(Settings):
    """Settings of ``vecenv replay``."""

    file: conf.Positional[Path]
    """JSONL file of recorded episodes."""
    episode: Count | None = None
    """Line number of a single episode to replay, from 1; all by default."""
    market: str | None = None
    """File or generator to use instead of the recorded one, of tasks on bars; it must be the same market."""
    report: Path | None = None
    """HTML file for a report of the episode, of several the first."""
    device: str = "cpu"
    """Device of tasks of tensors; another device than the recording's may round rewards differently."""


def main(settings: ReplaySettings) -> dict[str, Any]:
    """Play recorded episodes again and check that every number is the recorded one."""
    # It needs PyTorch, which settings do not.
    from vecenv.tasks.commands.replaying import replay

    return replay(settings)
