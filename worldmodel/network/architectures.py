"""Named network architectures: this project's and the baselines'."""

from __future__ import annotations

from typing import Literal, NamedTuple

from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import NetworkSettings
from vecenv.worldmodel.network.mixture import Density
from vecenv.worldmodel.network.return_chain import Joint
from vecenv.worldmodel.network.transformer import TransformerSettings

Architecture = Literal["joint", "running-mean", "published", "cnn-gru"]
"""This project's; the chain conditioned on the running mean only; and the published ones with independent symbols."""

RUNNING_MEAN_CHAIN = "running-mean chain"
"""Name of the baseline conditioned on each day's running mean: the simplest joint distribution."""


class _Design(NamedTuple):
    """Trunk and heads of an architecture; fields as in `NetworkSettings`."""

    name: str
    trunk: type[TransformerSettings] | type[CnnGruSettings]
    joint: Joint
    density: Density
    head: int


_DESIGNS: dict[Architecture, _Design] = {
    "joint": _Design("neural", TransformerSettings, "correlations", "student-t", 128),
    "running-mean": _Design(RUNNING_MEAN_CHAIN, TransformerSettings, "running mean", "student-t", 128),
    "published": _Design("independent transformer, 3 Gaussians", TransformerSettings, "none", "gaussian", 128),
    "cnn-gru": _Design("CNN+GRU, 3 Gaussians", CnnGruSettings, "none", "gaussian", 64),
}


def network_settings(
    architecture: Architecture, transformer: TransformerSettings, cnn_gru: CnnGruSettings, markets: tuple[str, ...]
) -> NetworkSettings:
    """Return the network settings of an architecture.

    Raises:
        ValueError: non-default sizes are given for a trunk that the architecture does not have.
    """
    design = _DESIGNS[architecture]
    recurrent = design.trunk is CnnGruSettings
    if recurrent and transformer != TransformerSettings():
        raise ValueError(f"architecture {architecture!r} has no transformer, but sizes of one are given: {transformer}")
    if not recurrent and cnn_gru != CnnGruSettings():
        raise ValueError(f"architecture {architecture!r} has no CNN+GRU, but sizes of one are given: {cnn_gru}")
    trunk = cnn_gru if recurrent else transformer
    return NetworkSettings(trunk, design.head, markets, design.joint, design.density)


def model_name(settings: NetworkSettings) -> str:
    """Return the name of a network in tables."""
    made = (type(settings.trunk), settings.joint, settings.density)
    for design in _DESIGNS.values():
        if made == (design.trunk, design.joint, design.density):
            return design.name
    trunk = "CNN+GRU" if isinstance(settings.trunk, CnnGruSettings) else "transformer"
    return f"{trunk}, {settings.joint}, {settings.density}"
