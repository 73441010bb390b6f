"""Ctrl+C: held while something is finished, or ending a process that serves without a traceback."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""Exit code after SIGINT."""


@contextlib.contextmanager
def interrupts_held(what: str) -> Iterator[None]:
    """Answer every Ctrl+C within the context with a line on the standard error, and heed it afterwards.

    Where an exception, such as that of a first Ctrl+C, is being handled already, nothing more happens afterwards. Only
    the main thread is told of signals; in others this does nothing.

    Args:
        what: is done meanwhile, a sentence without its end.
    """
    handled, held = sys.exception(), False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        held = True
        # Not through sys.stderr, which may be in the middle of a line.
        os.write(2, f"{what} …\n".encode())

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if held and handled is None:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let a first SIGINT raise `KeyboardInterrupt` and a second end the process, until the context ends without one.

    Also where whoever started the process ignores SIGINT, as a shell does for what runs in the background.
    """
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, before)


def _interrupt(*_: object) -> NoReturn:
    end_at_interrupt()
    raise KeyboardInterrupt


def end_at_interrupt() -> None:
    """Let SIGINT end the process at once from now on, but not disturb the very end, which comes by itself."""
    signal.signal(signal.SIGINT, lambda *_: end_process())
    # The interpreter forgets such handlers while it ends, and then a signal would kill it.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def end_process() -> NoReturn:
    """End the process as interrupted, whatever runs or waits in it."""
    os._exit(INTERRUPTED)
