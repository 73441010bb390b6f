"""A job: the forked process confines itself, tells that it is ready, and becomes the program it was given."""

import _sitebuiltins
import atexit
import builtins
import importlib
import linecache
import marshal
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from vecenv.sandbox.inside import confine

READY, FAILED = b"R", b"F"
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
FILES = struct.Struct("4i")
"""Descriptors of a job's files: itself, and what becomes its standard input, output and error."""
PLACE, BOX = "/box", "/box/job"
"""Where a job's folder is mounted; Landlock knows it by the folder around it."""


def run(plan: dict[str, Any], channel: socket.socket) -> None:
    """Never return: run the job that waits in a channel, or tell there why it could not be confined.

    Args:
        plan: what is common to all jobs.
        channel: the supervisor's, with a message that brings `FILES`; the job is a header and parts, by `marshal`.
    """
    try:
        header, parts = _taken(channel)
        box = _confined(plan, header, parts)
        channel.send(READY + b"%d" % time.process_time_ns())
    except BaseException as error:
        channel.send(FAILED + f"{type(error).__name__}: {error}".encode()[:400])
        os._exit(1)
    os.closerange(3, 1 << 16)
    source = parts[0]
    parts.clear()
    if not header["command"]:
        if header["limits"]["processes"] > 1:
            os.register_at_fork(after_in_child=sys.modules["random"].seed)
        _python(source, header["file"], box)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execve(header["program"], header["command"], {**os.environ, "HOME": box})
    except OSError as error:
        os.write(2, f"{header['command'][0]}: {error.strerror}\n".encode())
        os._exit(127)


def warm_up(names: Sequence[str]) -> None:
    """Import modules, and do once what all programs find done."""
    # Programs begin with equal states, so the fork itself need not draw others.
    register, os.register_at_fork = os.register_at_fork, lambda **hooks: None
    importlib.import_module("random").seed(0)
    os.register_at_fork = register
    for name in names:
        importlib.import_module(name)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    # What the module site adds, which is left out.
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl+D"))


def rehearse() -> None:
    """Run what jobs run, as far as it can be undone.

    A job copies each page of memory that it writes to first, and most of these are caches that the interpreter fills
    on the first ways through a function.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    job = marshal.dumps(({"command": []}, [b"print(sum(range(9)))"]))
    for _ in range(20):
        with open(os.memfd_create("job", os.MFD_CLOEXEC), "wb", buffering=0) as file:
            file.write(job)
            socket.send_fds(ours, [b"."], [file.fileno(), 0, 1, 2])
        _, (source,) = _taken(theirs)
        _executed(source, "main.py", "/")
        sys.stdout.flush()
        sys.stderr.flush()
        confine.limit({})
        time.process_time_ns()
    ours.close()
    theirs.close()
    linecache.clearcache()


def _taken(channel: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Take a job's files; return its header and its parts."""
    _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(FILES.size))
    job, *streams = FILES.unpack(ancillary[0][2])
    header, parts = marshal.loads(os.pread(job, os.lseek(job, 0, os.SEEK_END), 0))
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.close(job)
    return header, parts


def _confined(plan: dict[str, Any], header: dict[str, Any], parts: list[bytes]) -> str:
    """Give up everything that the job must not have, write its files, and return its folder."""
    limits, layers, user = header["limits"], plan["layers"], plan["user"]
    if "namespaces" in layers:
        confine.mount_folder(box := BOX, limits["files"], user or os.getuid())
        if "seccomp" not in layers:
            confine.new_ipc_namespace()
    else:
        box = header["box"]
    alone = limits["processes"] == 1
    memory = limits["memory"] + (header["base"] if header["command"] else plan["base"])
    confine.become_nobody(user)
    os.chdir(box)
    os.umask(0o077)
    for name, content in zip(header["names"], parts, strict=True):
        file = os.open(name, NEW_FILE)
        while content:
            content = content[os.write(file, content) :]
        os.close(file)
    if "landlock" in layers:
        rules = plan["rules"]
        confine.landlock(confine.landlock_rules(plan["readable"], box) if rules is None else rules)
    confine.limit(
        {
            # Whole seconds: the supervisor is more exact, this holds without it.
            "CPU": int(limits["cpu"]) + 2,
            header["memory"]: memory,
            "FSIZE": limits["files"],
            "NOFILE": limits["descriptors"],
            "NPROC": limits["processes"] + plan["others"],
        }
    )
    if "seccomp" in layers:
        # Shared memory is none of a process's data.
        confine.seccomp(processes=not alone, shared=header["memory"] == "AS")
    return box


def _python(source: bytes, file: str, box: str) -> None:
    """Run a program in this interpreter as if it had been started with it; never returns."""
    code = _executed(source, file, box)
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 120
    os._exit(code & 0xFF)


def _executed(source: bytes, file: str, box: str) -> int:
    """Execute a program that lies in a folder; return the exit code that it chose."""
    try:
        main = ModuleType("__main__")
        main.__dict__.update(__file__=file, __builtins__=builtins)
        # The files of the job can be imported.
        sys.modules["__main__"], sys.argv, sys.path[0] = main, [file], box
        exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            code = stop.code or 0
            # As the interpreter does with what is no C long.
            return code if -(1 << 63) <= code < 1 << 63 else -1
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        below = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(type(error), error, below)
        return 1
    return 0
