"""Files sealed by a hash over all that they hold, tensors and settings: what was altered or damaged is not loaded."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vecenv.system.atomic_files import replacing

SEAL = "sha256"
"""Key of the hash."""


def digest_of(tensors: Mapping[str, Tensor], texts: Mapping[str, str] | None = None) -> str:
    """SHA-256 hash of tensors, by names, types, shapes and bytes, and of texts by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    for name, text in sorted((texts or {}).items()):
        digest.update(f"{len(name)} {len(text)} {name}{text}".encode())
    return digest.hexdigest()


def state_digest(state: Mapping[str, Any]) -> str:
    """`digest_of` a state of dictionaries, lists, tensors and plain values."""
    tensors, texts = dict[str, Tensor](), dict[str, str]()

    def collect(value: object, path: str) -> None:
        if isinstance(value, Tensor):
            tensors[path] = value
            return
        parts = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if not isinstance(parts, Mapping):
            texts[path] = repr(value)
            return
        texts[path] = f"{len(parts)} parts"
        for name, part in parts.items():
            collect(part, f"{path}/{name!r}")

    collect(state, "")
    return digest_of(tensors, texts)


def save_sealed(path: Path, kind: str, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Write a sealed safetensors file atomically: an interruption or a full disk leaves the previous one."""
    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {**texts, "format": kind}
    # Not by safetensors' save_file, whose errors hide the system's.
    whole = save(own, metadata | {SEAL: digest_of(own, metadata)})
    with replacing(path) as partial:
        partial.write_bytes(whole)


def load_sealed(
    path: Path, kind: str, what: str, device: torch.device | str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and texts of a sealed safetensors file; ``what`` names its kind in messages.

    Raises:
        ValueError: the file is truncated, altered, not sealed, or of another kind.
    """
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from error
    if metadata.get("format") != kind:
        raise ValueError(f"{path}: a safetensors file, but not of a {what}")
    seal = metadata.pop(SEAL, None)
    if seal is None:
        raise ValueError(f"{path}: written by an older version, without a hash of what it holds: train it again")
    if seal == digest_of(tensors):
        told = "written by an older version, whose hash is of the tensors alone: altered settings are not found"
        warnings.warn(f"{path}: {told}", stacklevel=3)
    elif seal != digest_of(tensors, metadata):
        raise ValueError(f"{path}: altered or damaged: the hash of its tensors and settings does not match")
    return tensors, metadata
