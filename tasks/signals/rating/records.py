"""Records of episodes of rating symbols: texts, signals, moves and the portfolio by day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.finance.recorded_markets import TapeRecording, calendar_date, step_dates, value_figure
from vecenv.system.figures import GREY, TRAINED, page_figure
from vecenv.tasks.signals.rating.law import signals_of
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.tasks.signals.rating.text import SignalLanguage
from vecenv.text.recorder import RecordedRows
from vecenv.text.recording import Columns, Figures, Values
from vecenv.text.records import EpisodeRecord, StepRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


INVALID = "INVALID"
"""Text of an answer that no signals are."""


def signal_figure(record: RatedEpisode, reference: RatedEpisode, other: str, scenario: NewsSignals) -> Figure:
    """Draw the moves after each signal, all symbols and days, in per cent."""
    figure, (axes,) = page_figure([1], 3.4)
    pairs = [(day.signals[name], 100 * day.moves[name]) for day in record.days for name in day.signals]
    signal, move = np.array(pairs, float).T
    axes.scatter(signal, move, color=TRAINED[0], s=22, alpha=0.6)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set(xlabel="signal", ylabel=f"move over {record.config['horizon']} days, %", xlim=(-10.5, 10.5))
    return figure


class RatingRecording(TapeRecording[RatedDay, RatedEpisode]):
    """Records of signals of news."""

    episode = RatedEpisode
    scenario = NewsSignals
    family = "signals of news"
    columns: ClassVar[Columns] = {
        "path": lambda record, day: record.path,
        "day": None,
        "date": calendar_date,
        **dict.fromkeys(("portfolio_value", "traded", "costs", "reward", "valid")),
        "signal": lambda record, day: day.signals,
        "move": lambda record, day: day.moves,
    }
    figures: ClassVar[Figures] = {"Signals and moves": signal_figure, "Portfolio": value_figure}
    metadata = ("versions", "config", "market", "seed", "env_id", "episode")

    def decided(self, env: VecEnv, rows: Rows, ids: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the signals of actions, shape (B, K), and whether each is valid, shape (B,)."""
        return torch.vmap(signals_of)(action)

    def step_columns(self, recorded: RecordedRows, decided: tuple[Tensor, Tensor]) -> Values:
        scenario, state = recorded.env.scenario, recorded.state
        assert isinstance(scenario, NewsSignals)
        tape, language = scenario.tape, SignalLanguage(scenario.tape.symbols)
        move = scenario.shared["move"][state.path * tape.num_days + state.day - 1]
        signals, valid = (part.tolist() for part in decided)
        money = ("portfolio_value", "traded", "costs")
        return {
            "answer": [language.written(row) if known else INVALID for row, known in zip(signals, valid, strict=True)],
            "valid": valid,
            "date": step_dates(recorded),
            "signals": [dict(zip(tape.symbols, row, strict=True)) for row in signals],
            "moves": [dict(zip(tape.symbols, row, strict=True)) for row in move.tolist()],
            **{name: (getattr(state, name) * tape.tick_size).tolist() for name in money},
        }

    def episode_columns(self, recorded: RecordedRows, start: Any, steps: Sequence[Sequence[RatedDay]]) -> Values:  # noqa: ANN401
        names, info = recorded.env.scenario.outcomes, recorded.info
        return {
            **super().episode_columns(recorded, start, steps),
            "start_value": info["start_value"],
            "total_return": info["total_return"],
            "outcomes": [{name: float(info[name][row]) for name in names} for row in range(len(steps))],
        }

    def result(self, record: RatedEpisode) -> dict[str, Any]:
        return super().result(record) | {"outcomes": record.outcomes}

    def step_lines(self, step: RatedDay, scenario: Scenario) -> list[tuple[str, str]]:
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
        return {
            "Rank IC": f"{told['rank_ic']:+.3f}",
            "Pooled IC": f"{told['pooled_ic']:+.3f}",
            "Return": f"{record.total_return:+.2%}",
            **{name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()},
            "Invalid": str(sum(not day.valid for day in record.days)),
        }

    def subtitle(self, record: RatedEpisode, length: str) -> Sequence[str]:
        return length, str(record.market["source"])

    def summary(self, step: RatedDay, record: RatedEpisode) -> Sequence[str]:
        moved = ", ".join(f"{name} {signal:+d} moved {step.moves[name]:+.2%}" for name, signal in step.signals.items())
        return moved, f"portfolio {step.portfolio_value:,.2f}"


RECORDING = RatingRecording()
