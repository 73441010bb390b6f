"""An MCP server on standard input and output, by hand: tools that reply, hang, lie about their types, and die."""

import json
import os
import sys

WHOLE = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}}
TOOLS = {
    "add": ({"type": "object", "properties": NUMBERS, "required": ["a"]}, WHOLE),
    "lie": ({"type": "object", "properties": {}}, WHOLE),
    "hang": ({"type": "object", "properties": {}}, None),
    "long": ({"type": "object", "properties": {}}, None),
    "refuse": ({"type": "object", "properties": {}}, None),
    "die": ({"type": "object", "properties": {}}, None),
    "echo": ({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}, None),
    "wrong": ({"type": "object", "properties": {}}, None),
    "odd": ({"type": "object", "properties": {"what": {"type": "moon"}}}, None),
}
"""Schemas of arguments and replies by name."""


def listed() -> list[dict]:
    told = [{"name": name, "inputSchema": given} for name, (given, _) in TOOLS.items()]
    for tool in told:
        if (replied := TOOLS[tool["name"]][1]) is not None:
            tool["outputSchema"] = replied
    return told


def called(name: str, given: dict) -> dict | None:
    if name == "die":
        os._exit(3)
    if name == "hang":
        return None
    texts = {"add": str(given.get("a", 0) + given.get("b", 0)), "long": "x" * 1_000_000, "refuse": "not today"}
    result = {"content": [{"type": "text", "text": texts.get(name, "forty-two")}], "isError": name == "refuse"}
    if TOOLS[name][1] is not None:
        result["structuredContent"] = {"value": int(texts[name]) if name in texts else "forty-two"}
    return result


for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked.get("method"), asked.get("params", {})
    if "id" not in asked:
        continue
    if method == "initialize":
        about = {"name": "by hand", "version": "1"}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    elif method == "tools/list":
        result = {"tools": listed()}
    elif method == "tools/call" and params["name"] == "wrong":
        fault = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32000, "message": "structured nonsense"}}
        print(json.dumps(fault), flush=True)
        continue
    elif method == "tools/call":
        result = called(params["name"], params.get("arguments") or {})
    else:
        fault = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "there is no such method"}}
        print(json.dumps(fault), flush=True)
        continue
    if result is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
