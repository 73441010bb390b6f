"""Checkpoints of neural markets: safetensors files with settings in their metadata, loaded without running code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vecenv.learn.checkpoints import check_same_form
from vecenv.system.atomic_files import replacing
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings

FORMAT = "vecenv-neural-market"
VERSION = 4
"""Format version; changes only when older checkpoints can no longer be read as trained."""

WEIGHTS = "network."

TRUNKS: dict[str, type[TransformerSettings] | type[CnnGruSettings]] = {
    "transformer": TransformerSettings,
    "cnn-gru": CnnGruSettings,
}
"""Kinds of trunks."""


class Checkpoint(NamedTuple):
    """A network in evaluation mode, its training record for JSON, and more tensors by name, such as the optimiser's."""

    network: MarketNetwork
    record: dict[str, Any]
    extra: dict[str, Tensor]

    def known_days(self) -> dict[str, str]:
        """Return the last day that the weights, or those they were fitted from, were trained or chosen on, by symbol.

        ISO dates; a symbol is missing if its days are unknown.
        """
        known = dict(self.record.get("init", {}).get("known_days", {}))
        for source in self.record.get("sources", {}).values():
            for symbol in source.get("symbols", ()):
                known[symbol] = max(known.get(symbol, ""), source.get("validation_end", ""))
        return {symbol: day for symbol, day in known.items() if day}


def save_network(path: Path, network: MarketNetwork, record: Mapping[str, Any], extra: Mapping[str, Tensor]) -> None:
    """Write a checkpoint atomically: an interruption or a full disk leaves the previous one."""
    tensors = {WEIGHTS + name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    tensors |= {name: tensor.detach().cpu().contiguous() for name, tensor in extra.items()}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "settings": json.dumps(_settings_to_json(network.settings)),
        "record": json.dumps(record),
        "sha256": _digest(tensors),
    }
    # Not by safetensors' save_file, whose errors hide the system's.
    whole = save(tensors, metadata)
    with replacing(path) as partial:
        partial.write_bytes(whole)


def load_network(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, altered, of another kind or of another version.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no checkpoint of a neural market")
    try:
        with safe_open(path, "pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path}: a safetensors file, but not of a neural market")
    if metadata.get("version") != str(VERSION):
        raise ValueError(f"{path}: version {metadata.get('version')} of the format, {VERSION} is needed: retrain it")
    if metadata.get("sha256") != _digest(tensors):
        raise ValueError(f"{path}: the digest of its tensors does not match")
    network = MarketNetwork(_settings(path, _json(path, metadata, "settings")))
    weights = {name[len(WEIGHTS) :]: t for name, t in tensors.items() if name.startswith(WEIGHTS)}
    try:
        check_same_form(weights, dict(network.state_dict()), "network")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    network.load_state_dict(weights)
    if not bool(((network.decays > 0) & (network.decays < 1)).all()):
        raise ValueError(f"{path}: decays of correlations must lie between 0 and 1, got {network.decays.tolist()}")
    if not bool(((network.shrinkages >= 0) & (network.shrinkages <= 1)).all()):
        raise ValueError(f"{path}: shrinkages of correlations must be 0 to 1, got {network.shrinkages.tolist()}")
    extra = {name: tensor for name, tensor in tensors.items() if not name.startswith(WEIGHTS)}
    return Checkpoint(network.to(device).eval(), _json(path, metadata, "record"), extra)


def _settings_to_json(settings: NetworkSettings) -> dict[str, Any]:
    kind = next(name for name, trunk in TRUNKS.items() if isinstance(settings.trunk, trunk))
    return asdict(settings) | {"trunk": {"kind": kind, **asdict(settings.trunk)}}


def _json(path: Path, metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(metadata.get(name, ""))
    except ValueError as error:
        raise ValueError(f"{path}: its {name} cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: its {name} cannot be read")
    return value


def _settings(path: Path, values: dict[str, Any]) -> NetworkSettings:
    known = values.get("trunk")
    trunk = dict(known) if isinstance(known, Mapping) else {}
    kind = trunk.pop("kind", None)
    if kind not in TRUNKS:
        raise ValueError(f"{path}: unknown trunk {kind!r}; there are {', '.join(TRUNKS)}")
    try:
        return NetworkSettings(**values | {"trunk": TRUNKS[kind](**trunk), "markets": tuple(values["markets"])})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its settings cannot be read ({error})") from error


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 hash of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
