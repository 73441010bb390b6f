"""A pretended CUDA device: tensors that say they lie on ``cuda:0``, whose numbers are the CPU's.

An operation that mixes devices raises as PyTorch's would, every meeting of host and device is logged with the line that
caused it, and a captured graph holds operations on memory, so that what it replays is what a CUDA graph would.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

ROOT = Path(__file__).parents[2]
OPTIMISERS = ("torch/optim/adam.py", "torch/optim/adamw.py")


class Meeting(NamedTuple):
    """One kind of meeting at one place, of a file and a function.

    Attributes:
        what: "to host", "to device", "host index", "mask", or the operation that waits for the device.
        inside: the call that must not meet the host and did; empty if none.
    """

    place: str
    line: int
    what: str
    inside: str

    def __str__(self) -> str:
        return f"{self.place.partition(' ')[0]}:{self.line} {self.what}" + (f" in {self.inside}" if self.inside else "")


class Log:
    def __init__(self) -> None:
        self.meetings: Counter[Meeting] | None = None
        self.apart: dict[CodeType, str] = {}
        """Code of the calls in which nothing may meet, and what they are called."""

    @contextmanager
    def open(self) -> Iterator[Counter[Meeting]]:
        """Count what meets within; a log within a log takes what meets there."""
        before, self.meetings = self.meetings, Counter()
        try:
            yield self.meetings
        finally:
            self.meetings = before

    def note(self, what: str) -> Meeting:
        """Take in a meeting that the caller's caller causes."""
        place, line, inside = "outside the project", 0, ""
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if not line and file.startswith(f"{ROOT}/") and file != __file__:
                # What is within a function counts as its own, comprehensions in any version of Python.
                function = code.co_qualname.partition(".<locals>")[0]
                place, line = f"{file[len(str(ROOT)) + 1 :]} {function}", frame.f_lineno
            if not inside:
                inside = self.apart.get(code, "an optimiser step" if file.endswith(OPTIMISERS) else "")
            frame = frame.f_back
        meeting = Meeting(place, line, what, inside)
        if self.meetings is not None:
            self.meetings[meeting] += 1
        return meeting


log = Log()

DEVICE, MEMORY = torch.device("cuda:0"), 80 << 30

WAITING = {
    "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::argwhere",
    "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::bincount", "aten::repeat_interleave", "aten::_linalg_check_errors", "aten::_assert_scalar",
}  # fmt: skip
"""Operations whose result, or its size, the host must know."""

COPIES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from"}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
WITH_NUMBERS = {"aten::fill_", "aten::fill", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
"""Take numbers of the host beside pointwise operations, which all do."""


class DeviceTensor(torch.Tensor):
    """A tensor on the pretended device, whose numbers are those of `host`."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "DeviceTensor":
        place = {"strides": host.stride(), "storage_offset": host.storage_offset(), "device": DEVICE}
        kind = {"dtype": host.dtype, "layout": host.layout}
        made = torch.Tensor._make_wrapper_subclass(cls, host.size(), **place, **kind)
        made.host = host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), keywords=None):
        for leaf in tree_leaves(arguments) if FakeTensor in types else ():
            if isinstance(leaf, FakeTensor):
                with leaf.fake_mode:
                    return _faked(operation, arguments, keywords or {})
        return run(operation, arguments, keywords or {})

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.host})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to the host")

    __array__ = numpy

    def __reduce_ex__(self, protocol: int) -> Any:
        """Saved as a tensor of the host, as one that is read with ``map_location`` is."""
        log.note("to host")
        return self.host.__reduce_ex__(protocol)


class Graph:
    """What is captured: operations on memory, without the Python around them."""

    def __init__(self) -> None:
        self._recorded: list[tuple[Any, Any, Any, Any]] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    def will_write(self, operation: Any, arguments: Any) -> None:
        """Remember what an operation is about to overwrite: a capture does nothing yet."""
        for argument, value in zip(operation._schema.arguments, arguments, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._before += [(tensor, tensor.clone()) for tensor in tree_leaves(value)]

    def end(self) -> None:
        for tensor, before in reversed(self._before):
            tensor.copy_(before)
        self._before.clear()

    def record(self, operation: Any, arguments: Any, keywords: Any, result: Any) -> None:
        self._recorded.append((operation, arguments, keywords, result))

    def replay(self) -> None:
        for operation, arguments, keywords, result in self._recorded:
            again = operation(*arguments, **keywords)
            if any(alias.alias_info is not None for alias in operation._schema.returns):
                continue
            for kept, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(kept, Tensor):
                    kept.copy_(new)


class Refused(RuntimeError):
    """What CUDA, or PyTorch on it, would not do."""


_capture: list[Graph] = []


def run(operation: Any, arguments: Any, keywords: Any) -> Any:
    """Do an operation as a machine with one GPU would, on the CPU's numbers."""
    tensors: list[Tensor] = []
    on_host = [_on_host(argument, tensors) for argument in arguments]
    by_name = {name: _on_host(argument, tensors) for name, argument in keywords.items()} if keywords else {}
    own = {id(tensor.host): tensor for tensor in tensors if isinstance(tensor, DeviceTensor)}
    if by_name.get("pin_memory"):
        # Nothing is copied faster here.
        by_name["pin_memory"] = False
    asked = by_name.get("device")
    if not own and (asked is None or torch.device(asked).type != "cuda"):
        return operation(*on_host, **by_name)
    on_device = _placed(operation, arguments, asked, tensors, bool(own))
    if asked is not None:
        by_name["device"] = torch.device("cpu")
    if _capture:
        _capture[-1].will_write(operation, on_host)
    result = operation(*on_host, **by_name)
    if not on_device:
        return result
    if _capture:
        _capture[-1].record(operation, on_host, by_name, result)
    return _on_device(result, own)


def _on_host(value: Any, tensors: list[Tensor]) -> Any:
    """Return an argument with the host's tensors in the place of the device's, and note the tensors that it holds."""
    if isinstance(value, Tensor):
        tensors.append(value)
        if isinstance(value, DeviceTensor):
            return value.host
        # A graph keeps the number that it was captured with.
        return value.clone() if _capture and value.ndim == 0 else value
    return [_on_host(part, tensors) for part in value] if isinstance(value, list | tuple) else value


def _on_device(value: Any, own: dict[int, DeviceTensor]) -> Any:
    """Return a result on the device; what was written in place is the tensor that was handed in."""
    if isinstance(value, Tensor):
        return own[id(value)] if id(value) in own else DeviceTensor(value)
    return type(value)(_on_device(part, own) for part in value) if isinstance(value, list | tuple) else value


def _placed(operation: Any, arguments: Any, asked: Any, tensors: list[Tensor], ours: bool) -> bool:
    """Return whether the result lies on the device, having logged meetings; refuse what mixes devices."""
    name = operation._schema.name
    if name in COPIES:
        source = arguments[1] if name == "aten::copy_" else arguments[0]
        begins = isinstance(source, DeviceTensor)
        ends = isinstance(arguments[0], DeviceTensor) if asked is None else torch.device(asked).type == "cuda"
        if begins != ends:
            _meet("to device" if ends else "to host")
        return ends
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor)]
    if ours and elsewhere:
        _refuse_mixed(operation, name, arguments, elsewhere)
    if ours and name in WAITING and not (name == "aten::repeat_interleave" and "output_size" in str(arguments)):
        _meet(name.removeprefix("aten::"))
    if ours and name in INDEXING:
        _index(name, arguments)
    return ours if asked is None else torch.device(asked).type == "cuda"


