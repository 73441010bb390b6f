"""Compile a tensor function with Inductor into a call that writes its results into given buffers.

`torch.compile` costs about 100 µs of host time for a call with twenty tensors (guards, alias analysis,
runtime wrappers), as much as the whole step of 200 sub-environments on one core. The shapes here never change
and the buffers never overlap, so the graph is traced once and handed to Inductor directly: about 10 µs for such a
call, 50 for the sixty tensors of a stock-trading step. Inductor caches compiled graphs on disk, so that the next run of
the same shapes compiles nothing.

A compiled call reads raw memory: it checks neither shapes nor strides nor types. Checking those of sixty tensors at
every call would cost as much as the call, so tensors are checked at the public interface.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from operator import attrgetter
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from vecenv.core.recording import NotRecordable, Recording, Wrapper
from vecenv.system.cache import cache_folder, processor

TensorFunction = Callable[..., Sequence[Tensor]]
InPlaceCall = Callable[[Sequence[Tensor], Sequence[Tensor]], None]

ROUNDED_ONCE = ("emulate_precision_casts", "eager_numerics.division_rounding", "emulate_divison_rounding")
"""Inductor settings under which a GPU rounds each operation as a CPU does, as exact money needs: without them it fuses
multiply and add (FMA) and divides approximately. The third is the former name of the second."""

TRITON_FAILED = "PassManager::run failed"
"""Triton 3.6.0, of PyTorch 2.11, ends so on a kernel of `full_autonomous` with 25 symbols, which 3.7.1 compiles."""

_warned_without_compiler = False


def eager_in_place(function: TensorFunction) -> InPlaceCall:
    """Return a call that runs ``function`` eagerly and copies its results into the buffers."""

    @torch.no_grad()
    def call(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        read = {id(tensor) for tensor in inputs}
        overwritten = []
        for buffer, result in zip(outputs, function(*inputs), strict=True):
            if id(buffer) not in read:
                buffer.copy_(result)
            elif not buffer.is_set_to(result):
                # Another result may still have to be read from this memory.
                overwritten.append((buffer, result.clone()))
        for buffer, result in overwritten:
            buffer.copy_(result)

    return call


def traced(function: TensorFunction, inputs: Sequence[Tensor]) -> TensorFunction:
    """Return the operators that a function calls, for fixed shapes and strides, without the Python between them.

    Results are equal bit for bit. An eager step of a few rows is mostly `torch.vmap` and tensorclasses, and half of
    what is left are calls of operators from Python. A function that cannot be traced is returned as it is.
    """
    try:
        with torch.no_grad(), warnings.catch_warnings():
            graph = make_fx(lambda *tensors: tuple(function(*tensors)))(*inputs)
            graph.graph.eliminate_dead_code()
            graph.recompile()
            # It is called deprecated, in favour of what takes seconds to compile.
            warnings.simplefilter("ignore")
            operators: TensorFunction = torch.jit.trace(graph, tuple(inputs), check_trace=False)
    except Exception:
        # Of its own faults the function has told when it was called.
        return function

    def call(*tensors: Tensor) -> Sequence[Tensor]:
        # Optimised, operators may be fused, which rounds otherwise.
        with torch.jit.optimized_execution(False):
            return operators(*tensors)

    return call


def compile_in_place(
    function: TensorFunction, inputs: Sequence[Tensor], outputs: Sequence[Tensor], **options: object
) -> InPlaceCall:
    """Compile ``outputs[i].copy_(function(*inputs)[i])`` for fixed shapes and strides.

    Args:
        function: function of tensors, pure except that operators may overwrite inputs that are outputs.
        inputs: valid arguments with the shapes, strides, dtypes and device of every later call.
        outputs: buffers, likewise. One may be an input, the same object here and in every later call: that input is
            donated, and holds the result after the call. Else they must overlap neither each other nor an input.
        **options: Inductor settings.

    Returns:
        A call ``(inputs, outputs) -> None``. Without a working C++ compiler (or Triton, on CUDA), the eager call,
        with one warning per process.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    count = len(inputs)
    read = {id(tensor): place for place, tensor in enumerate(inputs)}
    donated = [read.get(id(buffer)) for buffer in outputs]
    own = [place for place, source in enumerate(donated) if source is None]
    returned: list[int] = []

    def in_place(*tensors: Tensor) -> tuple[Tensor, ...]:
        buffers, new = iter(tensors[count:]), {}
        for source, result in zip(donated, function(*tensors[:count]), strict=True):
            if source is None:
                next(buffers).copy_(result)
            elif not tensors[source].is_set_to(result):
                # Returned and copied outside: Inductor may read an input after it has written it.
                new[source] = result.clone()
        returned[:] = new
        return tuple(new.values())

    # Tracing runs the function once on the inputs, but must touch neither those that are donated nor the buffers.
    given = [tensor.clone() if place in donated else tensor for place, tensor in enumerate(inputs)]
    arguments = [*given, *(_like(outputs[place]) for place in own)]
    settings = _settings(any(argument.is_cuda for argument in arguments), options)
    # Without a ShapeEnv Inductor does not use its disk cache.
    fakes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(assume_static_by_default=True))
    try:
        with torch.no_grad(), config.patch(settings):
            graph = make_fx(in_place, decomposition_table=select_decomp_table())(*arguments)
            if len(own) < len(outputs):
                # The comparisons above.
                graph.graph.eliminate_dead_code()
            if all(argument.device.type == "cpu" for argument in arguments):
                _know_vector_instructions()
            with tracing(TracingContext(fakes)), config.patch(_adapted(graph)):
                compiled = compile_fx_inner(graph, [fakes.from_tensor(argument) for argument in arguments])
    except Exception as error:
        check_no_compiler(error)
        return eager_in_place(function)

    return CompiledCall(compiled, None if len(own) == len(outputs) else own, returned)


