"""What a sandbox is given and what it returns: `Job`, `Limits`, `Result`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from vecenv.system.settings import Count, Settings, Within

MB, PAGE = 1 << 20, 1 << 12
OUT_OF_MEMORY = (b"MemoryError", b"out of memory", b"Cannot allocate memory", b"bad_alloc")


@dataclass(frozen=True)
class Limits(Settings):
    """What a job may use. All are enforced outside the job's reach.

    Attributes:
        cpu: seconds of processor time, of all its threads and processes: what decides whether it took too long.
        wall: seconds of the clock, a backstop for jobs that sleep; let it be several times `cpu`, since a busy machine
            makes it pass faster.
        memory: bytes that each process may allocate beyond the interpreter's own.
        output: bytes of standard output and standard error together.
        files: bytes of the folder that the job may write.
        processes: processes and threads; 1 for no further ones.
        descriptors: open files of a process.
        source: bytes of the program.
        inputs: bytes of standard input and files.
    """

    cpu: Annotated[float, Within(0.01)] = 2.0
    wall: Annotated[float, Within(0.1)] = 20.0
    memory: Annotated[int, Within(MB, 1 << 40)] = 512 * MB
    output: Annotated[int, Within(1, 1 << 30)] = 1 * MB
    files: Annotated[int, Within(1 << 16, 1 << 40)] = 16 * MB
    processes: Annotated[int, Within(1, 1024)] = 1
    descriptors: Annotated[int, Within(8, 1 << 16)] = 64
    source: Count = 1 * MB
    inputs: Count = 16 * MB


@dataclass(frozen=True)
class Job:
    """A program to run, as if from the command line.

    Attributes:
        source: the program.
        language: a name of the sandbox's table of languages.
        stdin: what it reads from standard input, as if from a file.
        files: further files of its folder, by name without a path.
        limits: what it may use.
    """

    source: str | bytes
    language: str = "python"
    stdin: str | bytes = b""
    files: Mapping[str, str | bytes] = field(default_factory=lambda: MappingProxyType({}))
    limits: Limits = Limits()

    def fault(self) -> str:
        """Return why the job cannot be run, empty if it can; the language is the sandbox's to know."""
        try:
            source = as_bytes(self.source)
            source.decode()
        except UnicodeError:
            return "the program is not UTF-8"
        if len(source) > self.limits.source:
            return f"the program has {len(source):,} bytes; at most {self.limits.source:,} are run"
        if b"\0" in source:
            return "the program has a null character"
        for name in self.files:
            if name in ("", ".", "..") or len(name.encode(errors="replace")) > 200 or not set(name).isdisjoint("/\0"):
                return f"a file cannot be called {name[:40]!r}: names have no path"
        try:
            inputs = sum(len(as_bytes(each)) for each in (self.stdin, *self.files.values()))
            "".join(self.files).encode()
        except UnicodeError:
            return "standard input or a file is not UTF-8; give bytes"
        if inputs > self.limits.inputs:
            return f"standard input and files have {inputs:,} bytes; at most {self.limits.inputs:,} are given"
        folder = sum(-len(as_bytes(each)) // PAGE * -PAGE for each in (source, *self.files.values()))
        if folder > self.limits.files or len(self.files) > 1000:
            return (
                f"the program and its {len(self.files)} files do not fit in {self.limits.files:,} bytes for 1,000 files"
            )
        return ""


class Status(StrEnum):
    """How a job ended. All but `SANDBOX_FAILURE` are the program's own doing."""

    OK = "ok"
    """It ended with exit code 0."""
    ERROR = "error"
    """It ended with another exit code, or by a signal."""
    CPU = "cpu"
    MEMORY = "memory"
    OUTPUT = "output"
    WALL = "wall"
    """It passed a limit."""
    REFUSED = "refused"
    """It was not run, because of what it is: too long, not UTF-8, a language that there is not."""
    SANDBOX_FAILURE = "sandbox_failure"
    """The sandbox failed, not the program: a sample to mask and to count, never one to score."""


@dataclass(frozen=True)
class Result:
    """What became of a job.

    Attributes:
        status: how it ended.
        exit_code: of the program, negative for a signal; None if it was not run.
        stdout: what it wrote to standard output, cut to the limit.
        stderr: what it wrote to standard error, cut to the limit.
        cpu: seconds of processor time.
        wall: seconds of the clock.
        engine: name of the engine that ran it, empty if none did.
        message: why it was refused, or how the sandbox failed; empty otherwise.
    """

    status: Status
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    cpu: float = 0.0
    wall: float = 0.0
    engine: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def masked(self) -> bool:
        """Whether the result says nothing of the program."""
        return self.status is Status.SANDBOX_FAILURE

    @property
    def text(self) -> str:
        """Standard output as text; what is not UTF-8 is replaced."""
        return self.stdout.decode(errors="replace")


def ended(verdict: str, exit_code: int, stdout: bytes, stderr: bytes, cpu: float, wall: float, engine: str) -> Result:
    """Return the result of a program that was run; `verdict` is the limit that it passed, empty for none."""
    status = Status(verdict) if verdict else Status.ERROR if exit_code else Status.OK
    if status is Status.ERROR and any(mark in stderr[-400:] for mark in OUT_OF_MEMORY):
        status = Status.MEMORY
    return Result(status, exit_code, stdout, stderr, cpu, wall, engine)


def as_bytes(text: str | bytes) -> bytes:
    """Return a text as UTF-8; UnicodeEncodeError if it has none."""
    return text.encode() if isinstance(text, str) else text
