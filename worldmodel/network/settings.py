"""Settings of the network of a neural market, and its architectures by name, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from vecenv.system.settings import Count, Fraction, Settings

Joint = Literal["correlations", "running mean", "none"]
"""Conditioning on previous returns: all statistics, only their running mean and number, or none."""

Density = Literal["student-t", "gaussian"]
"""Component families of mixtures for signed numbers."""


@dataclass(frozen=True)
class TransformerSettings(Settings):
    """Sizes of the network.

    Attributes:
        layers: number of layers.
        width: of the residual stream.
        heads: attention heads; their width must be even.
        hidden: width of the feed-forward layer.
        window: attention window in days, the present one included.
        dropout: share of a layer's output dropped in training, with one mask for all days of a symbol.
    """

    layers: Count = 4
    width: Count = 192
    heads: Count = 4
    hidden: Count = 384
    window: Count = 60
    dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of {2 * self.heads}, twice the heads, got {self.width}")

    @property
    def reach(self) -> int:
        """Receptive field in days."""
        return self.layers * self.window


@dataclass(frozen=True)
class CnnGruSettings(Settings):
    """Sizes of the network.

    Attributes:
        layers: number of convolutions.
        channels: of the convolutions.
        kernel: days per convolution, the present one included.
        width: of the recurrent unit's state.
        reach: context days read before the first output; older days have no influence on the state.
        dropout: share of the output dropped in training, with one mask for all days of a symbol.

    Raises:
        ValueError: a size is below one, or the dropout not in [0, 1).
    """

    layers: Count = 2
    channels: Count = 64
    kernel: Count = 4
    width: Count = 128
    reach: Count = 240
    dropout: Fraction = 0.1


@dataclass(frozen=True)
class NetworkSettings(Settings):
    """Settings of the network.

    Attributes:
        trunk: kind and sizes of the trunk.
        head: hidden width of the output heads.
        markets: names of the known markets, each with a flag feature.
        joint: conditioning on the day's other symbols; with "none" symbols are independent, on the day and in the
            trunk's inputs.
        density: distribution family of the components of returns.

    Raises:
        ValueError: a size is below one, or there is no such joint distribution or density.
    """

    trunk: TransformerSettings | CnnGruSettings = field(default_factory=TransformerSettings)
    head: Count = 128
    markets: tuple[str, ...] = ("india", "us")
    joint: Joint = "correlations"
    density: Density = "student-t"


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
