"""Records of episodes in the agent-based market: texts, orders, fills, the account and the book at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.registry import task_named
from vecenv.tasks.agent_market.figures import account_figure, recorded_book_figure
from vecenv.tasks.agent_market.orders import Order
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.agent_market.seat import SeatState
from vecenv.tasks.agent_market.text import MarketText
from vecenv.text.recorder import RecordedRows
from vecenv.text.recording import Columns, Figures, Recording, Values
from vecenv.text.records import EpisodeRecord, StepRecord, many


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


_KNOWN = frozenset(map(int, Order)) - {Order.NONE, Order.INVALID}
_PRICED = frozenset({Order.BUY_LIMIT, Order.SELL_LIMIT, Order.BID, Order.ASK})

FORMS = {"currency": "{:+,.2f}", "share": "{:+.2%}", "count": "{:,.4g}"}
"""Formats of outcomes by unit."""


class MarketRecording(Recording[MarketStep, MarketEpisode]):
    """Records of the tasks of the agent-based market."""

    episode = MarketEpisode
    scenario = MarketScenario
    family = "the agent-based market"
    step_name = "step"
    # Texts are parsed into lists of orders in any action space.
    unchecked = ("versions.vecenv", "config.action")
    columns: ClassVar[Columns] = {
        "step": None,
        "num_orders": lambda record, turn: len(turn.orders),
        **dict.fromkeys(("tick", "bought", "sold", "shares", "cash", "equity", "mid", "valid", "reward")),
        "outcome": lambda record, turn: turn.outcomes,
    }
    figures: ClassVar[Figures] = {"Order book": recorded_book_figure, "Account": account_figure}
    metadata = ("versions", "task", "config", "seed", "env_id", "episode")

    def decided(self, env: VecEnv, rows: Rows, ids: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the orders that actions ask for, and those that are carried out. Shape of each: (B, J, 3)."""
        scenario = env.scenario
        assert isinstance(scenario, MarketScenario)

        def one(state: SeatState, action: Tensor) -> tuple[Tensor, Tensor]:
            asked = action if action.ndim == 2 else scenario.chosen_orders(state, action)
            return asked, scenario.orders(state, action)

        return torch.vmap(one)(rows.state, action)

    def step_columns(self, recorded: RecordedRows, decided: tuple[Tensor, Tensor]) -> Values:
        env, state, info = recorded.env, recorded.state, recorded.info
        text = env.scenario.text
        assert isinstance(text, MarketText)
        asked, carried_out = (orders.tolist() for orders in decided)
        valid = [not any(kind == Order.INVALID for kind, _, _ in orders) for orders in asked]
        bought, sold = state.last_traded.T.tolist()
        return {
            "answer": [
                text.language.written(orders) if known else Order.INVALID.name
                for orders, known in zip(asked, valid, strict=True)
            ],
            "valid": valid,
            "tick": state.tick.tolist(),
            "orders": [[_by_name(*order) for order in orders if order[0] in _KNOWN] for orders in carried_out],
            "bought": bought,
            "sold": sold,
            "shares": state.shares.tolist(),
            **{name: info[name] for name in ("cash", "equity", "mid")},
            "quotes": state.own[:, 1:3].transpose(1, 2).tolist(),
            "ladder": state.ladder.transpose(1, 2).tolist(),
            "outcomes": [{name: info[name][row] for name in env.scenario.outcomes} for row in range(len(recorded.ids))],
        }

    def episode_columns(
        self, recorded: RecordedRows, start: SeatState, steps: Sequence[Sequence[MarketStep]]
    ) -> Values:
        tick = recorded.env.scenario.config.price_tick  # type: ignore[attr-defined]
        return {
            "start": [doubled_mid * tick / 2 for doubled_mid in start.doubled_mid.tolist()],
            "parent": start.parent.tolist(),
            "total_return": recorded.info["total_return"],
        }

    def title(self, record: MarketEpisode) -> str:
        seconds = record.config["ticks_per_step"] * record.config["tick_seconds"]
        steps = many(len(record.turns), self.step_name)
        return f"{record.task}, seed {record.seed}, {record.row}, {steps} of {seconds:g} s"

    def result(self, record: MarketEpisode) -> dict[str, Any]:
        return {"steps": len(record.turns), "outcomes": record.turns[-1].outcomes if record.turns else {}}

    def origin(self, record: MarketEpisode) -> dict[str, Any]:
        return {"episode": record.episode}

    def step_lines(self, step: MarketStep, scenario: Scenario) -> list[tuple[str, str]]:
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
        told = _outcome_texts(step, scenario.outcomes).items()
        outcomes = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told)
        return [*lines, (f"{outcomes} | reward {step.reward:+.3f}", "")]

    def outcome(self, record: MarketEpisode) -> dict[str, str]:
        units = task_named(record.task).outcomes
        last = _outcome_texts(record.turns[-1], units) if record.turns else dict.fromkeys(units, "–")
        columns = {name.replace("_", " ").capitalize(): told for name, told in last.items()}
        columns |= {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        trades = sum(turn.bought + turn.sold > 0 for turn in record.turns)
        invalid = sum(not turn.valid for turn in record.turns)
        return {**columns, "Steps with trades": str(trades), "Invalid": str(invalid)}

    def subtitle(self, record: MarketEpisode, length: str) -> Sequence[str]:
        sign, shares = record.parent
        order = [f"{'buy' if sign > 0 else 'sell'} {shares:,} shares"] if shares else []
        return length, *order, "a simulated market"

    def summary(self, step: MarketStep, record: MarketEpisode) -> Sequence[str]:
        fills = [f"{word} {shares:,}" for word, shares in (("bought", step.bought), ("sold", step.sold)) if shares]
        quotes = [
            f"{side} {size:,} at {price * record.price_tick:,.6g}"
            for side, (price, size) in zip(("bid", "ask"), step.quotes, strict=True)
            if size
        ]
        told = [", ".join(fills) or "no trade", f"{step.shares:+,} shares", f"equity {step.equity:,.2f}"]
        return [*told, f"in the book {', '.join(quotes)}"] if quotes else told


def _by_name(kind: int, price: int, shares: int) -> dict[str, Any]:
    """Return an order by names, its price only where it is read."""
    priced = kind in _PRICED and shares > 0
    return {"kind": Order(kind).name, "price": price if priced else None, "shares": shares}


def _outcome_texts(step: MarketStep, units: Mapping[str, str]) -> dict[str, str]:
    return {name: FORMS[unit].format(step.outcomes[name]) for name, unit in units.items()}


RECORDING = MarketRecording()
