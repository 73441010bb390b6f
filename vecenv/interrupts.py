"""Ctrl+C while something is finished that must not be cut short."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


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
