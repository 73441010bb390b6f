"""OpenEnv's own checker and client on a served market: many sessions, each as if it were alone."""

import asyncio
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

pytest.importorskip("openenv", reason="the door to OpenEnv needs vecenv[openenv]")

import vecenv
from tests.adapters import served_market
from tests.adapters.served_market import DAYS, TASK, Lone, Served, reset, said, served, service_of, step, waited_for
from vecenv.adapters.openenv import TextAction, TextClient
from vecenv.adapters.openenv.session import TextSession
from vecenv.adapters.sessions.http_server import DeadlineProtocol, SocketProtocol, check_exposure
from vecenv.adapters.sessions.pool import RowPool
from vecenv.adapters.sessions.service import SessionError, TextService
from vecenv.tasks.commands.serve import ServeSettings
from vecenv.text.dialogue import TextRules

FOLDER = Path(vecenv.__file__).parent / "adapters" / "openenv"
TAPE, OTHER = served_market.tape_of(0), served_market.tape_of(1)


@pytest.fixture(scope="module")
def market() -> Iterator[Served]:
    with served() as running:
        yield running


def openenv_cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "openenv.cli", *args], capture_output=True, text=True, timeout=120)


@pytest.mark.nightly
def test_the_package_passes_the_static_checks():
    told = openenv_cli("validate", str(FOLDER), "--level", "static", "--skip-build", "--json")
    assert told.returncode == 0, told.stdout + told.stderr
    report = json.loads(told.stdout)
    assert report["verdict"] == "pass" and [result["status"] for result in report["results"]] == ["pass"]
    declared = yaml.safe_load((FOLDER / "openenv.yaml").read_text())
    assert declared["version"] == vecenv.__version__
    counts = declared["validation"]["capabilities"]["declared_task_count"]
    served_by_default = ServeSettings.defaults(())
    assert counts == dict.fromkeys(served_by_default.splits, served_by_default.num_tasks)


@pytest.mark.nightly
def test_the_running_server_passes_the_checks(market: Served):
    told = openenv_cli("validate", "--url", market.url, "--json")
    assert told.returncode == 0, told.stdout + told.stderr
    report = json.loads(told.stdout)
    assert report["passed"] and report["mode"] == "simulation"
    assert report["summary"]["passed_count"] == report["summary"]["total_count"] == 6


def test_whole_episodes_through_the_typed_client(market: Served):
    before = market.free()
    with TextClient(base_url=market.url).sync() as env:
        for split, index in (("train", 3), ("test", 0)):
            alone = Lone(market.tapes[split], market.service.seed, index)
            seen, paid = env.reset(split=split, index=index, episode_id="mine"), 0.0
            assert seen.observation.text == alone.shown and seen.observation.day == 0 and not seen.done
            assert seen.observation.instructions == alone.rows.instructions([0])[0] and seen.reward is None
            for day, answer in enumerate(("BUY 0.5", "nonsense", "SELL 0.3", "HOLD"), 1):
                result, expected = env.step(TextAction(text=answer)), alone.answer(answer)
                seen, state, paid = result.observation, env.state(), paid + result.reward
                assert (seen.text, result.reward, result.done) == (expected.message, expected.reward, expected.done)
                assert (seen.day, seen.valid, seen.acted) == (day, expected.valid, expected.acted)
                assert (seen.grade, seen.outcomes, seen.instructions) == (expected.grade, expected.outcomes, "")
                assert (state.day, state.step_count, state.done) == (day, day, expected.done)
                assert (state.outcomes, state.grade) == (expected.outcomes, expected.grade)
            assert (state.task, state.split, state.index, state.episode_id) == (TASK, split, index, "mine")
            assert result.done and day == DAYS and state.total_reward == pytest.approx(paid) and 0.0 <= paid <= 1.0
        env.reset(seed=5)
        state = env.state()
        assert (state.seed, state.index, state.split) == (5, 0, "train")
        with pytest.raises(RuntimeError, match="there are split and index"):
            env.reset(sed=1)
        assert env.state() == state
    waited_for(lambda: market.free() == before)


