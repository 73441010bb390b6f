"""Recording of episodes during play: what is seen and said at every step, and what a task adds to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.text.answer_lines import ANSWERS_VERSION
from vecenv.text.door import TextDoor
from vecenv.text.records import EpisodeRecord, StepRecord

Step = TypeVar("Step", bound=StepRecord)
Episode = TypeVar("Episode", bound=EpisodeRecord)


class Player(Protocol):
    """An agent; a text agent's attribute ``said`` has its texts, one per row."""

    def act(self, env: VecEnv) -> Tensor: ...


class Recorder(ABC, Generic[Step, Episode]):
    """Steps an environment and records the current episode of some of its rows.

    Only the recorded rows are copied from the device. Steps are eager; steps of the environment outside `step` are not
    recorded.

    Args:
        env: with the rows to record at the start of their episodes.
        ids: numbers of the rows to record. Shape: (B,).
        market: market and `MarketOptions` by name that reproduce it, such as from `market_origin`. By default the
            tape's source, which suffices for a file; a generator needs its name, size and seed.

    Attributes:
        episode: type of the records.
        steps: of each recorded row so far.

    Raises:
        IndexError: an id is not a row's number.
        ValueError: it is another task, agents share a world, or a row is past its start.
    """

    episode: ClassVar[type[EpisodeRecord]]

    def __init__(self, env: VecEnv, ids: Tensor | Sequence[int], market: Mapping[str, Any] | None = None) -> None:
        self.check(env)
        if env.scenario.num_agents > 1:
            raise ValueError(f"an episode is recorded alone, but {env.scenario.num_agents} agents share a world")
        self.env = env
        self.origin = dict(market or {})
        self._start, self._ids = env.rows_of(ids)
        if bool((self._start.elapsed > 0).any()):
            raise ValueError("a record starts with the episode, but a row has moved already")
        self._params = {name: env.scenario.params[name][self._ids] for name in sorted(env.scenario.varied)}
        self.steps: list[list[Step]] = [[] for _ in range(len(self._ids))]

    @abstractmethod
    def check(self, env: VecEnv) -> None:
        """Raise a ValueError if the environment's task is none that is recorded."""

    @abstractmethod
    def decided(self, rows: Rows, ids: Tensor, action: Tensor) -> Any:  # noqa: ANN401
        """Return what is to be known of actions before they are taken. Batch: (B,)."""

    @abstractmethod
    def recorded(
        self,
        ids: Tensor,
        seen: Sequence[str],
        said: Sequence[str] | None,
        decided: Any,  # noqa: ANN401
        reward: Tensor,
    ) -> list[Step]:
        """Return the records of the step that B rows have just completed.

        They are given observations, texts of the agents (None if they act otherwise), the result of `decided`, and the
        rewards of the step. Shape: (B,).
        """

    @abstractmethod
    def whole(self, start: Any, state: Any, info: Mapping[str, list[Any]]) -> list[dict[str, Any]]:  # noqa: ANN401
        """Return the fields of each record beside what all records have and the steps.

        They are given the states at the start of the episodes and now, batch (B,), and the info by name, B of each.
        """

    def market(self) -> dict[str, Any]:
        """Return what reproduces the market; nothing for a task that simulates its own."""
        return {}

    def episodes(self) -> list[Episode]:
        """Return the records so far, one per recorded row; grades cover the steps played."""
        if len(self._ids) == 0:
            return []
        env, metadata = self.env, self.env.scenario.metadata()
        rows, _ = env.rows_of(self._ids)
        bound = env.engine.bound().of_rows(self._ids)
        grades = {name: grade.tolist() for name, grade in bound.grades(rows).items()}
        parts = {name: part.tolist() for name, part in bound.grade_parts(rows).items()}
        info = {name: value.tolist() for name, value in bound.info(rows).items()}
        versions = {"vecenv": vecenv.__version__, "task": metadata["task_version"]}
        versions["answers"] = getattr(env.scenario.text, "answers_version", ANSWERS_VERSION)
        versions |= {"graders": metadata["graders"]} if "graders" in metadata else {}
        columns = (env.start_ids[self._ids], self._start.episode, rows.done)
        identities = zip(*(column.tolist() for column in columns), strict=True)
        own = self.whole(self._start.state, rows.state, info)
        steps: list[dict[str, Any]] = [{self.episode.steps_field: told} for told in self.steps]
        records = [
            self.episode(
                versions=versions,
                task=metadata["task"],
                config=metadata["config"],
                params={name: tensor[row].tolist() for name, tensor in self._params.items()},
                market=self.market(),
                seed=int(env.seed_tensor),
                env_id=env_id,
                episode=episode,
                finished=done,
                grades={name: grade[row] for name, grade in grades.items()},
                grade_parts={name: part[row] for name, part in parts.items()},
                **own[row],
                **steps[row],
            )
            for row, (env_id, episode, done) in enumerate(identities)
        ]
        return cast("list[Episode]", records)

    @torch.no_grad()
    def step(self, action: Tensor, texts: Sequence[object] | None = None) -> Tensor:
        """Advance every row that has not ended by one step; return rewards, 0 where it had ended. Shape: (N,).

        ``texts`` are those of the agents of the B recorded rows, ended ones included; by default the orders as text.

        Raises:
            ValueError: actions or texts do not match the rows.
        """
        env = self.env
        if len(action) != env.num_envs:
            raise ValueError(f"{len(action)} actions for {env.num_envs} rows")
        action = env.checked_action(action)
        if texts is not None and len(texts) != len(self._ids):
            raise ValueError(f"{len(texts)} texts for {len(self._ids)} recorded rows")
        before, _ = env.rows_of(self._ids)
        places = (~before.done).nonzero().squeeze(-1)
        if len(places) == 0:
            return env.advance(action, eager=True)
        ids = self._ids[places]
        seen, decided = TextDoor(env).render(ids), self.decided(before[places], ids, action[ids])
        reward = env.advance(action, eager=True)
        said = None if texts is None else [_text(texts[place]) for place in places.tolist()]
        for place, step in zip(places.tolist(), self.recorded(ids, seen, said, decided, reward[ids]), strict=True):
            self.steps[place].append(step)
        return reward


def _text(answer: object) -> str:
    """Return an answer as text: what is not a text is an invalid action, as an empty one is."""
    return answer if isinstance(answer, str) else ""


def chat(seen: str, said: str) -> list[dict[str, str]]:
    """Return an observation and an answer as chat messages."""
    return [{"role": "user", "content": seen}, {"role": "assistant", "content": said}]


def record_episodes(
    kind: type[Recorder[Any, Episode]],
    env: VecEnv,
    agent: Player,
    ids: Tensor | Sequence[int],
    seed: int | None = None,
    market: Mapping[str, Any] | None = None,
) -> list[Episode]:
    """Run an agent for one episode of every row, and record some of them; rows are left at the ends of their episodes.

    With a seed the rows are reset to its first episodes, else they continue from their current state.

    Raises:
        IndexError: an id is not a row's number.
        ValueError: it is another task, or the agent does not act for every row.
    """
    if seed is not None:
        env.reset_groups(env.num_envs, 1, seed)
    recorder = kind(env, ids, market)
    chosen = torch.as_tensor(ids).reshape(-1).tolist()
    while not bool(env.rows.done.all()):
        action, said = agent.act(env), getattr(agent, "said", None)
        recorder.step(action, None if said is None else [said[row] for row in chosen])
    return recorder.episodes()
