"""Records of stock trading: the numbers of each action, the orders that they came to, and the account by day.

An agent of numbers says nothing, so the messages of a day are the account that it sees and its action as a JSON list,
from which a replay plays the episode again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.finance.accounts import tape_of
from vecenv.finance.recorded_markets import TapeRecording, calendar_date, step_dates, value_figure
from vecenv.tasks.stock_trading.decisions import decisions, order_table
from vecenv.tasks.stock_trading.scenario import StockTrading
from vecenv.text.money import exact_money, sign_of
from vecenv.text.recorder import RecordedRows
from vecenv.text.recording import Columns, Figures, Values, recorded_start
from vecenv.text.records import EpisodeRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class RecordedTrades(StepRecord):
    """One day of an episode. Money is in the currency of the prices.

    Attributes:
        date: day at whose close the orders were decided.
        orders: ``symbol``, shares ``wanted``, ``ordered`` after the rules and ``filled``, and the ``reason`` why less,
            as of `vecenv.tasks.stock_trading.decisions.order_table`.
        holdings: shares by symbol after the orders.
        portfolio_value: at the next close.
        traded: value bought and sold.
    """

    date: str
    orders: list[dict[str, Any]]
    holdings: dict[str, float]
    cash: float
    portfolio_value: float
    traded: float
    costs: float


@dataclass(frozen=True, kw_only=True)
class RecordedAccount(EpisodeRecord):
    """One episode; its market is what `vecenv.finance.recorded_markets` reproduces.

    ``path`` is of the market, ``dates`` are the first day of the episode, and the day of its last portfolio value.
    """

    steps_field = "days"
    step_type = RecordedTrades

    path: int
    dates: list[str]
    start_value: float
    days: list[RecordedTrades]

    @property
    def money_sign(self) -> str:
        return sign_of(self.market.get("currency"))


class Decided(NamedTuple):
    """Actions of B rows, and the orders that they come to, by row."""

    actions: list[list[float]]
    orders: pd.DataFrame


class StockRecording(TapeRecording[RecordedTrades, RecordedAccount]):
    """Records of the tasks on the account of stock trading."""

    episode = RecordedAccount
    scenario = StockTrading
    family = "stock trading"
    # The market's origin and the package's version.
    unchecked: ClassVar[tuple[str, ...]] = ("market.origin", "market.source", "versions.vecenv")
    columns: ClassVar[Columns] = {
        "path": lambda record, day: record.path,
        "market": lambda record, day: record.market["fingerprint"],
        "day": None,
        "date": calendar_date,
        "valid": None,
        "num_orders": lambda record, day: len(day.orders),
        **dict.fromkeys(("cash", "portfolio_value", "traded", "costs", "reward")),
        "shares": lambda record, day: {name: day.holdings.get(name, 0) for name in record.market["symbols"]},
    }
    figures: ClassVar[Figures] = {"Equity": value_figure}
    metadata = ("versions", "task", "config", "params", "market", "seed", "env_id", "episode", "path")

    def seen(self, env: VecEnv, ids: Tensor) -> Sequence[str]:
        """Return the day, cash and value of rows, in currency."""
        rows, _ = env.rows_of(ids)
        tape, state = tape_of(env), rows.state
        money = [(getattr(state, name).double() * tape.tick_size).tolist() for name in ("cash", "portfolio_value")]
        days = tape.dates[state.day.cpu().numpy()].astype(str).tolist()
        return [f"{day}: cash {cash!r}, portfolio {value!r}" for day, cash, value in zip(days, *money, strict=True)]

    def decided(self, env: VecEnv, rows: Rows, ids: Tensor, action: Tensor) -> Decided:
        made = decisions(env, rows.state, action, ids)
        # The shortest decimals that are read as the same float32.
        numbers = [[float(str(number)) for number in row] for row in action.cpu().numpy()]
        return Decided(numbers, order_table(env, rows.state, action, made))

    def step_columns(self, recorded: RecordedRows, decided: Decided) -> Values:
        tape, state, info = tape_of(recorded.env), recorded.state, recorded.info
        told = decided.orders[["symbol", "wanted", "ordered", "filled", "reason"]]
        by_row = {row: table.to_dict("records") for row, table in told.groupby(level=0)}
        return {
            "answer": [json.dumps(action) for action in decided.actions],
            "valid": [all(map(_finite, action)) for action in decided.actions],
            "date": step_dates(recorded),
            "orders": [by_row.get(row, []) for row in range(len(recorded.ids))],
            "holdings": [
                {name: shares for name, shares in zip(tape.symbols, held, strict=True) if shares}
                for held in state.holdings.double().tolist()
            ],
            **{name: info[name] for name in ("cash", "portfolio_value", "traded", "costs")},
        }

    def episode_columns(self, recorded: RecordedRows, start: Any, steps: Sequence[Sequence[RecordedTrades]]) -> Values:  # noqa: ANN401
        names = ("start_value", "total_return")
        return {**super().episode_columns(recorded, start, steps), **{name: recorded.info[name] for name in names}}

    def replay(
        self, records: Sequence[RecordedAccount], scenario: Scenario, device: torch.device | str = "cpu"
    ) -> list[RecordedAccount]:
        """Replay the recorded actions from the recorded starts; ValueError of an action that is no list of numbers."""
        env = recorded_start(records, scenario, device)
        assert isinstance(scenario, StockTrading)
        recorder = self.recorder(env, range(len(records)))
        sizes = [spec.shape[-1] for spec in scenario.understood_actions()]
        for day in range(len(records[0].days)):
            texts = [record.days[day].action for record in records]
            actions = [_action(text, sizes, day + 1) for text in texts]
            if len({*map(len, actions)}) > 1:
                raise ValueError(f"day {day + 1}: the actions of one batch must be of one length")
            recorder.step(torch.tensor(actions, device=env.device), texts)
        return recorder.episodes()

    def step_lines(self, step: RecordedTrades, scenario: Scenario) -> list[tuple[str, str]]:
        sign = sign_of(scenario.tape.currency)  # type: ignore[attr-defined]
        lines = [(text, "green" if order["filled"] > 0 else "magenta") for text, order in _fills(step)]
        value, costs = exact_money(sign, step.portfolio_value), exact_money(sign, step.costs)
        return [*lines, (f"Portfolio {value} | costs {costs} | reward {step.reward:+.3f}", "")]

    def outcome(self, record: RecordedAccount) -> dict[str, str]:
        grades = {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        trades = sum(order["filled"] != 0 for day in record.days for order in day.orders)
        costs = exact_money(record.money_sign, sum(day.costs for day in record.days))
        return {"Return": f"{record.total_return:+.2%}", **grades, "Trades": f"{trades:,}", "Costs": costs}

    def heading(self, record: RecordedAccount) -> str:
        return f"{record.task}, {record.dates[0]} to {record.dates[1]}"

    def subtitle(self, record: RecordedAccount, length: str) -> Sequence[str]:
        names = record.market["symbols"]
        return ", ".join(names) if len(names) <= 10 else f"{len(names)} symbols", length, str(record.market["source"])

    def headline(self, step: RecordedTrades) -> str:
        return "; ".join(text for text, _ in _fills(step)) or "no trade"

    def summary(self, step: RecordedTrades, record: RecordedAccount) -> Sequence[str]:
        value, costs = (exact_money(record.money_sign, amount) for amount in (step.portfolio_value, step.costs))
        return self.headline(step), f"portfolio {value}", f"costs {costs}"


def _fills(step: RecordedTrades) -> list[tuple[str, dict[str, Any]]]:
    """Return what was filled of each order, and why less, in words."""
    told = []
    for order in step.orders:
        short = f" of {order['wanted']:+,.6g} ({order['reason'].replace('_', ' ')})" if order["reason"] else ""
        told.append((f"{order['filled']:+,.6g} {order['symbol']}{short}", order))
    return told


def _finite(number: float) -> bool:
    return abs(number) < float("inf")


def _action(text: str, sizes: Sequence[int], day: int) -> list[float]:
    try:
        numbers = json.loads(text)
    except ValueError:
        numbers = None
    known = isinstance(numbers, list) and len(numbers) in sizes
    if not known or not all(type(one) in (int, float) for one in numbers):
        raise ValueError(f"day {day}: the action must be a list of {' or '.join(map(str, sizes))} numbers")
    return [float(one) for one in numbers]


RECORDING = StockRecording()
