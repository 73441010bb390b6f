"""Records of the trading tiers: observations, texts, orders, fills and rewards, as JSONL and as a Parquet table.

A line of JSONL is one `RecordedEpisode`. It identifies its episode (seed, row and number) and its market, so that
``vecenv replay`` can reproduce it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.finance.recorded_markets import TapeRecording, calendar_date, step_dates, value_figure
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.figures import candle_charts, reward_section
from vecenv.tasks.tiers.language import Order, format_orders
from vecenv.tasks.tiers.law import FRACTION_STEPS, Kind, OrderList, Tensors, TierState, decode_orders
from vecenv.tasks.tiers.reward import COMPONENTS
from vecenv.tasks.tiers.reward_presets import MISTAKES
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.text.money import exact_money, sign_of
from vecenv.text.recorder import RecordedRows
from vecenv.text.recording import Columns, Figures, Values, recorded_config
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


class TierRecording(TapeRecording[RecordedDay, RecordedEpisode]):
    """Records of the trading tiers and the curriculum."""

    episode = RecordedEpisode
    scenario = TierTrading
    family = "the trading tiers"
    unchecked: ClassVar[tuple[str, ...]] = (*TapeRecording.unchecked, "curriculum.action")
    columns: ClassVar[Columns] = {
        "path": lambda record, day: record.path,
        "market": lambda record, day: record.market["fingerprint"],
        "day": None,
        "date": calendar_date,
        "valid": None,
        "num_orders": lambda record, day: len(day.orders),
        **dict.fromkeys(("cash", "portfolio_value", "traded", "costs", "reward")),
        "component": lambda record, day: day.components,
        "weighted": None,
        "mistake": lambda record, day: day.mistakes,
        "shares": lambda record, day: {symbol: day.holdings.get(symbol, 0) for symbol in record.symbols},
    }
    figures: ClassVar[Figures] = {
        "Equity": value_figure,
        "_charts": candle_charts,
        "Reward by component": reward_section,
    }
    metadata = (
        *("versions", "task", "config", "curriculum", "params", "market", "seed", "env_id", "episode", "path"),
        "mistakes",
    )

    def decided(self, env: VecEnv, rows: Rows, ids: Tensor, action: Tensor) -> OrderList:
        """Return the orders of rows' actions, of any space. Shape of each: (B, M)."""
        scenario = env.scenario
        assert isinstance(scenario, TierTrading)

        def one(state: TierState, action: Tensor, params: Tensors, shared: Tensors) -> OrderList:
            orders = scenario.orders(state, action, params, shared)
            return decode_orders(orders, scenario.tape.num_symbols, scenario.owned(state, params))

        orders: OrderList = env.engine.bound().of_rows(ids).mapped(one, rows.state, action)
        return orders

    def step_columns(self, recorded: RecordedRows, decided: OrderList) -> Values:
        scenario, ids, state, info, orders = recorded.env.scenario, recorded.ids, recorded.state, recorded.info, decided
        assert isinstance(scenario, TierTrading)
        weights = scenario.params["weights"]
        weights = weights[ids] if "weights" in scenario.varied else weights.expand(len(ids), -1)
        names, valid = scenario.text.symbols(state), orders.valid.tolist()
        parts = (orders.buys, orders.sells, orders.symbols, orders.steps, state.fills)
        served = [
            [
                (Order(Kind.BUY if buy else Kind.SELL, symbol, steps / FRACTION_STEPS), int(shares))
                for buy, sell, symbol, steps, shares in zip(*row, strict=True)
                if buy or sell
            ]
            for row in zip(*(part.tolist() for part in parts), strict=True)
        ]
        rows = range(len(ids))
        components = [{name: info[f"reward/{name}"][row] for name in COMPONENTS} for row in rows]
        return {
            "answer": [
                format_orders([order for order, _ in served[row]], names[row]) if valid[row] else Kind.INVALID.name
                for row in rows
            ],
            "valid": valid,
            "date": step_dates(recorded),
            "orders": [
                [
                    {
                        "side": order.kind.name,
                        "symbol": names[row][order.symbol],
                        "fraction": order.fraction,
                        "shares": shares,
                    }
                    for order, shares in served[row]
                ]
                for row in rows
            ],
            "holdings": [
                {name: int(shares) for name, shares in zip(names[row], held, strict=True) if shares}
                for row, held in enumerate(state.holdings.tolist())
            ],
            **{name: info[name] for name in ("cash", "portfolio_value", "traded", "costs")},
            "components": components,
            "weighted": [
                {name: value * part + 0.0 for (name, value), part in zip(told.items(), weight, strict=True)}
                for told, weight in zip(components, weights.tolist(), strict=True)
            ],
            "mistakes": [{name: int(told[name]) for name in MISTAKES} for told in components],
        }

    def episode_columns(self, recorded: RecordedRows, start: Any, steps: Sequence[Sequence[RecordedDay]]) -> Values:  # noqa: ANN401
        scenario = recorded.env.scenario
        assert isinstance(scenario, TierTrading)
        first, last = start.start_value.tolist(), recorded.state.portfolio_value.tolist()
        return {
            **super().episode_columns(recorded, start, steps),
            "curriculum": [scenario.metadata().get("curriculum", {})] * len(steps),
            "symbols": [list(names) for names in scenario.text.symbols(start)],
            "start_value": [value * scenario.tape.tick_size for value in first],
            "total_return": [after / before - 1.0 for before, after in zip(first, last, strict=True)],
            "mistakes": [{name: sum(day.mistakes[name] for day in days) for name in MISTAKES} for days in steps],
        }

    def config(self, record: RecordedEpisode, default: Any, spoken: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        # Texts are parsed into orders in any recorded action space.
        config = spoken(recorded_config(default, record.curriculum or record.config))
        if record.curriculum:
            # The rules of the batch, of which those that are compared follow from the curriculum.
            recorded_config(TierConfig(), record.config)
        return config

    def symbols(self, record: RecordedEpisode) -> Sequence[str]:
        return record.symbols

    def step_lines(self, step: RecordedDay, scenario: Scenario) -> list[tuple[str, str]]:
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
        grades = {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        counts = {"Trades": str(_trades(record)), "Mistakes": str(sum(record.mistakes.values()))}
        return {"Return": f"{record.total_return:+.2%}", **grades, **counts}

    def heading(self, record: RecordedEpisode) -> str:
        return f"{record.task}, {record.dates[0]} to {record.dates[1]}"

    def subtitle(self, record: RecordedEpisode, length: str) -> Sequence[str]:
        names = ", ".join(record.symbols) if len(record.symbols) <= 10 else f"{len(record.symbols)} symbols"
        return names, length, str(record.market["source"])

    def cards(self, record: RecordedEpisode, reference: RecordedEpisode, other: str) -> list[tuple[str, str]]:
        marks = [(f"{name} grade", grade, reference.grades[name]) for name, grade in record.grades.items()]
        marks += [(name, part, reference.grade_parts[name]) for name, part in record.grade_parts.items()]
        costs = exact_money(record.money_sign, sum(day.costs for day in record.days))
        return [
            (f"{record.total_return:+.2%}", f"return, {other} {reference.total_return:+.2%}"),
            *((f"{own:.3f}", f"{name}, {other} {others:.3f}") for name, own, others in marks),
            (f"{sum(day.reward for day in record.days):+.3f}", "reward"),
            (str(_trades(record)), f"trades, costs {costs}"),
            (str(sum(record.mistakes.values())), "mistakes"),
        ]

    def mistakes(self, step: RecordedDay) -> Sequence[str]:
        return [f"{name.replace('_', ' ')} ×{count}" for name, count in step.mistakes.items() if count]

    def summary(self, step: RecordedDay, record: RecordedEpisode) -> Sequence[str]:
        fills = [f"{order['shares']:+,} {order['symbol']}" for order in step.orders if order["shares"]]
        value, costs = (exact_money(record.money_sign, money) for money in (step.portfolio_value, step.costs))
        return "; ".join(fills) or "no trade", f"portfolio {value}", f"costs {costs}"


def _trades(record: RecordedEpisode) -> int:
    return sum(order["shares"] != 0 for day in record.days for order in day.orders)


RECORDING = TierRecording()
"""Of all tiers."""
