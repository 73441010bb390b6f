"""Records of episodes in the agent-based market: texts, orders, fills, the account and the book at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.registry import task_named
from vecenv.tasks.agent_market.orders import Order
from vecenv.tasks.agent_market.report import market_report
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.agent_market.seat_state import SeatState
from vecenv.tasks.agent_market.text.market_text import MarketText
from vecenv.text.recorder import Recorder, chat
from vecenv.text.recording import Recording, recorded_config
from vecenv.text.records import EpisodeRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class MarketStep(StepRecord):
    """One step, after which everything is told. Prices in the book are in price ticks, money is in currency.

    ``tick`` counts since the episode began. ``orders`` are those carried out: ``kind``, ``price`` (null where it has
    none) and ``shares``. ``quotes`` are price and shares of the best own bid and ask, zeros without, ``ladder`` prices
    and shares of the best levels of bids and asks, ``outcomes`` those of the episode so far, by name.
    """

    tick: int
    orders: list[dict[str, Any]]
    bought: int
    sold: int
    shares: int
    cash: float
    equity: float
    mid: float
    quotes: list[list[int]]
    ladder: list[list[list[int]]]
    outcomes: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class MarketEpisode(EpisodeRecord):
    """One episode; its market is that of its rules, its seed and its row.

    ``start`` is the mid at the start, in currency, ``parent`` sign and shares of the order to execute, zeros without.
    """

    steps_field = "turns"
    step_type = MarketStep

    start: float
    parent: list[int]
    turns: list[MarketStep]

    @property
    def price_tick(self) -> float:
        return self.config["price_tick"]


def step_rows(record: MarketEpisode) -> list[dict[str, Any]]:
    """Return the numbers of each step, by column: outcomes of the task are ``outcome/NAME``."""
    names = ("tick", "bought", "sold", "shares", "cash", "equity", "mid", "valid", "reward")
    return [
        {"step": number, "num_orders": len(turn.orders)}
        | {name: getattr(turn, name) for name in names}
        | {f"outcome/{name}": value for name, value in turn.outcomes.items()}
        for number, turn in enumerate(record.turns, 1)
    ]


_KNOWN = frozenset(map(int, Order)) - {Order.NONE, Order.INVALID}
_PRICED = frozenset({Order.BUY_LIMIT, Order.SELL_LIMIT, Order.BID, Order.ASK})


def _told(kind: int, price: int, shares: int) -> dict[str, Any]:
    """Return an order by names, its price only where it is read."""
    priced = kind in _PRICED and shares > 0
    return {"kind": Order(kind).name, "price": price if priced else None, "shares": shares}


class MarketRecorder(Recorder[MarketStep, MarketEpisode]):
    """Steps an environment of the agent-based market and records the current episode of some of its rows."""

    episode = MarketEpisode

    def check(self, env: VecEnv) -> None:
        if not isinstance(env.scenario, MarketScenario):
            raise ValueError(f"only episodes of the agent-based market are recorded, not of {env.scenario.name!r}")

    @property
    def scenario(self) -> MarketScenario:
        assert isinstance(self.env.scenario, MarketScenario)
        return self.env.scenario

    def decided(self, rows: Rows, ids: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the orders that actions ask for, and those that are carried out. Shape of each: (B, J, 3)."""
        scenario = self.scenario

        def one(state: SeatState, action: Tensor) -> tuple[Tensor, Tensor]:
            asked = action if action.ndim == 2 else scenario.chosen_orders(state, action)
            return asked, scenario.orders(state, action)

        return torch.vmap(one)(rows.state, action)

    def recorded(
        self,
        ids: Tensor,
        seen: Sequence[str],
        said: Sequence[str] | None,
        decided: tuple[Tensor, Tensor],
        reward: Tensor,
    ) -> list[MarketStep]:
        rows, _ = self.env.rows_of(ids)
        state, text = rows.state, self.scenario.text
        assert isinstance(text, MarketText)
        info = {name: value.tolist() for name, value in self.env.engine.bound().of_rows(ids).info(rows).items()}
        asked, listed = (orders.tolist() for orders in decided)
        own, ladder = state.own[:, 1:3].transpose(1, 2), state.ladder.transpose(1, 2)
        columns = (reward, state.tick, state.last_traded, state.shares, own, ladder)
        steps = []
        for row, (paid, tick, (bought, sold), shares, quotes, levels) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            valid = not any(kind == Order.INVALID for kind, _, _ in asked[row])
            written = text.language.written(asked[row]) if valid else Order.INVALID.name
            steps.append(
                MarketStep(
                    messages=chat(seen[row], written if said is None else said[row]),
                    valid=valid,
                    reward=paid,
                    tick=tick,
                    orders=[_told(*order) for order in listed[row] if order[0] in _KNOWN],
                    bought=bought,
                    sold=sold,
                    shares=shares,
                    **{name: info[name][row] for name in ("cash", "equity", "mid")},
                    quotes=quotes,
                    ladder=levels,
                    outcomes={name: info[name][row] for name in self.scenario.outcomes},
                )
            )
        return steps

    def whole(self, start: Any, state: Any, info: Mapping[str, list[Any]]) -> list[dict[str, Any]]:  # noqa: ANN401
        columns = (start.doubled_mid.tolist(), start.parent.tolist(), info["total_return"])
        tick = self.scenario.config.price_tick
        return [
            {"start": doubled_mid * tick / 2, "parent": parent, "total_return": total_return}
            for doubled_mid, parent, total_return in zip(*columns, strict=True)
        ]


