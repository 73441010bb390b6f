"""A server by which any client of MCP plays a task, over standard input and output or by HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from rich.console import Console

from vecenv.adapters.guard import Limits
from vecenv.registry import task_named
from vecenv.system.interrupts import end_at_interrupt
from vecenv.system.settings import When, Within
from vecenv.tasks.commands.serve import HostSettings
from vecenv.tasks.experiment.kinds import OF_TENSORS
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Interaction
from vecenv.tools.words import ALL

NEEDED = "the server needs fastmcp: pip install 'vecenv[mcp]'"

BY_HTTP = When("transport", "http")


@dataclass(frozen=True, kw_only=True)
class McpSettings(HostSettings):
    """Settings of ``vecenv mcp``."""

    transport: Literal["stdio", "http"] = "stdio"
    """Standard input and output, for one client that starts the command; or http, for many, at /mcp."""
    host: Annotated[str, BY_HTTP] = "127.0.0.1"
    """Host address. Other than a loopback address requires a bearer token in the environment variable VECENV_TOKEN."""
    port: Annotated[int, Within(0, 2**16, below=True), BY_HTTP] = 8000
    """Port; 0 for any that is free."""
    limits: Annotated[Limits, BY_HTTP] = field(default_factory=Limits)
    """Limits of clients."""
    compile: Annotated[bool, OF_TENSORS] = False
    """Compile the step of each split before serving: for many clients at once."""
    text: TextRules = field(default_factory=lambda: TextRules(tools=(ALL,)))
    """Reward and tool settings; by default all tools that the task has."""

    def dialogue(self, world: Interaction) -> Dialogue:
        try:
            return super().dialogue(world)
        except ValueError:
            if self.text.tools != (ALL,):
                raise
            # All of no tools.
            return Dialogue(world, replace(self.text, tools=()))


def main(settings: McpSettings) -> dict[str, Any]:
    """Offer a task's observations, answers and tools to any client of MCP, until it goes or is interrupted."""
    # It needs PyTorch, which settings do not.
    from vecenv.tasks.commands.serving import row_pools, serve_http

    try:
        from vecenv.adapters.mcp import build_app, serve_stdio
        from vecenv.adapters.sessions.service import TextService
    except ImportError as error:
        raise ImportError(NEEDED) from error
    if settings.transport == "http":
        return serve_http(settings, build_app, "; clients connect to {url}/mcp")
    task_named(settings.task).check_talks()
    # The output belongs to the client.
    pools = row_pools(replace(settings, limits=Limits(sessions=1)), Console(stderr=True))
    service = TextService(settings.task, pools, settings.num_tasks, settings.seed)
    end_at_interrupt()
    asyncio.run(serve_stdio(service, settings.limits))
    return {"task": settings.task, "splits": list(pools)}
