"""Record the kernels of compiled calls once and replay them by one call: on a CPU what a CUDA graph is on a GPU.

Of a compiled call of a few rows nearly all time is the Python around its kernels: Inductor's wrapper takes the
arguments apart, allocates the intermediate results and makes the pointers. With fixed tensors all of that is the same
at every call, so that one loop in C++ over functions and addresses replaces T wrappers.

Inductor's wrapper is a Python function whose globals are the kernels, functions of shared objects. It is run once with
its kernels and the copies of `vecenv.kernels.materialise` replaced by recorders, and computes nothing.
Whatever else a wrapper does, such as calls of PyTorch's operators or of libraries, has other names in its code: then
there is no recording, and the calls are made as before.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from time import perf_counter
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Arguments = list[Tensor]
"""Of a compiled call: its inputs and the buffers that it fills."""

MOST_ARGUMENTS = 256
"""Of a kernel that can be replayed. A step of stock trading has 53, one of all tiers 138."""

_GROUP = 8
"""Arguments are filled up to a multiple of so many, which a callee does not see: fewer forms of calls to compile."""

LONGEST_CALL = 0.005
"""Seconds for which other threads may wait, as long as the interpreter lets one run."""

_METHODS = frozenset({"clear", "size", "stride", "torch"})
_COPIES = frozenset({"ops", "vecenv", "materialise", "default"})
_DTYPES = frozenset(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
_MAKERS = ("empty_strided_cpu", "reinterpret_tensor")

_LOOP = """
#include <cstdint>
#include <utility>

// Addresses and 64-bit sizes are passed alike.
template <std::size_t> using Word = std::intptr_t;

template <std::size_t... I>
void call(void* kernel, const std::intptr_t* words, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(Word<I>...)>(kernel)(words[I]...);
}

using Caller = void (*)(void*, const std::intptr_t*);

template <std::size_t N>
void call_with(void* kernel, const std::intptr_t* words) { call(kernel, words, std::make_index_sequence<N * GROUP>{}); }

template <std::size_t... N>
Caller caller_of(std::size_t count, std::index_sequence<N...>) {
    static const Caller callers[] = {&call_with<N>...};
    return callers[count / GROUP];
}

