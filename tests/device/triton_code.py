"""The code that Inductor would give a GPU for a step, compiled for sm_90 by Triton with a mocked driver.

`vecenv.core.compiling.compile_in_place` runs as it is, on tensors of the pretended device, up to the point where the
code would be loaded.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config, graph
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.utils import _triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.device.pretended import DEVICE, DeviceTensor

CAPABILITY = 90
TARGET = GPUTarget("cuda", CAPABILITY, 32)

H100 = SimpleNamespace(
    name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20, gcnArchName="", type="cuda", index=0,
)  # fmt: skip


class Generated(Exception):  # no error: the code is all that is wanted
    """Carries the code and ends the compilation."""


class Kernel(NamedTuple):
    """A kernel of generated code: Python for Triton, and a name that names the operations in it."""

    name: str
    code: str


DRIVER = SimpleNamespace(
    get_current_target=lambda: TARGET,
    get_current_device=lambda: 0,
    get_active_torch_device=lambda: DEVICE,
    get_device_interface=lambda: torch.cuda,
    get_current_stream=lambda device=0: 0,
    get_benchmarker=lambda: None,
    is_active=lambda: True,
)
"""What Triton asks of a driver before anything runs."""


@contextmanager
def h100() -> Iterator[None]:
    """Let Inductor and Triton believe in an H100; within `pretended_cuda`."""

    def generated(lowering: GraphLowering) -> Any:
        code, *_ = lowering.codegen_with_cpp_wrapper() if lowering.cpp_wrapper else lowering.codegen()
        raise Generated(getattr(code, "value", code))

    whole = FakeTensorMode.from_tensor

    def fake(mode: FakeTensorMode, tensor: Any, **keywords: Any) -> Any:
        if not isinstance(tensor, DeviceTensor):
            return whole(mode, tensor, **keywords)
        with mode:
            # As far from the start of its memory, by which Inductor knows how it is aligned.
            offset = tensor.storage_offset()
            room = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            memory = torch.empty(offset + max(room, 0), dtype=tensor.dtype, device=DEVICE)
            return memory.as_strided(tensor.shape, tensor.stride(), offset)

    interface: dict[str, Any] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_properties": lambda device=None: H100,
        "get_compute_capability": lambda device=None: CAPABILITY,
        "is_triton_capable": lambda device=None: True,
        "raise_if_triton_unavailable": lambda device=None: None,
        "synchronize": lambda device=None: None,
        "is_bf16_supported": lambda *_, **__: True,
    }
    with ExitStack() as stack:
        enter = stack.enter_context
        for name, value in interface.items():
            enter(patch.object(CudaInterface, name, staticmethod(value)))
        for name in ("get_device_properties", "current_device"):
            enter(patch.object(CudaInterface.Worker, name, staticmethod(interface[name])))
        enter(patch.object(torch.cuda, "get_device_properties", interface["get_device_properties"]))
        enter(patch.object(torch.cuda, "get_device_capability", lambda device=None: (9, 0)))
        enter(patch.object(torch.version, "cuda", "13.0"))
        enter(patch.object(_triton, "has_triton", lambda *_: True))
        enter(patch.object(FakeTensorMode, "from_tensor", fake))
        enter(patch.object(proxy_tensor, "HANDLED_TYPES", (*proxy_tensor.HANDLED_TYPES, DeviceTensor)))
        # Constants have no memory of their own to be compared by.
        enter(patch.object(graph, "is_same_tensor", lambda one, other: one is other))
        enter(patch.object(GraphLowering, "compile_to_module", generated))
        enter(patch.object(GraphLowering, "_compile_to_module", generated))
        enter(patch.object(triton_helpers, "set_driver_to_gpu", lambda: None))
        enter(patch.object(CachingAutotuner, "precompile", lambda *_, **__: None))
        enter(config.patch({"force_disable_caches": True}))
        triton.runtime.driver.set_active(DRIVER)
        yield


def kernels(compile_call: Callable[[], object]) -> list[Kernel]:
    code = ""
    try:
        compile_call()
    except InductorError as error:
        if not isinstance(error.inner_exception, Generated):
            raise
        code = str(error.inner_exception)
    found = re.findall(r"(\w+) = async_compile\.triton\('\w+', '''(.*?)''', device_str='cuda'\)", code, re.DOTALL)
    assert found and "cpp_fused" not in code, code
    return [Kernel(name, text.replace("\\\\", "\\")) for name, text in found]


def ptx(kernel: Kernel, folder: Path) -> str:
    file = folder / f"{kernel.name[:80]}_{abs(hash(kernel.code))}.py"
    file.write_text(kernel.code)
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    (tuner,) = (value for value in vars(module).values() if isinstance(value, CachingAutotuner))
    chosen, meta, names = tuner.configs[0], tuner.triton_meta, tuner.fn.arg_names
    constants = {**meta.get("constants", {}), **chosen.kwargs}
    signature = {**meta["signature"], **dict.fromkeys(chosen.kwargs, "constexpr")}
    signature |= {name: "constexpr" for name in names if name not in signature}
    by_place = {(names.index(name),) if isinstance(name, str) else name: value for name, value in constants.items()}
    attributes = meta["configs"][0] if meta.get("configs") else {}
    options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    # Read where Triton is asked to compile, as Inductor does.
    options["enable_fp_fusion"] = meta.get("enable_fp_fusion", True)
    source = ASTSource(tuner.fn, signature, by_place, attributes)
    return str(triton.compile(source, target=TARGET, options=options).asm["ptx"])


INEXACT = re.compile(r"fma\.rn\.f(32|64)|div\.full|[a-z]+\.approx|mad\.rn\.f(32|64)")
"""Instructions that round otherwise than one operation after the other does."""

PLACE = re.compile(r"\.loc\s+1\s+(\d+)")


def inexact(kernel: Kernel, code: str) -> list[str]:
    """Return such instructions in a kernel's PTX, each with the line of the kernel that it belongs to."""
    lines, line, found = kernel.code.splitlines(), 0, []
    for text in code.splitlines():
        if place := PLACE.search(text):
            line = int(place[1])
        elif instruction := INEXACT.search(text):
            found.append(f"{kernel.name}:{line} {instruction[0]}: {lines[line - 1].strip() if line else ''}")
    return found
