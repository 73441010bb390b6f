"""Tools of an MCP server as a family, whatever the server does."""

from pathlib import Path

import pytest

pytest.importorskip("fastmcp", reason="tools of MCP servers need vecenv[mcp]")

from tests.guess_number import GUESS_NUMBER
from vecenv import Dialogue, Episode, make_interaction
from vecenv.text.dialogue import TextRules
from vecenv.text.tool_calls import ToolCall
from vecenv.tools.mcp_tools import McpTools
from vecenv.tools.mocks import RecordedTools
from vecenv.tools.recording import Recording
from vecenv.tools.sourced import SourcedTools, with_sources

SERVER = Path(__file__).with_name("lying_server.py")
SOUND = ("add", "lie", "hang", "long", "refuse", "die", "echo", "wrong")


def test_a_server_that_hangs_dies_or_lies_costs_its_row_alone():
    family = McpTools(SERVER, "mine", SOUND, deadline=5.0)
    tools = SourcedTools(["mine"], [family])

    def asked(*calls: ToolCall) -> list[str]:
        return tools.results(list(range(len(calls))), calls, None)

    def add(**given: object) -> ToolCall:
        return ToolCall("add", given)

    hanging = "Failure: the tool did not answer within 5 s"
    lying = "Failure: the tool's reply does not fit its schema"
    told = asked(add(a=1), ToolCall("hang"), add(a=1, b=5), ToolCall("lie"), ToolCall("refuse"), add(a="x"))
    assert told == ["3", hanging, "6", lying, "Error: not today", "Error: a must be a whole number"]
    assert family.failed == {"late": 1, "misfit": 1}
    # What cannot be sent is a fault of the call alone; what a server says of structures is none of them.
    assert asked(ToolCall("echo", {"text": "\ud800"}), ToolCall("echo", {"text": "a"}), add(a=1))[1:] == [
        "forty-two",
        "3",
    ]
    assert asked(ToolCall("echo", {"text": "\ud800"})) == ["Error: the arguments of echo have no JSON in UTF-8"]
    assert family.failed == {"late": 1, "misfit": 1} and "structured nonsense" in asked(ToolCall("wrong"))[0]
    assert family.failed == {"late": 1, "misfit": 1, "gone": 1}
    first, gone, _ = asked(add(a=1), ToolCall("die"), ToolCall("hang"))
    assert first == "3" and gone.startswith("Failure: the tool's server is gone")
    # It is started again for whoever calls next.
    assert asked(add(a=2)) == ["4"]
    family.deadline = 60.0
    assert asked(ToolCall("long"))[0].endswith("x… (the first 20,000 of 1,000,000 characters)")
    # Recorded once, it replies without the server.
    recording = Recording(family.tools)
    RecordedTools(tools, recording).results([0], [add(a=20, b=3)], None)
    mock = SourcedTools(["all"], [recording])
    assert mock.results([0], [add(a=20, b=3.0)], None) == ["23"]


def test_a_world_offers_them_beside_its_own():
    world = with_sources(make_interaction(GUESS_NUMBER, num_rows=2), McpTools(SERVER, "mine", ["add"]))
    dialogue = Dialogue(world, TextRules(tools=("mine", "is_odd")))
    assert dialogue.tools.offered == ("is_odd", "add") and "add: " in dialogue.instructions([0])[0]
    dialogue.begin([0, 1], [Episode(0, 0), Episode(0, 1)])
    called = ['{"name": "add", "arguments": {"a": 2}}', '{"name": "is_odd"}']
    added, odd = dialogue.answer([0, 1], called)
    assert added.message == "4" and odd.message.startswith("It is") and not added.acted


def test_what_cannot_be_declared_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ValueError, match="tool 'odd': what has the type 'moon'"):
        McpTools(SERVER)
    with pytest.raises(ValueError, match="the MCP server has no tool 'moon'; there are add, lie"):
        McpTools(SERVER, only=["moon"])
    (tmp_path / "ended.py").write_text("")
    with pytest.raises(OSError, match="does not answer"):
        McpTools(tmp_path / "ended.py", patience=10.0)
