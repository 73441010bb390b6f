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

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from threading import Thread

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

TensorFunction = Callable[..., Sequence[Tensor]]
InPlaceCall = Callable[[Sequence[Tensor], Sequence[Tensor]], None]

ROUNDED_ONCE = ("emulate_precision_casts", "eager_numerics.division_rounding", "emulate_divison_rounding")
"""Inductor settings under which a GPU rounds each operation as a CPU does, as exact money needs: without them it fuses
multiply and add (FMA) and divides approximately. The third is the former name of the second."""

_warned_without_compiler = False


def eager_in_place(function: TensorFunction) -> InPlaceCall:
    """Return a call that runs ``function`` eagerly and copies its results into the buffers."""

    @torch.no_grad()
    def call(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        for buffer, result in zip(outputs, function(*inputs), strict=True):
            if buffer.data_ptr() != result.data_ptr() or not buffer.numel():
                buffer.copy_(result)

    return call


def compile_in_place(
    function: TensorFunction, inputs: Sequence[Tensor], outputs: Sequence[Tensor], **options: object
) -> InPlaceCall:
    """Compile ``outputs[i].copy_(function(*inputs)[i])`` for fixed shapes and strides.

    Args:
        function: pure function of tensors.
        inputs: valid arguments with the shapes, strides, dtypes and device of every later call.
        outputs: buffers, likewise; they must not overlap each other. One may be an input itself, the same object, which
            is then overwritten; it must not overlap another.
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
    places = {id(tensor): place for place, tensor in enumerate(inputs)}
    # Of each output the number of the argument that holds it.
    own = [place for place, buffer in enumerate(outputs) if id(buffer) not in places]
    holders = [
        places.get(id(buffer), count + own.index(place) if place in own else -1) for place, buffer in enumerate(outputs)
    ]

    def in_place(*tensors: Tensor) -> tuple[()]:
        for holder, result in zip(holders, function(*tensors[:count]), strict=True):
            tensors[holder].copy_(result)
        return ()

    # Tracing runs the function once on the inputs, but must not touch the buffers.
    overwritten = {holder for holder in holders if holder < count}
    given = [tensor.clone() if place in overwritten else tensor for place, tensor in enumerate(inputs)]
    arguments = [*given, *(_like(outputs[place]) for place in own)]
    settings = _settings(any(argument.is_cuda for argument in arguments), options)
    # Without a ShapeEnv Inductor does not use its disk cache.
    fakes = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(assume_static_by_default=True))
    try:
        with torch.no_grad(), config.patch(settings):
            graph = make_fx(in_place, decomposition_table=select_decomp_table())(*arguments)
            _drop_copies_to_itself(graph)
            with tracing(TracingContext(fakes)):
                compiled = compile_fx_inner(graph, [fakes.from_tensor(argument) for argument in arguments])
    except Exception as error:
        check_no_compiler(error)
        return eager_in_place(function)

    def call(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        compiled([*inputs, *(outputs[place] for place in own)] if overwritten else [*inputs, *outputs])

    return call


def _drop_copies_to_itself(graph: torch.fx.GraphModule) -> None:
    """Remove copies of an argument to itself, which an operator has overwritten."""
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.copy_.default and node.args[0] is node.args[1]:
            graph.graph.erase_node(node)
    graph.recompile()


@contextmanager
def toolchain_prepared(enabled: bool = True) -> Iterator[None]:
    """Prepare the C++ toolchain in a thread while the context runs; nothing else may be compiled within it.

    The first compilation on a machine imports Inductor, tries the processor's vector instructions and precompiles
    headers, some 12 s of one core that do not depend on what is compiled. Errors are left to later compilations.

    Args:
        enabled: False does nothing.
    """

    def compile_a_trifle() -> None:
        numbers = torch.ones(64)
        with suppress(Exception):
            compile_in_place(lambda tensor: (tensor + 1,), [numbers], [numbers.clone()])

    thread = Thread(target=compile_a_trifle, name="toolchain", daemon=True)
    if enabled:
        thread.start()
    # After an error nothing is compiled, and nobody waits for the thread.
    yield
    if enabled:
        thread.join()


def check_no_compiler(error: Exception) -> None:
    """Warn, once per process, that steps run eagerly after a compilation failed for want of a compiler.

    Raises:
        Exception: ``error``, if it has another cause.
    """
    global _warned_without_compiler
    if not _is_toolchain_error(error):
        raise error
    if not _warned_without_compiler:
        _warned_without_compiler = True
        reason = str(error).strip().splitlines()[0]
        warnings.warn(f"no working compiler, running eagerly (slower): {reason}", RuntimeWarning, stacklevel=3)


class FirstCallCompiled:
    """A pure function of tensors that fills given buffers, compiled when it is first called.

    Args:
        function: pure function of tensors.
        compiled: whether to compile it, evaluated at the first call; else it runs eagerly.
        **options: Inductor settings.
    """

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
    """Return an uninitialised tensor of the same shape, strides, type and device."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _is_toolchain_error(error: BaseException | None) -> bool:
    """Whether compilation failed for a missing or broken compiler rather than for an error in the graph."""
    from torch._inductor import exc

    toolchain = tuple(
        getattr(exc, name)
        for name in ("InvalidCxxCompiler", "CppCompileError", "CppWrapperCodegenError", "TritonMissing")
        if hasattr(exc, name)
    )
    while error is not None:
        if isinstance(error, (*toolchain, FileNotFoundError)) or type(error).__name__ == "TritonMissing":
            return True
        error = error.__cause__ or error.__context__
    return False
