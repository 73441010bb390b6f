"""Scenario of trading on replayed order books; `rules.md` beside this file is the specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec, Unbounded

from vecenv.core.capabilities import AlternativeActions, Scheduled
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.core.scenario import Scenario
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.cost_ramp import COSTS, CostRamp
from vecenv.tasks.crypto_lob.market_orders import Walked, depth_table, walked
from vecenv.tasks.crypto_lob.observation import feature_names, observed, outcomes
from vecenv.tasks.crypto_lob.orders import KEEP, Choice, Order, choice_of_action, choice_of_orders
from vecenv.tasks.crypto_lob.parts import episode_starts, part_rows
from vecenv.tasks.crypto_lob.rates import (
    MARGIN_UNITS,
    RATE_UNITS,
    check_fits,
    part_up,
    rate_tensors,
    warn_of_rounding,
    whole_money,
)
from vecenv.tasks.crypto_lob.resting_orders import ASK, BID, filled_on_the_way, placed
from vecenv.tasks.crypto_lob.sources.lobster import messages_of
from vecenv.tasks.crypto_lob.state import Account, LobState, after_fill
from vecenv.tasks.crypto_lob.tape import BookTape, funding_times, tape_of_options

Tensors = Mapping[str, Tensor]


class CryptoLob(Scheduled, AlternativeActions, Scenario[LobState]):
    """Trading of one coin on a `BookTape`, that of the config's books by default.

    Raises ValueError if the books are invalid, no episode fits into the config's part, or the numbers are too large.
    """

    name = "crypto_lob"
    version = "1"
    off_scale = MappingProxyType(
        dict.fromkeys(("block 1", "block 2"), "random choices close a position at once: its age and profit stay small")
    )

    def __init__(self, config: CryptoLobConfig, tape: BookTape | None = None) -> None:
        tape = tape_of_options(config.options) if tape is None else tape
        self.config, self.tape = config, tape
        self.files = (str(messages_of(Path(config.book))),)
        self._starts = starts = episode_starts(tape, config)
        self.initial = whole_money(config.initial_cash, tape.money_size, tape.source)
        highest = int(tape.doubled_mid.max())
        check_fits(config, highest, tape.unit, self.initial, tape.source)
        warn_of_rounding(config, highest, tape.unit, tape.money_size, tape.source)
        self.most = config.max_position * tape.unit
        # The mid of a hole has a minus, so that one number tells both.
        mid = torch.where(tape.open, tape.doubled_mid, -tape.doubled_mid)
        self.shared = {
            "mid": mid,
            "depth": depth_table(tape, 2 * self.most),
            "factors": tape.factors,
            "starts": torch.from_numpy(starts.any if config.random_start else starts.disjoint),
        }
        if config.action == "limit" or config.depth:
            self.shared |= {"price": tape.price, "size": tape.size, "taken": tape.taken, "open": tape.open}
        if config.funding_rate:
            self.shared["funding"] = funding_times(tape, config.funding_hours)
        self.params = rate_tensors(config)
        # The levels of an order are loops of their own otherwise, and every intermediate is written to memory. Loops
        # that write few buffers each are faster than one that writes fifty: processors prefetch but a few at a time.
        self.compile_options = {
            "realize_reads_threshold": 2,
            "cpp.enable_tiling_heuristics": False,
            "max_fusion_size": 8,
        }
        self.longest = config.episode_steps
        self.feature_names = feature_names(config, tape)
        self.action_spec = self._spec()

    def _spec(self) -> TensorSpec:
        config = self.config
        if config.action == "continuous":
            return Bounded(-1.0, 1.0, (1,), dtype=torch.float32)
        if config.action == "limit":
            quotes = len(config.limit_offsets) + 1
            return MultiCategorical([3, quotes, quotes], dtype=torch.int64)
        choices = 3 if config.action == "step" else 2 * config.max_position + 1
        return Categorical(choices, (1,), dtype=torch.int64)

    def understood_actions(self) -> Sequence[TensorSpec]:
        """Return the specs of the task's actions and of orders, shape (3, 2), see `orders.choice_of_orders`."""
        return [self.action_spec, Unbounded((3, 2), dtype=torch.int64)]

    def schedule(self, num_envs: int) -> CostRamp | None:
        if not self.config.cost_ramp:
            return None
        full = {name: self.params[name] for name in COSTS}
        return CostRamp(full, num_envs, self.config.cost_ramp)

    def metadata(self) -> dict[str, Any]:
        config = {item.name: getattr(self.config, item.name) for item in fields(self.config)}
        return super().metadata() | {"config": config, "market": self.tape.metadata(), "part": self._part}

    @property
    def _part(self) -> dict[str, Any]:
        """First and last time of the episodes, and how many fit side by side, JSON-able."""
        low, high = part_rows(self.tape, self.config)
        first, last = self.tape.moment(low), self.tape.moment(high - 1)
        windows = len(self._starts.disjoint)
        steps = f"{self.config.episode_steps:,} steps of {self.tape.step_gap:g} s"
        return {
            "first": first,
            "last": last,
            "windows": windows,
            "description": f"{first} to {last}, in which {windows} episodes of {steps} lie side by side",
        }

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> LobState:
        starts = shared["starts"]
        if self.config.random_start:
            number = (random_bits(key, EpisodeStream.RESET)[0] * len(starts)) >> 32
        else:
            number = key.env_id % len(starts)
        row = starts[number].to(torch.int32)
        none = row * 0
        money, real = none.to(torch.int64), none.double()
        waiting = max(self.config.latency - 1, 0)
        quoted = waiting if self.config.action == "limit" else 0
        return LobState(
            row=row,
            start_row=row,
            position=none,
            cash=money,
            equity=money,
            trade_cost=money,
            entry=none,
            best=none,
            age=none,
            pending=none.expand(waiting, 2).clone(),
            pending_quotes=(none + KEEP).expand(quoted, 2, 2).clone(),
            resting=none.expand(2 if self.config.action == "limit" else 0, 3).clone(),
            bought=none,
            sold=none,
            peak=money,
            drawdown=real,
            squares=real,
            won=none,
            lost=none,
            traded=money,
            costs=money,
            exposed=none,
            unfilled=money,
            invalid=none,
            liquidated=none,
            batch_size=[],
        )

    def step(self, state: LobState, action: Tensor, params: Tensors, shared: Tensors) -> LobState:
        config = self.config
        # Ended rows are stepped too and their results ignored; the index must stay on the tape.
        row = state.row.to(torch.int64).clamp(max=self.tape.num_rows - 2)
        choice = self._choice(state, action, shared)
        invalid = choice.kind == Order.INVALID
        heard, pending, pending_quotes = self._heard(state, choice)
        account = Account(*(getattr(state, name).to(torch.int64) for name in Account._fields))
        resting = state.resting.to(torch.int64)
        signed_mid = shared["mid"][row + 1].to(torch.int64)
        after = signed_mid.abs()
        last = row + 1 - state.start_row >= config.episode_steps
        if config.latency > 0:
            account, resting, passive = self._time(account, resting, row, after, params, shared)
            account, resting, ordered = self._orders(account, resting, heard, row + 1, signed_mid, last, params, shared)
        else:
            here = shared["mid"][row].to(torch.int64)
            account, resting, ordered = self._orders(account, resting, heard, row, here, last, params, shared)
            account, resting, passive = self._time(account, resting, row, after, params, shared)
        trade, liquidated = ordered
        equity = account.cash + account.position * after
        peak = torch.maximum(state.peak, equity)
        change = (equity - state.equity).double() * self.tape.money_size
        small = {
            name: getattr(account, name).to(torch.int32) for name in ("position", "entry", "best", "age", "won", "lost")
        }
        return state.replace(
            **small,
            row=(row + 1).to(torch.int32),
            cash=account.cash,
            equity=equity,
            trade_cost=account.trade_cost,
            pending=pending.to(torch.int32),
            pending_quotes=pending_quotes.to(torch.int32),
            resting=resting.to(torch.int32),
            bought=(trade.filled.clamp(min=0) + passive[BID]).to(torch.int32),
            sold=((-trade.filled).clamp(min=0) + passive[ASK]).to(torch.int32),
            peak=peak,
            drawdown=torch.maximum(state.drawdown, (peak - equity).double() / (peak + self.initial).double()),
            squares=state.squares + change * change,
            traded=account.traded,
            costs=account.costs,
            exposed=state.exposed + (account.position != 0),
            unfilled=state.unfilled + trade.uncovered,
            invalid=state.invalid + invalid,
            liquidated=liquidated.to(torch.int32),
        )

    def _choice(self, state: LobState, action: Tensor, shared: Tensors) -> Choice:
        if action.ndim == 2:
            return choice_of_orders(action)
        best = None
        if self.config.action == "limit":
            best = shared["price"][state.row.to(torch.int64), :, 0].to(torch.int64)
        return choice_of_action(action, self.config, self.tape.unit, best)

    def _heard(self, state: LobState, choice: Choice) -> tuple[Choice, Tensor, Tensor]:
        """Return the choice that is heard now, and those that are not yet."""
        if self.config.latency <= 1:
            return choice, state.pending, state.pending_quotes
        chosen = torch.stack([choice.kind, choice.lots]).unsqueeze(0)
        pending = torch.cat([state.pending.to(torch.int64), chosen])
        if self.config.action != "limit":
            return Choice(pending[0, 0], pending[0, 1], choice.quotes), pending[1:], state.pending_quotes
        quotes = torch.cat([state.pending_quotes.to(torch.int64), choice.quotes.unsqueeze(0)])
        return Choice(pending[0, 0], pending[0, 1], quotes[0]), pending[1:], quotes[1:]

    def _time(
        self, account: Account, resting: Tensor, row: Tensor, doubled_mid: Tensor, params: Tensors, shared: Tensors
    ) -> tuple[Account, Tensor, Sequence[Tensor]]:
        """Fill resting orders on the way to the next row, and pay funding there; returns also the lots traded."""
        nothing = account.position * 0
        passive: Sequence[Tensor] = (nothing, nothing)
        if self.config.action == "limit":
            prices = resting[:, 0]
            resting, fills = filled_on_the_way(
                resting, row, shared["price"], shared["size"], shared["taken"], shared["open"]
            )
            passive = fills.unbind()
            for side, sign in ((BID, 1), (ASK, -1)):
                value = 2 * prices[side] * passive[side]
                cost = part_up(value, params["maker_fee"])
                account = after_fill(account, sign * passive[side], value, cost, doubled_mid)
        if self.config.funding_rate:
            times = shared["funding"][row + 1].to(torch.int64)
            paid = times * part_up(account.position * doubled_mid, params["funding_rate"])
            account = account._replace(cash=account.cash - paid, trade_cost=account.trade_cost + paid)
        return account, resting, passive

    def _orders(
        self,
        account: Account,
        resting: Tensor,
        heard: Choice,
        row: Tensor,
        signed_mid: Tensor,
        last: Tensor,
        params: Tensors,
        shared: Tensors,
    ) -> tuple[Account, Tensor, tuple[Walked, Tensor]]:
        """Close, liquidate or trade at a row of the tape, and place resting orders.

        Returns also what was traded at the market, with whether the account was liquidated.
        """
        config, mid, is_open = self.config, signed_mid.abs(), signed_mid > 0
        position = account.position
        holds = position != 0
        best = torch.where(position > 0, torch.maximum(account.best, mid), torch.minimum(account.best, mid))
        account = account._replace(
            age=torch.where(holds, account.age + 1, account.age), best=torch.where(holds, best, account.best)
        )
        closes = last
        if self._uses("stop_loss"):
            left = (account.best - mid).abs() * RATE_UNITS > params["stop_loss"] * account.entry
            closes = closes | ((params["stop_loss"] > 0) & holds & left)
        if self._uses("max_holding"):
            closes = closes | ((params["max_holding"] > 0) & (account.age > params["max_holding"]))
        worth = account.cash + self.initial + position * mid
        needed = params["maintenance_margin"] * position.abs() * mid
        liquidated = is_open & holds & (worth * MARGIN_UNITS < needed)
        traded = torch.where(heard.kind == Order.TRADE, position + heard.lots, position)
        target = torch.where(heard.kind == Order.TARGET, heard.lots, traded)
        stops = closes | liquidated
        order = torch.where(stops, 0, target.clamp(-self.most, self.most)) - position
        if config.fill == "mid":
            whole = torch.where(is_open, order, 0)
            trade = Walked(whole, whole.abs() * mid, (order - whole).abs())
        else:
            trade = walked(order, row, shared["depth"], last | liquidated)
        cost = part_up(trade.value, params["taker_fee"])
        if self._uses("slippage"):
            cost = cost + part_up(trade.value, params["slippage"])
        account = after_fill(account, trade.filled, trade.value, cost, mid)
        if config.action == "limit":
            room = torch.stack([self.most - account.position, self.most + account.position])
            after = placed(resting, heard.quotes, room, row, shared["price"], shared["size"], shared["open"])
            resting = torch.where(stops, 0, after)
        return account, resting, (trade, liquidated)

    def _uses(self, name: str) -> bool:
        """Whether a parameter has an effect: not if it is a zero shared by all sub-environments."""
        return name in self.varied or getattr(self.config, name) != 0

    def observation(self, state: LobState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        return observed(state, self.config, self.tape, shared)

    def reward(self, state: LobState, action: Tensor, next_state: LobState, params: Tensors, shared: Tensors) -> Tensor:
        """Return the change of equity as a share of the initial cash, times the scale."""
        scale = self.config.reward_scale * self.tape.money_size / self.config.initial_cash
        return ((next_state.equity - state.equity).double() * scale).float()

    def terminated(self, state: LobState, params: Tensors, shared: Tensors) -> Tensor:
        return state.liquidated > 0

    def truncated(self, state: LobState, params: Tensors, shared: Tensors) -> Tensor:
        return state.row - state.start_row >= self.config.episode_steps

    def grade(self, state: LobState, params: Tensors, shared: Tensors) -> Tensor:
        """Return a logistic function of the return in percent; 0.5 for none."""
        return torch.sigmoid(100.0 * state.equity.double() / self.initial).float()

    def info(self, state: LobState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        mid = shared["mid"][state.row.to(torch.int64)].abs().to(torch.int64)
        return outcomes(state, mid, self.initial, self.tape)
