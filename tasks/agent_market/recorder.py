"""Recording of episodes in the agent-based market during play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows
from vecenv.tasks.agent_market.orders import Order
from vecenv.tasks.agent_market.records import MarketEpisode, MarketStep
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.agent_market.seat_state import SeatState
from vecenv.tasks.agent_market.text.market_text import MarketText
from vecenv.text.recorder import Recorder, chat


class MarketRecorder(Recorder[MarketStep, MarketEpisode]):
    """Steps an environment of the agent-based market and records the current episode of some of its rows."""

    def check(self, env: VecEnv) -> None:
        """Raise a ValueError if the environment's task is none of the agent-based market."""
        if not isinstance(env.scenario, MarketScenario):
            raise ValueError(f"only episodes of the agent-based market are recorded, not of {env.scenario.name!r}")

    @property
    def scenario(self) -> MarketScenario:
        """The task."""
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
        """Return the records of the step that rows have just completed."""
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

    def episodes(self) -> list[MarketEpisode]:
        """Return the records so far, one per recorded row; grades cover the steps played."""
        if len(self._ids) == 0:
            return []
        env, metadata = self.env, self.scenario.metadata()
        rows, _ = env.rows_of(self._ids)
        bound = env.engine.bound().of_rows(self._ids)
        grades = {name: grade.tolist() for name, grade in bound.grades(rows).items()}
        returns = bound.info(rows)["total_return"].tolist()
        start, tick = self._start, self.scenario.config.price_tick
        columns = (env.start_ids[self._ids], start.episode, start.state.doubled_mid, start.state.parent, rows.done)
        return [
            MarketEpisode(
                versions={"vecenv": vecenv.__version__, "task": metadata["task_version"]},
                task=metadata["task"],
                config=metadata["config"],
                params={name: tensor[row].tolist() for name, tensor in self._params.items()},
                market={},
                seed=int(env.seed_tensor),
                env_id=env_id,
                episode=episode,
                finished=done,
                total_return=returns[row],
                grades={name: grade[row] for name, grade in grades.items()},
                start=doubled_mid * tick / 2,
                parent=parent,
                turns=self.steps[row],
            )
            for row, (env_id, episode, doubled_mid, parent, done) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ]


_KNOWN = frozenset(map(int, Order)) - {Order.NONE, Order.INVALID}
_PRICED = frozenset({Order.BUY_LIMIT, Order.SELL_LIMIT, Order.BID, Order.ASK})


def _told(kind: int, price: int, shares: int) -> dict[str, Any]:
    """Return an order by names, its price only where it is read."""
    priced = kind in _PRICED and shares > 0
    return {"kind": Order(kind).name, "price": price if priced else None, "shares": shares}