def test_names_of_episodes_and_tasks_of_the_splits(market: Served):
    def first(**options: object) -> str:
        with market.connected() as connection:
            return reset(connection, **options)["data"]["observation"]["text"]

    assert first(seed=3) == first(seed=3) == first(seed=3, index=0, split="train") != first(seed=4)
    assert first(index=2) == first(index=2, seed=market.service.seed) != first(index=3)
    assert first(split="test", index=2) != first(split="train", index=2)
    with market.connected() as connection:
        # Without a name one listed task follows another.
        indices = []
        for _ in range(3):
            reset(connection)
            indices.append(said(connection, {"type": "state"})["data"]["index"])
    assert indices == [indices[0], indices[0] + 1, indices[0] + 2]

    def posted(path: str, **body: object) -> requests.Response:
        return requests.post(f"{market.url}/{TASK}/{path}", json=body, timeout=100)

    assert requests.get(f"{market.url}/list_environments", timeout=100).json() == [TASK]
    splits = requests.get(f"{market.url}/{TASK}/splits", timeout=100).json()
    assert splits == [{"name": name, "type": name} for name in ("train", "validation", "test")]
    assert posted("num_tasks", split="test").json() == {"num_tasks": 50}
    spec = {"id": "test-49", "split": "test", "index": 49, "task": TASK}
    assert posted("task", split="test", index=49).json() == {"task": spec}
    assert len(posted("tasks", split="train").json()["tasks"]) == 50
    assert posted("task_range", split="test", start=48).json()["tasks"][-1] == spec
    assert posted("task", split="test", index=50).status_code == 400
    for path in ("num_tasks", "tasks"):
        wrong = posted(path, split="moon")
        assert wrong.status_code == 400 and "train, validation, test" in wrong.json()["data"]["message"]
    # A reset without a session leaves nothing behind.
    before = market.free()
    told = requests.post(f"{market.url}/reset", json={"seed": 4}, timeout=100)
    assert told.status_code == 200 and told.json()["observation"]["text"].startswith("Day 1")
    wrong = requests.post(f"{market.url}/step", json={"action": {"text": "BUY"}}, timeout=100)
    assert wrong.status_code == 400 and "reset comes before step" in wrong.json()["data"]["message"]
    assert requests.get(f"{market.url}/state", timeout=100).json()["day"] == 0
    assert market.free() == before


def batches_of(service: TextService) -> list[list]:
    """Return the requests of each batch that the only pool of a service serves from now on."""
    (pool,), batches = service.pools.values(), []
    serve = pool.serve
    pool.serve = lambda requests: batches.append(list(requests)) or serve(requests)
    return batches


def test_rows_are_lent_and_given_back():
    service = service_of({"train": TAPE, "test": OTHER}, 1)
    first, second = TextSession(service), TextSession(service)

    def free() -> list[int]:
        return [pool.free for pool in service.pools.values()]

    assert free() == [1, 1]
    first.reset(split="train", index=0)
    with pytest.raises(SessionError, match="all rows of the server are taken"):
        second.reset(split="train", index=1)
    # The other split's row takes the place of the first.
    first.reset(split="test", index=0)
    assert free() == [1, 0] and second.reset(split="train", index=1).day == 0
    first.close()
    first.close()
    assert free() == [0, 1]
    with pytest.raises(SessionError, match="the session is over"):
        first.reset(split="train")
    second.close()
    assert free() == [1, 1]
    few = TextService(TASK, service.pools, 2)
    assert [few.episode(None, {}).index for _ in range(3)] == [0, 1, 0]
    for pools, tasks in (({}, 5), (service.pools, 0)):
        with pytest.raises(ValueError, match="at least one split and one task"):
            TextService(TASK, pools, tasks)


async def cancelled(turn: asyncio.Task) -> None:
    await asyncio.sleep(0)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


