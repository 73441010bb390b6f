"""Worker process of one part of a session: measures its points and reports each on completion.

Reports go through a pipe to the session, which records them at once; output goes into its log. The process may be
started early: it imports its modules and waits for the start order.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from vecenv.benchmarks.device_session.point import Place, Point

DEVICE_LOST = 3
"""Exit code after a failure that requires a new process."""


def main(arguments: Sequence[str]) -> int:
    """Measure a part, ordered by a line of JSON on the standard input.

    The line holds the fields of the `Place`, with the remaining seconds, and the points to skip.

    Args:
        arguments: ``module:function`` of the points, and the number of the pipe.
    """
    (module, _, function), pipe = arguments[0].partition(":"), int(arguments[1])
    os.set_inheritable(pipe, False)

    def tell(**told: Any) -> None:  # noqa: ANN401
        os.write(pipe, (json.dumps(told) + "\n").encode())

    try:
        points_of = getattr(import_module(module), function)
        line = sys.stdin.buffer.readline()
        if not line:
            return 0
        order = json.loads(line)
        # pytest replaces the standard input.
        threading.Thread(target=_end_with_the_session, args=(os.dup(sys.stdin.fileno()),), daemon=True).start()
        place = Place(order["device"], order["small"], order["copy"], time.monotonic() + order["seconds"])
        points: Sequence[Point] = points_of(place)
    except Exception as error:
        traceback.print_exc()
        tell(event="failed", error=_sentence(error), traceback=traceback.format_exc())
        return 1
    tell(event="points", names=[point.name for point in points])
    for point in points:
        if point.name not in order["ended"]:
            tell(event="begins", point=point.name)
            tell(event="ended", point=point.name, **_measured(point))
            if not _device_lives():
                return DEVICE_LOST
    tell(event="end")
    return 0


def _end_with_the_session(pipe: int) -> None:
    """Kill this process and its children when the session, which holds the pipe's other end, ends in any way."""
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _measured(point: Point) -> dict[str, Any]:
    """Measure a point; report a failure with its traceback."""
    print(f"--- {point.name}", flush=True)
    began = time.monotonic()
    told: dict[str, Any]
    try:
        figures = point.measure()
        told = {"status": "done", "figures": figures}
        if figures.get("faults"):
            told |= {"status": "failed", "error": "; ".join(figures["faults"])}
    except Exception as error:
        traceback.print_exc()
        status = "does not fit" if out_of_memory(error) else "failed"
        told = {"status": status, "error": _sentence(error), "traceback": traceback.format_exc()}
    # The traceback's frames keep tensors alive until here.
    gc.collect()
    _on_cuda(lambda torch: torch.cuda.empty_cache())
    sys.stdout.flush()
    return told | {"seconds": time.monotonic() - began}


def out_of_memory(error: BaseException | None) -> bool:
    """Whether a failure, or one of its causes, is an out-of-memory error."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if "can't allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _sentence(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _device_lives() -> bool:
    """Whether the device is usable: after an illegal access every call fails until the process ends."""
    try:
        _on_cuda(lambda torch: torch.cuda.synchronize())
    except RuntimeError:
        traceback.print_exc()
        return False
    return True


def _on_cuda(action: Callable[[Any], object]) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        action(torch)


if __name__ == "__main__":
    # Exit without joining threads, such as compiler threads.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