FORMS = {"currency": "{:+,.2f}", "share": "{:+.2%}", "count": "{:,.4g}"}
"""Formats of outcomes by unit."""


class MarketRecording(Recording[MarketStep, MarketEpisode]):
    """Records of the tasks of the agent-based market."""

    recorder = MarketRecorder
    step_name = "step"
    # Texts are parsed into lists of orders in any action space.
    unchecked = ("versions.vecenv", "config.action")

    def scenario(
        self, record: MarketEpisode, market: str | None = None, device: torch.device | str = "cpu"
    ) -> Scenario:
        if market is not None:
            raise ValueError(f"{record.task} simulates its own market, so --market {market} cannot be used")
        task = task_named(record.task)
        return task.build(config=recorded_config(task.config(), record.config))

    def title(self, record: MarketEpisode) -> str:
        seconds = self._seconds(record)
        return f"{record.task}, seed {record.seed}, row {record.env_id}, {len(record.turns)} steps of {seconds:g} s"

    @staticmethod
    def _seconds(record: MarketEpisode) -> float:
        return record.config["ticks_per_step"] * record.config["tick_seconds"]

    def result(self, record: MarketEpisode) -> dict[str, Any]:
        return {"steps": len(record.turns), "outcomes": record.turns[-1].outcomes if record.turns else {}}

    def origin(self, record: MarketEpisode) -> dict[str, Any]:
        return {"episode": record.episode}

    def told(self, step: MarketStep, scenario: Scenario) -> list[tuple[str, str]]:
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
        task = task_named(record.task)
        last = outcome_texts(record.turns[-1], task) if record.turns else dict.fromkeys(task.outcomes, "–")
        columns = {name.replace("_", " ").capitalize(): told for name, told in last.items()}
        columns |= {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        trades = sum(turn.bought + turn.sold > 0 for turn in record.turns)
        invalid = sum(not turn.valid for turn in record.turns)
        return {**columns, "Steps with trades": str(trades), "Invalid": str(invalid)}

    def table_rows(self, record: MarketEpisode) -> list[dict[str, Any]]:
        return step_rows(record)

    def report_page(self, record: MarketEpisode, reference: MarketEpisode, name: str, scenario: Scenario) -> str:
        columns = self.outcome(record), self.outcome(reference)
        return market_report(record, reference, name, self.title(record), columns)


def outcome_texts(step: MarketStep, task: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the outcomes after a step as texts, by name, in the units of a task or scenario."""
    return {name: FORMS[unit].format(step.outcomes[name]) for name, unit in task.outcomes.items()}
