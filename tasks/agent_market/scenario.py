"""What all tasks of the agent-based market share: the market is advanced, the seat accounted for and shown.

A task adds how actions become orders, the reward, the grade and when an episode ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchrl.data import TensorSpec, Unbounded

from vecenv.core.capabilities import AlternativeActions, ColumnScaled, MultiAgent, WarmUp
from vecenv.core.random import EpisodeKey
from vecenv.core.scenario import Scenario
from vecenv.kernels.order_book.messages import BUY, SELL, Kind, Message
from vecenv.tasks.agent_market.config import SeatConfig
from vecenv.tasks.agent_market.features import average_weights, feature_names, feature_scales, power_of_two
from vecenv.tasks.agent_market.market import COUNTS, OWN_ORDERS, Market, Report, field_of, layout_of, opened, split
from vecenv.tasks.agent_market.native import advanced_market, seen_features
from vecenv.tasks.agent_market.orders import Order, order_messages
from vecenv.tasks.agent_market.rules import background_parameters, rules_of, tables_of
from vecenv.tasks.agent_market.seat import SeatState, account_after, doubled_equity, own_orders

Tensors = Mapping[str, Tensor]


class MarketScenario(WarmUp, MultiAgent, AlternativeActions, ColumnScaled, Scenario[SeatState]):
    """Seats in a market of background agents.

    All functions but `reset`, `warmed` and `step` are of one seat. With several of them, the fields of the state have a
    leading dimension of S in these three, see `MultiAgent.num_agents`.
    """

    warm_up = 1
    donated = frozenset({"market"})

    def __init__(self, config: SeatConfig) -> None:
        self.config = config
        self.num_agents = config.seats
        self.layout = layout_of(config, config.seats)
        self.params = background_parameters(config)
        self.shared = {**tables_of(config), "average_weights": average_weights()}
        self.longest = config.num_steps
        market = feature_names(config.fair_value)
        self.feature_names = (*market, *ACCOUNT_FEATURES, *self.own_features())
        if config.observation == "scaled":
            distance = power_of_two(1e4 / config.mean_price)
            account = {
                "equity_change": 2.0**11,
                "drawdown": 2.0**11,
                "bid_distance": distance,
                "ask_distance": distance,
            }
            scales = [account.get(name, 1.0) for name in self.feature_names[len(market) :]]
            levels = [distance] * 20 + [1.0] * 20 if config.depth else []
            scales = [*feature_scales(market, config.mean_price), *scales, *levels]
            self.shared["column_scale"] = torch.tensor(scales)

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"config": asdict(self.config)}

    @abstractmethod
    def chosen_orders(self, state: SeatState, action: Tensor) -> Tensor:
        """Return the orders that an action of `action_spec` stands for. Shape: (J, 3), int64; see `orders.Order`."""

    @abstractmethod
    def room(self, state: SeatState) -> tuple[Tensor, Tensor]:
        """Return how many shares may be bought and sold, with those in open orders. Shapes: () or the rows'."""

    def understood_actions(self) -> Sequence[TensorSpec]:
        """Return the specs of the task's actions and of lists of orders, shape (max_orders, 3), see `orders.Order`."""
        return [self.action_spec, Unbounded((self.config.max_orders, 3), dtype=torch.int64)]

    def orders(self, state: SeatState, action: Tensor) -> Tensor:
        """Return the orders of an action, or of a list of them what is carried out. Shape: (J, 3), int64."""
        return action if action.ndim == 2 else self.chosen_orders(state, action)

    def own_features(self) -> tuple[str, ...]:
        """Return the names of what the task itself shows."""
        return ()

    def shown(self, state: SeatState, params: Tensors) -> tuple[Tensor, ...]:
        """Return what the task itself shows. Shape of each: (), of any type."""
        return ()

    def parent_order(self, key: EpisodeKey, seat: int) -> Tensor:
        """Return sign and shares of the order that a seat is to execute, zeros without one. Shape: (2,), int64."""
        return torch.stack([key.episode * 0, key.episode * 0])

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> SeatState:
        market = opened(key, rules_of(params, shared), self.layout)
        zero = market.tick
        none, real = zero.to(torch.int32), zero.double()
        cash = zero + round(self.config.initial_cash / self.config.price_tick)
        fields = {
            "features": none.float().expand(len(feature_names(self.config.fair_value))).clone(),
            "ladder": none.expand(2, 2, 10).clone(),
            "estimate": market.fundamental,
            "cash": cash,
            "peak": 2 * cash,
            "own": torch.stack([none, none, none, none, none - 1]).unsqueeze(-1).expand(5, 2).clone(),
            "cost": real,
            "changes": real.expand(2).clone(),
            "counts": market.counts,
            **dict.fromkeys(("doubled_mid", "first_mid"), market.doubled_mid),
            **dict.fromkeys(("shares", "tick", "last_volume", "invalid"), zero),
            **{name: none.expand(2).clone() for name in ("touch", "last_traded")},
            **{name: zero.expand(2).clone() for name in ("traded", "flow")},
        }
        parents = [self.parent_order(key, seat) for seat in range(self.num_agents)]
        if self.num_agents == 1:
            return SeatState(market=market, parent=parents[0], **fields, batch_size=[])
        shared_fields = {name: self._for_each(value) for name, value in fields.items()}
        return SeatState(
            market=split(market, self.num_agents),
            parent=torch.stack(parents),
            **shared_fields,
            batch_size=[self.num_agents],
        )

    def _for_each(self, value: Tensor) -> Tensor:
        """Return a value of the market for each of its seats; with one seat the value itself."""
        return value if self.num_agents == 1 else value.expand(self.num_agents, *value.shape)

    def _by_seat(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function of one seat for all of them, whose arguments have a leading dimension of S with several."""
        return (function if self.num_agents == 1 else torch.vmap(function))(*arguments)

    def warmed(self, state: SeatState, params: Tensors, shared: Tensors) -> SeatState:
        market, report = advanced_market(
            state.market, nothings(params["mean_price"], 1), rules_of(params, shared), self.layout, self.config.warm_up
        )
        seen = self._seen(market, report, shared)
        return state.replace(**seen, first_mid=seen["doubled_mid"])

    def step(self, state: SeatState, action: Tensor, params: Tensors, shared: Tensors) -> SeatState:
        several = self.num_agents > 1
        seat = torch.arange(self.num_agents, device=action.device)
        listed, sent = self._by_seat(self._orders_of, state, action, seat if several else 0)
        if several:
            # Seats take turns to be the first.
            turns = state.tick[0] // self.config.ticks_per_step
            order = (seat + turns) % self.num_agents
            sent = Message(*(words[order].flatten() for words in sent))
        ticks = self.config.ticks_per_step
        market, report = advanced_market(state.market, sent, rules_of(params, shared), self.layout, ticks)
        own = [report.seat_cash, report.seat_shares, report.seat_traded]
        seen = self._seen(market, report, shared)
        accounts = self._by_seat(
            partial(account_after, config=self.config),
            state,
            (listed[..., 0] == Order.INVALID).any(-1),
            *(part if several else part[0] for part in own),
            seen["doubled_mid"],
        )
        volume = (report.bought + report.sold).to(torch.int64)
        return state.replace(
            **seen,
            **accounts,
            tick=state.tick + ticks,
            flow=state.flow + torch.stack([volume, report.notional]),
            last_volume=self._for_each(volume),
        )

    def _orders_of(self, state: SeatState, action: Tensor, seat: Tensor | int) -> tuple[Tensor, Message]:
        listed = self.orders(state, action)
        sent = order_messages(state, listed, self.room(state), seat)
        return listed, Message(*(torch.stack(words) for words in zip(*sent, strict=True)))

    def _seen(self, market: Market, report: Report, shared: Tensors) -> dict[str, Any]:
        seen = {
            "features": seen_features(
                field_of(market, "candles", self.layout), report, shared["average_weights"], self.config.fair_value
            ),
            "touch": torch.stack([report.bid, report.ask]),
            "ladder": torch.stack([report.prices, report.quantities]),
            "doubled_mid": report.doubled_mid.to(torch.int64),
            "estimate": report.estimate,
            # A copy: only this one is kept of every step.
            "counts": field_of(market, "counts", self.layout) + 0,
        }
        orders = torch.stack([getattr(report, name) for name in OWN_ORDERS], 1)
        of_seats = {"own": orders if self.num_agents > 1 else orders[0], "market": market}
        return {name: self._for_each(value) for name, value in seen.items()} | of_seats

    def observation(self, state: SeatState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        """Return the market's features, those of the account and the task, and, if asked for, the depth."""
        blocks = [state.features, self._account(state, params)]
        if self.config.depth:
            mid = state.doubled_mid.float() / 2
            prices, quantities = state.ladder.unbind()
            away = torch.where(prices > 0, prices.float() - mid, 0.0)
            blocks.append(torch.cat([away.flatten(), torch.log1p(quantities.float()).flatten()]))
        return self.scaled(blocks, shared)

    def _account(self, state: SeatState, params: Tensors) -> Tensor:
        """Return `ACCOUNT_FEATURES` and the task's own. Shape: (size,), float32."""
        equity = doubled_equity(state).double()
        initial = 2 * self.config.initial_cash / self.config.price_tick
        mid = state.doubled_mid.double() / 2
        own = [own_orders(state, side) for side in (BUY, SELL)]
        shown = [
            state.shares.double() / self.unit,
            2 * state.cash.double() / initial,
            equity / initial - 1,
            (equity - state.peak.double()) / initial,
            1 - state.tick.double() / self.config.max_ticks,
        ]
        for order in own:
            shown += [
                order.quantity.double() / self.unit,
                torch.where(order.quantity > 0, order.price.double() - mid, 0.0),
                order.ahead.double() / self.unit,
            ]
        shown += [part.double() for part in self.shown(state, params)]
        return torch.stack(shown).float()

    @property
    def unit(self) -> float:
        """Shares that count as one in observations."""
        return 100.0

    def truncated(self, state: SeatState, params: Tensors, shared: Tensors) -> Tensor:
        return state.tick >= self.config.max_ticks

    def terminated(self, state: SeatState, params: Tensors, shared: Tensors) -> Tensor:
        """Whether the seat is bankrupt: its equity is not above 0."""
        return doubled_equity(state) <= 0

    def info(self, state: SeatState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        """Return equity, profits, cash and mid in currency, return, shares, invalid actions, and counts."""
        currency = self.config.price_tick
        equity = doubled_equity(state).double() * (currency / 2)
        counts = dict(zip(COUNTS, state.counts.unbind(), strict=True))
        return {
            "equity": equity,
            "profit": equity - self.config.initial_cash,
            "total_return": equity / self.config.initial_cash - 1,
            "realised_profit": (state.cash.double() + state.cost) * currency - self.config.initial_cash,
            "peak_equity": state.peak.double() * (currency / 2),
            "cash": state.cash.double() * currency,
            "mid": state.doubled_mid.double() * (currency / 2),
            "shares": state.shares,
            "traded": state.traded.sum(),
            "invalid_actions": state.invalid,
            "tick": state.tick,
        } | counts


ACCOUNT_FEATURES = (
    "position",
    "cash_share",
    "equity_change",
    "drawdown",
    "time_left",
    *(f"{side}_{what}" for side in ("bid", "ask") for what in ("size", "distance", "queue")),
)
"""What is shown of the account: shares and own orders in units, distances from the mid in price ticks."""


def nothings(like: Tensor, count: int) -> Message:
    """Return messages that ask for nothing. Shape of each: (count,), int32."""
    zero = (like * 0).to(torch.int32).expand(count)
    return Message(zero + Kind.NOTHING, zero, zero, zero, zero, zero - 1)
