"""MCP by the SDK's own client: whole episodes, refusals, and many sessions of which some vanish."""

import asyncio
import sys
from typing import Any

import pytest

pytest.importorskip("fastmcp", reason="the door to MCP needs vecenv[mcp]")
pytest.importorskip("openenv", reason="the served market needs vecenv[openenv]")

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

from tests.adapters.served_market import DAYS, TOKEN, running, service_of, small_env, tape_of
from tests.guess_number import GUESS_NUMBER, Failing, Hints
from vecenv import Dialogue, Episode, Turn, make_interaction
from vecenv.adapters.guard import LONGEST_TEXT, Limits
from vecenv.adapters.mcp import PATH, Desk, Places, build_app, mcp_server
from vecenv.adapters.sessions.pool import RowPool
from vecenv.adapters.sessions.service import TextService
from vecenv.tasks.commands.cli import main
from vecenv.text.dialogue import TextRules
from vecenv.text.tensor_interaction import TensorInteraction
from vecenv.text.tool_calls import ToolCall
from vecenv.tools.declaration import Tool

ALL = TextRules(tools=("all",))


def guesses(rows: int = 2, rules: TextRules = ALL) -> TextService:
    dialogue = Dialogue(make_interaction(GUESS_NUMBER, num_rows=rows), rules)
    return TextService("guess_number", {"train": RowPool(dialogue)}, 50, 7)


async def said(client: Client, tool: str, session: str | None = None, **given: object) -> tuple[str, dict[str, Any]]:
    """Return the words of a result and what it has by name; of an error, nothing by name but ``fault``."""
    given |= {} if session is None else {"session": session}
    result = await client.call_tool(tool, given, raise_on_error=False)
    told = (result.structured_content or {}) | ({"fault": True} if result.is_error else {})
    return result.content[0].text, told


def test_a_whole_episode_of_a_market():
    """Equal to the episode alone, with its tools by the schemas of their declarations."""
    tape = tape_of()
    service = service_of({"train": tape}, 2, ALL)
    alone = Dialogue(TensorInteraction(small_env(1, tape)), ALL)
    desk = Desk(service, Limits())

    async def play() -> None:
        async with Client(mcp_server(desk)) as client:
            declared = {tool.name: tool.model_dump(by_alias=True) for tool in await client.list_tools()}
            assert list(declared)[:4] == ["begin_episode", "answer", "observe", "end_session"]
            assert set(alone.tools.offered) == set(list(declared)[4:])
            schema = declared["indicator"]["inputSchema"]
            assert {name: kind["type"] for name, kind in schema["properties"].items()} == {
                **{"name": "string", "symbol": "string", "days": "integer", "session": "string"}
            }
            assert schema["required"] == ["name", "session"]
            words, begun = await said(client, "begin_episode", split="train", index=3)
            (opened,) = alone.begin([0], [Episode(7, 3)])
            session = begun["session"]
            told = alone.interaction.instructions([0])[0]
            assert words.startswith(told) and session in words and words.endswith(opened.message)
            assert "at most 3 times" in words and not begun["done"] and begun["outcomes"] == opened.outcomes
            total = 0.0
            for day, answer in enumerate(("BUY 0.5", "nonsense", "SELL 0.3", "HOLD"), 1):
                call = ToolCall("price_history", {"days": 2})
                words, result = await said(client, "price_history", session, days=2)
                assert words == alone.answer([0], [call])[0].message and result["answers"] == day - 1
                words, result = await said(client, "answer", session, text=answer)
                (turn,) = alone.answer([0], [answer])
                total += turn.reward
                assert words.split("\n\nThe episode is over")[0] == turn.message
                assert (result["reward"], result["done"], result["grade"]) == (turn.reward, turn.done, turn.grade)
                assert (result["valid"], result["acted"], result["answers"]) == (turn.valid, turn.acted, day)
                assert (result["outcomes"], result["total_reward"]) == (turn.outcomes, total)
            assert turn.done and day == DAYS and f"The episode is over: the grade is {turn.grade:.4g}." in words
            assert (await said(client, "observe", session))[0].endswith(turn.message)
            assert (await said(client, "answer", session, text="HOLD"))[1] == {"fault": True}
            assert (await said(client, "end_session", session))[0] == "The session has ended."
            words, _ = await said(client, "answer", session, text="HOLD")
            assert words == "Error: there is no such session, or it has ended: begin_episode opens one"

    asyncio.run(play())
    assert service.pools["train"].free == 2


