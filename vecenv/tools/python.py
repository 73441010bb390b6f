"""Python in the sandbox: a family of tools for any task, whose programs of a step run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import finalize

from vecenv.sandbox.job import Job, Limits, Result, Status
from vecenv.sandbox.sandbox import Sandbox
from vecenv.text.tool_calls import FAILURE
from vecenv.tools.tool_set import Callers, Reply, ToolSet, tool

LIMITS = Limits(cpu=2.0, memory=256 << 20, output=10_000)

_SENTENCES = {
    Status.CPU: f"it took more than {LIMITS.cpu:g} s",
    Status.WALL: f"it took more than {LIMITS.wall:g} s",
    Status.MEMORY: f"it took more than {LIMITS.memory >> 20} MB",
    Status.OUTPUT: f"it wrote more than {LIMITS.output:,} bytes",
}


class PythonTools(ToolSet):
    """Programs in a sandbox, each alone: nothing is kept between calls.

    Raises:
        ValueError: the machine lacks a layer of the sandbox; ``vecenv sandbox doctor`` names it.
    """

    def __init__(self, offered: Sequence[str], sandbox: Sandbox | None = None) -> None:
        super().__init__(offered)
        self._sandbox = sandbox or _own(self)

    @tool("python", "what a program of Python prints, run alone and within 2 s; program", {"program": str})
    def python(self, callers: Callers[Any], program: Sequence[str]) -> list[Reply]:
        return [_told(result) for result in self._sandbox.run(Job(source, limits=LIMITS) for source in program)]

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the sandbox, in whose place a copy makes one of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_sandbox"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sandbox = _own(self)


def _own(tools: PythonTools) -> Sandbox:
    """Return a sandbox that is closed with the tools, or at the end of the process."""
    sandbox = Sandbox()
    finalize(tools, sandbox.close)
    return sandbox


def _told(result: Result) -> str:
    """Return what a program wrote, and below it how it failed; a failure of the sandbox is one of the tool."""
    if result.masked:
        return f"{FAILURE}the sandbox could not run the program"
    last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    ended = (
        "" if result.ok else _SENTENCES.get(result.status, result.message or last or f"exit code {result.exit_code}")
    )
    told = [part for part in (result.text.rstrip(), ended and f"the program failed: {ended}") if part]
    return "\n".join(told) or "it printed nothing"
