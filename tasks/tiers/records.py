"""Records of the trading tiers: observations, texts, orders, fills and rewards, as JSONL and as a Parquet table.

A line of JSONL is one `RecordedEpisode`. It identifies its episode (seed, row and number) and its market, so that
``vecenv replay`` can reproduce it.
"""

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
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.order_list import FRACTION_STEPS, Kind, OrderList, decode_orders
from vecenv.tasks.tiers.report import report_page
from vecenv.tasks.tiers.reward_components import COMPONENTS, MISTAKES
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.text.parse import Order, format_orders
from vecenv.text.money import exact_money, sign_of
from vecenv.text.recorder import chat
from vecenv.text.recording import Recording, recorded_config
from vecenv.text.records import EpisodeRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class RecordedDay(StepRecord):
    """One day of an episode. Money is in the currency of the prices.

    Attributes:
        date: day at whose close the orders were filled.
        orders: ``side``, ``symbol`` and ``fraction`` of each order, and ``shares``: bought, negative where sold.
        holdings: shares by symbol after the orders.
        portfolio_value: at the next close.
        traded: value bought and sold.
        components: unweighted reward components, by name.
    """

    date: str
    orders: list[dict[str, Any]]
    holdings: dict[str, int]
    cash: float
    portfolio_value: float
    traded: float
    costs: float
    components: dict[str, float]
    weighted: dict[str, float]
    mistakes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode(EpisodeRecord):
    """One episode of a trading tier.

    Its market is the metadata of the market, and under ``origin`` the market and the `MarketOptions` by name that
    reproduce it.

    Attributes:
        curriculum: settings of the episode's curriculum, else empty.
        dates: first day of the episode, and the day of its last portfolio value.
    """

    steps_field = "days"
    step_type = RecordedDay

    curriculum: dict[str, Any]
    path: int
    symbols: list[str]
    dates: list[str]
    start_value: float
    days: list[RecordedDay]
    mistakes: dict[str, int]

    @property
    def shared(self) -> list[Any]:
        return [*super().shared, self.curriculum]

    @property
    def money_sign(self) -> str:
        chosen = self.config.get("currency")
        return sign_of(self.market.get("currency")) if chosen is None else chosen


def day_rows(record: RecordedEpisode) -> list[dict[str, Any]]:
    """Return the numbers of each day, by column.

    Components of the reward are ``component/NAME`` and ``weighted/NAME``, mistakes ``mistake/NAME``, positions
    ``shares/SYMBOL``.
    """
    amounts = ("cash", "portfolio_value", "traded", "costs", "reward")
    whole = {"path": record.path, "market": record.market["fingerprint"]}
    return [
        whole
        | {"day": number, "date": np.datetime64(day.date, "ns"), "valid": day.valid, "num_orders": len(day.orders)}
        | {name: getattr(day, name) for name in amounts}
        | {f"component/{name}": value for name, value in day.components.items()}
        | {f"weighted/{name}": value for name, value in day.weighted.items()}
        | {f"mistake/{name}": count for name, count in day.mistakes.items()}
        | {f"shares/{symbol}": day.holdings.get(symbol, 0) for symbol in record.symbols}
        for number, day in enumerate(record.days, 1)
    ]


