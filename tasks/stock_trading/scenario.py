"""Scenario of daily stock trading, the task of the FinRL contests, with exact accounts.

`rules.md` and `learner.md` beside this file are the specification. State ``[b, p, h, f]``, D = K(I + 2) + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.data import Bounded, TensorSpec

from vecenv.core.capabilities import (
    AlternativeActions,
    Column,
    Differentiable,
    Itemised,
    Items,
    NamedColumns,
    Referencing,
    TargetWeights,
)
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.core.scenario import Scenario
from vecenv.kernels.money import Money, single_rounded_down
from vecenv.kernels.orders import fill_prices
from vecenv.kernels.weights import chosen_weights
from vecenv.market.tape import MarketTape
from vecenv.market.ticks import fewer_ticks
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.law import (
    Decision,
    Rules,
    StockState,
    Tensors,
    executed,
    forced_sales,
    held_growth,
    held_portfolio,
    log_return,
    overruled,
    restored_growth,
    settled,
    step_reward,
    tilted,
    wanted_by_weights,
    wanted_in_shares,
)
from vecenv.tasks.stock_trading.observation import (
    columns_of,
    feature_unit,
    market_tensors,
    parameter_tensors,
    split_symbols,
)

MAX_CASH_TICKS = 2**37


COMPILE_OPTIONS: dict[str, dict[str, Any]] = {
    # Scalars per account are computed once, not in every loop over symbols.
    "pro_rata": {"realize_reads_threshold": 2, "cpp.enable_tiling_heuristics": False},
    # Sequential rationing is a long chain of scalars: sixteen accounts at a time.
    "by_size": {
        "realize_reads_threshold": 2,
        "realize_opcount_threshold": 5,
        "max_fusion_size": 2000,
        "cpp.max_horizontal_fusion_size": 2000,
        "cpp.enable_tiling_heuristics": False,
    },
}
"""Inductor settings by rationing rule, faster on a CPU than the defaults."""


class StockTrading(
    Itemised, NamedColumns, Referencing, TargetWeights, Differentiable, AlternativeActions, Scenario[StockState]
):
    """Scenario of daily stock trading on a `MarketTape`.

    Raises ValueError if the tape lacks a series of the gate, is too short for the horizon, or an argument per symbol
    does not match its symbols.
    """

    name = "stock_trading"
    version = "1"
    referenced_blocks = (1, 3)

    def __init__(self, tape: MarketTape, config: StockTradingConfig | None = None) -> None:
        config = config or StockTradingConfig()
        self.tape, self.config = tape, config
        dtype = torch.float32 if config.dtype == "float32" else torch.float64
        self.money = Money(config.whole_shares, dtype, tape.price_bits)
        shortest = config.min_episode_length or config.episode_length
        if tape.first_day + shortest >= tape.num_days:
            raise ValueError(
                f"{tape.source}: {tape.num_days} days are fewer than the warm-up of {tape.first_day} days plus "
                f"an episode of {shortest} days (episode_length) and the day after it"
            )
        if config.gate != "none" and config.gate not in tape.context_names:
            raise ValueError(f"{tape.source}: no series {config.gate!r} for the gate; it has {tape.context_names}")
        if config.initial_cash < tape.tick_size and not np.any(config.initial_holdings):
            raise ValueError(f"initial_cash must be at least a tick of {tape.tick_size:g}, got {config.initial_cash:g}")
        if config.initial_cash / tape.tick_size >= MAX_CASH_TICKS and config.whole_shares:
            raise ValueError(
                f"initial_cash {config.initial_cash:g} is {config.initial_cash / tape.tick_size:.3g} ticks of "
                f"{tape.tick_size:g}; exact accounts need fewer than 2^37: "
                + fewer_ticks(config.initial_cash, MAX_CASH_TICKS, tape.tick_size, tape.symbols, tape.ohlcv)
            )
        self.compile_options = COMPILE_OPTIONS[config.rationing]
        self._always_tradable = bool(tape.tradable[:, tape.first_day :].all())
        self._gaps = bool(tape.gaps.any())
        # What is held at the start may be of symbols that could trade only before the tape.
        self._stuck = self._gaps or (bool(np.any(config.initial_holdings)) and not self._always_tradable)
        self.shared = market_tensors(tape, config, self.money.dtype)
        self.params = parameter_tensors(tape, config, self.money)
        self.longest = config.episode_length
        self.num_references = tape.num_paths * tape.num_days
        self.shown_features: tuple[str, ...] = config.features
        self.item_features = (*config.features, "weight")
        self.smooth = not config.whole_shares and config.dead_zone == 0
        self.target_weights = config.action == "weights"
        low, count = (0.0 if self.target_weights else -1.0), tape.num_symbols + (config.action == "tilt")
        self.action_spec = Bounded(low, 1.0, (count,), dtype=torch.float32, device=tape.device)

    def understood_actions(self) -> Sequence[TensorSpec]:
        """Return the specs of the actions that `step` accepts: with tilts also target weights, of shape (K,)."""
        if self.config.action != "tilt":
            return [self.action_spec]
        weights = Bounded(0.0, 1.0, (self.tape.num_symbols,), dtype=torch.float32, device=self.action_spec.device)
        return [self.action_spec, weights]

    def randomise(self, params: Tensors, num_envs: int) -> None:
        """Replace parameters as `Scenario.randomise` does; rates are rounded like those of the settings."""
        super().randomise(params, num_envs)
        if self.config.whole_shares:
            rates = {name: self.params[name] for name in self.varied & {"slippage", "commission"}}
            single = {name: rate for name, rate in rates.items() if name == "slippage" or rate.ndim == 2}
            self.params = {**self.params, **{name: single_rounded_down(rate) for name, rate in single.items()}}

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"config": asdict(self.config), "market": self.tape.metadata()}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> StockState:
        config, tape = self.config, self.tape
        day_bits, path_bits, length_bits, _ = random_bits(key, EpisodeStream.RESET)
        length = params["episode_length"]
        if self._uses("min_episode_length"):
            shortest = params["min_episode_length"]
            shortest = torch.where(shortest > 0, shortest, length)
            length = shortest + ((length_bits * (length - shortest + 1)) >> 32)
        if config.random_start:
            path = (path_bits * tape.num_paths) >> 32
            starts = (tape.num_days - 1 - length - tape.first_day + 1).clamp(min=1)
            day = tape.first_day + ((day_bits * starts) >> 32)
        else:
            path = key.env_id % tape.num_paths
            day = torch.full_like(path, tape.first_day)
        return self.opened(path, day, length, params, shared)

    def opened(self, path: Tensor, day: Tensor, length: Tensor, params: Tensors, shared: Tensors) -> StockState:
        """Return the account at the start of an episode of some days from a day of a path. Shape of each: ()."""
        config, tape, money = self.config, self.tape, self.money
        cash = params["initial_cash"].double() / tape.tick_size
        cash = torch.floor(cash).to(money.money_dtype)
        holdings = params["initial_holdings"]
        close = shared["close"][path * tape.num_days + day]
        # Without initial holdings the value needs no price lookup, here or in the compiled step.
        value = cash + money.total(holdings, close, self.max_holdings) if self._uses("initial_holdings") else cash
        zero = torch.zeros_like(cash)
        return StockState(
            cash=cash,
            holdings=holdings,
            portfolio_value=value,
            start_value=value,
            traded=zero,
            costs=zero,
            buy_ratio=torch.ones_like(cash, dtype=money.dtype),
            invalid_actions=torch.zeros_like(day),
            path=path,
            day=day,
            start_day=day,
            end_day=torch.clamp(day + length, max=tape.num_days - 1),
            average_price=torch.where(holdings > 0, close, 0.0).to(money.single)
            if self._uses("stop_loss")
            else holdings[:0],
            moments=close.new_zeros(2 if config.reward == "differential_sharpe" else 0),
            benchmark=torch.zeros_like(close, dtype=torch.float64) if self._remembers else holdings[:0],
            batch_size=[],
        )

    def step(self, state: StockState, action: Tensor, params: Tensors, shared: Tensors) -> StockState:
        # Ended rows are stepped too and their results ignored; the index must stay on the tape.
        day = state.day.clamp(max=self.tape.num_days - 2)
        next_close = shared["close"][state.path * self.tape.num_days + day + 1]
        made = self.decided(state, action, day, params, shared)
        invalid = (~made.finite).float().sum(-1).to(torch.int64)
        benchmark = self._restored(state, shared)[1] if self._remembers else state.benchmark
        return settled(self._rules, state, day, made.fills, made.prices, next_close, invalid, benchmark, params)

    def decided(self, state: StockState, action: Tensor, day: Tensor, params: Tensors, shared: Tensors) -> Decision:
        """Return what an action orders on a day, and what is filled; no later close is read. Shape of ``day``: ()."""
        config, money, rules = self.config, self.money, self._rules
        row = state.path * self.tape.num_days + day
        close = shared["close"][row]
        late = config.fill == "next_open"
        fill = shared["open"][row + 1] if late else close
        slippage = params["slippage"] if self._uses("slippage") else None
        prices = fill_prices(money, fill, slippage, params["commission"])

        finite = action.abs() <= torch.finfo(action.dtype).max
        action = self._adjusted(torch.where(finite, action, 0.0).clamp(-1.0, 1.0), row, params, shared)
        can_trade = shared["tradable"][row + 1 if late else row]
        if config.action == "shares":
            weights = action[:0]
            wanted = torch.where(finite, wanted_in_shares(rules, action, params), 0.0)
        elif config.action == "tilt" and action.shape == self.action_spec.shape:
            weights = tilted(rules, action, self._portfolio(state, close, can_trade, shared))
            value = state.portfolio_value
            if self._stuck:
                value = value - money.total(torch.where(can_trade, 0.0, state.holdings), close, self.max_holdings)
            wanted = wanted_by_weights(rules, weights, value, state.holdings, prices, params)
        else:
            weights = chosen_weights(money, action)
            wanted = wanted_by_weights(rules, weights, state.portfolio_value, state.holdings, prices, params)
            wanted = torch.where(finite, wanted, 0.0)
        gate = shared["gate"][row] if config.gate != "none" else None
        forced = forced_sales(rules, state, close, gate, params)
        order = overruled(wanted, state, forced)
        if not self._always_tradable:
            order = torch.where(can_trade, order, 0.0)
        fills = executed(rules, state, order, prices, params)
        return Decision(weights, wanted, forced, can_trade, order, prices, fills, finite)

    @property
    def _rules(self) -> Rules:
        own_scale = self.config.reward_scale is None and "reward_scale" not in self.varied
        market = self.tape.num_symbols, self.tape.tick_size, self.tape.periods_per_year
        return Rules(self.config, self.money, *market, self._uses, self._max_order, self.max_holdings, own_scale)

    def _adjusted(self, action: Tensor, row: Tensor, params: Tensors, shared: Tensors) -> Tensor:
        """Return the action, finite and in [-1, 1], as the rules take it; subclasses may change it.

        ``row`` is the day of the path. The result is at most `_largest_action` in size.
        """
        return action

    @cached_property
    def _largest_action(self) -> float:
        return 1.0

    def _uses(self, name: str) -> bool:
        """Whether a parameter has an effect: not if it is a zero shared by all sub-environments."""
        value = getattr(self.config, name)
        return name in self.varied or (any(value) if isinstance(value, tuple) else value != 0)

    @property
    def _remembers(self) -> bool:
        """Whether an account keeps what its benchmark holds: where that depends on the days since its start."""
        config = self.config
        return self._gaps and config.reward == "excess_log_return" and config.benchmark == "equal_weight"

    @cached_property
    def max_holdings(self) -> int | None:
        """Largest long position of a symbol; None if only cash bounds it, or it may be short."""
        config = self.config
        if config.action != "shares" or config.shorting:
            return None
        return int(self.params["initial_holdings"].max() + self._largest_order * self.params["episode_length"].max())

    @cached_property
    def _max_order(self) -> int | None:
        """Largest order of one symbol; the gate and the stop-loss sell whole positions at once."""
        liquidates = self.config.gate != "none" or self._uses("stop_loss")
        if self.max_holdings is None or liquidates:
            return self.max_holdings
        return int(self._largest_order)

    @property
    def _largest_order(self) -> float:
        """Largest order of one symbol by the agent, with ``action="shares"``."""
        return float(self.params["hmax"].max()) * self._largest_action

    def _portfolio(self, state: StockState, close: Tensor, can_trade: Tensor, shared: Tensors) -> Tensor:
        """Return the benchmark's portfolio of the symbols that can trade on the day, in any unit. Shape: (K,)."""
        single = self.money.single
        if self.config.benchmark == "equal_weight":
            return can_trade.to(single)
        start, tradable = self._start(state, shared)
        return held_portfolio(close.to(single), start.to(single), tradable & can_trade if self._gaps else tradable)

    def _start(self, state: StockState, shared: Tensors) -> tuple[Tensor, Tensor]:
        """Return closes and tradable symbols at the start of the episode. Shape of each: (K,)."""
        row = state.path * self.tape.num_days + state.start_day
        return shared["close"][row], shared["tradable"][row]

    def observation(self, state: StockState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        config, row = self.config, self.reference(state)
        prices, features = self.referenced(row, shared)
        start = state.start_value.double().clamp(min=1.0)
        if config.cash_scale is None:
            cash = (state.cash.double() / start).to(torch.float32)
        else:
            cash = state.cash.to(torch.float32) * (config.cash_scale * self.tape.tick_size)
        if config.holdings_scale is None:
            part = (self.tape.num_symbols / start).to(torch.float32)
            holdings = state.holdings.to(torch.float32) * shared["close"][row].to(torch.float32) * part
        else:
            holdings = state.holdings.to(torch.float32) * config.holdings_scale
        return cash.unsqueeze(-1), prices, holdings, features

    def reference(self, state: StockState) -> Tensor:
        return state.path * self.tape.num_days + state.day

    def referenced(self, reference: Tensor, shared: Tensors) -> tuple[Tensor, ...]:
        features, scale = shared["features"][reference], self.config.price_scale
        if scale is None:
            return shared["relative_close"][reference], features
        return shared["close"][reference].to(torch.float32) * (scale * self.tape.tick_size), features

    def reward(
        self, state: StockState, action: Tensor, next_state: StockState, params: Tensors, shared: Tensors
    ) -> Tensor:
        ended = self.terminated(next_state, params, shared) | self.truncated(next_state, params, shared)
        growth = self._benchmark_growth(state, shared) if self.config.reward == "excess_log_return" else None

        shaped = partial(self._shaped, state=state, next_state=next_state, params=params, shared=shared)
        return step_reward(self._rules, state, next_state, ended, growth, params, shaped)

    def _shaped(
        self, reward: Tensor, state: StockState, next_state: StockState, params: Tensors, shared: Tensors
    ) -> Tensor:
        """Return the reward of a step before penalty, scale and bonus; subclasses may change it. Shape: ()."""
        return reward

    def _benchmark_growth(self, state: StockState, shared: Tensors) -> Tensor:
        """Return the benchmark's growth over the step from a state. Shape: (), float64."""
        if self._remembers:
            return self._restored(state, shared)[0]
        row = state.path * self.tape.num_days + state.day.clamp(max=self.tape.num_days - 2)
        if self.config.benchmark == "equal_weight":
            return shared["benchmark_growth"][row]
        close, next_close = shared["close"][row], shared["close"][row + 1]
        return held_growth(close, next_close, *self._start(state, shared))

    def _restored(self, state: StockState, shared: Tensors) -> tuple[Tensor, Tensor]:
        row = state.path * self.tape.num_days + state.day.clamp(max=self.tape.num_days - 2)
        close, next_close = shared["close"][row], shared["close"][row + 1]
        return restored_growth(state.benchmark, close, next_close, shared["tradable"][row])

    def terminated(self, state: StockState, params: Tensors, shared: Tensors) -> Tensor:
        floor = state.start_value.double() * params["ruin_fraction"]
        return state.portfolio_value.double() <= floor

    def truncated(self, state: StockState, params: Tensors, shared: Tensors) -> Tensor:
        return state.day >= state.end_day

    def grade(self, state: StockState, params: Tensors, shared: Tensors) -> Tensor:
        """Return a logistic function of the log-return in excess of costless equal-weight buy-and-hold since the start.

        No excess is graded 0.5, an excess of ten per cent 0.73, a deficit of ten per cent 0.27.
        """
        start, held = self._start(state, shared)
        now = shared["close"][state.path * self.tape.num_days + state.day]
        count = held.sum(-1)
        # In float64 until the end, so that eager and compiled results are equal after rounding to float32.
        change = now.double() / start.double().clamp(min=1.0)
        growth = torch.where(held, change, 0.0).sum(-1) / count.clamp(min=1)
        growth = torch.where(count > 0, growth, 1.0)
        own = log_return(state.start_value, state.portfolio_value, torch.float64)
        return torch.sigmoid((own - torch.log(growth.clamp(min=1e-6))) / 0.1).to(torch.float32)

    def columns(self) -> list[Column]:
        return columns_of(self.config, self.feature_units(), self.tape.symbols)

    def feature_units(self) -> dict[str, str]:
        """Return the units of `shown_features` by name."""
        return {name: feature_unit(name, self.config.feature_scale) for name in self.config.features}

    def items(self, observation: Tensor) -> Items:
        return split_symbols(observation, self.config, self.shown_features, self.tape.num_symbols)

    def info(self, state: StockState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        """Return cash, values and costs in currency, the return and the invalid actions of the episode, float64."""
        money = ("cash", "portfolio_value", "start_value", "traded", "costs")
        amounts = {name: getattr(state, name).double() * self.tape.tick_size for name in money}
        total_return = amounts["portfolio_value"] / amounts["start_value"] - 1.0
        return amounts | {"total_return": total_return, "invalid_actions": state.invalid_actions}
