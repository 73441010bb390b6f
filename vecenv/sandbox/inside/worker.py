"""A worker in the jail: a supervisor that takes jobs in turn, and a warm interpreter that they are forked from.

The warm interpreter (`_warm`) never sees a job's text, input or output, so that its memory, of which every job has a
copy, tells nothing of other jobs. The supervisor sees them, and no job has a copy of it.
"""

import contextlib
import fcntl
import gc
import json
import marshal
import os
import select
import signal
import socket
import struct
import sys
import time
from functools import partial
from typing import Any

from vecenv.sandbox.inside import confine
from vecenv.sandbox.inside import job as inside_job
from vecenv.sandbox.inside.frames import packed, taken, unpacked

STARTED = struct.Struct("c3xi")
"""A mark and the number of a job's process."""
ENDED = struct.Struct("c3xi4q")
"""A mark, a wait status and the beginning of a struct rusage: user and system time, in seconds and microseconds."""
ADD_SEALS, EVERY_SEAL = 1033, 15
LEAST_WAIT, SHORT = 0.001, 0.005
"""Seconds: between two looks at a job, and until one that goes on is listened to."""
PROCESSORS = os.cpu_count() or 1
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Serve jobs from standard input until it ends; argument: the plan, in JSON."""
    plan = json.loads(sys.argv[1])
    # For the start of this process alone: a job would look up each function of the libraries anew.
    os.environ.pop("LD_BIND_NOW", None)
    inside_job.warm_up(plan["warm"])
    with open("/proc/self/statm") as file:
        plan["base"] = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    processes = os.open("/proc", os.O_RDONLY)
    if "namespaces" in plan["layers"]:
        # This process still looks into it; no job can.
        confine.hide("/proc")
        for name in confine.DEVICES:
            confine.keep(f"/dev/{name}")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    warm = os.fork()
    if not warm:
        ours.close()
        _warm(theirs, plan)
    theirs.close()
    os.write(1, packed({"ready": True}, []))
    own = {os.getpid(), warm, 1}
    while True:
        try:
            header, parts = unpacked(partial(taken, 0))
        except EOFError:
            return
        supervisor = _Supervisor(plan, ours, processes, own, header)
        told, outputs = supervisor.run(header, parts)
        reply = memoryview(packed(told, outputs))
        while reply:
            reply = reply[os.write(1, reply) :]


def _warm(channel: socket.socket, plan: dict[str, Any]) -> None:
    """Fork a job for each message, and tell its number and its end."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    own = os.pidfd_open(os.getpid())
    namespaces = "namespaces" in plan["layers"]
    # Without namespaces the folder of each job is another.
    here = namespaces and "landlock" in plan["layers"]
    plan["rules"] = confine.landlock_rules(plan["readable"], inside_job.PLACE) if here else None
    confine.give_up(plan["user"])
    inside_job.rehearse()
    # Room for a whole struct rusage.
    end = bytearray(ENDED.size + 112)
    gc.collect()
    gc.freeze()
    # The C library sorts what was freed when it is asked for much: once here, not in every job.
    bytearray(1 << 17)
    while True:
        # The job itself takes the message.
        if not channel.recv(1, socket.MSG_PEEK):
            os._exit(0)
        if namespaces:
            confine.new_pid_namespace(own)
        child = os.fork()
        if not child:
            inside_job.run(plan, channel)
        channel.send(STARTED.pack(b"S", child))
        # Not by os.wait4, whose numbers would stay in the memory that the next job has a copy of.
        confine.wait(child, end)
        if namespaces:
            confine.unmount_folder(inside_job.BOX)
        end[:1] = b"E"
        channel.send(memoryview(end)[: ENDED.size])
        end[:] = bytes(len(end))


def _in_memory(content: bytes, seal: bool = False) -> int:
    """Return a descriptor of a file with some content, at its beginning."""
    descriptor = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if content:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    if seal:
        fcntl.fcntl(descriptor, ADD_SEALS, EVERY_SEAL)
    return descriptor


