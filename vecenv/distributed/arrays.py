"""Objects with tensors as bytes and NumPy arrays, which Ray carries through shared memory without a copy each."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

Sealed = list[Any]
"""A pickle, and after it the arrays that it refers to."""


def array_of(tensor: Tensor) -> np.ndarray:
    """Return a contiguous array with the values of a tensor, mostly without a copy; TypeError of bfloat16."""
    array: np.ndarray = tensor.detach().cpu().contiguous().numpy()
    return array


def arrays_of(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return `array_of` each tensor."""
    return [array_of(tensor) for tensor in tensors]


def fill(tensor: Tensor, array: np.ndarray) -> None:
    """Write an array, perhaps a read-only one, into a tensor of the same shape and type.

    Raises:
        ValueError: it has another shape or type.
    """
    if tuple(tensor.shape) != array.shape:
        raise ValueError(f"an array of shape {array.shape} does not fit {tuple(tensor.shape)}")
    if tensor.device.type == "cpu":
        target = tensor.numpy()
        if target.dtype != array.dtype:
            raise ValueError(f"an array of {array.dtype} does not fit {target.dtype}")
        np.copyto(target, array)
    else:
        # Torch takes no read-only memory.
        tensor.copy_(torch.from_numpy(array.copy()))


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array))


class _Sealer(cloudpickle.CloudPickler):
    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401
        if type(obj) is Tensor and obj.dtype != torch.bfloat16:
            return _tensor, (array_of(obj),)
        return super().reducer_override(obj)


def sealed(value: object) -> Sealed:
    """Return an object as bytes and arrays; its tensors, those of accelerators too, come back on the CPU."""
    buffers: list[pickle.PickleBuffer] = []
    target = io.BytesIO()
    _Sealer(target, protocol=5, buffer_callback=buffers.append).dump(value)
    return [target.getvalue(), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]


def opened(value: Sealed) -> Any:  # noqa: ANN401
    """Return an object that was `sealed`."""
    data, *arrays = value
    return pickle.loads(data, buffers=arrays)
