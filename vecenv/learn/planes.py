"""Actor and critic that see planes or images: convolutions, then layers over their outputs and the other blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from vecenv.core.scenario import ObservationForm
from vecenv.learn.heads import Head
from vecenv.learn.networks import ByReference, FlatNetwork, orthogonal_layer, scaled, tanh

CHANNELS = (16, 32)
"""Outputs of the first convolution, and of each further one."""

FINE = 10
"""Larger sides are halved by convolutions of stride two, until none is larger."""


class PlanesNetwork(FlatNetwork):
    """Actor and critic with an encoder of their own: convolutions of 3 by 3 with tanh over the blocks (C, H, W).

    Blocks of one height and width are channels of one picture. Planes are divided by their largest magnitude, if it is
    known (255 for bytes); all other blocks are scaled by their running moments, as a flat observation. Parameters are a
    weight and a bias of each convolution, then those of `FlatNetwork` on the outputs and the other blocks.
    """

    def __init__(
        self,
        form: ObservationForm,
        head: Head,
        hidden: Sequence[int],
        kind: torch.dtype,
        mask: Callable[[Tensor], Tensor | None],
    ) -> None:
        super().__init__(sum(form.sizes), head, hidden, kind, mask)
        self._sizes = form.sizes
        self._shapes = [shape if len(shape) == 3 else None for shape, _ in form.blocks.values()]
        self._scales = [form.scale(name) for name in form.blocks]
        channels: dict[tuple[int, int], int] = {}
        for shape in filter(None, self._shapes):
            channels[shape[1:]] = channels.get(shape[1:], 0) + shape[0]
        self._strides = {side: _strides(max(side)) for side in channels}
        self._convolutions = [
            pair for side, count in channels.items() for pair in pairwise((count, *_outputs(self._strides[side])))
        ]
        others = [size for size, shape in zip(self._sizes, self._shapes, strict=True) if shape is None]
        pictures = [_encoded(side, strides) for side, strides in self._strides.items()]
        self._encoded_size = sum(others) + sum(pictures)

    def _orthogonal(
        self, outputs: int, last_gain: float, generator: torch.Generator, device: torch.device
    ) -> list[Tensor]:
        parameters = []
        for count, channels in self._convolutions:
            weight, bias = orthogonal_layer(9 * count, channels, math.sqrt(2.0), generator, device)
            parameters += [weight.view(channels, count, 3, 3), bias]
        return [*parameters, *self._layers(self._encoded_size, outputs, last_gain, generator, device)]

    def normalised(self, observation: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        parts = zip(*(values.split(self._sizes, dim=-1) for values in (observation, mean, deviation)), strict=True)
        inputs = [
            scaled(own, centre, width) if shape is None else own / scale
            for (own, centre, width), shape, scale in zip(parts, self._shapes, self._scales, strict=True)
        ]
        return torch.cat(inputs, dim=-1)

    def _network(self, parameters: Sequence[Tensor], inputs: Tensor | ByReference) -> Tensor:
        assert isinstance(inputs, Tensor)
        count = 2 * len(self._convolutions)
        return super()._network(parameters[count:], self._encoded(parameters[:count], inputs))

    def _encoded(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the features of the planes and the other blocks. Shapes: (B, D) -> (B, encoded)."""
        pictures: dict[tuple[int, int], list[Tensor]] = {side: [] for side in self._strides}
        others, remaining = [], iter(parameters)
        for block, shape in zip(inputs.split(self._sizes, dim=-1), self._shapes, strict=True):
            if shape is None:
                others.append(block)
            else:
                pictures[shape[1:]].append(block.unflatten(-1, shape))
        for side, planes in pictures.items():
            values = torch.cat(planes, dim=1)
            for stride in self._strides[side]:
                values = tanh(conv2d(values, next(remaining), next(remaining), stride=stride, padding=1))
            others.append(values.flatten(1))
        return torch.cat(others, dim=-1)

    def head_parameters(self, actor: Sequence[Tensor]) -> Sequence[Tensor]:
        return super().head_parameters(actor[2 * len(self._convolutions) :])


def _strides(side: int) -> list[int]:
    """Return the strides of the convolutions of pictures of a side: at least two."""
    strides = []
    while side > FINE:
        strides.append(2)
        side = -(-side // 2)
    return [*strides, *[1] * (2 - len(strides))]


def _outputs(strides: Sequence[int]) -> list[int]:
    return [CHANNELS[0], *[CHANNELS[1]] * (len(strides) - 1)]


def _encoded(side: tuple[int, int], strides: Sequence[int]) -> int:
    height, width = side
    for stride in strides:
        height, width = -(-height // stride), -(-width // stride)
    return _outputs(strides)[-1] * height * width