class _Supervisor:
    """One job, from its fork to its end."""

    def __init__(
        self, plan: dict[str, Any], warm: socket.socket, processes: int, own: set[int], header: dict[str, Any]
    ) -> None:
        self.plan, self.warm, self.processes, self.own, self.limits = plan, warm, processes, own, header["limits"]
        self.pid, self.made = 0, 0.0
        self.outputs: dict[int, bytearray] = {}
        self.verdict = ""

    def run(self, header: dict[str, Any], parts: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Run the job of a frame; return what is told of it, and what it wrote to standard output and error."""
        stdin = parts.pop()
        out, out_end = os.pipe2(os.O_CLOEXEC)
        error, error_end = os.pipe2(os.O_CLOEXEC)
        for descriptor in (out, error):
            # After the job there may be no end of what it wrote: it can leave its descriptors in a message.
            os.set_blocking(descriptor, False)
        box = "" if "namespaces" in self.plan["layers"] else self._plain_box()
        job = marshal.dumps(({**header, "box": box}, parts))
        given = [_in_memory(job), _in_memory(stdin, seal=True), out_end, error_end]
        self.outputs = {out: bytearray(), error: bytearray()}
        try:
            socket.send_fds(self.warm, [b"."], given)
            for descriptor in given:
                os.close(descriptor)
            told = self._told()
            if not told.startswith(inside_job.READY):
                return {"failure": told[1:].decode(errors="replace") or "the job was not started"}, [b"", b""]
            # The limits are those of the program, without the making of its jail.
            self.made = int(told[1:]) / 1e9
            started = time.monotonic()
            code, used = self._watched(started)
            wall = time.monotonic() - started
            for descriptor in self.outputs:
                while self._read(descriptor):
                    pass
        finally:
            for descriptor in (out, error):
                os.close(descriptor)
            if box:
                import shutil  # The jobs have no use for what it imports.

                shutil.rmtree(box, ignore_errors=True)
        cpu = max(0.0, used - self.made)
        code = os.waitstatus_to_exitcode(code)
        if not self.verdict and code < 0 and cpu >= self.limits["cpu"]:
            self.verdict = "cpu"
        if self.verdict:
            # Also where it ended by itself just before.
            code = -signal.SIGKILL
        kept = [bytes(each[: self.limits["output"]]) for each in self.outputs.values()]
        return {"verdict": self.verdict, "exit_code": code, "cpu": cpu, "wall": wall}, kept

    def _told(self) -> bytes:
        """Wait until the job is ready or has ended; return what it said of itself, empty if nothing."""
        said = told = b""
        while not (told.startswith(inside_job.READY) and self.pid) and not said.startswith(b"E"):
            said = self._heard()
            if said.startswith(b"S"):
                self.pid = STARTED.unpack(said)[1]
            elif not said.startswith(b"E"):
                told = said
        return told

    def _heard(self) -> bytes:
        if said := self.warm.recv(1024):
            return said
        raise EOFError("the warm interpreter died")

    def _plain_box(self) -> str:
        import tempfile

        box = tempfile.mkdtemp(prefix="vecenv-box-")
        if self.plan["user"] is not None:
            os.chown(box, self.plan["user"], self.plan["user"])
        return box

    def _watched(self, started: float) -> tuple[int, float]:
        """Keep the job within its limits until it has ended; return its wait status and CPU seconds."""
        poll = select.poll()
        poll.register(self.warm.fileno(), select.POLLIN)
        # If the outside is gone, so is the job.
        poll.register(0, 0)
        seen, listens = 0.0, False
        while True:
            left = self.limits["wall"] - (time.monotonic() - started)
            seen = max(seen, self._used())
            budget = self.limits["cpu"] + self.made - seen
            if not self.verdict and (left <= 0 or budget <= 0):
                self.verdict = "cpu" if budget <= 0 else "wall"
            if self.verdict:
                self._kill()
            share = budget / min(PROCESSORS, self.limits["processes"])
            wait = 1.0 if self.verdict else min(left, max(share, LEAST_WAIT), 60.0 if listens else SHORT)
            for descriptor, _ in poll.poll(max(1, int(1000 * wait + 1))):
                if descriptor == self.warm.fileno():
                    _, code, *used = ENDED.unpack(self._heard())
                    # Of processes that it did not wait for, only what was seen of them counts.
                    return code, max(seen, used[0] + used[2] + (used[1] + used[3]) / 1e6)
                if descriptor == 0:
                    self._kill()
                    sys.exit(0)
                if not self._read(descriptor):
                    poll.unregister(descriptor)
            if not listens:
                # Most jobs have ended by now, and their output is read once.
                listens = True
                for descriptor in self.outputs:
                    poll.register(descriptor, select.POLLIN)

    def _read(self, descriptor: int) -> bytes:
        """Take in some output, empty if there is none; what is over the limit is dropped, and a verdict."""
        try:
            part = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return b""
        if sum(map(len, self.outputs.values())) <= self.limits["output"]:
            self.outputs[descriptor] += part
        if sum(map(len, self.outputs.values())) > self.limits["output"]:
            self.verdict = self.verdict or "output"
        return part

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _used(self) -> float:
        """CPU seconds of the job so far: of its threads, and of the processes that it may have begun."""
        if self.limits["processes"] == 1:
            try:
                return time.clock_gettime((~self.pid << 3) | 2)
            except OSError:
                return 0.0
        if "namespaces" not in self.plan["layers"]:
            return 0.0
        used = 0
        for name in os.listdir(self.processes):
            if name.isdigit() and int(name) not in self.own:
                with contextlib.suppress(OSError):
                    file = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=self.processes)
                    used += sum(map(int, os.read(file, 1024).rpartition(b")")[2].split()[11:15]))
                    os.close(file)
        return used / TICKS