def test_one_client_has_one_session_without_a_handle():
    """Its tools are the task's own; a call beyond the last is an invalid answer, as it is in a text."""

    async def play() -> None:
        async with Client(mcp_server(Desk(guesses(1), Limits(), handles=False))) as client:
            tools = {tool.name: tool.model_dump(by_alias=True)["inputSchema"] for tool in await client.list_tools()}
            assert list(tools) == ["begin_episode", "answer", "observe", "is_odd"]
            assert tools["is_odd"] == {
                "type": "object",
                "properties": {},
                "required": [],
                "additionalProperties": False,
            }
            assert (await said(client, "answer", text="7"))[1] == {"fault": True}
            for _ in range(2):
                words, _ = await said(client, "begin_episode", index=1)
                assert words.endswith("Guess a number from 1 to 20.") and "session" not in words
                for _ in range(3):
                    words, told = await said(client, "is_odd")
                    assert words.startswith("It is") and told["answers"] == 0 and told["valid"]
            words, told = await said(client, "is_odd", wrong=3)
            assert not told["valid"] and told["answers"] == 1 and "no call was left" in words
            words, told = await said(client, "is_odd", wrong=3)
            assert words.startswith("Error: is_odd takes no 'wrong'") and told["fault"]
            words, told = await said(client, "is_odd", long="x" * 10_000_000)
            assert words == "Error: a call may have 4096 characters" and told["fault"]
            words, told = await said(client, "answer", text="x" * (LONGEST_TEXT + 1))
            assert not told["valid"] and "an answer may have 49,152 characters" in words

    asyncio.run(play())


def test_the_tools_that_an_episode_has_are_told():
    rules = TextRules(tools=("all", "sql", "drawn:1"))
    told = set()

    async def play() -> None:
        async with Client(mcp_server(Desk(guesses(1, rules), Limits(), handles=False))) as client:
            for index in range(6):
                words, _ = await said(client, "begin_episode", index=index)
                (name,) = [one for one in ("is_odd", "sql") if f"you may call {one}, at most 3 times" in words]
                other = {"is_odd": "sql", "sql": "is_odd"}[name]
                words, _ = await said(client, other)
                assert words == f"Error: there is no tool {other!r}; there are {name}"
                told.add(name)

    asyncio.run(play())
    assert told == {"is_odd", "sql"}


def test_tools_that_are_answers_are_told_as_such():
    dialogue = Dialogue(make_interaction("shop", compile=False, products=20), ALL)
    desk = Desk(TextService("shop", {"train": RowPool(dialogue)}, 50, 7), Limits(), handles=False)

    async def play() -> None:
        async with Client(mcp_server(desk)) as client:
            words, _ = await said(client, "begin_episode", index=1)
            told = "may call calculator, at most 3 times.\nA call of search or click is your answer."
            assert f"Before an answer you {told}" in words

    asyncio.run(play())


class Slow(Failing):
    """Guesses whose answers wait for a signal."""

    async def answer_row(self, row: int, message: str) -> Turn:
        turn = self.world.guess(row, message)
        await self.signal.wait()
        return turn


def test_a_turn_whose_client_is_gone_ends():
    world = Slow(1, None)
    desk = Desk(TextService("slow", {"train": RowPool(Dialogue(world))}, 50, 7), Limits(), handles=False)
    begin, answer, observe = (tool.run for tool in desk.tools)

    async def play() -> None:
        world.signal = asyncio.Event()
        await begin({"index": 1})
        wrong = [number for number in range(1, 21) if number != world.world.numbers[0]]
        turn = asyncio.ensure_future(answer({"text": str(wrong[0])}))
        await asyncio.sleep(0.01)
        turn.cancel()
        assert "under way" in (await answer({"text": "1"})).content[0].text
        world.signal.set()
        await asyncio.sleep(0.01)
        assert (await observe({})).content[0].text.endswith(("Higher.", "Lower."))
        told = (await answer({"text": str(wrong[1])})).structured_content
        assert told["answers"] == world.world.tries[0] == 2

    asyncio.run(play())


def test_limits_refusals_and_sessions_that_vanish(monkeypatch: pytest.MonkeyPatch, capsys):
    now = [0.0]
    service = guesses(2)
    desk = Desk(service, Limits(sessions=2, idle_seconds=10, lifetime_seconds=25, session_steps=4))
    monkeypatch.setattr(Places, "clock", lambda places: now[0])

    async def play() -> None:
        async with Client(mcp_server(desk)) as client:
            for given, fault in (
                ({"split": "moon"}, "there is no such split; there are train"),
                ({"index": 50}, "index must be a whole number in [0, 50)"),
                ({"seed": -1}, "seed must be a whole number"),
                ({"sed": 1}, "unknown options sed"),
                ({"session": 3}, "session must be a text"),
                ({"session": "mine"}, "there is no such session"),
            ):
                words, told = await said(client, "begin_episode", **given)
                assert words.startswith("Error: ") and fault in words and told == {"fault": True}
            # What was refused holds no place.
            assert service.pools["train"].free == 2
            first, second = [(await said(client, "begin_episode"))[1]["session"] for _ in range(2)]
            assert first != second
            assert "all 2 sessions of the server are taken" in (await said(client, "begin_episode"))[0]
            assert "answer takes a text" in (await said(client, "answer", first, words="7"))[0]
            now[0] = 9.0
            await said(client, "observe", second)
            now[0] = 11.0
            # The first has been silent for long.
            third = (await said(client, "begin_episode"))[1]["session"]
            assert "no such session" in (await said(client, "answer", first, text="7"))[0]
            for _ in range(3):
                assert "fault" not in (await said(client, "observe", second))[1]
            assert "a session may have 4 messages" in (await said(client, "observe", second))[0]
            now[0] = 20.0
            await said(client, "observe", third)
            now[0] = 26.0
            assert "no such session" in (await said(client, "observe", second))[0]
            assert "fault" not in (await said(client, "observe", third))[1]

    asyncio.run(play())
    monkeypatch.setattr(Hints, "tools", {"answer": Tool("answer", "hints", "a name that is taken")})
    with pytest.raises(ValueError, match="tool 'answer' has the name, or an argument, of what the server offers"):
        Desk(guesses(), Limits())
    monkeypatch.setattr(
        Hints, "tools", {"is_odd": Tool("is_odd", "hints", "an argument that is taken", {"session": str})}
    )
    with pytest.raises(ValueError, match="tool 'is_odd' has the name"):
        Desk(guesses(), Limits())
    Desk(guesses(), Limits(), handles=False)
    assert main(["mcp", "--task", "stock_trading"]) == 2
    assert main(["mcp", "--task", "single_stock", "--port", "1"]) == 2
    told = capsys.readouterr().err
    assert "task 'stock_trading' has no text" in told and "port" in told and "transport http" in told