// Calls kernels in turn, each with its number of words; false if one has thrown, as they do for divisions by zero.
extern "C" bool replay(
    std::int64_t number, void* const* kernels, const std::int64_t* counts, const std::intptr_t* words) {
    try {
        for (std::int64_t place = 0; place < number; words += counts[place++])
            caller_of(counts[place], std::make_index_sequence<MOST / GROUP + 1>{})(kernels[place], words);
        return true;
    } catch (...) {
        return false;
    }
}
""".replace("MOST", str(MOST_ARGUMENTS)).replace("GROUP", str(_GROUP))


class NotRecordable(Exception):
    """A compiled call does more than its kernels, or they cannot be found."""


class Recording:
    """Kernels with their arguments, in order; it keeps the memory that they read and write.

    It reads the addresses that the tensors had when it was made, and numbers only through them.

    Args:
        addresses: of what the kernels read that others may move.

    Raises:
        NotRecordable: the loop that calls them cannot be compiled.
    """

    def __init__(self, addresses: list[int]) -> None:
        self._kernels, self._counts, self._words = array("q"), array("q"), array("q")
        self._kept: dict[int, Tensor] = {}
        self._made_for = torch.get_num_threads(), addresses
        self._each = 1
        self._replay = _loop()

    def valid(self, addresses: list[int]) -> bool:
        """Whether the number of threads and the addresses are those that it was made for."""
        return (torch.get_num_threads(), addresses) == self._made_for

    def add(self, kernel: Callable[..., None] | int, arguments: Iterable[Tensor | int]) -> None:
        """Add a kernel of Inductor's, or the function at an address.

        Raises:
            NotRecordable: it is none, or takes something else than tensors of the CPU and sizes.
        """
        words = []
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.device.type == "cpu":
                words.append(argument.data_ptr())
                self._kept[id(argument)] = argument
            elif type(argument) is int:
                words.append(argument)
            else:
                raise NotRecordable(f"a kernel takes {type(argument).__name__}")
        if len(words) > MOST_ARGUMENTS:
            raise NotRecordable(f"a kernel takes {len(words)} arguments")
        words += [0] * (-len(words) % _GROUP)
        self._kernels.append(kernel if isinstance(kernel, int) else _address(kernel))
        self._counts.append(len(words))
        self._words.extend(words)

    def replay(self) -> bool:
        """Call all kernels; False if one of them has failed, of whose error its own call tells."""
        kernels, counts, words = (numbers.buffer_info()[0] for numbers in (self._kernels, self._counts, self._words))
        total, began = len(self._kernels), perf_counter()
        for first in range(0, total, self._each):
            number = min(self._each, total - first)
            if not self._replay(number, kernels + 8 * first, counts + 8 * first, words):
                return False
            words += 8 * sum(self._counts[first : first + number])
        # The first time one by one, then as many as the time allows.
        self._each = max(1, int(total * LONGEST_CALL / (perf_counter() - began)))
        return True


class Wrapper:
    """The Python function that Inductor has written for a compiled call, if it does nothing but call kernels.

    Raises:
        NotRecordable: it does more.
    """

    def __init__(self, compiled: object) -> None:
        call = getattr(compiled, "current_callable", None)
        function = getattr(call, "__func__", call)
        if not isinstance(function, FunctionType) or function.__closure__:
            raise NotRecordable("Inductor has written no wrapper in Python")
        self._function, self._first = function, () if function is call else (call.__self__,)  # type: ignore[union-attr]
        known = function.__globals__
        self._kernels: dict[str, Callable[..., None]] = {}
        for name in function.__code__.co_names:
            value = known.get(name)
            if isinstance(value, BuiltinFunctionType) and name not in _MAKERS:
                self._kernels[name] = value
            elif not (isinstance(value, Tensor) or name in _METHODS | _COPIES | _DTYPES or name in _MAKERS):
                raise NotRecordable(f"it uses {name}")
        self._made: list[Tensor] = []

    def record(self, arguments: Arguments, recording: Recording) -> None:
        """Append the kernels of one call to a recording; all calls have their intermediate results in one place."""
        made = iter(self._made)

        def empty(*form: Any) -> Tensor:  # noqa: ANN401
            tensor = next(made, None)
            if tensor is None:
                tensor = self._function.__globals__["empty_strided_cpu"](*form)
                self._made.append(tensor)
            return tensor

        def recorder(kernel: Callable[..., None]) -> Callable[..., None]:
            return lambda *given: recording.add(kernel, given)

        def copied(tensors: Sequence[Tensor]) -> list[Tensor]:
            copies = []
            for tensor in tensors:
                if not tensor.is_contiguous():
                    raise NotRecordable("it copies tensors that are not contiguous")
                copies.append(empty(tuple(tensor.shape), tensor.stride(), tensor.dtype))
                recording.add(_COPY, [copies[-1], tensor, tensor.nbytes])
            return copies

        default = SimpleNamespace(default=copied)
        known = {name: getattr(torch, name) for name in _DTYPES}
        known["ops"] = SimpleNamespace(vecenv=SimpleNamespace(materialise=default))
        own: dict[str, Any] = {name: recorder(kernel) for name, kernel in self._kernels.items()}
        own |= {"empty_strided_cpu": empty, "torch": SimpleNamespace(**known)}
        # A function of its own: that of the module may be running in another thread.
        run = FunctionType(self._function.__code__, {**self._function.__globals__, **own})
        if run(*self._first, arguments) != ():
            raise NotRecordable("it returns tensors")


_COPY = ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
"""Address of a copy of bytes."""


def _address(kernel: Callable[..., None]) -> int:
    return _address_in(getattr(getattr(kernel, "__self__", None), "__file__", ""), kernel.__name__)


@cache
def _address_in(library: str, name: str) -> int:
    try:
        found = ctypes.cast(getattr(ctypes.CDLL(library or "none"), name), ctypes.c_void_p).value
    except (OSError, AttributeError) as error:
        raise NotRecordable(f"the kernel cannot be found: {error}") from error
    assert found is not None
    return found


@cache
def _loop() -> Callable[..., bool]:
    """Compile the loop, with what Inductor has compiled its kernels with."""
    try:
        from torch._inductor.codecache import CppCodeCache

        # Without other threads of Python: kernels share a flag for divisions by zero.
        replay = ctypes.PyDLL(CppCodeCache.load(_LOOP)._name).replay
    except Exception as error:
        # Inductor's own means, which other versions may have in another form.
        raise NotRecordable(f"the loop cannot be compiled: {error}") from error
    replay.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 3]
    replay.restype = ctypes.c_bool
    return replay
