"""The architectures that are trained beside each other, and what each is called in tables."""

from __future__ import annotations

from typing import Literal, NamedTuple

from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import NetworkSettings
from vecenv.worldmodel.network.mixture import Density
from vecenv.worldmodel.network.return_chain import Joint
from vecenv.worldmodel.network.transformer import TransformerSettings

Architecture = Literal["joint", "running-mean", "published", "cnn-gru"]
"""This project's; its symbols chained by their running mean alone; and the published ones, of independent symbols."""

RUNNING_MEAN_CHAIN = "running-mean chain"
"""A model that sees each day's mean so far: the least that a joint distribution has to beat."""


class _Design(NamedTuple):
    """What makes an architecture.

    Attributes:
        name: in tables.
        trunk: kind of the trunk's settings.
        joint: see `NetworkSettings`.
        density: see `NetworkSettings`.
        head: see `NetworkSettings`.
    """

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
    """Return what a network of an architecture is made of.

    Args:
        architecture: one of `Architecture`.
        transformer: sizes of its trunk, if that is a transformer.
        cnn_gru: sizes of its trunk, if that is convolutions and a recurrent unit.
        markets: names of the markets.

    Raises:
        ValueError: sizes other than the default ones are given for a trunk that the architecture does not have.
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