def test_sessions_that_ask_at_once_are_one_batch_and_who_goes_in_the_middle_leaves_nothing_behind():
    async def play(service: TextService) -> None:
        sessions = [TextSession(service) for _ in range(8)]
        await asyncio.gather(*(one.reset_async(index=index) for index, one in enumerate(sessions)))
        for _ in range(DAYS):
            await asyncio.gather(*(one.step_async(TextAction(text="BUY 0.5")) for one in sessions))

    async def leave(service: TextService) -> None:
        session, beside = TextSession(service), TextSession(service)
        await session.reset_async(index=0)
        with pytest.raises(StopIteration):
            session.step_async(TextAction(text="HOLD")).send(None)
            raise AssertionError("a lone session waited for others")
        await beside.reset_async(index=2)
        turn = asyncio.create_task(session.step_async(TextAction(text="BUY")))
        await asyncio.sleep(0)
        with pytest.raises(SessionError, match="another turn"):
            await session.step_async(TextAction(text="SELL"))
        await cancelled(turn)
        session.close()
        following = TextSession(service)
        shown = await following.reset_async(index=1)
        assert shown.text == Lone(TAPE, service.seed, 1).shown
        assert not (await following.step_async(TextAction(text="HOLD"))).acted

    async def go_on(pool: RowPool, batches: list[list]) -> None:
        for row in (0, 1):
            await pool.open(row, 7, row)
        gone = asyncio.create_task(pool.answer(0, "BUY"))
        staying = asyncio.create_task(pool.answer(1, "BUY 0.5"))
        await cancelled(gone)
        assert await staying == Lone(TAPE, 7, 1).answer("BUY 0.5")
        assert [request.row for request in batches[-1]] == [1]
        assert pool.dialogue.interaction.env.rows.elapsed.tolist() == [0, 1]
        await cancelled(asyncio.create_task(pool.open(0, 7, 1)))
        await asyncio.sleep(0.01)
        assert len(batches) == 3
        # The row is where it was for whoever has it next.
        assert await pool.answer(0, "SELL") == Lone(TAPE, 7, 0).answer("SELL")

    service = service_of({"train": TAPE})
    batches = batches_of(service)
    asyncio.run(play(service))
    assert [len(batch) for batch in batches] == [8] * (1 + DAYS)
    asyncio.run(leave(service_of({"train": TAPE}, 2)))
    service = service_of({"train": TAPE}, 2)
    asyncio.run(go_on(service.pools["train"], batches_of(service)))


def test_the_time_limit_of_a_request_is_none_of_a_session(monkeypatch: pytest.MonkeyPatch, market: Served):
    upgraded, own = [], DeadlineProtocol.handle_websocket_upgrade
    recorded = lambda protocol, event: (upgraded.append(protocol), own(protocol, event))  # noqa: E731
    monkeypatch.setattr(DeadlineProtocol, "handle_websocket_upgrade", recorded)
    with market.connected() as connection:
        reset(connection, index=1)
        assert [protocol._deadline for protocol in upgraded] == [None]


def test_a_connection_stops_reading_only_behind_a_message_that_waits(monkeypatch: pytest.MonkeyPatch, market: Served):
    paused, own = [], SocketProtocol.send_receive_event_to_app
    recorded = lambda protocol: (own(protocol), paused.append(protocol.read_paused))  # noqa: E731
    monkeypatch.setattr(SocketProtocol, "send_receive_event_to_app", recorded)
    with market.connected() as connection:
        _ = reset(connection, index=1), step(connection, "HOLD")
        assert paused == [False, False]
        for _ in range(3):
            connection.send(json.dumps({"type": "state"}))
        assert [json.loads(connection.recv(timeout=100))["type"] for _ in range(3)] == ["state"] * 3


