"""verifiers: a taskset whose episodes are played on a running ``vecenv serve``.

Start the server where vecenv is installed, and run this where verifiers is installed::

    vf-eval vecenv-verifiers --env.taskset.url http://127.0.0.1:8000 --env.taskset.split test -n 16 -c 32 --no-push

This module needs neither vecenv nor torch nor openenv. The server's bearer token, if any, is read from the environment
variable VECENV_TOKEN.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect

__all__ = ["ChatHarness", "EpisodeTaskset", "TalkEnv"]

INFO = "market"
"""Key of the server's answers in a trace; saved, so that ``vf-replay`` re-weights rewards without a server."""

LONGEST_SENT = 50_000
"""More characters than the server reads of an answer: a longer one is invalid there."""


class EpisodeData(vf.TaskData):
    """Identifier of an episode. The address is left out: a task is the same on any machine."""

    split: str
    index: int
    seed: int | None = None


class EpisodeTask(vf.Task[EpisodeData]):
    """Scores an episode; weights change with ``--env.taskset.task.rewards.NAME.weight``."""

    @vf.reward(weight=1.0)
    async def episode_reward(self, trace: vf.Trace) -> float:
        """Return the sum of the days' rewards."""
        return float(sum(trace.info.get(INFO, {}).get("rewards", [])))

    @vf.reward(weight=0.0)
    async def grade(self, trace: vf.Trace) -> float:
        """Return the grade in [0, 1] of a completed episode, else 0."""
        return float(trace.info.get(INFO, {}).get("outcome", {}).get("grade", 0.0))

    @vf.metric
    async def episode(self, trace: vf.Trace) -> dict[str, float]:
        """Return the days played, the invalid answers, and the known final outcomes of a completed episode."""
        played = trace.info.get(INFO, {})
        outcome = played.get("outcome", {})
        return {
            **{name: float(value) for name, value in outcome.items() if value is not None},
            "days": float(played.get("days", 0)),
            "invalid": float(played.get("invalid", 0)),
            "finished": float(bool(outcome)),
        }


class EpisodeConfig(vf.TasksetConfig):
    """Options under ``--env.taskset``."""

    url: str = "http://127.0.0.1:8000"
    """Address of the running server; it must allow as many sessions as episodes are in flight (``-c``)."""
    split: str = "train"
    """Kind of the episodes: train, validation or test."""
    num_tasks: int | None = None
    """Number of episodes, by default all that the server lists."""
    seed: int | None = None
    """Seed of the episodes, by default the server's. Rollouts of a task are a group."""


class EpisodeTaskset(vf.Taskset[EpisodeTask, EpisodeConfig]):
    """The episodes of one split of the server."""

    def load(self) -> Iterator[EpisodeTask]:
        """Yield a task per episode; `reset` sends its first message."""
        split, most = self.config.split, self.config.num_tasks
        with httpx.Client(base_url=self.config.url, headers=_headers(), timeout=30) as client:
            name = client.get("/list_environments").raise_for_status().json()[0]
            answer = client.post(f"/{name}/num_tasks", json={"split": split}).raise_for_status()
        listed = answer.json()["num_tasks"]
        for index in range(listed if most is None else min(most, listed)):
            data = EpisodeData(name=f"{split}-{index}", split=split, index=index, seed=self.config.seed)
            yield EpisodeTask(data, self.config.task)


class TalkEnvConfig(vf.SingleAgentEnvConfig):
    """One agent without a sandbox, since it runs no code."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class TalkEnv(vf.SingleAgentEnv, vf.Env[TalkEnvConfig]):
    """The world takes the user role: it shows each day, and the agent answers."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        address = self.taskset.config.url.rstrip("/").replace("http", "ws", 1) + "/ws"
        # This client answers the server's pings during generation.
        async with connect(address, additional_headers=_headers(), max_size=None) as server:
            named = {"split": task.data.split, "index": task.data.index}
            if task.data.seed is not None:
                named["seed"] = task.data.seed
            answer = await _request(server, "reset", named)
            shown = answer["observation"]
            if task.data.system_prompt is None:
                task = task.with_system_prompt(shown["instructions"])
            async with agents.agent.interaction(task) as interaction:
                played: dict[str, Any] = {"rewards": [], "days": 0, "invalid": 0, "outcome": {}}
                interaction.trace.info[INFO] = played
                while not answer["done"]:
                    segment = await interaction.turn(shown["text"])
                    if segment.terminated:
                        # The agent's limits ended the episode early.
                        return
                    answer = await _request(server, "step", {"text": (segment.last_reply or "")[:LONGEST_SENT]})
                    shown = answer["observation"]
                    played["rewards"].append(answer["reward"])
                    played["days"] = shown["day"]
                    played["invalid"] += not shown["valid"]
                if shown["failed"]:
                    raise RuntimeError(f"the world failed, which is no failure of the agent: {shown['text']}")
                played["outcome"] = {"grade": shown["grade"], **shown["outcomes"]}


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    """In-process chat. The built-in ``null`` starts a program for every turn."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Request one answer to the conversation; verifiers' endpoint records it."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages += [_to_wire(message) for message in prompt or []]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def _headers() -> dict[str, str]:
    token = os.environ.get("VECENV_TOKEN")
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _to_wire(message: vf.Message) -> dict[str, Any]:
    """Return a trace's message in the endpoint's format, with its reasoning, to keep the conversation intact."""
    wire = {"role": message.role, "content": message.content or ""}
    kept = {"reasoning_content": "reasoning_content", "provider_state": "reasoning_details"}
    return wire | {there: value for here, there in kept.items() if (value := getattr(message, here, None)) is not None}


async def _request(server: ClientConnection, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the server's answer to one message.

    Raises:
        RuntimeError: the server returned an error.
    """
    await server.send(json.dumps({"type": kind, "data": data}))
    answer = json.loads(await server.recv())
    if answer["type"] == "error":
        raise RuntimeError(f"{kind} was refused: {answer['data']['message']} ({answer['data']['code']})")
    return answer["data"]
