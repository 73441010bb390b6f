"""Recording of episodes of the trading tiers during play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.learn.agents import Agent
from vecenv.tasks.tiers.order_list import FRACTION_STEPS, Kind, OrderList, decode_orders
from vecenv.tasks.tiers.records import RecordedDay, RecordedEpisode
from vecenv.tasks.tiers.reward_components import COMPONENTS, MISTAKES
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.text.parse import Order, format_orders
from vecenv.text.door import TextDoor


class EpisodeRecorder:
    """Steps an environment of the trading tiers and records the current episode of some of its rows.

    Only the recorded rows are copied from the device. Steps are eager; steps of the environment outside `step` are not
    recorded.

    Args:
        env: with the rows to record at the start of their episodes.
        ids: numbers of the rows to record. Shape: (B,).
        market: market and `MarketOptions` by name that reproduce it, such as from `market_origin`. By default the
            tape's source, which suffices for a file; a generator needs its name, size and seed.

    Attributes:
        days: days of each recorded row so far.

    Raises:
        IndexError: an id is not a row's number.
        ValueError: it is another task, or a row is past its start.
    """

    def __init__(self, env: VecEnv, ids: Tensor | Sequence[int], market: Mapping[str, Any] | None = None) -> None:
        if not isinstance(env.scenario, TierTrading):
            raise ValueError(f"only episodes of the trading tiers are recorded, not of {env.scenario.name!r}")
        self.env, self.scenario = env, env.scenario
        self._start, self._ids = env.rows_of(ids)
        if bool((self._start.elapsed > 0).any()):
            raise ValueError("a record starts with the episode, but a row has moved already")
        self._origin = dict(market or {"market": self.scenario.tape.source})
        self._params = {name: self.scenario.params[name][self._ids] for name in sorted(self.scenario.varied)}
        self.days: list[list[RecordedDay]] = [[] for _ in range(len(self._ids))]

    @torch.no_grad()
    def step(self, action: Tensor, texts: Sequence[object] | None = None) -> Tensor:
        """Advance every row that has not ended by one day.

        Args:
            action: of all rows. Shape: (N, *action).
            texts: of the agents of the recorded rows, ended ones included; without them the orders are formatted as
                text. Shape: (B,).

        Returns:
            Reward of each row, 0 where it had ended. Shape: (N,).

        Raises:
            ValueError: actions or texts do not match the rows.
        """
        env = self.env
        if len(action) != env.num_envs:
            raise ValueError(f"{len(action)} actions for {env.num_envs} rows")
        action = env.checked_action(action)
        if texts is not None and len(texts) != len(self._ids):
            raise ValueError(f"{len(texts)} texts for {len(self._ids)} recorded rows")
        before, _ = env.rows_of(self._ids)
        places = (~before.done).nonzero().squeeze(-1)
        if len(places) == 0:
            return env.advance(action, eager=True)
        ids = self._ids[places]
        seen, orders = TextDoor(env).render(ids), self._decoded(before[places], ids, action[ids])
        reward = env.advance(action, eager=True)
        said = None if texts is None else [texts[place] for place in places.tolist()]
        for place, day in zip(places.tolist(), self._recorded(ids, seen, said, orders, reward[ids]), strict=True):
            self.days[place].append(day)
        return reward

    def _decoded(self, rows: Rows, ids: Tensor, action: Tensor) -> OrderList:
        """Return the orders of rows' actions, of any space. Shape of each: (B, M)."""
        scenario, shared = self.scenario, self.scenario.shared
        params = {name: value[ids] if name in scenario.varied else value for name, value in scenario.params.items()}
        mapped = {name: 0 if name in scenario.varied else None for name in params}

        def one(state: Any, action: Tensor, params: Mapping[str, Tensor]) -> OrderList:  # noqa: ANN401
            orders = scenario.orders(state, action, params, shared)
            return decode_orders(orders, scenario.tape.num_symbols, scenario.owned(state, params))

        return torch.vmap(one, in_dims=(0, 0, mapped))(rows.state, action, params)

    def _recorded(
        self, ids: Tensor, seen: Sequence[str], said: Sequence[object] | None, orders: OrderList, reward: Tensor
    ) -> list[RecordedDay]:
        """Return the records of the day that rows have just completed."""
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
            if said is not None:
                answer = said[row]
                # A non-string is an invalid action, as is an empty text.
                written = answer if isinstance(answer, str) else ""
            components = {name: info[f"reward/{name}"][row] for name in COMPONENTS}
            days.append(
                RecordedDay(
                    date=str(dates[row]),
                    messages=[{"role": "user", "content": seen[row]}, {"role": "assistant", "content": written}],
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
        market = metadata["market"] | {
            "origin": self._origin,
            # Reproducing a market needs all symbols and days of its source.
            "loaded_symbols": list(scenario.drawn_symbols),
            "dates": [str(tape.dates[0]), str(tape.dates[-1])],
            "paths": None if tape.path_span is None else list(tape.path_span),
        }
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
        totals = [{name: sum(day.mistakes[name] for day in days) for name in MISTAKES} for days in self.days]
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
            for row, days in enumerate(self.days)
        ]


def record_episodes(
    env: VecEnv,
    agent: Agent,
    ids: Tensor | Sequence[int],
    seed: int | None = None,
    market: Mapping[str, Any] | None = None,
) -> list[RecordedEpisode]:
    """Run an agent for one episode of every row, and record some of them.

    Args:
        env: an environment of the trading tiers; its rows are left at the end of their episodes.
        agent: acts for all rows. A text agent's attribute ``said`` has its texts, one per row.
        ids: numbers of the rows to record. Shape: (B,).
        seed: resets the rows to the seed's first episodes; without one they continue from their current state.
        market: market and `MarketOptions` by name that reproduce it, see `EpisodeRecorder`.

    Raises:
        IndexError: an id is not a row's number.
        ValueError: it is another task, or the agent does not act for every row.
    """
    if seed is not None:
        env.reset_groups(env.num_envs, 1, seed)
    recorder = EpisodeRecorder(env, ids, market)
    chosen = torch.as_tensor(ids).reshape(-1).tolist()
    while not bool(env.rows.done.all()):
        action, said = agent.act(env), getattr(agent, "said", None)
        recorder.step(action, None if said is None else [said[row] for row in chosen])
    return recorder.episodes()
