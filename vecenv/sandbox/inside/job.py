"""A job: the forked process confines itself, tells that it is ready, and becomes the program it was given."""

import _sitebuiltins
import atexit
import builtins
import linecache
import os
import random
import signal
import sys
import time
import traceback
from functools import partial
from types import ModuleType
from typing import Any

from vecenv.sandbox.inside import confine
from vecenv.sandbox.inside.frames import taken, unpacked

READY, FAILED = b"R", b"F"
BOX = "/box"


def run(plan: dict[str, Any], job: int, stdin: int, stdout: int, stderr: int, status: int) -> None:
    """Never return: run the job that the file `job` holds, or tell on `status` why it could not be confined."""
    tell = status
    try:
        os.lseek(job, 0, os.SEEK_SET)
        header, parts = unpacked(partial(taken, job))
        for target, descriptor in enumerate((stdin, stdout, stderr)):
            os.dup2(descriptor, target)
        tell = os.dup2(status, 3, inheritable=False)
        os.closerange(4, 1 << 16)
        box = _confined(plan, header, parts)
        os.write(tell, READY + f"{time.process_time():.6f}".encode())
    except BaseException as error:
        os.write(tell, FAILED + f"{type(error).__name__}: {error}".encode()[:400])
        os._exit(1)
    os.close(tell)
    if not header["command"]:
        _python(parts[0], header["file"])
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execve(header["program"], header["command"], {**os.environ, "HOME": box})
    except OSError as error:
        os.write(2, f"{header['command'][0]}: {error.strerror}\n".encode())
        os._exit(127)


def _confined(plan: dict[str, Any], header: dict[str, Any], parts: list[bytes]) -> str:
    """Give up everything that the job must not have, write its files, and return its folder."""
    limits, layers, user = header["limits"], plan["layers"], plan["user"]
    if "namespaces" in layers:
        confine.private_folder(box := BOX, limits["files"], user or os.getuid(), "seccomp" not in layers)
    else:
        box = plan["box"]
    alone = limits["processes"] == 1
    memory = limits["memory"] + (0 if header["command"] else plan["base"])
    confine.become_nobody(user)
    os.chdir(box)
    os.umask(0o077)
    for name, content in zip(header["names"], parts, strict=True):
        with open(name, "wb") as file:
            file.write(content)
    if "landlock" in layers:
        confine.landlock(plan["readable"], box)
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


def _python(source: bytes, file: str) -> None:
    """Run a program in this interpreter as if it had been started with it; never returns."""
    # Equal programs draw equal numbers, whichever process forks them.
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    code = 1
    # What the module site adds, which is left out.
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl+D"))
    try:
        main = ModuleType("__main__")
        main.__dict__.update(__file__=file, __builtins__=builtins)
        # The files of the job can be imported.
        sys.modules["__main__"], sys.argv, sys.path[0] = main, [file], os.getcwd()
        linecache.clearcache()
        exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if code and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        below = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(type(error), error, below)
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 120
    os._exit(code & 0xFF)