class CompiledCall:
    """A call of `compile_in_place`.

    Args:
        compiled: what Inductor has made; it takes a list of tensors.
        own: places of the outputs that are no inputs; None for all.
        returned: places of the inputs that what it returns is to be copied to.
    """

    def __init__(self, compiled: Callable[..., Any], own: list[int] | None, returned: list[int]) -> None:
        self._compiled, self._own, self._returned = compiled, own, returned
        self._wrapper: Wrapper | None = None

    def _arguments(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
        return [*inputs, *(outputs if self._own is None else [outputs[place] for place in self._own])]

    def __call__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        results = self._compiled(self._arguments(inputs, outputs))
        if self._returned:
            for place, result in zip(self._returned, results, strict=True):
                inputs[place].copy_(result)

    def record(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], recording: Recording) -> None:
        """Append the kernels of this call to a recording; `NotRecordable` if it does more than to call kernels."""
        if self._wrapper is None:
            self._wrapper = Wrapper(self._compiled)
        self._wrapper.record(self._arguments(inputs, outputs), recording)


def _adapted(graph: torch.fx.GraphModule) -> dict[str, object]:
    """Adapt a graph to Inductor, if it has operators in place, and return the settings that it needs."""
    if not operators_in_place(graph.graph):
        return {}
    read_before_overwritten(graph.graph)
    graph.recompile()
    return {"pattern_matcher": False}


_KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* place) { at::vec::Vectorized<float>(1.0f).store(place, 1); }
"""


@contextmanager
def toolchain_prepared(enabled: bool = True) -> Iterator[None]:
    """Prepare the C++ toolchain in a thread while the context runs.

    The first compilation on a machine imports Inductor, tries the processor's vector instructions and compiles the
    headers of all kernels, some 18 s of one core that do not depend on what is compiled. Nothing is traced here: a
    trace replaces the call of every module in the process, those of other threads too. Errors are left to later
    compilations.
    """

    def prepare() -> None:
        with suppress(Exception):
            import_module("torch._inductor.compile_fx")
            _know_vector_instructions()
            import_module("torch._inductor.codecache").CppPythonBindingsCodeCache.load_pybinding(["float*"], _KERNEL)
            # Compiles the loop that replays kernels.
            Recording([])

    thread = Thread(target=prepare, name="toolchain", daemon=True)
    if enabled:
        thread.start()
    # After an error nothing is compiled, and nobody waits for the thread.
    yield
    if enabled:
        thread.join()


@cache
def _know_vector_instructions() -> None:
    """Let Inductor take the processor's vector instructions to work if the first work, or did for another process.

    It compiles with the first that work, but tries all of them in every process that compiles: the first time some five
    seconds each, later more than a second together.
    """
    from torch._inductor import config, cpu_vec_isa
    from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler

    known = cpu_vec_isa.valid_vec_isa_list
    conditions = repr((torch.__version__, get_compiler_version_info(get_cpp_compiler()), processor()))
    file = cache_folder() / f"vector_instructions_{sha256(conditions.encode()).hexdigest()[:16]}"
    # `os.access` is no error where the folder may not be read.
    if os.access(file, os.F_OK):
        with config.patch({"cpp.vec_isa_ok": True}):
            known()
        return
    flags = cpu_vec_isa.x86_isa_checker()
    first = next((isa for isa in cpu_vec_isa.supported_vec_isa_list if {*str(isa).split()}.issubset(flags)), None)
    # The variable names instructions that Inductor is to compile with; other processors have one kind.
    alone = first is not None and "ATEN_CPU_CAPABILITY" not in os.environ
    tried = None if alone and first else known()
    with config.patch({"cpp.vec_isa_ok": True}), suppress(OSError):
        if tried is None or tried == known.__wrapped__():
            known()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()


def check_no_compiler(error: Exception) -> None:
    """Warn, once per process, that steps run eagerly for want of a compiler; raise an ``error`` of another cause."""
    global _warned_without_compiler
    if not _is_toolchain_error(error):
        raise error
    if not _warned_without_compiler:
        _warned_without_compiler = True
        reason = f"{TRITON_FAILED}: another version of Triton may compile it" if _of_triton(error) else str(error)
        reason = reason.strip().splitlines()[0]
        warnings.warn(f"no working compiler, running eagerly (slower): {reason}", RuntimeWarning, stacklevel=3)


class FirstCallCompiled:
    """A pure function of tensors that fills given buffers; ``compiled`` is evaluated at the first call."""

    def __init__(self, function: TensorFunction, compiled: Callable[[], bool], **options: object) -> None:
        self._function, self._compiled, self._options = function, compiled, options
        self._call: InPlaceCall | None = None

    def __call__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Fill the buffers; shapes, strides, dtypes and device as at the first call, see `compile_in_place`."""
        if self._call is None:
            compiled = self._compiled()
            self._call = (
                compile_in_place(self._function, inputs, outputs, **self._options)
                if compiled
                else eager_in_place(self._function)
            )
        self._call(inputs, outputs)

    def record(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], recording: Recording) -> None:
        """Append the kernels of a call like the first one to a recording; `NotRecordable` if there are no others."""
        if not isinstance(self._call, CompiledCall):
            raise NotRecordable("it is not compiled")
        self._call.record(inputs, outputs, recording)


def _settings(on_gpu: bool, options: Mapping[str, object]) -> dict[str, object]:
    """Return Inductor settings; on a GPU with those of `ROUNDED_ONCE` that this PyTorch version has."""
    from torch._inductor import config

    settings: dict[str, object] = {"assert_indirect_indexing": False, "size_asserts": False, "alignment_asserts": False}
    for name in ROUNDED_ONCE if on_gpu else ():
        try:
            attrgetter(name)(config)
        except AttributeError:
            continue
        settings[name] = True
    return settings | dict(options)


