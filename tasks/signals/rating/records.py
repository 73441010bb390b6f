"""Records of episodes of rating symbols: texts, signals, moves and the portfolio by day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.finance.recorded_markets import TapeRecorder, check_same_market, recorded_market
from vecenv.market.load import MarketOptions
from vecenv.registry import task_named
from vecenv.tasks.signals.rating.feedback import signals_of
from vecenv.tasks.signals.rating.report import rating_report
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.tasks.signals.rating.text.answers import SignalLanguage
from vecenv.text.recorder import chat
from vecenv.text.recording import Recording, recorded_config
from vecenv.text.records import EpisodeRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class RatedDay(StepRecord):
    """One day of an episode, at whose close the symbols were rated. Money is in the currency of the prices.

    By symbol, ``moves`` are those over the horizon, which the agent did not know. ``portfolio_value`` is at the next
    close, ``traded`` the value bought and sold.
    """

    date: str
    signals: dict[str, int]
    moves: dict[str, float]
    portfolio_value: float
    traded: float
    costs: float


@dataclass(frozen=True, kw_only=True)
class RatedEpisode(EpisodeRecord):
    """One episode; its market is what `vecenv.finance.recorded_markets` reproduces.

    ``path`` is of the market, ``dates`` are the first day of the episode, and the day of its last portfolio value,
    ``outcomes`` those of the episode so far, by name.
    """

    steps_field = "days"
    step_type = RatedDay

    path: int
    dates: list[str]
    start_value: float
    days: list[RatedDay]
    outcomes: dict[str, float]


def day_rows(record: RatedEpisode) -> list[dict[str, Any]]:
    """Return the numbers of each day, by column: signals are ``signal/SYMBOL``, moves ``move/SYMBOL``."""
    names = ("portfolio_value", "traded", "costs", "reward", "valid")
    return [
        {"path": record.path, "day": number, "date": np.datetime64(day.date, "ns")}
        | {name: getattr(day, name) for name in names}
        | {f"signal/{symbol}": signal for symbol, signal in day.signals.items()}
        | {f"move/{symbol}": move for symbol, move in day.moves.items()}
        for number, day in enumerate(record.days, 1)
    ]


INVALID = "INVALID"
"""Text of an answer that no signals are."""


class RatingRecorder(TapeRecorder[RatedDay, RatedEpisode]):
    """Steps an environment of rating symbols and records the current episode of some of its rows; see `Recorder`."""

    episode = RatedEpisode

    def check(self, env: VecEnv) -> None:
        if not isinstance(env.scenario, NewsSignals):
            raise ValueError(f"only episodes of signals of news are recorded, not of {env.scenario.name!r}")

    @property
    def scenario(self) -> NewsSignals:
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
        rows, _ = self.env.rows_of(ids)
        state, tape = rows.state, self.scenario.tape
        day = state.day - 1
        move = self.scenario.shared["move"][state.path * tape.num_days + day]
        money = [getattr(state, name) * tape.tick_size for name in ("portfolio_value", "traded", "costs")]
        dates = tape.dates[day.cpu().numpy()]
        columns = zip(*(column.tolist() for column in (*decided, move, reward, *money)), strict=True)
        days = []
        for row, (signals, valid, moved, paid, value, traded, costs) in enumerate(columns):
            written = SignalLanguage(tape.symbols).written(signals) if valid else INVALID
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

    def whole(self, start: Any, state: Any, info: Mapping[str, list[Any]]) -> list[dict[str, Any]]:  # noqa: ANN401
        dates = self.scenario.tape.dates
        columns = zip(start.path.tolist(), start.day.tolist(), state.day.tolist(), strict=True)
        return [
            {
                "path": path,
                "dates": [str(dates[first]), str(dates[last])],
                "start_value": info["start_value"][row],
                "total_return": info["total_return"][row],
                "outcomes": {name: float(info[name][row]) for name in self.scenario.outcomes},
            }
            for row, (path, first, last) in enumerate(columns)
        ]


class RatingRecording(Recording[RatedDay, RatedEpisode]):
    """Records of signals of news."""

    recorder = RatingRecorder
    step_name = "day"
    # The market's origin, the package's version, and the action space: texts are read as signals in any.
    unchecked = ("market.origin", "market.source", "versions.vecenv", "config.action")

    def scenario(
        self, record: RatedEpisode, market: str | None = None, device: torch.device | str = "cpu"
    ) -> NewsSignals:
        task = task_named(record.task)
        config = recorded_config(task.config(), record.config)
        required = MarketOptions(features=config.features, context=config.context, scores=True)
        scenario = task.build(recorded_market(record.market, required, market, device), config)
        assert isinstance(scenario, NewsSignals)
        check_same_market(scenario.tape, record.market, market)
        return scenario

    def title(self, record: RatedEpisode) -> str:
        names = record.market["symbols"]
        rated = ", ".join(names) if len(names) <= 3 else f"{len(names)} symbols"
        return f"{record.task}, {rated}, {record.dates[0]} to {record.dates[1]}, {len(record.days)} days"

    def result(self, record: RatedEpisode) -> dict[str, Any]:
        return {"dates": record.dates, "days": len(record.days), "outcomes": record.outcomes}

    def origin(self, record: RatedEpisode) -> dict[str, Any]:
        return {"market": record.market["fingerprint"], "dates": record.dates}

    def told(self, step: RatedDay, scenario: Scenario) -> list[tuple[str, str]]:
        """Return what the prices did after each signal, and the reward; not over several days to come."""
        assert isinstance(scenario, NewsSignals)
        value = f"Portfolio {step.portfolio_value:,.2f}"
        # Over a gap a move is known later too.
        if scenario.config.horizon > 1 or bool(scenario.tape.gaps.any()):
            return [(value, "")]
        lines = []
        for symbol, signal in step.signals.items():
            right = signal * step.moves[symbol]
            style = "green" if right > 0 else "magenta" if right < 0 else ""
            lines.append((f"{symbol} {signal:+d}: moved {step.moves[symbol]:+.2%}", style))
        return [*lines, (f"{value} | reward {step.reward:+.3f}", "")]

    def outcome(self, record: RatedEpisode) -> dict[str, str]:
        told = record.outcomes
        invalid = sum(not day.valid for day in record.days)
        return {
            "Rank IC": f"{told['rank_ic']:+.3f}",
            "Pooled IC": f"{told['pooled_ic']:+.3f}",
            "Return": f"{record.total_return:+.2%}",
            **{name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()},
            "Invalid": str(invalid),
        }

    def table_rows(self, record: RatedEpisode) -> list[dict[str, Any]]:
        return day_rows(record)

    def report_page(self, record: RatedEpisode, reference: RatedEpisode, name: str, scenario: Scenario) -> str:
        columns = self.outcome(record), self.outcome(reference)
        return rating_report(record, reference, name, self.title(record), columns)
