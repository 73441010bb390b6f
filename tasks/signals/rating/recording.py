"""Records of rating symbols: recreated markets, and what is shown of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vecenv.core.scenario import Scenario
from vecenv.market.load import MarketOptions
from vecenv.registry import task_named
from vecenv.tasks.signals.rating.recorder import RatingRecorder
from vecenv.tasks.signals.rating.records import RatedDay, RatedEpisode, day_rows
from vecenv.tasks.signals.rating.report import rating_report
from vecenv.tasks.signals.rating.scenario import NewsSignals
from vecenv.text.recorded_markets import check_same_market, recorded_market
from vecenv.text.recording import Recording


class RatingRecording(Recording[RatedDay, RatedEpisode]):
    """Records of signals of news."""

    recorder = RatingRecorder
    step_name = "day"
    # The market's origin, the package's version, and the action space: texts are read as signals in any.
    unchecked = ("market.origin", "market.source", "versions.vecenv", "config.action")

    def read(self, values: Mapping[str, Any]) -> RatedEpisode:
        """Return a record from JSON values; see `Recording.read`."""
        return RatedEpisode.from_json(values)

    def scenario(
        self, record: RatedEpisode, market: str | None = None, device: torch.device | str = "cpu"
    ) -> NewsSignals:
        """Recreate the rules and the market of a record; see `Recording.scenario`."""
        task = task_named(record.task)
        try:
            config = replace(task.config(), **record.config)
        except TypeError as error:
            raise ValueError(f"unknown rules: {error}") from error
        required = MarketOptions(features=config.features, context=config.context, scores=True)
        scenario = task.build(recorded_market(record.market, required, market, device), config)
        assert isinstance(scenario, NewsSignals)
        check_same_market(scenario.tape, record.market, market)
        return scenario

    def title(self, record: RatedEpisode) -> str:
        """Return task, symbols and days of an episode."""
        names = record.market["symbols"]
        rated = ", ".join(names) if len(names) <= 3 else f"{len(names)} symbols"
        return f"{record.task}, {rated}, {record.dates[0]} to {record.dates[1]}, {len(record.days)} days"

    def result(self, record: RatedEpisode) -> dict[str, Any]:
        """Return dates, number of days and outcomes of an episode."""
        return {"dates": record.dates, "days": len(record.days), "outcomes": record.outcomes}

    def origin(self, record: RatedEpisode) -> dict[str, Any]:
        """Return market and dates."""
        return {"market": record.market["fingerprint"], "dates": record.dates}

    def told(self, step: RatedDay, scenario: Scenario) -> list[tuple[str, str]]:
        """Return what the prices did after each signal, and the reward; not over several days to come."""
        assert isinstance(scenario, NewsSignals)
        value = f"Portfolio {step.portfolio_value:,.2f}"
        if scenario.config.horizon > 1:
            return [(value, "")]
        lines = []
        for symbol, signal in step.signals.items():
            right = signal * step.moves[symbol]
            style = "green" if right > 0 else "magenta" if right < 0 else ""
            lines.append((f"{symbol} {signal:+d}: moved {step.moves[symbol]:+.2%}", style))
        return [*lines, (f"{value} | reward {step.reward:+.3f}", "")]

    def outcome(self, record: RatedEpisode) -> dict[str, str]:
        """Return rank correlations, return, grade and invalid answers of an episode."""
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
        """Return a row of numbers for each day; see `day_rows`."""
        return day_rows(record)

    def report_page(self, record: RatedEpisode, reference: RatedEpisode, name: str, scenario: Scenario) -> str:
        """Return the HTML page of an episode; see `report.rating_report`."""
        columns = self.outcome(record), self.outcome(reference)
        return rating_report(record, reference, name, self.title(record), columns)
