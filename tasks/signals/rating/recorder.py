"""Recording of episodes of rating symbols during play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.tasks.signals.rating.feedback import signals_of
from vecenv.tasks.signals.rating.records import RatedDay, RatedEpisode
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.tasks.signals.rating.text.answers import SignalLanguage
from vecenv.text.recorded_markets import reproducible
from vecenv.text.recorder import Recorder, chat

INVALID = "INVALID"
"""Text of an answer that no signals are."""


class RatingRecorder(Recorder[RatedDay, RatedEpisode]):
    """Steps an environment of rating symbols and records the current episode of some of its rows.

    Args:
        env: with the rows to record at the start of their episodes.
        ids: numbers of the rows to record. Shape: (B,).
        market: market and `MarketOptions` by name that reproduce it, such as from `market_origin`. By default the
            tape's source, which suffices for a file with scores.

    Raises:
        IndexError: an id is not a row's number.
        ValueError: it is another task, or a row is past its start.
    """

    def __init__(self, env: VecEnv, ids: Tensor | Sequence[int], market: Mapping[str, Any] | None = None) -> None:
        super().__init__(env, ids, market)
        self._origin = dict(market or {"market": self.scenario.tape.source})
        self._language = SignalLanguage(self.scenario.tape.symbols)

    def check(self, env: VecEnv) -> None:
        """Raise a ValueError if the environment's task is another one."""
        if not isinstance(env.scenario, NewsSignals):
            raise ValueError(f"only episodes of signals of news are recorded, not of {env.scenario.name!r}")

    @property
    def scenario(self) -> NewsSignals:
        """The task."""
        assert isinstance(self.env.scenario, NewsSignals)
        return self.env.scenario

    def decided(self, rows: Rows, ids: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signals of actions, shape (B, K), and whether each is valid, shape (B,)."""
        return torch.vmap(signals_of)(action)

    def recorded(
        self,
        ids: Tensor,
        seen: Sequence[str],
        said: Sequence[str] | None,
        decided: tuple[Tensor, Tensor],
        reward: Tensor,
    ) -> list[RatedDay]:
        """Return the records of the day that rows have just completed."""
        rows, _ = self.env.rows_of(ids)
        state, tape = rows.state, self.scenario.tape
        day = state.day - 1
        move = self.scenario.shared["move"][state.path * tape.num_days + day]
        money = [getattr(state, name) * tape.tick_size for name in ("portfolio_value", "traded", "costs")]
        dates = tape.dates[day.cpu().numpy()]
        columns = zip(*(column.tolist() for column in (*decided, move, reward, *money)), strict=True)
        days = []
        for row, (signals, valid, moved, paid, value, traded, costs) in enumerate(columns):
            written = self._language.written(signals) if valid else INVALID
            days.append(
                RatedDay(
                    messages=chat(seen[row], written if said is None else said[row]),
                    valid=valid,
                    reward=paid,
                    date=str(dates[row]),
                    signals=dict(zip(tape.symbols, signals, strict=True)),
                    moves=dict(zip(tape.symbols, moved, strict=True)),
                    portfolio_value=value,
                    traded=traded,
                    costs=costs,
                )
            )
        return days

    def episodes(self) -> list[RatedEpisode]:
        """Return the records so far, one per recorded row; grades cover the days played."""
        if len(self._ids) == 0:
            return []
        env, scenario, tape = self.env, self.scenario, self.scenario.tape
        rows, _ = env.rows_of(self._ids)
        bound = env.engine.bound().of_rows(self._ids)
        grades = {name: grade.tolist() for name, grade in bound.grades(rows).items()}
        info = {name: value.tolist() for name, value in bound.info(rows).items()}
        metadata, start = scenario.metadata(), self._start.state
        columns = (env.start_ids[self._ids], self._start.episode, rows.done, start.path, start.day, rows.state.day)
        return [
            RatedEpisode(
                versions={"vecenv": vecenv.__version__, "task": metadata["task_version"]},
                task=metadata["task"],
                config=metadata["config"],
                params={name: tensor[row].tolist() for name, tensor in self._params.items()},
                market=reproducible(tape, metadata["market"], self._origin, tape.symbols),
                seed=int(env.seed_tensor),
                env_id=env_id,
                episode=episode,
                finished=done,
                total_return=info["total_return"][row],
                grades={name: grade[row] for name, grade in grades.items()},
                path=path,
                dates=[str(tape.dates[first]), str(tape.dates[last])],
                start_value=info["start_value"][row],
                days=self.steps[row],
                outcomes={name: float(info[name][row]) for name in scenario.outcomes},
            )
            for row, (env_id, episode, done, path, first, last) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ]
