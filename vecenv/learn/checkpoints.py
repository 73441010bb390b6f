"""Checkpoints that are whole or absent, and that load without running code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint in one stroke: an interruption leaves the one before.

    Args:
        state: tensors, numbers and strings in dicts and lists.
        path: of the file.
    """
    partial = path.with_suffix(".partial")
    torch.save(dict(state), partial)
    os.replace(partial, path)


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint onto a device.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no checkpoint")
    return torch.load(path, map_location=device, weights_only=True)
