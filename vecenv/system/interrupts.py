"""Handling of Ctrl+C (SIGINT): deferral in critical sections, and exit without a traceback."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""Exit code after SIGINT."""


@contextlib.contextmanager
def interrupts_held(what: str) -> Iterator[None]:
    """Defer Ctrl+C within the context: tell ``what`` goes on, on the standard error, and raise at the end.

    If an exception, such as that of a first Ctrl+C, is already being handled, nothing is raised. Only the main thread
    handles signals; in other threads this does nothing.
    """
    handled, held = sys.exception(), False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        held = True
        # Not through sys.stderr: its buffer is not reentrant in a signal handler.
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
def first_interrupt_asks(what: str) -> Iterator[Callable[[], bool]]:
    """Within the context, a first Ctrl+C only asks to stop; later ones act as outside of it.

    It tells ``what`` follows, on the standard error; the function that is yielded tells whether there was one. Only the
    main thread handles signals; in other threads this does nothing.
    """
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, later)
        # Not through sys.stderr: its buffer is not reentrant in a signal handler.
        os.write(2, f"{what} …\n".encode())

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, ask)
    later = signal.SIG_DFL if before is None else before
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, later)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within the context, a first SIGINT raises `KeyboardInterrupt` and a second ends the process.

    Also if the process was started with SIGINT ignored, as shells do for background jobs.
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
    """From now on, SIGINT ends the process at once, except during interpreter shutdown."""
    signal.signal(signal.SIGINT, lambda *_: end_process())
    # The interpreter drops Python handlers at shutdown, and a signal would then kill it.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def end_process() -> NoReturn:
    """End the process at once with the exit code of an interrupt."""
    os._exit(INTERRUPTED)
