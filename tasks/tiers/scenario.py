"""Scenario of the five trading tiers; `rules.md` and `learner.md` specify account, reward, observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torchrl.data import TensorSpec, Unbounded

from vecenv.core.capabilities import (
    AlternativeActions,
    Column,
    ColumnScaled,
    Graded,
    Itemised,
    Items,
    Masked,
    NamedColumns,
)
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.core.scenario import Scenario
from vecenv.kernels.money import Money, single_rounded_down
from vecenv.market.tape import MarketTape
from vecenv.market.ticks import fewer_ticks
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.graders import GRADERS, PARTS, grade_function, in_double
from vecenv.tasks.tiers.grading import episode_statistics, first_grades, references
from vecenv.tasks.tiers.law import (
    Limits,
    Positions,
    Quotes,
    Tensors,
    TierState,
    capacity,
    decode_orders,
    execute_orders,
)
from vecenv.tasks.tiers.observation import (
    OWN_FEATURES,
    account_numbers,
    column_scale,
    columns_of,
    effective_choices,
    market_tensors,
    rule_table,
    split_symbols,
)
from vecenv.tasks.tiers.orders import (
    Market,
    WeightLimits,
    action_spec,
    choices_to_orders,
    limit_weights_to_orders,
    weights_to_orders,
)
from vecenv.tasks.tiers.reward import (
    COMPONENTS,
    EPISODE,
    GRADE_CHANGE,
    LONG_HOLDING_DAYS,
    component_weights,
    counterfactual,
    hold_components,
    stacked,
    summed,
)

MAX_CASH_TICKS = 2**36
"""Upper bound of the starting cash in ticks, so that fractions of it stay exact while the account doubles."""


class TierTrading(Masked, NamedColumns, Graded, Itemised, ColumnScaled, AlternativeActions, Scenario[TierState]):
    """Scenario of the trading tiers on a `MarketTape`.

    Args:
        tape: a market with `TIER_FEATURES` and the tier's symbols.
        config: the rules, and the settings shared by a mixed batch: spaces, reward and grader.
        tiers: rules of the tiers of a mixed batch, whose symbols are among those of ``config``; parameter ``rule``
            selects the row of a sub-environment's next episode.

    Raises:
        ValueError: the tape lacks a symbol, a feature or a series, or is too short for an episode.
    """

    name = "tiers"
    version = "1"
    longest: int
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
        config = config or TierConfig()
        self.config, self.tiers = config, tuple(tiers or (config,))
        self.drawn_symbols = tape.symbols
        self.tape = tape.symbols_as_paths() if config.random_symbol else tape.select(config.symbols)
        if self.tape.feature_names != config.features:
            raise ValueError(f"{tape.source}: the tiers need the features {', '.join(config.features)}")
        lacking = [name for name in config.context if name not in self.tape.context_names]
        if lacking:
            raise ValueError(f"{tape.source}: no series {', '.join(lacking)}; it has {self.tape.context_names}")
        richest = max(tier.initial_cash for tier in self.tiers)
        if (poorest := min(tier.initial_cash for tier in self.tiers)) < self.tape.tick_size:
            raise ValueError(f"initial_cash must be at least a tick of {self.tape.tick_size:g}, got {poorest:g}")
        if richest / self.tape.tick_size >= MAX_CASH_TICKS:
            raise ValueError(
                f"initial_cash {richest:g} is {richest / self.tape.tick_size:.3g} ticks of {self.tape.tick_size:g}; "
                "exact orders need fewer than 2^36: "
                + fewer_ticks(richest, MAX_CASH_TICKS, self.tape.tick_size, self.tape.symbols, self.tape.ohlcv)
            )
        self.money = Money(whole_shares=True, dtype=torch.float64)
        self.precision = torch.float32 if config.dtype == "float32" else torch.float64
        self.longest = max(tier.days for tier in self.tiers)
        self.shared = market_tensors(self.tape, config, self.longest)
        if config.observation == "scaled":
            self.shared["column_scale"] = column_scale(self.tape, config, richest)
        self.params = rule_table(self.tape, config, self.tiers, self.mixed)
        self.action_spec = action_spec(config.action, self.tape.num_symbols, config.max_orders, self.tape.device)
        self.item_features = (*config.features, *OWN_FEATURES)
        weights = component_weights(config.reward, config.reward_weights).tolist()
        self._pays_episode, self._pays_grade_change = weights[EPISODE] != 0.0, weights[GRADE_CHANGE] != 0.0
        if self._pays_episode or self._pays_grade_change:
            self.shared = {**self.shared, **self.references}
        if self._pays_grade_change:
            self.shared = {**self.shared, "first_grade": first_grades(self)}

    def randomise(self, params: Tensors, num_envs: int) -> None:
        """Replace parameters as `Scenario.randomise` does; slippage is rounded, and ``rule`` must be in range."""
        rule = params.get("rule")
        if rule is not None and bool(((rule < 0) | (rule >= len(self.tiers))).any()):
            raise ValueError(f"parameter 'rule' must be in [0, {len(self.tiers)}), got {rule.unique().tolist()}")
        super().randomise(params, num_envs)
        if "slippage" in self.varied:
            self.params = {**self.params, "slippage": single_rounded_down(self.params["slippage"])}

    @property
    def task_config(self) -> Any:  # noqa: ANN401
        """Config of the task, from which the scenario is made; a curriculum's is another than `config`."""
        return self.config

    @property
    def mixed(self) -> bool:
        return len(self.tiers) > 1

    def rule(self, name: str, state: TierState, params: Tensors) -> Tensor:
        return params[name][state.rule] if self.mixed else params[name][0]

    def owned(self, state: TierState, params: Tensors) -> Tensor | None:
        """Return 1 for symbols of the tier, else 0; None if all are. Shape: (K,), float32."""
        return params["owned"][state.rule] if self.mixed else None

    def row(self, state: TierState) -> Tensor:
        """Return the row of the market's tensors. Shape: (), int64."""
        # Ended rows are stepped too and their results ignored; the index must stay on the tape.
        return state.path * self.tape.num_days + state.day.clamp(max=self.tape.num_days - 2)

    def orders(self, state: TierState, action: Tensor, params: Tensors, shared: Tensors) -> Tensor:
        """Return an action of the space, or an order list in any, as kind, symbol, fraction. Shape: (M, 3), float32."""
        if action.ndim == 2 and action.shape[-1] == 3:
            return action
        config, row, owned = self.config, self.row(state), self.owned(state, params)
        if config.action == "discrete":
            return choices_to_orders(action, self.tape.num_symbols)
        if config.action == "limit_weights":
            tradable = shared["shown"][row].unflatten(-1, (-1, 2 + len(config.features)))[:, 1]
            tradable = tradable if owned is None else tradable * owned
            return limit_weights_to_orders(
                self.money,
                action,
                Market(shared["close"][row].double(), tradable.double(), state.holdings.double()),
                state.cash,
                state.portfolio_value,
                WeightLimits(*(self.rule(name, state, params) for name in WeightLimits._fields)),
                self.limits(state, row, params, shared),
                config.tilt_gain,
                config.max_orders,
            )
        value = state.portfolio_value
        weight = state.holdings * shared["close"][row] / value.to(torch.float32)
        # A product keeps NaN.
        action = action if owned is None else action * owned
        return weights_to_orders(action, weight, (state.cash / value).to(torch.float32), config.max_orders)

    def understood_actions(self) -> Sequence[TensorSpec]:
        shape = (self.config.max_orders, 3)
        return [self.action_spec, Unbounded(shape, device=self.action_spec.device)]

    def limits(self, state: TierState, row: Tensor, params: Tensors, shared: Tensors) -> Limits:
        number = partial(self.rule, state=state, params=params)
        value = state.portfolio_value
        return Limits(
            commission=number("commission"),
            slippage=number("slippage"),
            closed=(number("gate") > 0) & (shared["breadth"][row, 0] > 0),
            capacity=capacity(value, state.peak_value),
            max_trades=number("max_trades"),
            position_value=torch.floor(number("max_position") * value),
            exposure_value=torch.floor(number("max_exposure") * value),
        )

    def metadata(self) -> dict[str, Any]:
        versions = {name: grader.version for name, grader in GRADERS.items()}
        return super().metadata() | {"graders": versions, "config": asdict(self.config), "market": self.tape.metadata()}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> TierState:
        day_bits, path_bits, _, _ = random_bits(key, EpisodeStream.RESET)
        if self.config.random_symbol:
            path = shared["long_paths"][(path_bits * len(shared["long_paths"])) >> 32]
        else:
            path = (path_bits * self.tape.num_paths) >> 32
        first, (_, days, _) = shared["first_day"][path], self._terms(path, params)
        starts = self.tape.num_days - 1 - days - first + 1
        return self.opened(path, first + ((day_bits * starts) >> 32), params)

    def _terms(self, like: Tensor, params: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """Return rule, days and cash of an episode, the last in ticks. Shape of each: ()."""
        # One number for all rows, as an index, would be read on the host.
        rule = params["rule"] + torch.zeros_like(like) if self.mixed else params["rule"]
        days, cash = (params[name][rule if self.mixed else 0] for name in ("days", "initial_cash"))
        return rule, days.to(torch.int64), torch.floor(cash / self.tape.tick_size)

    def opened(self, path: Tensor, day: Tensor, params: Tensors) -> TierState:
        """Return the account at the start of an episode from a day of a path. Shape of each: ()."""
        num_symbols, (rule, days, cash) = self.tape.num_symbols, self._terms(path, params)
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
        day = {name: shared[name][row] for name in ("close", "oversold", "overbought")}
        now, later = (shared["close"][place, orders.symbols].to(self.precision) for place in (row, row + 1))
        components = stacked(
            {
                "profit": profit,
                **hold_components(state, orders, done, limits, day, owned),
                **done.counts,
                "long_holding": torch.where(days_held > LONG_HOLDING_DAYS, 1.0, 0.0).sum(-1),
                "within_limits": (done.exposure > 0) & (done.exposure <= limits.exposure_value),
                "invalid": 1.0 - orders.valid,
                "valid": orders.valid,
                "counterfactual": counterfactual(done.fills, now, later),
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

    def observation(self, state: TierState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        """Return the account (16,), series of the market, its symbols (14 K,) and the positions (3 times K,)."""
        row = state.path * self.tape.num_days + state.day
        rule = partial(self.rule, state=state, params=params)
        account = account_numbers(state, shared["breadth"][row].double(), rule, self.tape.tick_size)
        close, shown, owned = shared["close"][row], shared["shown"][row], self.owned(state, params)
        weight = state.holdings * close / state.portfolio_value.to(torch.float32)
        average = state.average_price.to(torch.float32)
        gain = torch.where(state.holdings > 0, close / average.clamp(min=1e-9) - 1.0, 0.0)
        if owned is not None:
            shown = shown * owned.repeat_interleave(2 + len(self.config.features))
        series = (shared["context"][row],) if self.config.context else ()
        return self.scaled([account, *series, shown, weight, gain, state.days_held], shared)

    def columns(self) -> list[Column]:
        return columns_of(self.config, self.tape.symbols, self.shared.get("column_scale"))

    def items(self, observation: Tensor) -> Items:
        return split_symbols(self.unscaled(observation), self.config, self.tape.num_symbols)

    def action_mask(self, observation: Tensor) -> Tensor | None:
        """Return which discrete choices can have an effect, shape (B, sum of the choices); None for other spaces."""
        if self.config.action != "discrete":
            return None
        return effective_choices(self.unscaled(observation), self.config, self.tape.num_symbols)

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
        record = episode_statistics(self, state, params, shared, reference)
        grades = {}
        for name in names:
            functions = [grade_function(name, tier.seed_grader) for tier in self.tiers]
            # Tiers share grade functions; each is computed once.
            graded = {function: function(record) for function in dict.fromkeys(functions)}
            by_tier = torch.stack([graded[function] for function in functions])
            grades[name] = by_tier[state.rule].to(torch.float32)
        return grades

    def grade_parts(self, state: TierState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        record = in_double(episode_statistics(self, state, params, shared, self.references))
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
