"""Checkpoints of neural markets: safetensors files with settings in their metadata, all of it hashed.

They are loaded without running code. Two are shipped, by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.core.foreign_json import read_json
from vecenv.learn.checkpoints import check_same_form, load_sealed, network_of, save_sealed
from vecenv.worldmodel.data.calendar import CALENDAR
from vecenv.worldmodel.data.correlation_level import LEVEL_SHARES
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_shocks import no_shock
from vecenv.worldmodel.network.settings import CnnGruSettings, NetworkSettings, TransformerSettings

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
    tensors = {WEIGHTS + name: tensor for name, tensor in network.state_dict().items()} | dict(extra)
    trunk = network.settings.trunk
    kind = next(name for name, known in TRUNKS.items() if isinstance(trunk, known))
    settings = json.dumps(asdict(network.settings) | {"trunk": {"kind": kind, **asdict(trunk)}})
    save_sealed(path, FORMAT, tensors, {"version": str(VERSION), "settings": settings, "record": json.dumps(record)})


def load_network(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, altered, of another kind or of another version.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no checkpoint of a neural market")
    tensors, metadata = load_sealed(path, FORMAT, "neural market", device)
    if metadata.get("version") != str(VERSION):
        raise ValueError(f"{path}: version {metadata.get('version')} of the format, {VERSION} is needed: retrain it")
    settings, record = _settings(path, _json(path, metadata, "settings"), len(tensors)), _json(path, metadata, "record")
    weights = {name[len(WEIGHTS) :]: t for name, t in tensors.items() if name.startswith(WEIGHTS)}
    # Weights from before there were levels follow none, and from before there was a calendar have days of no kind; from
    # before there were common shocks of returns, days without one.
    weights.setdefault("level_shares", torch.zeros(len(settings.markets), len(LEVEL_SHARES), device=device))
    weights.setdefault("bars.calendar", torch.zeros(len(settings.markets), len(CALENDAR), device=device))
    weights.setdefault("return_shocks", no_shock().repeat(len(settings.markets), 1).to(device))
    network = network_of(path, lambda: MarketNetwork(settings), weights)
    if not bool(((network.decays > 0) & (network.decays < 1)).all()):
        raise ValueError(f"{path}: decays of correlations must lie between 0 and 1, got {network.decays.tolist()}")
    if not bool(((network.shrinkages >= 0) & (network.shrinkages <= 1)).all()):
        raise ValueError(f"{path}: shrinkages of correlations must be 0 to 1, got {network.shrinkages.tolist()}")
    if not bool(((network.level_shares >= 0) & (network.level_shares <= 1)).all()):
        raise ValueError(f"{path}: shares of correlations' levels must be 0 to 1, got {network.level_shares.tolist()}")
    shocks = network.return_shocks
    if not bool((shocks >= 0).all() and ((shocks.sum(-1) - 1.0).abs() < 1e-4).all()):
        raise ValueError(f"{path}: probabilities of common shocks must be 0 to 1, of sum 1, got {shocks.tolist()}")
    if not bool(network.bars.calendar.isfinite().all()):
        told = network.bars.calendar.tolist()
        raise ValueError(f"{path}: moves on days of the calendar must be finite, got {told}")
    extra = {name: tensor for name, tensor in tensors.items() if not name.startswith(WEIGHTS)}
    saved = Checkpoint(network.to(device).eval(), record, extra)
    try:
        for day in saved.known_days().values():
            np.datetime64(day, "D")
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: the days in its record cannot be read ({error})") from error
    return saved


def _json(path: Path, metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = read_json(metadata.get(name, ""))
    except ValueError as error:
        raise ValueError(f"{path}: its {name} cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: its {name} cannot be read")
    return value


def _settings(path: Path, values: dict[str, Any], layers: int) -> NetworkSettings:
    """Return settings of at most so many layers, each of which has a tensor: a file must not ask for more."""
    known = values.get("trunk")
    trunk = dict(known) if isinstance(known, Mapping) else {}
    kind = trunk.pop("kind", None)
    if kind not in TRUNKS:
        raise ValueError(f"{path}: unknown trunk {kind!r}; there are {', '.join(TRUNKS)}")
    try:
        settings = NetworkSettings(**values | {"trunk": TRUNKS[kind](**trunk), "markets": tuple(values["markets"])})
        check_same_form(asdict(settings), asdict(NetworkSettings(TRUNKS[kind](), markets=settings.markets)), "settings")
        if settings.trunk.layers > layers:
            raise ValueError(f"layers must be at most {layers}, got {settings.trunk.layers}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its settings cannot be read ({error})") from error
    return settings


SHIPPED, JUDGED = (Path(__file__).parents[1] / "weights" / f"{name}.safetensors" for name in ("shipped", "judged"))
"""The default weights, trained on all days that there are; and those of the same recipe trained up to the split, for
tests on the days after it. See ``model_card.md`` beside them."""

NAMED = {"shipped": SHIPPED, "judged": JUDGED}


def model_file(model: str | Path) -> Path:
    """Return the file of a model, given by the name of weights or by its path."""
    return NAMED.get(str(model), Path(model))
