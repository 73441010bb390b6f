"""Mocks of tools: recordings, drawn replies and those of a model, held to the real tools."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.fake_model import SLOW, model
from tests.guess_number import GUESS_NUMBER, Hints
from vecenv import Dialogue, Episode, make_interaction
from vecenv.text.chat_address import LARGEST
from vecenv.text.dialogue import TextRules
from vecenv.text.tool_calls import ToolCall
from vecenv.tools.calculator import Calculator
from vecenv.tools.declaration import LONGEST_REPLY, Tool, ToolFault
from vecenv.tools.json_values import check_schema, drawn, misfit
from vecenv.tools.mocks import Generated, RecordedTools, disagreement
from vecenv.tools.model_mock import Modelled
from vecenv.tools.recording import Recording, distance
from vecenv.tools.sourced import SourcedTools, with_sources
from vecenv.tools.tool_set import Callers, ToolSet, tool

DEPTH = {"type": "object", "properties": {"depth": {"type": "number", "minimum": 0}}, "required": ["depth"]}


class Sea(ToolSet):
    @tool("sea", "depth of a place", {"place": str, "miles": int}, {"miles": 1})
    def depth(self, callers: Callers, place: Sequence[str], miles) -> list:
        return [
            ToolFault("it is dry") if name == "hill" else json.dumps({"depth": float(far) * len(name)})
            for name, far in zip(place, miles.tolist(), strict=True)
        ]

    @tool("sea", "whether it rains")
    def rain(self, callers: Callers) -> list[str]:
        return [str(row % 2 == 0) for row in callers.state]


def asked(tools: ToolSet, *calls: ToolCall) -> list[str]:
    return tools.results(list(range(len(calls))), calls, None)


def depth(place: object, **more: object) -> ToolCall:
    return ToolCall("depth", {"place": place, **more})


def recorded() -> Recording:
    sea = Sea(["all"])
    recording = Recording(sea.tools)
    real = RecordedTools(sea, recording)
    calls = [depth("bay", miles=2), depth("hill"), depth("bay", miles="2"), ToolCall("rain"), ToolCall("rain")]
    assert asked(real, *calls) == asked(sea, *calls)
    return recording


def test_a_recording_replies_as_the_tool_did_and_says_what_it_does_not_know(tmp_path: Path):
    recording = recorded()
    recording.write(tmp_path / "sea.jsonl")
    assert len((tmp_path / "sea.jsonl").read_text().splitlines()) == 3
    # What depends on more than the arguments is told; the first reply stands.
    assert recording.ambiguous == {"rain{}"}
    again = Recording.read(Sea.tools, tmp_path / "sea.jsonl")
    mock = SourcedTools(["all"], [again], Sea(["all"]))
    known = [depth("bay", miles=2.0), depth("hill", miles=1), ToolCall("rain"), ToolCall("rain")]
    assert asked(mock, *known) == ['{"depth": 6.0}', "Error: it is dry", "False", "False"]
    missed = "Error: no reply of depth to these arguments is recorded"
    assert asked(mock, depth("bay"), depth("bay", moon=1)) == [
        missed,
        "Error: depth takes no 'moon'; it takes place, miles",
    ]
    assert again.missed == {"depth": 1}
    again.miss = "nearest"
    assert asked(mock, depth("bays", miles=3), depth("hull")) == ['{"depth": 6.0}', "Error: it is dry"]


def test_how_far_a_mock_is_from_the_tool_is_measured_and_told():
    sea, recording = Sea(["all"]), recorded()
    recording.miss = "nearest"
    calls = [
        depth("bay", miles=2),
        depth("bay", miles=3),
        depth("hills"),
        depth(["no"]),
        ToolCall("rain"),
        ToolCall("rain"),
    ]
    found = disagreement(sea, recording, calls, list(range(6)), None)
    assert (found.calls, found.different) == ({"depth": 4, "rain": 2}, {"depth": 2, "rain": 1})
    assert found.faults == Counter({"depth": 1})
    told = str(found)
    assert told.startswith("50.0% of 6 calls have another reply than the real tool gives\n  depth: 2 of 4, 1 of them")
    exact = disagreement(sea, recorded(), [depth("bay", miles=2), ToolCall("rain")], [0, 1], None)
    assert exact.share == 0.0


def test_an_agent_of_the_mock_is_tested_with_the_real_tool():
    """Whoever trusts the hint guesses a number of its kind: right with the real tool, half the time by the mock."""

    def kinds_hit(mocked: bool) -> float:
        world = make_interaction(GUESS_NUMBER, num_rows=32)
        if mocked:
            recording = Recording(Hints.tools)
            recording.note("is_odd", {}, "It is odd.")
            with_sources(world, recording)
        dialogue, ids = Dialogue(world, TextRules(tools=("all",))), list(range(32))
        dialogue.begin(ids, [Episode(0, index) for index in ids])
        told = [turn.message for turn in dialogue.answer(ids, ['{"name": "is_odd"}'] * 32)]
        hits = [(text == "It is odd.") == number % 2 for text, number in zip(told, world.numbers, strict=True)]
        return sum(hits) / 32

    assert kinds_hit(False) == 1.0 and 0.2 < kinds_hit(True) < 0.8


def test_drawn_replies_fit_their_schemas_and_are_the_same_for_equal_keys():
    everything = {
        "type": "object",
        "properties": {
            **{"n": {"type": "integer", "minimum": 5, "maximum": 7}, "x": {"type": "number", "maximum": -3}},
            **{"s": {"type": "string", "minLength": 10}, "one": {"enum": ["a", 2, None]}, "b": {"type": "boolean"}},
            "l": {"type": "array", "items": {"anyOf": [DEPTH, {"type": "null"}]}, "minItems": 2, "maxItems": 4},
            "c": {"const": 4},
        },
        "required": ["n", "l"],
    }
    check_schema(everything)
    for number in range(2000):
        assert not misfit(drawn(everything, Random(number)), everything)
    for wrong in ({}, {"n": 5, "l": [None]}, {"n": 5.0, "l": [None, None]}, {"n": True, "l": [None, None]}, [], None):
        assert misfit(wrong, everything)
    assert misfit({"n": 5, "l": [None, {"depth": -1}]}, everything) == "it.l[] is none of its forms"
    assert misfit({"depth": float("nan")}, DEPTH) == "it.depth is not finite"
    tools = {"depth": Sea.tools["depth"]}
    one, same, other = (Generated(tools, {"depth": DEPTH}, key) for key in (0, 0, 1))
    calls = [{"place": "bay", "miles": 1}, {"miles": 1, "place": "bay"}, {"place": "sea", "miles": 1}]
    replies = one.replies("depth", calls)
    assert replies == same.replies("depth", calls) and replies[0] == replies[1] != replies[2]
    assert replies != other.replies("depth", calls) and not misfit(json.loads(replies[0]), DEPTH)


def test_a_model_is_held_to_the_schema_and_asked_once_a_call(tmp_path: Path):
    tools, bay = {"depth": Sea.tools["depth"]}, {"place": "bay", "miles": 1}
    said = [
        "deep",
        '{"depth": -1}',
        500,
        '<think>7?</think>```json\n{"depth": 7}\n```',
        '{"depth": "x"}',
        "x" * 10_000_000,
    ]
    with model(said) as (address, heard):
        mock = Modelled(tools, {"depth": DEPTH}, address, "a-model", tmp_path / "said.jsonl", concurrent=1)
        first = mock.replies("depth", [bay])
        assert first == ["Failure: the tool is not available"]
        assert mock.replies("depth", [bay, bay]) == ['{"depth":7}'] * 2 and len(heard) == 4
        assert heard[0]["model"] == "a-model" and json.loads(heard[0]["messages"][1]["content"]) == bay
        (late,) = mock.replies("depth", [{"place": "sea", "miles": 1}])
        assert late == first[0] and len(said[-1]) > LARGEST
        assert mock.failed["the reply.depth is beyond its minimum or maximum"] == 1 and mock.failed["HTTPError"] == 1
        assert mock.failed["the reply.depth is no number"] == 1 and sum(mock.failed.values()) == 5
        told = len(heard)
        again = Modelled(tools, {"depth": DEPTH}, address, "a-model", tmp_path / "said.jsonl")
        assert again.replies("depth", [bay]) == ['{"depth":7}'] and len(heard) == told


def test_an_answer_of_a_model_has_a_deadline_as_a_whole():
    with model([SLOW]) as (address, _):
        mock = Modelled({"depth": Sea.tools["depth"]}, {"depth": DEPTH}, address, "a-model", deadline=0.2, tries=1)
        assert mock.replies("depth", [{"place": "bay", "miles": 1}]) == ["Failure: the tool is not available"]
        assert mock.failed == {"TimeoutError": 1}


def test_nothing_that_is_nested_without_end_reaches_a_parser():
    deep = "[" * 9_000
    with model([deep, deep.encode()]) as (address, _):
        mock = Modelled({"depth": Sea.tools["depth"]}, {"depth": DEPTH}, address, "a-model", tries=2)
        assert mock.replies("depth", [{"place": "bay", "miles": 1}]) == ["Failure: the tool is not available"]
        assert mock.failed == {"ValueError": 2}
    sea = Sea(["all"])
    recording = Recording(sea.tools)
    recording.note("depth", {"place": "bay", "miles": 1}, deep)
    assert disagreement(sea, recording, [depth("bay")], [0], None).share == 1.0


def test_replies_of_a_model_stand_behind_those_that_are_kept_and_are_texts(tmp_path: Path):
    tools, cache = {"depth": Sea.tools["depth"]}, tmp_path / "said.jsonl"
    with model([*(f'{{"depth": {depth}}}' for depth in range(3)), '{"depth": 3, "of": "\\ud800"}']) as (address, _):
        mocks = [Modelled(tools, {"depth": DEPTH}, address, "a-model", cache, tries=1) for _ in range(2)]
        for mock, places in zip(mocks, (("bay",), ("sea", "lake")), strict=True):
            told = mock.replies("depth", [{"place": place, "miles": 1} for place in places])
            assert not any(one.startswith("Failure") for one in told)
        assert mocks[0].replies("depth", [{"place": "odd", "miles": 1}]) == ["Failure: the tool is not available"]
    # Of two processes with one file, neither has lost what the other was told.
    assert len(Recording.read(tools, cache).known["depth"]) == 3 and mocks[0].failed == {"UnicodeEncodeError": 1}


def test_bad_input_is_refused_by_name(tmp_path: Path):
    tools = {"depth": Sea.tools["depth"]}
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        Recording.read(tools, tmp_path / "none.jsonl")
    good = {"tool": "depth", "arguments": {"place": "bay"}, "reply": "6", "fault": False}
    for line, told in (
        ("", "has no reply"),
        ("{", "line 1: it is no reply of depth"),
        ("[" * 70_000, "line 1: it is no reply of depth"),
        (json.dumps(good | {"tool": "moon"}), "line 1: it is no reply of depth"),
        (json.dumps(good | {"arguments": {"moon": 1}}), "depth takes no 'moon'"),
        (json.dumps(good | {"reply": 6}), "line 1: reply must be a text"),
        (json.dumps(good | {"reply": "6" * 10_000_000}), "line 1: a line may have 160,000 characters"),
    ):
        (tmp_path / "bad.jsonl").write_text(line)
        with pytest.raises(ValueError, match=told):
            Recording.read(tools, tmp_path / "bad.jsonl")
    for schema, told in (
        ({}, "there is no type None"),
        ({"type": "moon"}, "there is no type 'moon'"),
        ({"type": "object", "properties": {"x": {"type": "odd"}}}, r"the schema of depth\.x: there is no type"),
        ({"type": "object", "required": ["x"]}, "what is required must be among its properties"),
        ({"type": "array", "minItems": 10**9}, "minItems may be at most 64"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum and maximum are no bounds"),
        ({"enum": []}, "enum is no list of something"),
    ):
        with pytest.raises(ValueError, match=told):
            Generated(tools, {"depth": schema})
    with pytest.raises(ValueError, match="tool 'depth' has no schema of its reply"):
        Generated(tools, {})
    with pytest.raises(ValueError, match="'localhost' is no address"):
        Modelled(tools, {"depth": DEPTH}, "localhost", "m")
    other = {"depth": Tool("depth", "sea", "another one")}
    for sources in ([Recording(tools), Recording(tools)], [Recording(other)]):
        with pytest.raises(ValueError, match="there are two tools of the name 'depth'"):
            SourcedTools(["all"], sources, Sea(["all"]))
    assert len(asked(SourcedTools(["all"], [Long()]), depth("bay"))[0]) < LONGEST_REPLY + 100


class Long:
    tools = {"depth": Sea.tools["depth"]}  # noqa: RUF012

    def replies(self, name: str, calls: Sequence[object]) -> list[str]:
        return ["x" * 10_000_000] * len(calls)


def test_texts_that_have_no_utf_8_are_recorded_and_drawn_for(tmp_path):
    call = {"place": "\ud800", "miles": 1}
    assert Generated({"depth": Sea.tools["depth"]}, {"depth": DEPTH}).replies("depth", [call]) != []
    recording = Recording(Sea.tools)
    recording.note("depth", call, "\x01" * LONGEST_REPLY)
    recording.write(tmp_path / "seen.jsonl")
    assert Recording.read(Sea.tools, tmp_path / "seen.jsonl").replies("depth", [call]) == ["\x01" * LONGEST_REPLY]


def test_a_long_fault_is_cut():
    class Wordy(ToolSet):
        @tool("sea", "fails")
        def say(self, callers: Callers) -> list:
            return [ToolFault("x" * 1_000_000)]

    (told,) = Wordy(["all"]).results([0], [ToolCall("say", {})], None)
    assert told.startswith("Error: xxx") and len(told) < LONGEST_REPLY + 64


def test_families_beside_a_set_are_recorded_and_stand_beside_sources():
    real, asked = Calculator(["all", "sql"]), [ToolCall("sql", {"statement": "select 1 as n"})]
    recording = Recording(real.tools)
    assert RecordedTools(real, recording).results([0], asked, None) == ["n\n1"]
    assert recording.replies("sql", [{"statement": "select 1 as n"}]) == ["n\n1"]
    assert SourcedTools(["sql"], [], real).results([0], asked, None) == ["n\n1"]


def test_a_mock_is_told_of_as_the_real_tools_are():
    world = make_interaction("single_stock", market="synthetic", days=5)
    real = world.tools(["all"])
    told = real.instructions("json", 3)
    mocked = with_sources(world, Recording({"position": real.tools["position"]})).tools(["all"])
    assert mocked.instructions("json", 3) == told == RecordedTools(real, Recording(real.tools)).instructions("json", 3)


def test_numbers_of_any_size_and_long_texts_have_a_distance():
    assert distance({"t": "bay"}, {"t": "boy"}) < distance({"t": "bay"}, {"t": "yab"}) <= 1 and distance({}, {}) == 0
    assert distance({"t": ""}, {"t": "x"}) == 1 and 0 < distance({"t": "ab" * 50_000}, {"t": "ba" * 50_000}) < 0.01
    assert distance({"n": 1e308}, {"n": -1e308}) == 1 and distance({"n": 1e308}, {"n": 1.5e308}) == pytest.approx(0.2)


def test_a_model_whose_server_breaks_the_protocol_is_a_tool_that_failed():
    with model([99_999]) as (address, _):
        mock = Modelled({"depth": Sea.tools["depth"]}, {"depth": DEPTH}, address, "a-model", concurrent=1)
        assert mock.replies("depth", [{"place": "bay", "miles": 1}]) == ["Failure: the tool is not available"]
        assert mock.failed == {"BadStatusLine": 2}