def test_by_http_with_a_token():
    service, limits = guesses(), Limits(sessions=2, message_bytes=4096)

    async def play(url: str) -> None:
        with pytest.raises(Exception, match=r"401|error response"):
            async with Client(StreamableHttpTransport(url + PATH)) as client:
                await client.list_tools()
        async with Client(StreamableHttpTransport(url + PATH, auth=TOKEN)) as client:
            session = (await said(client, "begin_episode"))[1]["session"]
            assert (await said(client, "is_odd", session))[0].startswith("It is")
        with pytest.raises(Exception, match=r"413|error response"):
            async with Client(StreamableHttpTransport(url + PATH, auth=TOKEN)) as client:
                await said(client, "answer", session, text="x" * 5_000)
        # Another connection goes on with the session.
        async with Client(StreamableHttpTransport(url + PATH, auth=TOKEN)) as client:
            assert (await said(client, "answer", session, text="7"))[1]["answers"] == 1

    with running(lambda url: build_app(service, limits, url, TOKEN), limits) as url:
        asyncio.run(play(url))


@pytest.mark.nightly
def test_64_sessions_of_which_8_vanish(monkeypatch: pytest.MonkeyPatch):
    """Each plays as if it were alone; the places of those that are gone are free after the idle time."""
    now, limits, service = [0.0], Limits(sessions=64), guesses(64)
    monkeypatch.setattr(Places, "clock", lambda places: now[0])
    alone = Dialogue(make_interaction(GUESS_NUMBER, num_rows=1), ALL)
    known = {}
    for index in range(16):
        shown = [alone.begin([0], [Episode(7, index)])[0].message, alone.answer([0], [ToolCall("is_odd")])[0].message]
        turns = []
        for guess in ("5", "nonsense", "12", "1", "20", "9"):
            turns.append((guess, alone.answer([0], [guess])[0]))
            if turns[-1][1].done:
                break
        known[index] = (shown, turns)

    async def play(url: str, number: int, vanishes: bool = False) -> None:
        async with Client(StreamableHttpTransport(url + PATH)) as client:
            (first, hint), turns = known[number % 16]
            words, begun = await said(client, "begin_episode", index=number % 16)
            assert words.endswith(first)
            session = begun["session"]
            assert (await said(client, "is_odd", session))[0] == hint
            for guess, turn in turns:
                if vanishes:
                    # Gone in the middle of a turn.
                    turn = asyncio.ensure_future(said(client, "answer", session, text=guess))
                    await asyncio.sleep(0)
                    turn.cancel()
                    return
                words, result = await said(client, "answer", session, text=guess)
                assert words.startswith(turn.message)
                assert (result["reward"], result["grade"]) == (turn.reward, turn.grade)
            await said(client, "end_session", session)

    async def soak(url: str) -> None:
        await asyncio.gather(*(play(url, number, number % 8 == 0) for number in range(64)))
        assert service.pools["train"].free == 56
        now[0] = limits.idle_seconds + 1
        await asyncio.gather(*(play(url, number) for number in range(64)))

    with running(lambda url: build_app(service, limits, url), limits) as url:
        asyncio.run(soak(url))
    assert service.pools["train"].free == 64


@pytest.mark.nightly
def test_the_command_over_standard_input_and_output():
    """A conversation without tools plays too, and the process ends with its client."""
    transport = StdioTransport(sys.executable, ["-m", "vecenv.tasks.commands.cli", "mcp", "--task", "code"])

    async def play() -> None:
        async with Client(transport) as client:
            assert [tool.name for tool in await client.list_tools()] == ["begin_episode", "answer", "observe"]
            words, begun = await said(client, "begin_episode", index=1)
            assert "program" in words and not begun["done"]
            assert not (await said(client, "answer", text="no program"))[1]["valid"]

    asyncio.run(play())
