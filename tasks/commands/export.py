"""Export trained policies to files that play without this package, and check such files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vecenv.system.settings import Count, Seed, Settings
from vecenv.tasks.experiment.progress import loading_torch

RECORDED = 10_000


@dataclass(frozen=True, kw_only=True)
class ExportSettings(Settings):
    """Settings of ``vecenv export``."""

    checkpoint: Path | None = None
    """Folder of a run, or its checkpoint. Of a run of several seeds the ensemble by the mean of their actions."""
    to: Literal["onnx", "torch"] = "onnx"
    """Form of the file: ONNX, or a program of torch.export."""
    market: str | None = None
    """File or generator whose observations are recorded, by default the market of the training."""
    observations: Count = RECORDED
    """Observations of the policy's own episodes that are recorded, and on which the file is checked."""
    seed: Seed = 0
    """Seed of these episodes."""
    folder: Path | None = None
    """Folder to write, by default export-FORM in the folder of the run."""
    check: Path | None = None
    """Folder of an export whose file is checked on its recorded observations; nothing is written."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.checkpoint is None) == (self.check is None):
            raise ValueError("either --checkpoint RUN is exported, or an export is checked by --check FOLDER")


def main(settings: ExportSettings) -> dict[str, Any]:
    """Export a trained policy to a file that plays without this package, or check such a file."""
    with loading_torch(f"export {settings.checkpoint}" if settings.check is None else f"check {settings.check}"):
        # It needs PyTorch, which settings do not.
        from vecenv.tasks.commands.exporting import checked, exported

    return exported(settings) if settings.check is None else checked(settings.check)