def _like(tensor: Tensor) -> Tensor:
    """Return a tensor in other memory, which lies as the given one between multiples of 16 bytes.

    Inductor takes its arguments at run time to be aligned as those it has compiled for. If they are less on a GPU, it
    copies them before a call and back after it: a block of the observations with all that lies between its rows, which
    was half the time of a step.
    """
    lead = tensor.storage_offset() % (16 // tensor.element_size())
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    memory = torch.empty(lead + extent * bool(tensor.numel()), dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride(), lead)


def _is_toolchain_error(error: BaseException | None) -> bool:
    """Whether compilation failed for a missing or broken compiler rather than for an error in the graph."""
    from torch._inductor import exc

    toolchain = tuple(
        getattr(exc, name)
        for name in ("InvalidCxxCompiler", "CppCompileError", "CppWrapperCodegenError", "TritonMissing")
        if hasattr(exc, name)
    )
    while error is not None:
        known = isinstance(error, (*toolchain, FileNotFoundError)) or type(error).__name__ == "TritonMissing"
        if known or _of_triton(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _of_triton(error: BaseException) -> bool:
    """Whether a pass of Triton failed; the error comes as text from the process that compiled."""
    return TRITON_FAILED in str(error)


# Operators of other libraries that overwrite their arguments. Inductor (torch 2.13) expects graphs without them, and
# does two things that are wrong with them. It leaves out copies, so that the original is overwritten; that pass is
# switched off by the setting `pattern_matcher`. And it computes what was read of an argument only where the result is
# used, after the operator has overwritten it.


@torch.library.custom_op("vecenv::computed", mutates_args=())
def _computed(value: Tensor) -> Tensor:
    """Return a copy; Inductor computes the arguments of an operator that it does not know before it calls it."""
    return value.clone()


@_computed.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def operators_in_place(graph: Graph) -> list[Node]:
    """Return the calls of operators that overwrite arguments and are not PyTorch's own."""
    return [
        node
        for node in graph.nodes
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable and node.target.namespace != "aten"
    ]


def read_before_overwritten(graph: Graph) -> None:
    """Let all that is read of an argument be computed before an operator overwrites it."""
    for operator in operators_in_place(graph):
        earlier = _before(operator)
        later = set(graph.nodes).difference(earlier, [operator])
        for node in _read_of(_overwritten(operator), earlier):
            if later.intersection(node.users):
                _compute_before(operator, node, later)
    graph.lint()


def _before(operator: Node) -> list[Node]:
    nodes = list(operator.graph.nodes)
    return nodes[: nodes.index(operator)]


def _overwritten(operator: Node) -> set[Node]:
    """Return the nodes whose memory an operator overwrites: of a view, that which it is a view of."""
    assert isinstance(operator.target, OpOverload)
    found: set[Node] = set()
    for place, argument in enumerate(operator.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = operator.args[place] if place < len(operator.args) else operator.kwargs.get(argument.name)
        for node in value if isinstance(value, list | tuple) else [value]:
            while isinstance(node, Node) and _is_view(node):
                node = node.args[0]
            if isinstance(node, Node):
                found.add(node)
    return found


def _read_of(memory: set[Node], nodes: list[Node]) -> list[Node]:
    """Return the tensors among some nodes, in order, that were computed from memory, directly or not."""
    views, read = set(memory), []
    computed: set[Node] = set()
    for node in nodes:
        if _is_view(node) and node.args[0] in views:
            views.add(node)
        elif node.op == "call_function" and (views | computed).intersection(node.all_input_nodes):
            computed.add(node)
            if isinstance(node.meta.get("val"), Tensor) and node.target is not torch.ops.vecenv.computed.default:
                read.append(node)
    return read


def _is_view(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.is_view


def _compute_before(operator: Node, node: Node, later: set[Node]) -> None:
    with operator.graph.inserting_before(operator):
        copy = operator.graph.call_function(torch.ops.vecenv.computed.default, (node,))
    copy.meta = dict(node.meta)
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user in later)
