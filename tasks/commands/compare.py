"""Compare policies of several runs on the same episodes, each on its own features, actions and symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from tyro import conf

from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.evaluate import main as evaluated


@dataclass(frozen=True, kw_only=True)
class CompareSettings(EvaluateSettings):
    """Settings of ``vecenv compare``: those of ``vecenv evaluate`` with policies."""

    checkpoint: conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs, or checkpoints, before all options. Market, account and costs are those of the first run, and
    options change them for all."""
    model: ClassVar[str | None] = None  # type: ignore[misc]

    @classmethod
    def defaults(cls, args: Sequence[str]) -> CompareSettings:
        runs = [*takewhile(lambda word: not word.startswith("-"), args)]
        settings = super().defaults(["--checkpoint", *runs, *args[len(runs) :]] if runs else args)
        assert isinstance(settings, CompareSettings)
        return settings


def main(settings: CompareSettings) -> dict[str, Any]:
    """Compare policies of several runs on the same episodes, each on its own features, actions and symbols."""
    if not settings.checkpoint:
        raise ValueError("give the folders of two runs or more, or of one of several seeds")
    return evaluated(settings)