def _refuse_mixed(operation: Any, name: str, arguments: Any, elsewhere: list[Tensor]) -> None:
    indices = [leaf for leaf in tree_leaves(arguments[1]) if isinstance(leaf, Tensor)] if name in INDEXING else []
    for tensor in elsewhere:
        if any(tensor is index for index in indices):
            if not isinstance(arguments[0], DeviceTensor):
                raise Refused(f"{operation}: indices on cuda:0 of a tensor on the cpu")
            _meet("host index")
        elif tensor.ndim == 0 and (torch.Tag.pointwise in operation.tags or name in WITH_NUMBERS):
            if tensor is arguments[0] and operation._schema.is_mutable:
                raise Refused(f"{operation}: a number on the cpu cannot take one from cuda:0")
        else:
            mixed = f"found cuda:0 and a tensor of shape {tuple(tensor.shape)} on the cpu"
            raise Refused(f"{operation}: expected all tensors to be on the same device, {mixed}")


def _index(name: str, arguments: Any) -> None:
    """Log a mask: how many it chooses, the host must know, except where one number of its own fills them."""
    indices = [leaf for leaf in tree_leaves(arguments[1]) if isinstance(leaf, Tensor)]
    masked = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
    value = arguments[2] if len(arguments) > 2 else None
    filled = isinstance(value, Tensor) and not isinstance(value, DeviceTensor) and value.numel() == 1
    if masked and not filled:
        _meet("mask")


def _meet(what: str) -> None:
    meeting = log.note(what)
    if _capture:
        raise Refused(f"operation not permitted when stream is capturing: {meeting}")


def _faked(operation: Any, arguments: Any, keywords: Any) -> Any:
    """Do an operation on Inductor's own tensors, which have a device and no numbers; constants become such."""

    def fake(tensor: DeviceTensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE)

    arguments, keywords = tree_map_only(DeviceTensor, fake, (arguments, keywords))
    return operation(*arguments, **keywords)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return _faked(operation, arguments, keywords or {})
        tracing = proxy_tensor.get_proxy_mode()
        if tracing is None:
            return run(operation, arguments, keywords or {})
        # What is traced are the operations of the device, not those of the CPU behind it.
        with proxy_tensor.disable_proxy_modes_tracing(), _Mode():
            return proxy_tensor.proxy_call(tracing, operation, tracing.pre_dispatch, arguments, keywords or {})


class _GeneratorType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


class _Generator(metaclass=_GeneratorType):
    """Random numbers of the device, which are the CPU's here."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator("cpu")


class _Stream:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = DEVICE

    def wait_stream(self, other: Any) -> None: ...

    def synchronize(self) -> None:
        _meet("synchronize")


@contextmanager
def _captured(graph: Graph, **_: Any) -> Iterator[None]:
    _capture.append(graph)
    try:
        yield
    finally:
        _capture.pop()
        graph.end()


ZERO = ("current_device", "memory_reserved", "memory_allocated", "_exchange_device", "_maybe_exchange_device")


@contextmanager
def pretended_cuda() -> Iterator[None]:
    """Let this process believe in one GPU, except that a registered guard stays."""
    properties = SimpleNamespace(name="pretended", total_memory=MEMORY, major=9, minor=0, multi_processor_count=132)
    replaced = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        **dict.fromkeys(ZERO, lambda *_: 0),
        "get_device_properties": lambda device=None: properties,
        "synchronize": lambda device=None: _meet("synchronize"),
        "is_bf16_supported": lambda *_, **__: True,
        **dict.fromkeys(("Stream", "current_stream"), _Stream),
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": Graph,
        "graph": _captured,
        "is_current_stream_capturing": lambda: bool(_capture),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda *_, **__: None,
    }
    torch._C._set_only_lift_cpu_tensors(True)
    # A plain tensor's data cannot become that of a tensor of another class.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with patch.multiple(torch.cuda, **replaced), patch.object(torch, "Generator", _Generator), _Mode():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(False)
