"""Recording of episodes during play: what is seen and said at every step, and what a family of tasks adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.text.answer_lines import ANSWERS_VERSION
from vecenv.text.door import TextDoor
from vecenv.text.records import EpisodeRecord, StepRecord

if TYPE_CHECKING:
    from vecenv.text.recording import Recording

Step = TypeVar("Step", bound=StepRecord)
Episode = TypeVar("Episode", bound=EpisodeRecord)


class RecordedRows(NamedTuple):
    """Recorded rows of an environment at a moment: their numbers, (B,), states, batch (B,), and info by name."""

    env: VecEnv
    ids: Tensor
    state: Any
    info: Mapping[str, list[Any]]


class Player(Protocol):
    """An agent; a text agent's attribute ``said`` has its texts, one per row."""

    def act(self, env: VecEnv) -> Tensor: ...


class Recorder(Generic[Step, Episode]):
    """Steps an environment and records the current episode of some of its rows.

    Only the recorded rows are copied from the device. Steps are eager; steps of the environment outside `step` are not
    recorded.

    Args:
        recording: of the family of tasks.
        env: with the rows to record at the start of their episodes.
        ids: numbers of the rows to record. Shape: (B,).
        market: market and `MarketOptions` by name that reproduce it, such as from `market_origin`. By default the
            tape's source, which suffices for a file; a generator needs its name, size and seed.

    Attributes:
        ids: numbers of the recorded rows.
        steps: of each recorded row so far.

    Raises:
        IndexError: an id is not a row's number.
        ValueError: it is another family, agents share a world, or a row is past its start.
    """

    def __init__(
        self,
        recording: Recording[Step, Episode],
        env: VecEnv,
        ids: Tensor | Sequence[int],
        market: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(env.scenario, recording.scenario):
            raise ValueError(f"only episodes of {recording.family} are recorded, not of {env.scenario.name!r}")
        if env.traits.num_agents > 1:
            raise ValueError(f"an episode is recorded alone, but {env.traits.num_agents} agents share a world")
        self.recording, self.env = recording, env
        self._origin = dict(market or {})
        self._start, self._ids = env.rows_of(ids)
        if bool((self._start.elapsed > 0).any()):
            raise ValueError("a record starts with the episode, but a row has moved already")
        self.ids: list[int] = self._ids.tolist()
        self._params = {name: env.scenario.params[name][self._ids] for name in sorted(env.scenario.varied)}
        spoken = env.scenario.text is not None
        self._instructions = TextDoor(env).instructions(self._ids) if spoken else [""] * len(self._ids)
        self.steps: list[list[Step]] = [[] for _ in range(len(self._ids))]

    def episodes(self) -> list[Episode]:
        """Return the records so far, one per recorded row; grades cover the steps played."""
        if len(self._ids) == 0:
            return []
        env, recording, metadata = self.env, self.recording, self.env.scenario.metadata()
        rows, _ = env.rows_of(self._ids)
        bound = env.engine.bound().of_rows(self._ids)
        grades = {name: grade.tolist() for name, grade in bound.grades(rows).items()}
        parts = {name: part.tolist() for name, part in bound.grade_parts(rows).items()}
        recorded = self._recorded_rows(self._ids)
        versions = {"vecenv": vecenv.__version__, "task": metadata["task_version"]}
        versions["answers"] = getattr(env.scenario.text, "answers_version", ANSWERS_VERSION)
        versions |= {"graders": metadata["graders"]} if "graders" in metadata else {}
        columns: dict[str, Sequence[Any]] = {
            "env_id": env.start_ids[self._ids].tolist(),
            "episode": self._start.episode.tolist(),
            "finished": rows.done.tolist(),
            "instructions": self._instructions,
            recording.episode.steps_field: self.steps,
            **recording.episode_columns(recorded, self._start.state, self.steps),
        }
        return [
            recording.episode(
                versions=versions,
                task=metadata["task"],
                config=metadata["config"],
                params={name: tensor[row].tolist() for name, tensor in self._params.items()},
                market=recording.market(env, self._origin),
                seed=int(env.seed_tensor),
                grades={name: grade[row] for name, grade in grades.items()},
                grade_parts={name: part[row] for name, part in parts.items()},
                **{name: column[row] for name, column in columns.items()},
            )
            for row in range(len(self._ids))
        ]

    @torch.no_grad()
    def step(self, action: Tensor, texts: Sequence[object] | None = None, mask: Tensor | None = None) -> Tensor:
        """Advance every row that has not ended by one step; return rewards, 0 where it had ended. Shape: (N,).

        ``texts`` are those of the agents of the B recorded rows, ended ones included; by default the orders as text.
        Rows outside of the ``mask`` stay, by default none. Shape: (N,), bool.

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
        playing = ~before.done if mask is None else ~before.done & mask[self._ids]
        places = playing.nonzero().squeeze(-1)
        if len(places) == 0:
            return env.advance(action, mask, eager=True)
        ids = self._ids[places]
        seen, decided = self.recording.seen(env, ids), self.recording.decided(env, before[places], ids, action[ids])
        reward = env.advance(action, mask, eager=True)
        # What is not a text is an invalid action, as an empty one is.
        said = None if texts is None else [text if isinstance(text := texts[at], str) else "" for at in places.tolist()]
        for place, step in zip(places.tolist(), self.recorded(ids, seen, said, decided, reward[ids]), strict=True):
            self.steps[place].append(step)
        return reward

    def recorded(
        self,
        ids: Tensor,
        seen: Sequence[str],
        said: Sequence[str] | None,
        decided: Any,  # noqa: ANN401
        reward: Tensor,
    ) -> list[Step]:
        """Return the records of the step that B rows have just completed.

        They are given observations, texts of the agents (None if they act otherwise), the result of
        `Recording.decided`, and the rewards of the step. Shape: (B,).
        """
        columns = dict(self.recording.step_columns(self._recorded_rows(ids), decided))
        written = columns.pop("answer")
        columns["reward"] = reward.tolist()
        columns["messages"] = [
            [{"role": "user", "content": shown}, {"role": "assistant", "content": answer}]
            for shown, answer in zip(seen, written if said is None else said, strict=True)
        ]
        kind: Any = self.recording.episode.step_type
        return [kind(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    def _recorded_rows(self, ids: Tensor) -> RecordedRows:
        rows, _ = self.env.rows_of(ids)
        info = self.env.engine.bound().of_rows(ids).info(rows)
        return RecordedRows(self.env, ids, rows.state, {name: value.tolist() for name, value in info.items()})
