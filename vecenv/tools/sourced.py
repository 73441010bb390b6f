"""Tools whose replies come from elsewhere: a recording, a generator, a model, a server of tools.

A source has declarations and replies to calls; a world with sources has their tools beside its own, or in place of
those that are declared alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from vecenv.text.interaction import Interaction
from vecenv.tools.declaration import Arguments, Reply, Tool, rows_of
from vecenv.tools.tool_set import Callers, ToolSet
from vecenv.tools.words import ALL

World = TypeVar("World", bound=Interaction)


class Source(Protocol):
    """Where replies come from.

    Attributes:
        tools: declarations by name.
    """

    tools: Mapping[str, Tool]

    def replies(self, name: str, calls: Sequence[Arguments]) -> Sequence[Reply]:
        """Return a reply, or a `ToolFault`, to each call of a tool; never raises."""
        ...


class SourcedTools(ToolSet):
    """Tools of sources, and of a set beside them.

    Args:
        offered: tools, families, or all.
        sources: of replies.
        own: set whose tools are offered too; a source that declares one of them as it does replies in its place.

    Raises:
        ValueError: two tools have one name, or there is no such tool.
    """

    def __init__(self, offered: Sequence[str], sources: Sequence[Source], own: ToolSet | None = None) -> None:
        self.own = own
        self.sources: dict[str, Source] = {}
        tools = dict(own.tools) if own is not None else {}
        for source in sources:
            for name, declared in source.tools.items():
                if declared.acts:
                    # An answer is the world's own to carry out.
                    continue
                if name in self.sources or tools.get(name, declared) != declared:
                    raise ValueError(f"there are two tools of the name {name!r}")
                tools[name] = declared
                self.sources[name] = source
        self.tools = tools
        if own is not None:
            # Agents are told of the tools as by the set itself.
            self.example, self.turn = own.example, own.turn
        super().__init__(offered)

    def replies(self, name: str, callers: Callers[Any], columns: Mapping[str, Any]) -> Sequence[Reply]:
        if name in self.sources:
            return self.sources[name].replies(name, rows_of(columns, len(callers.state)))
        if self.own is not None and name in self.own.tools:
            return self.own.replies(name, callers, columns)
        return super().replies(name, callers, columns)

    def forget(self, row: int) -> None:
        super().forget(row)
        if self.own is not None:
            self.own.forget(row)


def with_sources(world: World, *sources: Source) -> World:
    """Return a world whose agents are also offered tools of sources; of its own, those that sources do not declare."""
    offered = world.tools

    def tools(names: Sequence[str]) -> SourcedTools:
        try:
            own = offered([ALL])
        except ValueError:
            # All of no tools.
            return SourcedTools(names, sources)
        if not isinstance(own, ToolSet):
            raise ValueError(f"{type(own).__name__} has no declarations, so that no tools can stand beside it")
        return SourcedTools(names, sources, own)

    world.tools = tools  # type: ignore[method-assign]
    return world
