"""The jail: warm interpreters inside bubblewrap, each of which forks a confined process for every job.

What happens inside is in `vecenv.sandbox.inside`. Here is what is outside: which layers the machine has, the command
that makes a jail, and a pipe to its supervisor.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, get_args

from vecenv.sandbox.inside import confine
from vecenv.sandbox.inside.frames import packed, taken, unpacked
from vecenv.sandbox.job import MB, Job, Result, Status, as_bytes, ended
from vecenv.sandbox.languages import LANGUAGES, Language

Layer = Literal["namespaces", "landlock", "seccomp"]
LAYERS = get_args(Layer)
SYSTEM = ("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec")
"""Folders of the machine that a jail sees, and the links to them."""
LINKS = ("/bin", "/lib", "/lib32", "/lib64")
INTERPRETER = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
BASE = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
PYTHON, PACKAGES, INSIDE = "/python", "/packages", "/jail"
WARM = (
    *("bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq"),
    *("io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "time", "typing"),
)
"""Modules that are imported before the fork."""
USERS = itertools.count(0x70000000 + os.getpid() % 4096 * 4096)
"""Users that own nothing: one for each worker, so that a limit of processes is its own."""
GRACE = 10.0
"""Seconds after the wall backstop until a worker that does not answer counts as failed."""


@cache
def lacking() -> Mapping[str, str]:
    """Return why layers are not to be had on this machine, by name; empty if all are."""
    found = {}
    if reason := _without_namespaces():
        found["namespaces"] = reason
    if not confine.landlock_version():
        found["landlock"] = "the kernel has no Landlock (5.13 or newer, with lsm=landlock)"
    if not confine.has_seccomp():
        found["seccomp"] = "the kernel takes no filters, or there is none for this processor (x86-64 alone)"
    return found


def _without_namespaces() -> str:
    if shutil.which("bwrap") is None:
        return "there is no bubblewrap (apt-get install bubblewrap)"
    done = subprocess.run([*bubblewrap(), "/usr/bin/env", "true"], capture_output=True, text=True, env={}, cwd="/")
    return f"bubblewrap fails: {done.stderr.strip()[:200]}" if done.returncode else ""


def bubblewrap() -> list[str]:
    """Return the command for a jail without files of its own, as far as the program."""
    words = [str(shutil.which("bwrap")), "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--new-session", "--die-with-parent", "--hostname", "jail"]
    if os.geteuid():
        # The worker may mount and make namespaces within its own; the jobs lose it.
        words += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-add", "ALL"]
    for place in map(Path, (*SYSTEM, *LINKS)):
        if place.is_symlink():
            words += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            words += shown(place, place)
    # bubblewrap's own --dev would make the worker's user a guest in the namespaces that it must change.
    devices = [word for name in confine.DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    return [*words, "--dir", "/dev", *devices, "--proc", "/proc"]


def shown(source: Path, target: Path) -> list[str]:
    """Return the words that show a file or folder of the machine, to be read by anyone."""
    # Folders that bubblewrap makes on its own are closed to others.
    parents = [word for folder in reversed(target.parents[:-1]) for word in ("--dir", str(folder))]
    return [*parents, "--ro-bind", str(source), str(target)]


def confirmed_layers(without: Sequence[str]) -> tuple[str, ...]:
    """Return the layers to use.

    Args:
        without: layers that the caller agrees to do without.

    Raises:
        ValueError: a layer is missing and was not named, or too little is left.
    """
    if unknown := set(without) - set(LAYERS):
        raise ValueError(f"there is no layer {sorted(unknown)[0]!r}; there are {', '.join(LAYERS)}")
    missing = {name: reason for name, reason in lacking().items() if name not in without}
    if missing:
        name, reason = next(iter(missing.items()))
        raise ValueError(f"no jail without {name}: {reason}; name it in without= to go on with less")
    left = tuple(name for name in LAYERS if name not in without)
    if "namespaces" not in left and len(left) < 2:
        raise ValueError("no jail: without namespaces both landlock and seccomp must hold")
    if "namespaces" not in left and os.geteuid() and confine.landlock_version() < 6:
        raise ValueError("no jail: without namespaces a job could end other processes of yours (Linux 6.12 or newer)")
    if "namespaces" not in left and Path(__file__).is_relative_to(sys.base_prefix):
        raise ValueError(f"no jail: without namespaces jobs could read all that is installed in {sys.base_prefix}")
    if "namespaces" not in left and os.geteuid() == 0 and (closed := _closed(Path(sys.base_prefix))):
        raise ValueError(f"no jail: without namespaces jobs run as a user who cannot read {closed}")
    return left


def _closed(path: Path) -> Path | None:
    """Return the first folder on the way to a path that others cannot enter."""
    ways = reversed([path, *path.parents])
    return next((folder for folder in ways if not folder.stat().st_mode & 1), None)


class Jail:
    """A worker in a jail of its own, for one job at a time.

    Args:
        layers: those of `confirmed_layers`.
        packages: packages of this interpreter that are imported before the fork, such as numpy.
        languages: the table of languages.
    """

    name = "jail"

    def __init__(
        self, layers: Sequence[str], packages: Sequence[str] = (), languages: Mapping[str, Language] = LANGUAGES
    ) -> None:
        self.languages = languages
        self.layers = layers
        namespaces = "namespaces" in layers
        root = os.geteuid() == 0
        command, readable, path = _view(packages, languages) if namespaces else _plain(packages, languages)
        plan = {
            "layers": list(layers),
            "user": next(USERS) if root else None,
            # In a namespace of users of its own there are bubblewrap and the worker's two processes beside a job.
            "others": 0 if root else 3 if namespaces else 1 << 20,
            "readable": readable,
            "warm": [*WARM, *packages],
        }
        start = f"import sys; sys.path[:0] = {path}; from vecenv.sandbox.inside.worker import main; main()"
        variables = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        variables["LD_BIND_NOW"] = "1"
        if namespaces:
            variables["LD_LIBRARY_PATH"] = f"{PYTHON}/lib"
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            # -E would also drop the seed of hashes.
            [*command, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", start, json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=variables,
            cwd="/",
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input: IO[bytes] = self.process.stdin
        self.output: IO[bytes] = self.process.stdout
        try:
            self._reply(time.monotonic() + 60.0)
        except (EOFError, TimeoutError, ValueError) as error:
            raise OSError(f"the jail did not start: {self._said() or error}") from error

    def run(self, job: Job) -> Result:
        """Run a job that has no fault.

        Raises:
            OSError, EOFError, TimeoutError, ValueError: the jail is broken; it must be closed.
        """
        language, limits = self.languages[job.language], job.limits
        if "namespaces" not in self.layers and limits.processes + language.processes > 1:
            return Result(Status.REFUSED, message="without namespaces a job has one process")
        words = {"file": language.file, "megabytes": str(max(1, limits.memory // MB))}
        header: dict[str, Any] = {
            "command": [word.format_map(words) for word in language.command],
            # Where it lies: names such as /usr/bin/awk are links through /etc.
            "program": str((language.executable() or Path()).resolve()) if language.command else "",
            "file": language.file,
            "memory": language.memory,
            "base": language.base,
            "names": [language.file, *job.files],
            "limits": {**asdict(limits), "processes": limits.processes + language.processes},
        }
        parts = [as_bytes(each) for each in (job.source, *job.files.values(), job.stdin)]
        self.input.write(packed(header, parts))
        self.input.flush()
        told, (stdout, stderr) = self._reply(time.monotonic() + limits.wall + GRACE)
        if "failure" in told:
            raise OSError(told["failure"])
        return ended(told["verdict"], told["exit_code"], stdout, stderr, told["cpu"], told["wall"], self.name)

    def _reply(self, deadline: float) -> tuple[dict[str, Any], list[bytes]]:
        descriptor = self.output.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)

        def take(size: int) -> bytes:
            if size and not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                raise TimeoutError("the jail does not answer")
            return taken(descriptor, size)

        return unpacked(take)

    def _said(self) -> str:
        self.process.kill()
        self.process.wait()
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def close(self) -> None:
        """End the worker, and with it all that runs in its jail."""
        self.process.kill()
        self.process.wait()
        for file in (self.input, self.output, self.log):
            with contextlib.suppress(BrokenPipeError):
                file.close()


def _package_folders(packages: Sequence[str]) -> dict[str, Path]:
    """Return folders of packages by the names that they are imported under, with their libraries beside them."""
    folders = {}
    for name in packages:
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise ValueError(f"there is no package {name!r} to import in the jail")
        folder = Path(next(iter(found.submodule_search_locations))).resolve()
        folders[name] = folder
        if (libraries := folder.with_name(f"{name}.libs")).is_dir():
            folders[libraries.name] = libraries
    return folders


def _view(packages: Sequence[str], languages: Mapping[str, Language]) -> tuple[list[str], list[str], list[str]]:
    """Return the command of a jail as far as the interpreter, what jobs may read, and the interpreter's paths."""
    words, readable = bubblewrap(), [*SYSTEM, *LINKS, PYTHON, PACKAGES]
    python, prefix = INTERPRETER, Path(sys.base_prefix).resolve()
    # This project, with the answers of its problems, and others may be installed there.
    hidden = set(Path("/usr/lib").glob("python3*/*-packages"))
    if prefix != Path("/usr"):
        words += shown(prefix, Path(PYTHON))
        sites = {Path(sysconfig.get_path(kind, vars=BASE)) for kind in ("purelib", "platlib")}
        hidden |= {Path(PYTHON) / each.relative_to(sys.base_prefix) for each in sites if each.is_dir()}
        python = Path(PYTHON) / python.relative_to(prefix)
    for site in sorted(hidden):
        words += ["--tmpfs", str(site), "--remount-ro", str(site)]
    words += shown(Path(__file__).parent / "inside", Path(INSIDE, "vecenv", "sandbox", "inside"))
    for name, folder in _package_folders(packages).items():
        words += shown(folder, Path(PACKAGES, name))
    for language in languages.values():
        further = [Path(folder) for folder in language.folders]
        if language.command and (executable := language.executable()):
            further.append(executable.resolve())
        for place in further:
            if not any(place.is_relative_to(folder) for folder in (*SYSTEM, *LINKS)):
                words += shown(place, place)
                readable.append(str(place))
    words += ["--dir", "/box", "--dir", "/box/job", "--remount-ro", "/", "--chdir", "/", str(python)]
    return words, readable, [INSIDE, PACKAGES]


def _plain(packages: Sequence[str], languages: Mapping[str, Language]) -> tuple[list[str], list[str], list[str]]:
    """Return the same without namespaces: files are where they are, and Landlock alone hides the others."""
    folders = _package_folders(packages)
    further = [folder for language in languages.values() for folder in language.folders]
    readable = [*SYSTEM, *LINKS, str(Path(sys.base_prefix).resolve()), *map(str, folders.values()), *further]
    paths = [str(Path(__file__).parents[2]), *{str(each.parent) for each in folders.values()}]
    return [str(INTERPRETER)], readable, paths
