"""Scenario of the five trading tiers; `rules.md` beside this file specifies account, reward and observation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from types import MappingProxyType

import torch
from torch import Tensor

from vecenv.core.capabilities import Graded, Masked
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.graders import GRADERS, PARTS, grade_function, in_double
from vecenv.tasks.tiers.grading import episode_record, first_grades, references
from vecenv.tasks.tiers.layout import ACCOUNT_SIZE, PRICE_UNIT, VALUE_UNIT, Account
from vecenv.tasks.tiers.order_list import (
    CAPACITY_STEPS,
    Execution,
    Limits,
    OrderList,
    Positions,
    Quotes,
    decode_orders,
    execute_orders,
)
from vecenv.tasks.tiers.order_spaces import choice_mask
from vecenv.tasks.tiers.reward_components import (
    COMPONENTS,
    EPISODE,
    GRADE_CHANGE,
    LONG_HOLDING_DAYS,
    component_weights,
    stacked,
    summed,
)
from vecenv.tasks.tiers.rules import Tensors, TierRules
from vecenv.tasks.tiers.state import TierState

LOSS = 0.05
"""Loss of a position above which holding it is a mistake."""

TRADES_SCALE = 0.01
"""Scale of the daily trade limit in the observation."""


class TierTrading(Masked, Graded, TierRules):
    """Scenario of the trading tiers on a `MarketTape`, with the arguments of `TierRules`."""

    name = "tiers"
    version = "1"
    compile_options = MappingProxyType(
        # Sequential orders are a long chain of scalars: few loops, each value computed once, eight accounts at a time.
        {
            "realize_opcount_threshold": 5,
            "max_fusion_size": 2000,
            "cpp.max_horizontal_fusion_size": 2000,
            "cpp.enable_tiling_heuristics": False,
        }
    )

    def __init__(
        self, tape: MarketTape, config: TierConfig | None = None, tiers: Sequence[TierConfig] | None = None
    ) -> None:
        super().__init__(tape, config, tiers)
        weights = component_weights(self.config.reward, self.config.reward_weights).tolist()
        self._pays_episode, self._pays_grade_change = weights[EPISODE] != 0.0, weights[GRADE_CHANGE] != 0.0
        if self._pays_episode or self._pays_grade_change:
            self.shared = {**self.shared, **self.references}
        if self._pays_grade_change:
            self.shared = {**self.shared, "first_grade": first_grades(self)}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> TierState:
        tape, num_symbols = self.tape, self.tape.num_symbols
        day_bits, path_bits, _, _ = random_bits(key, EpisodeStream.RESET)
        # One number for all rows, as an index, would be read on the host.
        rule = params["rule"] + torch.zeros_like(day_bits) if self.mixed else params["rule"]
        table = (lambda name: params[name][rule]) if self.mixed else (lambda name: params[name][0])
        days = table("days").to(torch.int64)
        if self.config.random_symbol:
            path = shared["long_paths"][(path_bits * len(shared["long_paths"])) >> 32]
        else:
            path = (path_bits * tape.num_paths) >> 32
        first = shared["first_day"][path]
        starts = tape.num_days - 1 - days - first + 1
        day = first + ((day_bits * starts) >> 32)
        cash = torch.floor(table("initial_cash") / tape.tick_size)
        zero, zeros = torch.zeros_like(cash), torch.zeros_like(cash).expand(num_symbols)
        none = zero.to(torch.float32)
        components = none.to(self.precision).expand(len(COMPONENTS))
        return TierState(
            cash=cash,
            holdings=zeros.to(torch.float32),
            average_price=zeros.to(self.precision),
            days_held=zeros.to(torch.float32),
            losing_sells=none,
            portfolio_value=cash,
            peak_value=cash,
            start_value=cash,
            path=path,
            day=day,
            start_day=day,
            end_day=day + days,
            rule=rule,
            traded=zero,
            costs=zero,
            fills=none.expand(self.config.max_orders),
            components=components,
            totals=components,
            num_trades=none,
            traded_total=zero,
            max_drawdown=zero,
            return_sums=zero.expand(2),
            exposure_sum=zero,
            gate_days=none.expand(2),
            batch_size=[],
        )

    def step(self, state: TierState, action: Tensor, params: Tensors, shared: Tensors) -> TierState:
        row = self.row(state)
        owned = self.owned(state, params)
        orders = decode_orders(self.orders(state, action, params, shared), self.tape.num_symbols, owned)
        limits = self.limits(state, row, params, shared)
        width = 2 + len(self.config.features)
        quotes = Quotes(
            close=shared["close"][row, orders.symbols],
            rsi=shared["rsi"][row, orders.symbols],
            tradable=shared["shown"][row, orders.symbols * width + 1],
        )
        before = Positions(state.cash, state.holdings, state.average_price, state.losing_sells)
        value = state.portfolio_value
        done = execute_orders(self.money, orders, before, value - state.cash, quotes, limits)
        after = done.positions
        days_held = torch.where(after.holdings > 0, state.days_held + 1.0, 0.0)
        next_value = after.cash + self.money.total(after.holdings.double(), shared["close"][row + 1].double())
        peak = torch.maximum(state.peak_value, next_value)
        profit = (next_value - value) / value
        components = stacked(
            {
                "profit": profit,
                **self._hold_components(state, orders, done, limits, row, shared, owned),
                **done.counts,
                "long_holding": torch.where(days_held > LONG_HOLDING_DAYS, 1.0, 0.0).sum(-1),
                "within_limits": (done.exposure > 0) & (done.exposure <= limits.exposure_value),
                "invalid": 1.0 - orders.valid,
                "valid": orders.valid,
                "counterfactual": self._counterfactual(done, orders, row, shared),
            },
            self.precision,
        )
        closed = limits.closed.to(torch.float32)
        asked = (orders.buys * orders.steps).sum(-1)
        respected = torch.where(asked > 0, 0.0, closed)
        following = TierState(
            cash=after.cash,
            holdings=after.holdings,
            average_price=after.average_price,
            days_held=days_held,
            losing_sells=after.losing_sells,
            portfolio_value=next_value,
            peak_value=peak,
            start_value=state.start_value,
            path=state.path,
            # Ended rows are stepped too and their results ignored; the day stays within the market.
            day=torch.minimum(state.day + 1, state.end_day),
            start_day=state.start_day,
            end_day=state.end_day,
            rule=state.rule,
            traded=done.traded,
            costs=done.costs,
            fills=done.fills,
            components=components,
            totals=state.totals + components,
            num_trades=state.num_trades + done.num_trades,
            traded_total=state.traded_total + done.traded,
            max_drawdown=torch.maximum(state.max_drawdown, 1.0 - next_value / peak),
            return_sums=state.return_sums + torch.stack([profit, profit * profit]),
            exposure_sum=state.exposure_sum + done.exposure / value,
            gate_days=state.gate_days + torch.stack([closed, respected]),
            batch_size=[],
        )
        return self._with_grade_change(following, params, shared) if self._pays_grade_change else following

    def _with_grade_change(self, state: TierState, params: Tensors, shared: Tensors) -> TierState:
        """Add the grade's change to a day's components; the changes before sum to the grade before."""
        grade = self.grade(state, params, shared).to(self.precision)
        before = shared["first_grade"][state.rule].to(self.precision) + state.totals[GRADE_CHANGE]
        place = torch.arange(len(COMPONENTS), device=grade.device) == GRADE_CHANGE
        change = torch.where(place, grade - before, 0.0)
        return state.replace(components=state.components + change, totals=state.totals + change)

    def _hold_components(
        self,
        state: TierState,
        orders: OrderList,
        done: Execution,
        limits: Limits,
        row: Tensor,
        shared: Tensors,
        owned: Tensor | None,
    ) -> dict[str, Tensor]:
        close, held = shared["close"][row], state.holdings
        tempting, warning = shared["oversold"][row], shared["overbought"][row]
        if owned is not None:
            tempting = tempting * owned
        idle = done.num_trades == 0
        # As float32 numbers, because booleans are not vectorised on a CPU.
        single = torch.float32
        floor = (1.0 - LOSS) * state.average_price
        losing = torch.where(close.to(self.precision) < floor, held, 0.0).sum(-1) > 0
        slip = torch.ceil(close * limits.slippage.to(single))
        payable = (close + slip) * (1.0 + limits.commission.to(single))
        cash = (state.cash * limits.capacity / CAPACITY_STEPS).to(single)
        invested = (state.portfolio_value - state.cash).to(single)
        buyable = torch.where(payable <= cash, tempting, 0.0)
        buyable = torch.where((held + 1.0) * close <= limits.position_value.to(single), buyable, 0.0)
        buyable = torch.where(invested + close <= limits.exposure_value.to(single), buyable, 0.0)
        missed = (torch.where(limits.closed, 0.0, buyable.sum(-1)) + (held * warning).sum(-1)) > 0
        loss, missed = idle & losing, idle & missed & ~losing
        passive = (orders.valid > 0) & ((orders.buys + orders.sells).sum(-1) == 0)
        return {"loss_hold": loss, "missed_opportunity": missed, "patience": passive & ~loss & ~missed}

    def _counterfactual(self, done: Execution, orders: OrderList, row: Tensor, shared: Tensors) -> Tensor:
        """Return the sum of the next-day changes of bought symbols less those of sold ones. Shape: ()."""
        now = shared["close"][row, orders.symbols].to(self.precision)
        later = shared["close"][row + 1, orders.symbols].to(self.precision)
        return summed(torch.sign(done.fills).to(self.precision) * (later / now.clamp(min=1.0) - 1.0))

    def observation(self, state: TierState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        """Return the account (16,), series of the market, its symbols (14 K,) and the positions (3 times K,)."""
        number = partial(self.rule, state=state, params=params)
        row = state.path * self.tape.num_days + state.day
        value = state.portfolio_value
        breadth = shared["breadth"][row].double()
        account = {
            "days_gone": (state.day - state.start_day).double(),
            "num_days": number("days"),
            "start_value": state.start_value * (self.tape.tick_size / VALUE_UNIT),
            "total_return": value / state.start_value - 1.0,
            "cash": state.cash / value,
            "exposure": (value - state.cash) / value,
            "drawdown": 1.0 - value / state.peak_value,
            "losing_sells": state.losing_sells.double(),
            "gate_closed": torch.where(number("gate") > 0, breadth[0], 0.0),
            "share_down": breadth[1],
            "mean_change": breadth[2],
            "max_position": number("max_position"),
            "max_exposure": number("max_exposure"),
            "max_trades": number("max_trades") * TRADES_SCALE,
            "commission": number("commission"),
            "slippage": number("slippage"),
        }
        close = shared["close"][row]
        weight = state.holdings * close / value.to(torch.float32)
        average = state.average_price.to(torch.float32)
        gain = torch.where(state.holdings > 0, close / average.clamp(min=1e-9) - 1.0, 0.0)
        shown = shared["shown"][row]
        owned = self.owned(state, params)
        if owned is not None:
            mask = owned.repeat_interleave(2 + len(self.config.features))
            shown = shown * mask
        series = (shared["context"][row],) if self.config.context else ()
        numbers = torch.stack([account[name] for name in Account._fields], dim=-1)
        return self.scaled([numbers.to(torch.float32), *series, shown, weight, gain, state.days_held], shared)

    def action_mask(self, observation: Tensor) -> Tensor | None:
        """Return which discrete choices can have an effect, shape (B, sum of the choices); None for other spaces."""
        if self.config.action != "discrete":
            return None
        num_symbols, observation = self.tape.num_symbols, self.unscaled(observation)
        start = ACCOUNT_SIZE + len(self.config.context)
        width = 2 + len(self.config.features)
        shown = observation[:, start : start + num_symbols * width].unflatten(-1, (num_symbols, width))
        weight = observation[:, start + num_symbols * width :][:, :num_symbols]
        number = {name: observation[:, index : index + 1] for index, name in enumerate(Account._fields)}
        value = number["start_value"] * (1.0 + number["total_return"])
        cash = number["cash"] * value * (VALUE_UNIT / PRICE_UNIT)
        unit_cost = 1.0 + number["commission"] + number["slippage"]
        return choice_mask(shown[..., 1], shown[..., 0], weight, cash, unit_cost, self.config.max_orders)

    def reward(
        self, state: TierState, action: Tensor, next_state: TierState, params: Tensors, shared: Tensors
    ) -> Tensor:
        """Return the weighted sum of the components, including the grade on the last day."""
        weights = params["weights"].to(self.precision)
        reward = summed(next_state.components * weights)
        if self._pays_episode:
            ended = self.truncated(next_state, params, shared)
            grade = self.grade(next_state, params, shared).to(self.precision)
            reward = reward + torch.where(ended, weights[EPISODE] * grade, 0.0)
        return reward

    def terminated(self, state: TierState, params: Tensors, shared: Tensors) -> Tensor:
        return state.portfolio_value <= 0

    def truncated(self, state: TierState, params: Tensors, shared: Tensors) -> Tensor:
        return state.day >= state.end_day

    @cached_property
    def references(self) -> dict[str, Tensor]:
        """Reference returns of grades, computed lazily, since training may need none."""
        return references(self)

    def grade(self, state: TierState, params: Tensors, shared: Tensors) -> Tensor:
        return self._grades((self.config.grader,), state, params, shared)[self.config.grader]

    def grades(self, state: TierState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        return self._grades(tuple(GRADERS), state, params, shared)

    def _grades(self, names: Sequence[str], state: TierState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        # In a compiled step the references are in the market tensors.
        reference = shared if "oracle_return" in shared else self.references
        record = episode_record(self, state, params, shared, reference)
        grades = {}
        for name in names:
            functions = [grade_function(name, tier.seed_grader) for tier in self.tiers]
            # Tiers share grade functions; each is computed once.
            graded = {function: function(record) for function in dict.fromkeys(functions)}
            by_tier = torch.stack([graded[function] for function in functions])
            grades[name] = by_tier[state.rule].to(torch.float32)
        return grades

    def grade_parts(self, state: TierState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        record = in_double(episode_record(self, state, params, shared, self.references))
        return {name: part(record).to(torch.float32) for name, part in PARTS.items()}

    def info(self, state: TierState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        names = ("cash", "portfolio_value", "start_value", "traded", "costs")
        amounts = {name: getattr(state, name) * self.tape.tick_size for name in names}
        amounts["total_return"] = amounts["portfolio_value"] / amounts["start_value"] - 1.0
        components = {f"reward/{name}": state.components[index] for index, name in enumerate(COMPONENTS)}
        if self._pays_episode:
            grade = self.grade(state, params, shared).to(self.precision)
            components["reward/episode"] = torch.where(self.truncated(state, params, shared), grade, 0.0)
        invalid = state.totals[COMPONENTS.index("invalid")]
        return amounts | components | {"invalid_actions": invalid, "num_trades": state.num_trades}
