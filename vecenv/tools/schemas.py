"""Schemas of tools as OpenAI's chat API and the Model Context Protocol have them, from declarations and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vecenv.tools.declaration import Kind, Tool

_TYPES: dict[Kind, str] = {
    **{str: "string", int: "integer", float: "number", bool: "boolean"},
    **{list: "array", dict: "object"},
}
_KINDS = {name: kind for kind, name in _TYPES.items()}


def openai_schema(tool: Tool) -> dict[str, Any]:
    """Return an entry of ``tools`` of a chat completion, which chat templates of models take too."""
    function = {"name": tool.name, "description": tool.usage, "parameters": parameters(tool)}
    return {"type": "function", "function": function}


def mcp_schema(tool: Tool) -> dict[str, Any]:
    """Return an entry of ``tools`` of an MCP server's answer to ``tools/list``."""
    hints = {"readOnlyHint": not tool.changes}
    return {"name": tool.name, "description": tool.usage, "inputSchema": parameters(tool), "annotations": hints}


def parameters(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments."""
    told: dict[str, dict[str, Any]] = {}
    for name, kind in tool.arguments.items():
        told[name] = {"type": "string", "enum": list(kind)} if isinstance(kind, tuple) else {"type": _TYPES[kind]}
        if tool.optional.get(name) is not None:
            told[name]["default"] = tool.optional[name]
    return {"type": "object", "properties": told, "required": list(tool.needed), "additionalProperties": False}


def declared(schema: Mapping[str, Any], family: str, seconds: float = 0.0) -> Tool:
    """Return the declaration of a tool of OpenAI's or MCP's form, such as of a server of tools.

    An MCP tool without the hint that it only reads may change something. A number that may be left out needs a default.

    Raises:
        ValueError: the schema has no such form, or an argument of a kind that declarations do not have.
    """
    try:
        described = schema.get("function", schema)
        name = described["name"]
        form = described.get("parameters", described.get("inputSchema")) or {}
        properties, needed = form.get("properties") or {}, form.get("required") or ()
        kinds = {each: _kind(name, each, told) for each, told in properties.items()}
        optional = {each: told.get("default") for each, told in properties.items() if each not in needed}
        # JSON has no two kinds of numbers.
        for each, default in optional.items():
            if kinds[each] is float and type(default) is int:
                optional[each] = float(default)
        hints = described.get("annotations") or {}
        changes = "" if "function" in schema or hints.get("readOnlyHint") else "what its server does"
        usage = " ".join(str(described.get("description") or name).split())
        return Tool(name, family, usage, kinds, optional, seconds, changes)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no schema of a tool: {repr(schema)[:80]}") from error


def _kind(tool: str, name: str, told: Mapping[str, Any]) -> Kind:
    if "enum" in told:
        return tuple(told["enum"])
    # A value that may also be null, as libraries write optional arguments.
    several = [each for each in told.get("anyOf", ()) if each.get("type") != "null"]
    kind = told.get("type", several[0].get("type") if len(several) == 1 else None)
    if kind not in _KINDS:
        raise ValueError(f"tool {tool!r}: {name} has the type {kind!r}, which no argument has")
    return _KINDS[kind]
