"""Records of the agent-based market: recreated rules, and what is shown of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vecenv.core.scenario import Scenario
from vecenv.registry import task_named
from vecenv.tasks.agent_market.recorder import MarketRecorder
from vecenv.tasks.agent_market.records import MarketEpisode, MarketStep, step_rows
from vecenv.tasks.agent_market.report import market_report
from vecenv.text.recording import Recording

FORMS = {"currency": "{:+,.2f}", "share": "{:+.2%}", "count": "{:,.4g}"}
"""Formats of outcomes by unit."""


class MarketRecording(Recording[MarketStep, MarketEpisode]):
    """Records of the tasks of the agent-based market."""

    recorder = MarketRecorder
    step_name = "step"
    # Texts are parsed into lists of orders in any action space.
    unchecked = ("versions.vecenv", "config.action")

    def read(self, values: Mapping[str, Any]) -> MarketEpisode:
        """Return a record from JSON values; see `Recording.read`."""
        return MarketEpisode.from_json(values)

    def scenario(
        self, record: MarketEpisode, market: str | None = None, device: torch.device | str = "cpu"
    ) -> Scenario:
        """Recreate the task of a record; see `Recording.scenario`."""
        if market is not None:
            raise ValueError(f"{record.task} simulates its own market, so --market {market} cannot be used")
        task = task_named(record.task)
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in record.config.items()}
        try:
            return task.build(config=replace(task.config(), **plain))
        except TypeError as error:
            raise ValueError(f"unknown rules: {error}") from error

    def title(self, record: MarketEpisode) -> str:
        """Return task, seed and length of an episode."""
        seconds = self._seconds(record)
        return f"{record.task}, seed {record.seed}, row {record.env_id}, {len(record.turns)} steps of {seconds:g} s"

    @staticmethod
    def _seconds(record: MarketEpisode) -> float:
        return record.config["ticks_per_step"] * record.config["tick_seconds"]

    def result(self, record: MarketEpisode) -> dict[str, Any]:
        """Return the number of steps of an episode, and its outcomes."""
        return {"steps": len(record.turns), "outcomes": record.turns[-1].outcomes if record.turns else {}}

    def origin(self, record: MarketEpisode) -> dict[str, Any]:
        """Return the number of the row's episode."""
        return {"episode": record.episode}

    def told(self, step: MarketStep, scenario: Scenario) -> list[tuple[str, str]]:
        """Return the fills of a step and its reward."""
        lines = []
        for name, shares, style in (("Bought", step.bought, "green"), ("Sold", step.sold, "magenta")):
            if shares:
                lines.append((f"{name} {shares:,} shares", style))
        if not lines and any(order["kind"].startswith(("BUY", "SELL")) for order in step.orders):
            lines.append(("Nothing was traded", "yellow"))
        for kind, (_, size), traded in zip(("BID", "ASK"), step.quotes, (step.bought, step.sold), strict=True):
            asked = any(order["kind"] == kind and order["shares"] for order in step.orders)
            if asked and not size and not traded:
                lines.append((f"Your {kind.lower()} is not in the book: it would have traded at once", "yellow"))
        outcomes = ", ".join(f"{name.replace('_', ' ')} {told}" for name, told in outcome_texts(step, scenario).items())
        return [*lines, (f"{outcomes} | reward {step.reward:+.3f}", "")]

    def outcome(self, record: MarketEpisode) -> dict[str, str]:
        """Return the outcomes of an episode, its grades, and how often its agent traded and was not understood."""
        task = task_named(record.task)
        last = outcome_texts(record.turns[-1], task) if record.turns else dict.fromkeys(task.outcomes, "–")
        columns = {name.replace("_", " ").capitalize(): told for name, told in last.items()}
        columns |= {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        trades = sum(turn.bought + turn.sold > 0 for turn in record.turns)
        invalid = sum(not turn.valid for turn in record.turns)
        return {**columns, "Steps with trades": str(trades), "Invalid": str(invalid)}

    def table_rows(self, record: MarketEpisode) -> list[dict[str, Any]]:
        """Return a row of numbers for each step; see `step_rows`."""
        return step_rows(record)

    def report_page(self, record: MarketEpisode, reference: MarketEpisode, name: str, scenario: Scenario) -> str:
        """Return the HTML page of an episode; see `report.market_report`."""
        columns = self.outcome(record), self.outcome(reference)
        return market_report(record, reference, name, self.title(record), columns)


def outcome_texts(step: MarketStep, task: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the outcomes after a step as texts, by name, in the units of a task or scenario."""
    return {name: FORMS[unit].format(step.outcomes[name]) for name, unit in task.outcomes.items()}
