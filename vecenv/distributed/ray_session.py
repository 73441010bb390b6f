"""Ray for one command: started on this machine, or joined where it runs already; it leaves nothing behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

NEEDED = "--engine ray needs Ray: pip install 'vecenv[ray]'"

ADDRESS = "RAY_ADDRESS"
"""Environment variable of a cluster that runs already."""

LEAST_MEMORY = 100_000_000
"""Bytes of shared memory that Ray accepts at least, about."""

START_SECONDS = 300.0
"""Time in which an actor starts, on a machine that is busy with others."""

CONNECT_SECONDS = 5.0


class ActorError(OSError):
    """Actors cannot start, or cannot go on; the run goes on from its checkpoint."""


class RayLostError(ActorError):
    """Ray itself has died, and every actor with it."""


def ray_module() -> Any:  # noqa: ANN401
    """Return Ray; an ImportError says how it is installed."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(NEEDED) from error
    return ray


def versions() -> dict[str, str]:
    """Return the versions that decide what an actor computes, by package."""
    found = {name: metadata.version(name) for name in ("vecenv", "torch", "tensordict")}
    return {"python": platform.python_version(), **found}


def check_versions(found: Mapping[str, str], actor: str, other: str) -> None:
    """Raise ValueError if an actor has other versions than the process that it works for."""
    own = versions()
    if told := [f"{name} {found[name]}, not {version}" for name, version in own.items() if found[name] != version]:
        raise ValueError(f"{actor} has other versions than {other}: {'; '.join(told)}")


def cause_of(error: BaseException) -> str:
    """Return an error of Ray in one line: its own words are a page."""
    cause = getattr(error, "cause", None)
    told = error if not isinstance(cause, BaseException) else cause
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    return f"{type(told).__name__}: {lines[-1] if 'Traceback' in str(told) else lines[0] if lines else 'no answer'}"


class RaySession:
    """Ray, of this process: as it is initialised already, of the cluster that ``RAY_ADDRESS`` names, or a new one.

    A new one is of this machine alone. It ends with the session, or with this process, even if that is killed: its
    processes, its shared memory and its files.

    Args:
        cpus: actors that run at a time, each of which Ray counts as a CPU.
        object_bytes: of what is in shared memory at a time; of a new Ray.
        called: what the actors are called, as in the option of their number.

    Raises:
        ImportError: Ray is not installed.
        ValueError: there is no Ray at the address, it is of another version, or it has fewer CPUs.
    """

    def __init__(self, cpus: int, object_bytes: int, called: str = "actors") -> None:
        self._ray = ray_module()
        self._folder: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._owned = not self._ray.is_initialized()
        address = os.environ.get(ADDRESS)
        if self._owned:
            with as_before(signal.SIGTERM):
                if address:
                    self._join(address)
                else:
                    self._start(cpus, max(LEAST_MEMORY, object_bytes))
        self._close = weakref.finalize(self, _ended, self._ray, self._owned, self._folder, self._guard)
        self._raylet = self._place_of_raylet()
        free = int(self._ray.available_resources().get("CPU", 0))
        if free < cpus:
            self.close()
            raise ValueError(
                f"Ray has {free} free CPUs, and each of {cpus} {called} needs one: --{called} {max(free, 1)}"
            )

    def _join(self, address: str) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            raise ValueError(f"no Ray at {ADDRESS}={address}: {_first_line(error)}") from error
        except RuntimeError as error:
            # Of another version of Ray or Python.
            raise ValueError(f"Ray at {ADDRESS}={address} cannot be joined: {_first_line(error)}") from error

    def _start(self, cpus: int, object_bytes: int) -> None:
        # Short: Ray puts Unix sockets there, whose paths have at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="vecenv-ray-"))
        # Where the start is interrupted: after what Ray does at the exit, which was registered later.
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        before = _children(os.getpid())
        self._ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=object_bytes,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=str(self._folder),
        )
        self._guard = _guarding(_descendants(os.getpid()) - before, self._folder)

    def _place_of_raylet(self) -> tuple[str, int]:
        """Return address and port of Ray's process on this machine."""
        own = self._ray.get_runtime_context().get_node_id()
        (node,) = (node for node in self._ray.nodes() if node["NodeID"] == own)
        return node["NodeManagerAddress"], node["NodeManagerPort"]

    def lost(self) -> bool:
        """Whether Ray's process on this machine has died; Ray itself knows a quarter of a minute later."""
        try:
            with socket.create_connection(self._raylet, timeout=CONNECT_SECONDS):
                return False
        except ConnectionError:
            return True
        except OSError:
            # Too busy to answer.
            return False

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def close(self) -> None:
        """End a Ray that this session has started or joined."""
        self._close()


@contextlib.contextmanager
def as_before(number: int) -> Iterator[None]:
    """Keep what a signal does, and within the context let Ray's own handler end with the exit code of that signal."""
    before = signal.getsignal(number)
    try:
        yield
    except SystemExit as error:
        raise SystemExit(128 + number) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, signal.SIG_DFL if before is None else before)


def _ended(ray: Any, owned: bool, folder: Path | None, guard: subprocess.Popen[bytes] | None) -> None:  # noqa: ANN401
    if not owned:
        return
    with contextlib.suppress(Exception):
        ray.shutdown()
    if guard is not None:
        # Its input ends: it ends what is left of Ray, where Ray itself has died, and its folder.
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _guarding(processes: set[int], folder: Path) -> subprocess.Popen[bytes] | None:
    """Start what ends Ray's processes, and deletes its folder, when this process is gone; None without /proc.

    Ray ends its workers itself then, but its agents go on for a minute, and its files stay.
    """
    if not processes:
        return None
    script = 'read _; folder=$1; shift; kill -9 "$@" 2>/dev/null; sleep 0.2; rm -rf -- "$folder"'
    named = ["sh", "-c", script, "vecenv-ray-guard", str(folder), *map(str, sorted(processes))]
    return subprocess.Popen(named, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process with its parent; nothing on other systems than Linux."""
    if sys.platform != "linux":
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name may have spaces and brackets.
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def _children(process: int) -> set[int]:
    return {child for child, parent in _parents() if parent == process}


def _descendants(process: int) -> set[int]:
    found, pairs = {process}, list(_parents())
    while more := {child for child, parent in pairs if parent in found} - found:
        found |= more
    return found - {process}


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
