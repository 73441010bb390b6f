"""Ctrl+C at a process that serves: the first ends it in order, the second at once, and none with a traceback."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED = 130
"""Exit code after SIGINT."""


@contextmanager
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
