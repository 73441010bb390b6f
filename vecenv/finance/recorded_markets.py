"""Markets of bars in the records of episodes: what all such records share, and the market that a record names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from vecenv.core.env import VecEnv
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.system.figures import GREY, WIDE, dated, looks, page_figure
from vecenv.system.settings import check_fields
from vecenv.text.recorder import Episode, RecordedRows, Step
from vecenv.text.recording import Recording, Values
from vecenv.text.records import many

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TapeRecording(Recording[Step, Episode]):
    """Records of a family of tasks on markets of bars, which each record reproduces.

    Their steps have a ``date`` and a ``portfolio_value``, at the next close; episodes have the ``path`` of the market,
    the ``dates`` of their first day and of their last portfolio value, and a ``start_value``.
    """

    step_name = "day"
    # The market's origin, the package's version, and the action space: texts are parsed in any.
    unchecked: ClassVar[tuple[str, ...]] = ("market.origin", "market.source", "versions.vecenv", "config.action")

    def market(self, env: VecEnv, origin: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata of the market with what reproduces it."""
        scenario: Any = env.scenario
        tape = scenario.tape
        return {
            **scenario.metadata()["market"],
            "origin": origin or {"market": tape.source},
            # Reproducing a market needs all symbols and days of its source.
            "loaded_symbols": list(getattr(scenario, "drawn_symbols", tape.symbols)),
            "dates": [str(tape.dates[0]), str(tape.dates[-1])],
            "paths": None if tape.path_span is None else list(tape.path_span),
        }

    def episode_columns(self, recorded: RecordedRows, start: Any, steps: Sequence[Sequence[Step]]) -> Values:  # noqa: ANN401
        dates = recorded.env.scenario.tape.dates  # type: ignore[attr-defined]
        days = zip(start.day.tolist(), recorded.state.day.tolist(), strict=True)
        return {
            "path": start.path.tolist(),
            "dates": [[str(dates[first]), str(dates[last])] for first, last in days],
        }

    def symbols(self, record: Episode) -> Sequence[str]:
        """Return the symbols of an episode."""
        names: Sequence[str] = record.market["symbols"]
        return names

    def title(self, record: Any) -> str:  # noqa: ANN401
        names = self.symbols(record)
        shown = ", ".join(names) if len(names) <= 3 else f"{len(names)} symbols"
        return f"{record.task}, {shown}, {record.dates[0]} to {record.dates[1]}, {many(len(record.days), 'day')}"

    def result(self, record: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"dates": record.dates, "days": len(record.days)}

    def origin(self, record: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"market": record.market["fingerprint"], "dates": record.dates}


def step_dates(recorded: RecordedRows) -> list[str]:
    """Return the days at whose closes the last steps of rows were, as text."""
    dates = recorded.env.scenario.tape.dates[(recorded.state.day - 1).cpu().numpy()]  # type: ignore[attr-defined]
    return [str(date) for date in dates]


def calendar_date(record: Any, day: Any) -> np.datetime64:  # noqa: ANN401
    """Return the date of a step, for a column of a table."""
    return np.datetime64(day.date, "ns")


def value_figure(record: Any, reference: Any, other: str, scenario: Any) -> Figure:  # noqa: ANN401
    """Draw the portfolio value and the reference's, in percent of the start, by date or day of a generated market."""
    figure, (axes,) = page_figure([1], 3.0)
    shown = looks(("agent", other))
    for name, curve in {other: reference, "agent": record}.items():
        equity = np.array([curve.start_value, *(day.portfolio_value for day in curve.days)])
        # Each value is that of the next close.
        dates = [*(np.datetime64(day.date) for day in curve.days), np.datetime64(curve.dates[1])]
        days = np.arange(len(equity)) if scenario.tape.generated else np.array(dates)
        axes.plot(days, 100 * (equity / equity[0] - 1), label=name, marker=".", markersize=5, **shown[name].line())
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_ylabel("return, %")
    if scenario.tape.generated:
        axes.set_xlabel("day of the episode")
    else:
        dated(axes, WIDE)
    axes.legend(frameon=False, loc="best")
    return figure


def recorded_market(
    recorded: Mapping[str, Any], required: MarketOptions, market: str | None, device: torch.device | str
) -> MarketTape:
    """Recreate the market of a record, or another ``market`` with what the task requires.

    Raises:
        ValueError: the record does not name its market, or the market cannot be made.
    """
    given: dict[str, Any] = {item.name: recorded.get(item.name) for item in fields(_Named)}
    named = _Named(**given)
    market = named.origin.get("market") if market is None else market
    if not isinstance(market, str):
        raise ValueError(f"market: origin must name a market, got {market!r}")
    options = replace(
        MarketOptions().updated({name: value for name, value in named.origin.items() if name != "market"}),
        symbols=named.loaded_symbols,
        features=required.features,
        context=required.context,
        scores=required.scores,
        tick_size=named.tick_size,
    )
    tape = load_market(market, options, device).between(*named.dates)
    return tape.paths(*named.paths) if named.paths else tape


@dataclass(frozen=True)
class _Named:
    """What `TapeRecording` adds, and what it is compared by."""

    origin: dict[str, Any]
    loaded_symbols: tuple[str, ...]
    dates: tuple[str, str]
    paths: tuple[int, int] | None
    tick_size: float
    fingerprint: str

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ValueError as error:
            raise ValueError(f"market: {error}") from error


def check_same_market(tape: MarketTape, recorded: Mapping[str, Any], market: str | None) -> None:
    """Raise ValueError if a recreated market is not the recorded one."""
    name = recorded["origin"]["market"] if market is None else market
    if (fingerprint := tape.fingerprint()) != recorded["fingerprint"]:
        raise ValueError(
            f"{name} is another market: its fingerprint is {fingerprint}, the recorded one's is "
            f"{recorded['fingerprint']}, of {recorded.get('source')!r}; name the right one with --market"
        )
