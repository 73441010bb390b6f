"""Process of one part of a device session: measures its jobs and appends what it finds to the session's file.

Each line of the file is written at once. The process ends, with all that it started, when the session that holds the
other end of its standard input ends in any way.
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
from pathlib import Path
from typing import Any, NamedTuple

DEVICE_LOST = 3
"""Exit code after a failure that requires a new process."""


class Place(NamedTuple):
    """Where a part is measured: device by name, whether in small, and copy bandwidth in bytes per second if known."""

    device: str
    small: bool
    copy: float | None

    @property
    def rounds(self) -> int:
        return 3 if self.small else 7


class Job(NamedTuple):
    """One measurement: returns JSON-able figures with a ``headline``; ``faults`` that are not empty mark it failed."""

    name: str
    measure: Callable[[], dict[str, Any]]


def main(order: dict[str, Any]) -> int:
    """Measure a part.

    Args:
        order: fields of the `Place`, the part, ``module:function`` of its jobs, the file, and the jobs to leave out.
    """
    # pytest replaces the standard input.
    threading.Thread(target=_end_with_the_session, args=(os.dup(sys.stdin.fileno()),), daemon=True).start()

    def tell(job: str | None, **told: Any) -> None:  # noqa: ANN401
        with Path(order["file"]).open("a") as file:
            file.write(json.dumps({"part": order["part"], "job": job, **told}, default=str) + "\n")

    try:
        module, _, function = order["jobs"].partition(":")
        place = Place(order["device"], order["small"], order["copy"])
        jobs_of: Callable[[Place], Sequence[Job]] = getattr(import_module(module), function)
        if order["device"] == "cpu" and "torch" in sys.modules:
            # As in the benchmarks, for comparable figures.
            sys.modules["torch"].set_num_threads(1)
        jobs = jobs_of(place)
    except Exception as error:
        traceback.print_exc()
        tell(None, status="failed", error=_sentence(error), traceback=traceback.format_exc())
        return 1
    missing = [job for job in jobs if job.name not in order["leave_out"]]
    for job in missing:
        tell(job.name, status="waiting")
    for job in missing:
        tell(job.name, status="running")
        tell(job.name, **_measured(job))
        if not _device_lives():
            return DEVICE_LOST
    tell(None, status="done")
    return 0


def _end_with_the_session(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _measured(job: Job) -> dict[str, Any]:
    print(f"--- {job.name}", flush=True)
    began = time.monotonic()
    told: dict[str, Any]
    try:
        figures = job.measure()
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
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "TooLittleMemoryError"):
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
    code = main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
