"""verifiers' own evaluation plays whole episodes on a served market, in an environment of its own.

``VECENV_VERIFIERS_PYTHON`` names the Python of an environment with ``vecenv/adapters/verifiers`` installed.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

from tests.adapters.served_market import DAYS, TOKEN, Lone, Served, served

PYTHON = os.environ.get("VECENV_VERIFIERS_PYTHON", "")
REPLIES = ["BUY 0.5", "I do not know", "<think>sell?</think><answer>HOLD</answer>", "SELL"]

pytestmark = pytest.mark.skipif(not PYTHON, reason="VECENV_VERIFIERS_PYTHON names no Python with vecenv-verifiers")


class Model(ThreadingHTTPServer):
    """An OpenAI endpoint that says at each turn what it always says at that turn."""

    def __init__(self, replies: Sequence[str] = REPLIES) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.replies = replies
        self.requests: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answering(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        message = {"role": "assistant", "content": self.server.replies[turn], "reasoning_content": f"thought {turn}"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        told = {"id": f"c{len(self.server.requests)}", "created": 1, "model": body["model"], "usage": usage}
        choice = {"index": 0, "finish_reason": "stop"}
        if body.get("stream"):
            part = {**told, "object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
            payload, kind = f"data: {json.dumps(part)}\n\ndata: [DONE]\n\n", "text/event-stream"
        else:
            payload = json.dumps({**told, "object": "chat.completion", "choices": [{**choice, "message": message}]})
            kind = "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def market() -> Iterator[Served]:
    with served(token=TOKEN) as running:
        yield running


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    yield server
    server.shutdown()
    server.server_close()


def run(command: str, *args: str, folder: Path) -> None:
    """Run one of verifiers' own commands, without a key, a push to a platform or a dashboard."""
    environment = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    environment |= {"VECENV_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 240, "cwd": folder}
    told = subprocess.run([str(Path(PYTHON).parent / command), *args, "--no-rich"], **options)
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-4000:]


def evaluated(url: str, model: Model, folder: Path, *args: str) -> list[dict[str, Any]]:
    where = ("--env.taskset.url", url, "--client.base-url", f"http://127.0.0.1:{model.server_address[1]}/v1")
    names = "--client.api-key-var NO_KEY --model scripted --no-push --run.name run -c 2"
    run("vf-eval", "vecenv-verifiers", *where, *names.split(), "-o", str(folder), *args, folder=folder)
    return [json.loads(line) for line in (folder / "run" / "traces.jsonl").read_text().splitlines()]


def test_whole_episodes_and_their_rewards(market: Served, model: Model, tmp_path: Path):
    episodes = evaluated(market.url, model, tmp_path, "-n", "2", "--env.taskset.split", "test")
    assert [episode["ok"] for episode in episodes] == [True, True]
    traces = sorted((episode["traces"][0] for episode in episodes), key=lambda trace: trace["task"]["data"]["index"])
    grades = []
    for index, trace in enumerate(traces):
        alone = Lone(market.tapes["test"], market.service.seed, index)
        expected = [("system", alone.rows.instructions([0])[0]), ("user", alone.shown)]
        turns = [alone.answer(reply) for reply in REPLIES]
        for reply, turn in zip(REPLIES, turns, strict=True):
            expected += [("assistant", reply), ("user", turn.message)]
        assert [(node["message"]["role"], node["message"]["content"]) for node in trace["nodes"]] == expected[:-1]
        # One straight conversation, of which the answers were sampled.
        assert [node.get("parent") for node in trace["nodes"]] == [None, *range(2 * DAYS)]
        assert [node["sampled"] for node in trace["nodes"]] == [False, *[False, True] * DAYS]
        grades.append(turns[-1].grade)
        assert trace["rewards"]["episode_reward"] == {"score": pytest.approx(grades[-1]), "weight": 1.0}
        outcomes = {name: pytest.approx(value) for name, value in turns[-1].outcomes.items()}
        expected = {"days": DAYS, "invalid": 1.0, "finished": 1.0, "grade": pytest.approx(grades[-1]), **outcomes}
        assert trace["metrics"] == expected
    assert len(model.requests) == 2 * DAYS
    # Saved episodes are weighed anew from what the traces keep.
    again = ("--taskset.id", "vecenv-verifiers", "--taskset.task.rewards.grade.weight", "3")
    run("vf-replay", str(tmp_path / "run"), "-o", str(tmp_path / "again"), *again, folder=tmp_path)
    lines = (tmp_path / "again" / "traces.jsonl").read_text().splitlines()
    weighed = [json.loads(line)["traces"][0]["rewards"]["grade"] for line in lines]
    assert sorted(reward["score"] for reward in weighed) == pytest.approx(sorted(grades))
    assert [reward["weight"] for reward in weighed] == [3, 3]


def test_a_group_shares_its_episode_and_a_limit_ends_it(market: Served, model: Model, tmp_path: Path):
    args = ("-n", "1", "-r", "2", "--env.agent.max-turns", "2", "--env.taskset.seed", "5")
    episodes = evaluated(market.url, model, tmp_path, *args)
    traces = [trace for episode in episodes for trace in episode["traces"]]
    assert len(traces) == 2 and all(trace["stop_condition"] == "max_turns" for trace in traces)
    shown = Lone(market.tapes["train"], 5, 0).shown
    assert [trace["nodes"][1]["message"]["content"] for trace in traces] == [shown, shown]
    assert [trace["metrics"] for trace in traces] == [{"days": 2.0, "invalid": 1.0, "finished": 0.0}] * 2
