"""Recording of episodes of the trading tiers during play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.tasks.tiers.order_list import FRACTION_STEPS, Kind, OrderList, decode_orders
from vecenv.tasks.tiers.records import RecordedDay, RecordedEpisode
from vecenv.tasks.tiers.reward_components import COMPONENTS, MISTAKES
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.text.parse import Order, format_orders
from vecenv.text.recorded_markets import reproducible
from vecenv.text.recorder import Recorder, chat


class EpisodeRecorder(Recorder[RecordedDay, RecordedEpisode]):
    """Steps an environment of the trading tiers and records the current episode of some of its rows.

    Args:
        env: with the rows to record at the start of their episodes.
        ids: numbers of the rows to record. Shape: (B,).
        market: market and `MarketOptions` by name that reproduce it, such as from `market_origin`. By default the
            tape's source, which suffices for a file; a generator needs its name, size and seed.

    Raises:
        IndexError: an id is not a row's number.
        ValueError: it is another task, or a row is past its start.
    """

    def __init__(self, env: VecEnv, ids: Tensor | Sequence[int], market: Mapping[str, Any] | None = None) -> None:
        super().__init__(env, ids, market)
        self._origin = dict(market or {"market": self.scenario.tape.source})

    def check(self, env: VecEnv) -> None:
        """Raise a ValueError if the environment's task is none of the tiers."""
        if not isinstance(env.scenario, TierTrading):
            raise ValueError(f"only episodes of the trading tiers are recorded, not of {env.scenario.name!r}")

    @property
    def scenario(self) -> TierTrading:
        """The tiers."""
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
        """Return the records of the day that rows have just completed."""
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

    def episodes(self) -> list[RecordedEpisode]:
        """Return the records so far, one per recorded row; grades cover the days played."""
        if len(self._ids) == 0:
            return []
        env, scenario, tape = self.env, self.scenario, self.scenario.tape
        rows, _ = env.rows_of(self._ids)
        bound = env.engine.bound().of_rows(self._ids)
        grades = {name: grade.tolist() for name, grade in bound.grades(rows).items()}
        metadata = scenario.metadata()
        market = reproducible(tape, metadata["market"], self._origin, scenario.drawn_symbols)
        versions = {
            "vecenv": vecenv.__version__,
            "task": metadata["task_version"],
            "graders": metadata["graders"],
        }
        state, start = rows.state, self._start.state
        value, start_value = state.portfolio_value.tolist(), start.start_value.tolist()
        episode_ids = env.start_ids[self._ids].tolist()
        names, numbers = scenario.text.symbols(start), self._start.episode.tolist()
        first, last = start.day.tolist(), state.day.tolist()
        totals = [{name: sum(day.mistakes[name] for day in days) for name in MISTAKES} for days in self.steps]
        return [
            RecordedEpisode(
                versions=versions,
                task=metadata["task"],
                config=metadata["config"],
                curriculum=metadata.get("curriculum", {}),
                params={name: tensor[row].tolist() for name, tensor in self._params.items()},
                market=market,
                seed=int(env.seed_tensor),
                env_id=episode_ids[row],
                episode=numbers[row],
                path=int(start.path[row]),
                symbols=list(names[row]),
                dates=[str(tape.dates[first[row]]), str(tape.dates[last[row]])],
                start_value=start_value[row] * tape.tick_size,
                days=days,
                finished=bool(rows.done[row]),
                total_return=value[row] / start_value[row] - 1.0,
                mistakes=totals[row],
                grades={name: grade[row] for name, grade in grades.items()},
            )
            for row, days in enumerate(self.steps)
        ]