class EpisodeRecorder(TapeRecorder[RecordedDay, RecordedEpisode]):
    """Steps an environment of the trading tiers and records the current episode of some of its rows; see `Recorder`."""

    episode = RecordedEpisode

    def check(self, env: VecEnv) -> None:
        if not isinstance(env.scenario, TierTrading):
            raise ValueError(f"only episodes of the trading tiers are recorded, not of {env.scenario.name!r}")

    @property
    def scenario(self) -> TierTrading:
        assert isinstance(self.env.scenario, TierTrading)
        return self.env.scenario

    def decided(self, rows: Rows, ids: Tensor, action: Tensor) -> OrderList:
        """Return the orders of rows' actions, of any space. Shape of each: (B, M)."""
        scenario, shared = self.scenario, self.scenario.shared
        params = {name: value[ids] if name in scenario.varied else value for name, value in scenario.params.items()}
        mapped = {name: 0 if name in scenario.varied else None for name in params}

        def one(state: Any, action: Tensor, params: Mapping[str, Tensor]) -> OrderList:  # noqa: ANN401
            orders = scenario.orders(state, action, params, shared)
            return decode_orders(orders, scenario.tape.num_symbols, scenario.owned(state, params))

        return torch.vmap(one, in_dims=(0, 0, mapped))(rows.state, action, params)

    def recorded(
        self, ids: Tensor, seen: Sequence[str], said: Sequence[str] | None, decided: OrderList, reward: Tensor
    ) -> list[RecordedDay]:
        orders = decided
        rows, _ = self.env.rows_of(ids)
        info = {name: value.tolist() for name, value in self.env.engine.bound().of_rows(ids).info(rows).items()}
        weights = self.scenario.params["weights"]
        weights = weights[ids] if "weights" in self.scenario.varied else weights.expand(len(ids), -1)
        names, rewards = self.scenario.text.symbols(rows.state), reward.tolist()
        columns = [
            part.tolist() for part in (orders.buys, orders.sells, orders.symbols, orders.steps, rows.state.fills)
        ]
        served, weight, held = list(zip(*columns, strict=True)), weights.tolist(), rows.state.holdings.tolist()
        dates, valid = self.scenario.tape.dates[(rows.state.day - 1).cpu().numpy()], orders.valid.tolist()
        days = []
        for row in range(len(ids)):
            placed = [
                (Order(Kind.BUY if buy else Kind.SELL, symbol, steps / FRACTION_STEPS), int(shares))
                for buy, sell, symbol, steps, shares in zip(*served[row], strict=True)
                if buy or sell
            ]
            written = format_orders([order for order, _ in placed], names[row]) if valid[row] else Kind.INVALID.name
            written = written if said is None else said[row]
            components = {name: info[f"reward/{name}"][row] for name in COMPONENTS}
            days.append(
                RecordedDay(
                    date=str(dates[row]),
                    messages=chat(seen[row], written),
                    valid=valid[row],
                    orders=[
                        {
                            "side": order.kind.name,
                            "symbol": names[row][order.symbol],
                            "fraction": order.fraction,
                            "shares": shares,
                        }
                        for order, shares in placed
                    ],
                    holdings={name: int(shares) for name, shares in zip(names[row], held[row], strict=True) if shares},
                    **{name: info[name][row] for name in ("cash", "portfolio_value", "traded", "costs")},
                    reward=rewards[row],
                    components=components,
                    weighted={
                        name: components[name] * part + 0.0 for name, part in zip(COMPONENTS, weight[row], strict=True)
                    },
                    mistakes={name: int(components[name]) for name in MISTAKES},
                )
            )
        return days

    def whole(self, start: Any, state: Any, info: Mapping[str, list[Any]]) -> list[dict[str, Any]]:  # noqa: ANN401
        scenario, tape = self.scenario, self.scenario.tape
        curriculum = scenario.metadata().get("curriculum", {})
        names, totals = scenario.text.symbols(start), start.start_value
        columns = (start.path, start.day, state.day, totals, state.portfolio_value)
        return [
            {
                "curriculum": curriculum,
                "path": path,
                "symbols": list(names[row]),
                "dates": [str(tape.dates[first]), str(tape.dates[last])],
                "start_value": start_value * tape.tick_size,
                "total_return": value / start_value - 1.0,
                "mistakes": {name: sum(day.mistakes[name] for day in self.steps[row]) for name in MISTAKES},
            }
            for row, (path, first, last, start_value, value) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ]


class TierRecording(Recording[RecordedDay, RecordedEpisode]):
    """Records of the trading tiers and the curriculum."""

    recorder = EpisodeRecorder
    step_name = "day"
    # The market's origin, the package's version, and the action space: texts are parsed into orders in any.
    unchecked = ("market.origin", "market.source", "versions.vecenv", "config.action", "curriculum.action")

    def scenario(
        self, record: RecordedEpisode, market: str | None = None, device: torch.device | str = "cpu"
    ) -> TierTrading:
        task = task_named(record.task)
        # Texts are parsed into orders in any recorded action space.
        config = task.spoken(recorded_config(task.config(), record.curriculum or record.config))
        if record.curriculum:
            # The rules of the batch, of which those that are compared follow from the curriculum.
            recorded_config(TierConfig(), record.config)
        required = MarketOptions(features=config.features, context=config.context)
        scenario = task.build(recorded_market(record.market, required, market, device), config)
        assert isinstance(scenario, TierTrading)
        check_same_market(scenario.tape, record.market, market)
        return scenario

    def title(self, record: RecordedEpisode) -> str:
        traded = ", ".join(record.symbols) if len(record.symbols) <= 3 else f"{len(record.symbols)} symbols"
        return f"{record.task}, {traded}, {record.dates[0]} to {record.dates[1]}, {len(record.days)} days"

    def result(self, record: RecordedEpisode) -> dict[str, Any]:
        return {"dates": record.dates, "days": len(record.days)}

    def origin(self, record: RecordedEpisode) -> dict[str, Any]:
        return {"market": record.market["fingerprint"], "dates": record.dates}

    def told(self, step: RecordedDay, scenario: Scenario) -> list[tuple[str, str]]:
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
        trades = sum(order["shares"] != 0 for day in record.days for order in day.orders)
        grades = {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        counts = {"Trades": str(trades), "Mistakes": str(sum(record.mistakes.values()))}
        return {"Return": f"{record.total_return:+.2%}", **grades, **counts}

    def table_rows(self, record: RecordedEpisode) -> list[dict[str, Any]]:
        return day_rows(record)

    def report_page(self, record: RecordedEpisode, reference: RecordedEpisode, name: str, scenario: Scenario) -> str:
        assert isinstance(scenario, TierTrading)
        return report_page(record, reference, name, scenario.tape)
