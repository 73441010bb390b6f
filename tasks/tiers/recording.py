"""Records of the trading tiers: recreated markets, and what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vecenv.core.scenario import Scenario
from vecenv.market.load import MarketOptions
from vecenv.registry import Task, task_named
from vecenv.tasks.tiers.recorder import EpisodeRecorder
from vecenv.tasks.tiers.records import RecordedDay, RecordedEpisode, day_rows
from vecenv.tasks.tiers.report import report_page
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.text.money import exact_money
from vecenv.text.recorded_markets import check_same_market, recorded_market
from vecenv.text.recording import Recording


class TierRecording(Recording[RecordedDay, RecordedEpisode]):
    """Records of the trading tiers and the curriculum."""

    recorder = EpisodeRecorder
    step_name = "day"
    # The market's origin, the package's version, and the action space: texts are parsed into orders in any.
    unchecked = ("market.origin", "market.source", "versions.vecenv", "config.action", "curriculum.action")

    def read(self, values: Mapping[str, Any]) -> RecordedEpisode:
        """Return a record from JSON values; see `Recording.read`."""
        return RecordedEpisode.from_json(values)

    def scenario(
        self, record: RecordedEpisode, market: str | None = None, device: torch.device | str = "cpu"
    ) -> TierTrading:
        """Recreate the config and the market of a record; see `Recording.scenario`."""
        task = task_named(record.task)
        config = _config(task, record.curriculum or record.config)
        required = MarketOptions(features=config.features, context=config.context)
        scenario = task.build(recorded_market(record.market, required, market, device), config)
        assert isinstance(scenario, TierTrading)
        check_same_market(scenario.tape, record.market, market)
        return scenario

    def title(self, record: RecordedEpisode) -> str:
        """Return task, symbols and days of an episode."""
        traded = ", ".join(record.symbols) if len(record.symbols) <= 3 else f"{len(record.symbols)} symbols"
        return f"{record.task}, {traded}, {record.dates[0]} to {record.dates[1]}, {len(record.days)} days"

    def result(self, record: RecordedEpisode) -> dict[str, Any]:
        """Return the dates of an episode and the number of its days."""
        return {"dates": record.dates, "days": len(record.days)}

    def origin(self, record: RecordedEpisode) -> dict[str, Any]:
        """Return market and dates."""
        return {"market": record.market["fingerprint"], "dates": record.dates}

    def told(self, step: RecordedDay, scenario: Scenario) -> list[tuple[str, str]]:
        """Return the fills of a day, its mistakes, and its reward by component."""
        assert isinstance(scenario, TierTrading) and scenario.text is not None
        sign = scenario.text.money_sign
        lines = []
        for order in step.orders:
            name, shares = order["symbol"], order["shares"]
            done = "Bought" if shares > 0 else "Sold"
            line = f"{done} {abs(shares):,} {name}" if shares else f"{order['side']} {name}: nothing was traded"
            lines.append((line, "green" if shares > 0 else "magenta" if shares < 0 else "yellow"))
        mistakes = [f"{name.replace('_', ' ')} x{count}" for name, count in step.mistakes.items() if count]
        if mistakes:
            lines.append((f"Mistakes: {', '.join(mistakes)}", "red"))
        parts = [f"{name.replace('_', ' ')} {value:+.3f}" for name, value in step.weighted.items() if value]
        value, costs = exact_money(sign, step.portfolio_value), exact_money(sign, step.costs)
        reward = f"reward {step.reward:+.3f}{': ' if parts else ''}{', '.join(parts)}"
        return [*lines, (f"Portfolio {value} | costs {costs} | {reward}", "")]

    def outcome(self, record: RecordedEpisode) -> dict[str, str]:
        """Return return, grades, trades and mistakes of an episode."""
        trades = sum(order["shares"] != 0 for day in record.days for order in day.orders)
        grades = {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        counts = {"Trades": str(trades), "Mistakes": str(sum(record.mistakes.values()))}
        return {"Return": f"{record.total_return:+.2%}", **grades, **counts}

    def table_rows(self, record: RecordedEpisode) -> list[dict[str, Any]]:
        """Return a row of numbers for each day; see `day_rows`."""
        return day_rows(record)

    def report_page(self, record: RecordedEpisode, reference: RecordedEpisode, name: str, scenario: Scenario) -> str:
        """Return the HTML page of an episode; see `report.report_page`."""
        assert isinstance(scenario, TierTrading)
        return report_page(record, reference, name, scenario.tape)


def _config(task: Task, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the config of a task from JSON values."""
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        # Texts are parsed into orders in any recorded action space.
        return task.spoken(replace(task.config(), **plain))
    except TypeError as error:
        raise ValueError(f"unknown rules: {error}") from error