def test_a_fault_of_the_server_is_told_without_its_insides(monkeypatch: pytest.MonkeyPatch, market: Served):
    with market.connected() as connection:
        reset(connection, index=1)
        pool = market.service.pools["train"]
        with monkeypatch.context() as patch:
            patch.setattr(pool.dialogue.interaction, "answer", lambda *_: 1 / 0)
            told = step(connection, "BUY")
            assert told["type"] == "error" and told["data"]["code"] == "EXECUTION_ERROR"
            assert not re.search(r"zero|Traceback|File|\.py", json.dumps(told))
        with monkeypatch.context() as patch:
            world, name = pool.dialogue.interaction, "answer"
            turns = world.answer
            patch.setattr(world, name, lambda *given: [one._replace(reward=math.nan) for one in turns(*given)])
            assert step(connection, "BUY")["type"] == "error"
        assert step(connection, "HOLD")["type"] == "observation"


@pytest.mark.assembly
def test_the_web_interface_draws_the_episode():
    with served(web=True) as market:
        page = requests.get(f"{market.url}/web/", timeout=100)
        assert page.status_code == 200 and "gradio" in page.text.lower()
        shown = requests.get(f"{market.url}/web/config", timeout=100).text
        assert f'TextClient(base_url=\\"{market.url}\\")' in shown and ":8000" not in shown
        told = requests.post(f"{market.url}/web/reset", json={"index": 3}, timeout=100).json()
        assert told["observation"]["text"].startswith("Day 1 of")
        told = requests.post(f"{market.url}/web/step", json={"action": {"text": "BUY"}}, timeout=100)
        assert told.status_code == 200 and told.json()["observation"]["acted"]
        for size, status in ((60_000, 200), (200_000, 200), (1 << 21, 413), (1, 200)):
            told = requests.post(f"{market.url}/web/step", json={"action": {"text": "x" * size}}, timeout=100)
            assert told.status_code == status
            valid = told.json().get("observation", {}).get("valid")
            assert valid is (False if status == 200 else None)


def test_what_is_drawn_of_an_episode():
    session = TextSession(service_of({"train": TAPE}, 1, TextRules(format_penalty=-0.25)))
    assert "no episode yet" in session.render_web({})
    shown = session.reset(index=3)
    session.step(TextAction(text="BUY 0.5"))
    last = session.step(TextAction(text="<script>alert(1)</script>" + "x" * 100))
    html = session.render_web(last.model_dump())
    # OpenEnv's page would give the drawing all the width that it asks for.
    assert ".gradio-container .oe-visual { flex: 1 1 100% !important; max-width: 100%; }" in html
    assert html.count("<svg") == 1 and "<script" not in html and "&lt;script&gt;" in html and "…" in html
    assert "task 3, day 2" in html and html.count("<tr>") == 3 and 'class="invalid"' in html
    assert session.state.currency == "INR" and f"<td>Rs{last.outcomes['portfolio_value']:,.2f}</td>" in html
    assert shown.text not in html and last.text.splitlines()[0] in html
    buttons = ("HOLD", "BUY 0.5", "BUY", "SELL 0.5", "SELL")
    assert session.web_actions(last.model_dump()) == [(text, {"text": text}) for text in buttons]
    # Rewards are added up.
    session.step(TextAction(text="what?"))
    assert session.state.total_reward == -0.5
    session.reset(index=0)
    assert session.state.total_reward == 0.0


def test_whom_a_server_may_serve():
    for allowed in (("127.0.0.1", None, True), ("::1", None, False), ("0.0.0.0", "0123456789abcdef", False)):
        check_exposure(*allowed)
    for host, token, web, message in (
        *((host, None, False, "a bearer token is needed") for host in ("0.0.0.0", "192.168.0.7", "market.example.com")),
        ("127.0.0.1", "short", False, "at least 16"),
        ("127.0.0.1", "0123456789abcde\n", False, "at least 16 printable"),
        ("127.0.0.1", "0123456789abcdef", True, "cannot send a token"),
    ):
        with pytest.raises(ValueError, match=message):
            check_exposure(host, token, web)
